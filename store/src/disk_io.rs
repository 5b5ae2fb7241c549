//! A channel's operations on its disk: assigns bloks, moves runs of pages, finishes what was short.

use crate::blok::{BlokAllocator, BlokRun};
use crate::inner::{HolderStore, StoreCounter};
use crate::intent_log::{Intent, end};
use crate::io::op::{IoKind, IoOp, IoStep, PageSlot, RUN};
use crate::io::{IoBackend, MAX_OPS};
use crate::location::Location;
use crate::{Checksum, StoreError};
use iochannel::BitSet;
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;

/// A channel's operations, and the backend that carries them.
pub(crate) struct DiskIo {
    store: HolderStore,
    backend: Box<dyn IoBackend>,
    /// Operations that completed when they were begun, with their results.
    at_once: VecDeque<(usize, i32)>,
    /// Operations that have been in use, with room for all.
    ops: Vec<IoOp>,
    /// Idle operations: `demote_ops` for demotion, then those for the pager's pages.
    idle_ops: BitSet<{ MAX_OPS / 64 }>,
    demote_ops: usize,
    /// The pager's pages in operations.
    pages: usize,
    /// Blok after the last run on disk: the next run goes there if it is free.
    near: Option<u32>,
}

/// Pages of an operation that are finished, with or without an error number.
pub(crate) struct FinishedPages {
    pub kind: IoKind,
    pub error: Option<i32>,
    pages: [(PageSlot, u32); RUN],
    len: usize,
}

impl FinishedPages {
    /// The pages, with their bloks.
    pub fn pages(&self) -> &[(PageSlot, u32)] {
        &self.pages[..self.len]
    }
}

/// The outcome of an attempt to assign a blok to a page.
enum Assignment {
    Assigned,
    /// Another page has the blok.
    Taken,
    /// The page can have none.
    Impossible,
}

impl DiskIo {
    /// For `depth` operations of the pager's pages, and with a tier above those for demotion.
    pub fn new(store: HolderStore, depth: usize) -> Result<Self, StoreError> {
        let (count, demote_ops) = (store.channel_ops(depth), store.demote_ops());
        Ok(Self {
            backend: store.backing.open_backend(count, store.header.inject())?,
            store,
            at_once: VecDeque::with_capacity(count),
            ops: Vec::with_capacity(count),
            idle_ops: (0..count).collect(),
            demote_ops,
            pages: 0,
            near: None,
        })
    }

