//! The gate of a range: many threads may be inside, or one has it closed.
//!
//! Threads that publish filled pages enter; a thread that takes the range's pages away closes
//! the gate. Rule: a thread inside waits for nothing that needs a closer, and signals whose
//! handlers could fault on a stretch are blocked inside: a second entry by the same thread
//! would wait for a closer that waits for the first.

use super::event::{AtomicU32, WordEvent};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

const CLOSED: u32 = 1 << 31;
/// A thread sleeps until the word changes.
const WAITERS: u32 = 1 << 30;
const INSIDE: u32 = WAITERS - 1;

/// One word: how many threads are inside, and whether it is closed. All-zero memory is an open
/// gate.
#[derive(Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct RangeGate {
    word: AtomicU32,
    event: WordEvent,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RangeGate>() == 4);

impl RangeGate {
    /// Enters; waits while the gate is closed.
    pub fn enter(&self) {
        while !self.try_enter() {
            self.sleep(|word| word & CLOSED != 0);
        }
    }

    /// Enters unless the gate is closed, or closing. Returns true if it entered.
    pub fn try_enter(&self) -> bool {
        let enter = |word: u32| (word & CLOSED == 0).then_some(word + 1);
        self.word.fetch_update(Acquire, Relaxed, enter).is_ok()
    }

    /// Returns true if the gate is closed, or closing.
    pub fn closing(&self) -> bool {
        self.word.load(Relaxed) & CLOSED != 0
    }

    /// Ends one [`RangeGate::enter`].
    pub fn leave(&self) {
        let before = self.word.fetch_sub(1, AcqRel);
        debug_assert_ne!(before & INSIDE, 0, "leaving without entering");
        if before & CLOSED != 0 && before & INSIDE == 1 {
            self.wake();
        }
    }

    /// Keeps all threads out and waits until the gate is empty.
    pub fn close(&self) {
        let close = |word: u32| (word & CLOSED == 0).then_some(word | CLOSED);
        while self.word.fetch_update(Acquire, Relaxed, close).is_err() {
            self.sleep(|word| word & CLOSED != 0);
        }
        while self.word.load(Acquire) & INSIDE != 0 {
            self.sleep(|word| word & INSIDE != 0);
        }
    }

    /// Closes the gate, unless a thread is inside or keeps it closed, which may be stopped for any time. Returns true if it did.
    pub fn try_close(&self) -> bool {
        let close = |word: u32| (word & (CLOSED | INSIDE) == 0).then_some(word | CLOSED);
        self.word.fetch_update(Acquire, Relaxed, close).is_ok()
    }

    /// Ends one [`RangeGate::close`].
    pub fn open(&self) {
        let before = self.word.fetch_and(!CLOSED, AcqRel);
        debug_assert_ne!(before & CLOSED, 0, "opening what is open");
        if before & WAITERS != 0 {
            self.wake();
        }
    }

    /// Sleeps until the word changes, if `wait` returns true for it.
    fn sleep(&self, wait: impl Fn(u32) -> bool) {
        let now = self.word.load(Relaxed);
        if !wait(now) {
            return;
        }
        let asleep = now | WAITERS;
        if now == asleep
            || self
                .word
                .compare_exchange(now, asleep, AcqRel, Relaxed)
                .is_ok()
        {
            self.event.wait32(&self.word, asleep);
        }
    }

    fn wake(&self) {
        if self.word.fetch_and(!WAITERS, AcqRel) & WAITERS != 0 {
            self.event.wake_all32(&self.word);
        }
    }
}
