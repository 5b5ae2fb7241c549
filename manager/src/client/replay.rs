//! The replay of a working set: pages come in before they fault.
//!
//! Faults of guests are rarely sequential, but the set of pages repeats from one restore to the next.
//! So the set is sorted and comes in as the largest runs, a piece between two looks at the queue:
//! a demand fault waits for one piece at most.

use super::pager::ClientPager;
use crate::memory_object::{DataReply, MemoryObject, PageName};
use crate::page_table::PageState;
use crate::snapshot::Readiness;
use selfpage::WorkingSet;
use std::ops::Range;
use translation::MapError;
use wired::PAGE;

/// Bytes of a piece at most.
const PIECE: usize = 1 << 20;

/// What is still to come in.
pub(super) struct Replay {
    runs: Vec<Range<usize>>,
    at: usize,
    is_waiting: bool,
}

impl Replay {
    /// The pages of `set`, 4 KiB each by their offsets in the snapshot, that the client has.
    pub fn new(set: &WorkingSet, pager: &ClientPager) -> Self {
        let table = &pager.table;
        let offsets = set.runs().flatten().map(|page| (page * PAGE) as u64);
        let mut pages: Vec<usize> = offsets.filter_map(|at| table.page_of_offset(at)).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                // In one mapping: the next one's pages may have the next numbers.
                Some(run) if run.end == page && table.follows(page) => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        Self {
            runs,
            at: 0,
            is_waiting: false,
        }
    }

    /// Asks for all of it to be read ahead.
    pub fn prefetch(&self, pager: &ClientPager) {
        let (Some(origin), table) = (&pager.origin, &pager.table) else {
            return;
        };
        let ranges = self.runs.iter().map(|run| {
            let start = table.offset(run.start);
            start..start + (run.len() * table.page_size()) as u64
        });
        origin.prefetch(ranges);
    }

    /// Returns true if the next pages are on their way from the snapshot's store.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The next pages, neighbours of one mapping.
    fn next(&self, most: usize) -> Option<Range<usize>> {
        let run = self.runs.get(self.at)?;
        Some(run.start..run.end.min(run.start + most))
    }

    /// The pages of the current run up to this one are dealt with.
    fn advance(&mut self, to: usize) {
        if let Some(run) = self.runs.get_mut(self.at) {
            run.start = to;
            self.at += usize::from(run.start >= run.end);
        }
    }

    /// Brings a piece in. Returns false after the last, or where the store fails.
    pub fn step(&mut self, pager: &mut ClientPager) -> bool {
        self.is_waiting = false;
        // The last quarter of the frames is for demand faults.
        let frames = pager.contract.as_ref();
        let room = frames.map_or(usize::MAX, |it| {
            (it.frames / 4 * 3).saturating_sub(pager.table.resident())
        });
        let most = (PIECE / pager.table.page_size()).max(1).min(room);
        if most == 0 {
            return false;
        }
        let Some(piece) = self.next(most) else {
            return false;
        };
        // A part at a time: pages that are there already, and holes of the snapshot, end a run.
        let mut page = piece.start;
        while page < piece.end {
            let ready = |page: &usize| pager.table.get(*page) == PageState::Origin;
            let len = (page..piece.end).take_while(ready).count();
            if len == 0 {
                page += 1;
                continue;
            }
            match replay_run(pager, page..page + len) {
                Ok(dealt_with) => page += dealt_with.max(1),
                // The rest when it has arrived.
                Err(ReplayEnd::Pending) => {
                    self.is_waiting = true;
                    break;
                }
                Err(ReplayEnd::Failed) => return false,
            }
        }
        self.advance(page);
        true
    }
}

/// Why no page of a run is brought in.
enum ReplayEnd {
    /// The first is on its way from the snapshot's store.
    Pending,
    /// The store does not have it: faults have the error, and ask for others.
    Failed,
}

/// Brings in pages that are in the origin; returns how many were dealt with.
fn replay_run(pager: &mut ClientPager, run: Range<usize>) -> Result<usize, ReplayEnd> {
    let size = pager.table.page_size();
    let name = PageName {
        offset: pager.table.offset(run.start),
        copy: None,
    };
    let Some(origin) = &mut pager.origin else {
        return Ok(run.len());
    };
    match origin.request(name.offset, size) {
        Readiness::Pending => return Err(ReplayEnd::Pending),
        Readiness::Failed => return Err(ReplayEnd::Failed),
        Readiness::Ready => {}
    }
    let DataReply::Provided(from) = origin.data_request(name, size) else {
        return Ok(1);
    };
    // Neighbours in the client's memory and in one file of the snapshot.
    let provided = |page: &usize| {
        let within = (page - run.start) * size;
        let name = PageName {
            offset: name.offset + within as u64,
            copy: None,
        };
        origin.has(name.offset, size)
            && origin.data_request(name, size) == DataReply::Provided(from.wrapping_add(within))
    };
    let len = run.clone().take_while(provided).count();
    let addr = pager.table.addr(run.start);
    for page in run.start..run.start + len {
        pager.table.begin_move(page);
    }
    let memory = &pager.memory;
    let copied = memory.place_run(&pager.uffd, addr, from, name.offset, len * size);
    let (done, dealt_with) = match copied {
        Ok(()) => (len, len),
        // The next page is there already, or an event comes first: its own fault brings it.
        Err(why @ (MapError::Exists { .. } | MapError::Again { .. })) => {
            (why.done() / size, why.done() / size + 1)
        }
        Err(_) => (0, run.len()),
    };
    for page in run.start..run.start + len {
        match page < run.start + done {
            true => pager.set_resident(page, PageState::ResidentOrigin),
            false => pager.table.end_move(page),
        }
    }
    pager.counters.replayed_pages.add(done);
    Ok(dealt_with)
}