    /// The pager's pages in operations.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Readable when completions wait that [`DiskIo::is_ready`] does not report; none if there are
    /// no such completions.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backend.poll_fd()
    }

    /// Returns true if a completion waits that happened when its operation was begun.
    pub fn is_ready(&self) -> bool {
        !self.at_once.is_empty()
    }

    /// Returns true if polling for a completion may pay.
    pub fn may_poll(&self) -> bool {
        self.backend.may_poll()
    }

    pub fn set_waiter(&mut self, thread: u32) {
        self.backend.set_waiter(thread);
    }

    pub fn submit(&mut self) {
        self.backend.submit();
    }

    pub fn close(&mut self) {
        self.backend.close();
    }

    /// Assigns a run of bloks to as many of the pages as it covers, and records their locations.
    pub fn take_bloks(&mut self, slots: &[PageSlot], sums: &[Checksum]) -> Option<(u32, usize)> {
        self.assign_run(slots.len(), |store, bloks, at, blok| {
            let (handle, sum) = (slots[at].handle, sums[at]);
            // The entry first: a blok is never owned by an entry without its location.
            store
                .page_index
                .set_location(handle, Location::Disk { blok }, sum);
            if bloks.try_assign(blok, handle) {
                return Assignment::Assigned;
            }
            store
                .page_index
                .set_location(handle, Location::Nowhere, sum);
            Assignment::Taken
        })
    }

    /// Assigns a run of bloks, each recorded as the destination of its page.
    pub fn take_demotion_bloks(&mut self, slots: &mut [PageSlot]) -> Option<(u32, usize)> {
        self.assign_run(slots.len(), |store, bloks, at, blok| {
            let slot = &mut slots[at];
            let intent = Intent::Demote(slot.handle, blok);
            let intents = &store.page_index.intents;
            let Some(word) = intents.begin_long(store.holder, intent) else {
                return Assignment::Impossible;
            };
            if !bloks.try_assign(blok, slot.handle) {
                end(word);
                return Assignment::Taken;
            }
            slot.note = Some(word);
            Assignment::Assigned
        })
    }

    /// Reserves up to `want` adjacent bloks and assigns the first of them, page by page.
    fn assign_run(
        &mut self,
        want: usize,
        mut assign: impl FnMut(&HolderStore, &BlokAllocator, usize, u32) -> Assignment,
    ) -> Option<(u32, usize)> {
        let store = &self.store;
        let bloks = store.bloks.as_ref()?;
        let note = store.page_index.intents.begin(store.holder, store.near());
        loop {
            let run = bloks.reserve(want as u32, self.near, &note)?;
            let (mut assigned, mut taken) = (0, 0);
            while assigned < run.count && taken == 0 {
                match assign(store, bloks, assigned as usize, run.first + assigned) {
                    Assignment::Assigned => assigned += 1,
                    Assignment::Taken => taken = 1,
                    Assignment::Impossible => break,
                }
            }
            bloks.unreserve(BlokRun {
                first: run.first + assigned + taken,
                count: run.count - assigned - taken,
            });
            note.set(Intent::Idle);
            if assigned > 0 {
                self.near = Some(run.first + assigned);
                return Some((run.first, assigned as usize));
            }
            if taken == 0 {
                return None;
            }
        }
    }

    /// Starts an operation on adjacent bloks. Returns false if none is idle.
    pub fn try_start(&mut self, kind: IoKind, first: u32, slots: &[PageSlot]) -> bool {
        let mut range = match kind {
            IoKind::Demote(_) => 0..self.demote_ops,
            IoKind::Read | IoKind::Ahead | IoKind::Write => self.demote_ops..MAX_OPS,
        };
        let Some(op) = range.find(|&op| self.idle_ops.has(op)) else {
            return false;
        };
        self.idle_ops.remove(op);
        // Room is reserved: memory is taken for the operations that were in flight at once.
        while self.ops.len() <= op {
            self.ops.push(IoOp::empty());
        }
        self.ops[op].set(kind, first, slots);
        if !matches!(kind, IoKind::Demote(_)) {
            self.pages += slots.len();
        }
        self.begin(op);
        true
    }

    fn begin(&mut self, at: usize) {
        let op: &mut IoOp = &mut self.ops[at];
        let write = op.is_write();
        let (pieces, offset) = op.remaining();
        // SAFETY: the pieces lie in the operation, which stays until it completes; their memory is
        // the pager's, promised until completion, or the bounce buffer.
        let result = unsafe { self.backend.begin(at, write, pieces, offset) };
        if let Some(result) = result {
            self.at_once.push_back((at, result));
        }
        self.store.count(StoreCounter::Ios, 1);
    }

    /// Handles one completion and returns the pages that it finished, maybe none; with `wait`,
    /// sleeps for it. `None` if there was no completion.
    pub fn reap(&mut self, wait: bool) -> Option<FinishedPages> {
        let (at, result) = match self.at_once.pop_front() {
            Some(completion) => completion,
            None => self.backend.reap(wait)?,
        };
        let op = &mut self.ops[at];
        let mut finished = FinishedPages {
            kind: op.kind,
            error: None,
            pages: [(PageSlot::NONE, 0); RUN],
            len: 0,
        };
        if let IoStep::Finished { count, error } = op.advance(result) {
            let ended = op.report(count, |slot, blok| {
                finished.pages[finished.len] = (slot, blok);
                finished.len += 1;
            });
            finished.error = error;
            if error.is_some() {
                self.store.count(StoreCounter::IoErrors, 1);
            }
            if !matches!(finished.kind, IoKind::Demote(_)) {
                self.pages -= finished.len;
            }
            if ended {
                self.idle_ops.insert(at);
                return Some(finished);
            }
        }
        self.begin(at);
        self.submit();
        Some(finished)
    }
}
