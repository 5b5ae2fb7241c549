//! The disk's thread's way to the objects of a store.
//!
//! | what happens | reads | writes |
//! |---|---|---|
//! | the store does not answer, or asks for patience | are tried again for [`PATIENCE`], then `ETIMEDOUT` | likewise |
//! | it refuses | `EIO` | `EIO`, or `ENOSPC` where it has no room |
//! | an answer says that an object is gone, short, or not what was written | are tried again for a second, then `EIO` | |
//! | a page moves while it is read | go to its new place | |
//!
//! Writes that arrive while [`MAX_WRITES`] segments are under way become the next segment, so that there are few and
//! large ones where the store is slow.

use crate::deletion::Deletions;
use crate::gather::{Gather, GatherQueue};
use crate::operations::{Ended, Operations, errno_of};
use crate::page_table::{PagePlace, PageTable};
use crate::parts::Parts;
use crate::refused_writes::RefusedWrites;
use crate::segments::{SegmentNumber, Segments};
use crate::waiting_parts::{Lane, WaitingParts};
use disk::time::Time;
use disk::usd::{PartId, Transport};
use iochannel::{IoVec, Op};
use objectstore::{ObjectError, ObjectStore, Written};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use wired::PAGE;

/// How long an operation may take, with all its attempts: as long as remote memory is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Segments that are written at once.
const MAX_WRITES: usize = 4;
/// A segment that is being written.
pub(crate) struct SegmentWrite {
    gather: Gather,
    /// Where its pages were, if cleaning moves them.
    moved_from: Option<Vec<PagePlace>>,
}

/// The writes of a page that are under way.
#[derive(Debug)]
struct PendingPage {
    writes: u32,
    /// The latest one that has ended well.
    placed: SegmentNumber,
}

/// Pages of one swap space in an object store.
pub struct ObjectTransport {
    pub(crate) operations: Operations,
    pub(crate) table: Arc<PageTable>,
    pub(crate) segments: Segments,
    /// The segment that is being cleaned.
    pub(crate) cleaning: Option<SegmentNumber>,
    waiting: GatherQueue,
    pub(crate) writes: BTreeMap<SegmentNumber, SegmentWrite>,
    pending: HashMap<u32, PendingPage>,
    pub(crate) parts: Parts,
    waiting_parts: WaitingParts,
    pub(crate) free_slots: Vec<usize>,
    /// Where each segment is named.
    pub(crate) slots: HashMap<u64, usize>,
    pub(crate) deletions: Deletions,
    refused: RefusedWrites,
    in_flight: usize,
    pub(crate) done: VecDeque<(PartId, i32)>,
}

impl ObjectTransport {
    /// Goes on with the pages of a table, if there are any.
    pub fn new(store: ObjectStore, table: Arc<PageTable>) -> rustix::io::Result<Self> {
        let mut live: BTreeMap<SegmentNumber, Vec<(u32, u32)>> = BTreeMap::new();
        for page in 0..table.len() as u32 {
            if let Some(place) = table.place(page) {
                let pages = live.entry(place.segment).or_default();
                pages.push((place.index, page));
            }
        }
        let mut segments = Segments::default();
        for (number, pages) in live {
            let count = pages.iter().map(|(index, _)| index + 1).max().unwrap_or(0);
            let mut all = vec![u32::MAX; count as usize].into_boxed_slice();
            for (index, page) in &pages {
                all[*index as usize] = *page;
            }
            segments.begin(number, all);
            pages.iter().for_each(|_| segments.place(number, None));
            segments.complete(number);
        }
        let (mut free_slots, mut slots, mut left) = (Vec::new(), HashMap::new(), Vec::new());
        for (slot, segment) in table.named_segments() {
            match segment {
                Some(segment) => {
                    _ = slots.insert(segment.0, slot);
                    left.extend(segments.pages(segment).is_empty().then_some(segment));
                }
                None => free_slots.push(slot),
            }
        }
        free_slots.reverse();
        Ok(Self {
            operations: Operations::new(store, table.folder())?,
            table,
            segments,
            cleaning: None,
            waiting: GatherQueue::default(),
            writes: BTreeMap::new(),
            pending: HashMap::new(),
            parts: Parts::default(),
            waiting_parts: WaitingParts::default(),
            free_slots,
            slots,
            deletions: Deletions::of_left(left),
            refused: RefusedWrites::default(),
            in_flight: 0,
            done: VecDeque::new(),
        })
    }

    /// Writes a segment.
    pub(crate) fn begin_write(&mut self, mut gather: Gather, moved_from: Option<Vec<PagePlace>>) {
        let Some(slot) = self.free_slots.pop() else {
            if moved_from.is_some() {
                self.end_cleaning();
            }
            self.begin_deletions();
            let full = -Errno::NOSPC.raw_os_error();
            let parts = gather.parts.iter().map(|part| (part.id, full));
            return self.done.extend(parts);
        };
        let number = self.table.next_segment();
        self.table.name_segment(slot, number);
        self.slots.insert(number.0, slot);
        self.segments
            .begin(number, gather.places().to_vec().into_boxed_slice());
        if moved_from.is_none() {
            for (_, page) in gather.pages() {
                let pending = self.pending.entry(page).or_insert(PendingPage {
                    writes: 0,
                    placed: SegmentNumber(0),
                });
                pending.writes += 1;
            }
        }
        let bytes = std::mem::take(&mut gather.bytes);
        self.operations.write(number, bytes);
        let write = SegmentWrite { gather, moved_from };
        self.writes.insert(number, write);
    }

