//! A channel's operations on the swap file: writes pages in runs, handles completions.

use crate::channel::StoreChannel;
use crate::inner::StoreCounter;
use crate::intent_log::Intent;
use crate::io::op::{IoKind, IoOp, IoStep, PageSlot, RUN};
use crate::io::{IoCompletion, MAX_OPS};
use crate::location::Location;
use crate::traits::page;
use crate::{Checksum, StoreError};

impl StoreChannel {
    /// Queues a page for disk, together with those before it.
    pub(crate) fn send_out(&mut self, slot: PageSlot, sum: Checksum) {
        let out = &mut self.outgoing;
        out.slots[out.len] = slot;
        out.sums[out.len] = sum;
        out.len += 1;
        if out.len == RUN {
            self.flush_outgoing();
        }
    }

    /// Assigns bloks to the queued pages and starts their operations.
    pub(crate) fn flush_outgoing(&mut self) {
        let count = std::mem::take(&mut self.outgoing.len);
        let mut done = 0;
        while done < count {
            let slots = self.outgoing.slots;
            let sums = self.outgoing.sums;
            match self.take_bloks(&slots[done..count], &sums[done..count]) {
                Some((first, taken)) => {
                    self.start(IoKind::Write, first, &slots[done..done + taken]);
                    done += taken;
                }
                None => break,
            }
        }
        for at in done..count {
            let (slot, sum) = (self.outgoing.slots[at], self.outgoing.sums[at]);
            self.disk_is_full(slot, sum);
        }
    }

    /// Assigns a run of bloks to as many of the slots as it covers.
    fn take_bloks(&mut self, slots: &[PageSlot], sums: &[Checksum]) -> Option<(u32, usize)> {
        let Some(bloks) = &self.inner.bloks else {
            return None;
        };
        let page_index = &self.inner.page_index;
        let note = page_index.intents.begin(self.holder, self.shard.near());
        loop {
            let run = bloks.reserve(slots.len() as u32, self.near, &note)?;
            let mut taken = 0;
            for ((blok, slot), sum) in (run.first..run.first + run.count).zip(slots).zip(sums) {
                // The entry first: a blok is never owned by an entry without its location.
                page_index.set_location(slot.handle, Location::Disk { blok }, *sum);
                if !bloks.try_assign(blok, slot.handle) {
                    page_index.set_location(slot.handle, Location::Nowhere, *sum);
                    break;
                }
                taken += 1;
            }
            let rest = run.first + taken + 1;
            if taken < run.count && rest < run.first + run.count {
                let count = run.first + run.count - rest;
                bloks.unreserve(crate::blok::BlokRun { first: rest, count });
            }
            note.set(Intent::Idle);
            if taken > 0 {
                self.near = Some(run.first + taken);
                return Some((run.first, taken as usize));
            }
        }
    }

    /// The disk has no room for the page: it may stay in RAM as it is, if RAM has some.
    fn disk_is_full(&mut self, slot: PageSlot, sum: Checksum) {
        // SAFETY: the caller of submit leaves the memory unchanged until completion.
        let contents = unsafe { page(slot.memory) };
        if self.inner.has_ram() && self.put_in_ram(slot.handle, contents, None, sum) {
            self.complete_stored(slot.handle, slot.token);
        } else {
            self.complete_failed(slot.handle, slot.token, StoreError::Full);
        }
    }

    /// Starts an operation on adjacent bloks, when one is idle.
    pub(crate) fn start(&mut self, kind: IoKind, first: u32, slots: &[PageSlot]) {
        let op = loop {
            if let Some(op) = self.idle_op(kind) {
                break op;
            }
            self.submit_ops();
            if !self.reap(true) {
                // Unreachable: every operation that is not idle is in flight.
                return;
            }
        };
        self.idle_ops[op / 64] &= !(1 << (op % 64));
        // Room is reserved: memory is taken for the operations that were in flight at once.
        while self.ops.len() <= op {
            self.ops.push(IoOp::empty());
        }
        self.ops[op].set(kind, first, slots);
        if !matches!(kind, IoKind::Demote(_)) {
            self.in_ops += slots.len();
        }
        self.begin(op);
    }

    fn idle_op(&self, kind: IoKind) -> Option<usize> {
        let range = match kind {
            IoKind::Demote(_) => 0..self.demote_ops,
            IoKind::Read | IoKind::Ahead | IoKind::Write => self.demote_ops..MAX_OPS,
        };
        range
            .into_iter()
            .find(|op| self.idle_ops[op / 64] & 1 << (op % 64) != 0)
    }

    fn begin(&mut self, at: usize) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        let op: &mut IoOp = &mut self.ops[at];
        let write = op.is_write();
        let (pieces, offset) = op.remaining();
        // SAFETY: the pieces lie in the operation, which stays until it completes; their memory is
        // the pager's, promised until completion, or the bounce buffer.
        unsafe { engine.begin(at, write, pieces, offset) };
        self.count(StoreCounter::Ios, 1);
    }

    pub(crate) fn submit_ops(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.submit();
        }
    }

    /// Handles one completion; with `wait`, sleeps for it. Returns false if there was none.
    pub(crate) fn reap(&mut self, wait: bool) -> bool {
        let Some(over) = self.engine.as_mut().and_then(|engine| engine.reap(wait)) else {
            return false;
        };
        self.on_io_completion(over);
        true
    }

    fn on_io_completion(&mut self, over: IoCompletion) {
        let op = &mut self.ops[over.op];
        if over.flip && over.result > 0 {
            // SAFETY: a page of the operation's memory; the operation is complete.
            unsafe { *op.memory() ^= 1 };
        }
        let (count, error) = match op.advance(over.result) {
            IoStep::GoOn => {
                self.begin(over.op);
                return self.submit_ops();
            }
            IoStep::Finished { count, error } => (count, error),
        };
        let kind = op.kind;
        let mut told = [(PageSlot::new(0, std::ptr::null_mut(), 0), 0); RUN];
        let mut len = 0;
        let ended = op.report(count, |slot, blok| {
            told[len] = (slot, blok);
            len += 1;
        });
        if error.is_some() {
            self.count(StoreCounter::IoErrors, 1);
        }
        for &(slot, blok) in &told[..len] {
            match kind {
                IoKind::Read | IoKind::Ahead => self.was_read(kind, slot, blok, error),
                IoKind::Write => self.was_written(slot, blok, error),
                IoKind::Demote(half) => self.was_demoted(half, slot, blok, error),
            }
        }
        if !matches!(kind, IoKind::Demote(_)) {
            self.in_ops -= len;
        }
        if ended {
            self.idle_ops[over.op / 64] |= 1 << (over.op % 64);
        } else {
            self.begin(over.op);
            self.submit_ops();
        }
    }

    fn was_written(&mut self, slot: PageSlot, blok: u32, error: Option<i32>) {
        let Some(errno) = error else {
            self.inner.page_index.publish(slot.handle);
            return self.complete_stored(slot.handle, slot.token);
        };
        if let Some(bloks) = &self.inner.bloks {
            bloks.free(blok, slot.handle);
        }
        let error = StoreError::Io {
            op: crate::DiskOp::Write,
            errno,
            blok,
        };
        self.complete_failed(slot.handle, slot.token, error);
    }
}