    /// A segment was written, or was not.
    fn on_written(&mut self, number: SegmentNumber, result: Result<Written, ObjectError>) {
        let Some(write) = self.writes.remove(&number) else {
            return;
        };
        if self.operations.may_arrive_later(&result) {
            self.deletions.on_given_up(number);
        }
        let error = result.err().map(|why| {
            self.refused.on_refused(write.gather.places().len(), &why);
            errno_of(&why)
        });
        match &write.moved_from {
            Some(from) => {
                if error.is_none() {
                    self.move_pages(number, &write.gather, from);
                }
                self.end_cleaning();
            }
            None => self.place_pages(number, &write.gather, error.is_none()),
        }
        self.segments.complete(number);
        if error.is_none() {
            self.refused.on_written();
            if write.moved_from.is_none() {
                self.segments.count_written();
            }
            self.begin_deletions();
        }
        let parts = write.gather.parts.iter().map(|part| {
            let result = error.map_or(part.bytes(), |errno| -errno.raw_os_error());
            (part.id, result)
        });
        self.done.extend(parts);
    }

    /// Of two writes of a page that are under way the later one counts, whichever ends first.
    fn place_pages(&mut self, number: SegmentNumber, gather: &Gather, is_written: bool) {
        for (index, page) in gather.pages() {
            let Some(pending) = self.pending.get_mut(&page) else {
                continue;
            };
            pending.writes -= 1;
            // Where both are in this segment, too.
            if is_written && number >= pending.placed {
                pending.placed = number;
                let place = PagePlace {
                    segment: number,
                    index: index as u32,
                };
                let earlier = self.table.set(page, place, gather.hashes[index]);
                let earlier = earlier.map(|earlier| earlier.segment);
                self.segments.place(number, earlier);
            }
            if pending.writes == 0 {
                self.pending.remove(&page);
            }
        }
    }

    /// Ends a part whose segment is being written: its pages are not placed when it is there.
    fn give_up_begun(&mut self, id: PartId) -> bool {
        let mut writes = self.writes.values_mut();
        let Some(pages) = writes.find_map(|write| write.gather.give_up(id)) else {
            return false;
        };
        for page in pages {
            let pending = self.pending.get_mut(&page);
            if pending.is_some_and(|pending| {
                pending.writes -= 1;
                pending.writes == 0
            }) {
                self.pending.remove(&page);
            }
        }
        true
    }

    fn move_pages(&mut self, number: SegmentNumber, gather: &Gather, from: &[PagePlace]) {
        for ((index, page), from) in gather.pages().zip(from) {
            if self.table.place(page) == Some(*from) {
                let place = PagePlace {
                    segment: number,
                    index: index as u32,
                };
                self.table.move_to(page, place);
                self.segments.place(number, Some(from.segment));
            }
        }
    }

    pub(crate) fn on_ended(&mut self, ended: Ended) {
        match ended {
            Ended::Read(run, result) => self.on_read(run, result),
            Ended::Written(number, result) => self.on_written(number, result),
            Ended::Deleted(number, result) => self.on_deleted(number, result),
            Ended::ReadToClean(number, result) => self.on_read_to_clean(number, result),
        }
        self.delete_dead();
    }
}

impl Transport for ObjectTransport {
    unsafe fn start(&mut self, now: Time, id: PartId, op: Op, _: u32, pieces: &[IoVec], at: u64) {
        self.in_flight += 1;
        let lane = match op {
            Op::Read => Lane::Reads,
            Op::Write => Lane::Others,
        };
        self.waiting_parts.on_started(id, lane, now);
        let first = (at / PAGE as u64) as u32;
        match op {
            // SAFETY: by the contract of `start`.
            Op::Write => unsafe { self.waiting.push(id, first, pieces) },
            Op::Read => {
                let count: usize = pieces.iter().map(|piece| piece.len / PAGE).sum();
                // SAFETY: by the contract of `start`.
                let part = unsafe { self.parts.add(id, pieces) };
                self.read(part, 0, first, count as u32);
                self.done.extend(self.parts.end_run(part, None));
            }
        }
    }

    fn flush(&mut self, _: Time) {
        self.clean();
        let is_held_up = self.cleaning.is_some() && self.segments.is_overfull();
        while self.writes.len() < MAX_WRITES && !is_held_up {
            match self.waiting.pop() {
                Some(gather) => self.begin_write(gather, None),
                None => break,
            }
        }
    }

    fn give_up(&mut self, _: Time, id: PartId) {
        if self.waiting.give_up(id) || self.give_up_begun(id) {
            self.done.push_back((id, -Errno::TIMEDOUT.raw_os_error()));
        }
    }

    fn forget(&mut self, _: u32, page: u64) -> bool {
        if let Some(place) = self.table.clear(page as u32) {
            self.segments.remove(place.segment);
            self.delete_dead();
        }
        true
    }

    fn reap(&mut self, now: Time) -> Option<(PartId, i32)> {
        self.delete_left(now);
        while self.done.is_empty() {
            let Some(ended) = self.operations.next() else {
                self.waiting_parts.check(now);
                return None;
            };
            if ended.is_answer() {
                self.waiting_parts.on_answer(ended.lane(), now);
            }
            self.on_ended(ended);
        }
        let (id, result) = self.done.pop_front()?;
        self.in_flight -= 1;
        self.waiting_parts.on_ended(id);
        Some((id, result))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.operations.fd()
    }

    fn next_due(&self) -> Option<Time> {
        let waiting = self.waiting_parts.due().into_iter();
        let due = waiting.chain(self.deletions.left_due()).min();
        match self.done.is_empty() {
            true => due,
            false => Some(Time(0)),
        }
    }

    fn next_waiting(&mut self) -> Option<PartId> {
        self.waiting_parts.next()
    }
}
