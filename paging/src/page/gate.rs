//! The gate of a range: many threads may be inside, or one has it closed.
//!
//! Threads that publish filled pages enter; a thread that takes the range's pages away closes
//! the gate. Rule: a thread inside waits for nothing that needs a closer, and signals whose
//! handlers could fault on a stretch are blocked inside: a second entry by the same thread
//! would wait for a closer that waits for the first.
//!
//! A thread of the program that has the gate closed may be stopped there for any time, by SIGSTOP or by a tracer, which reads
//! other pages of the range meanwhile. So before a system call it names the pages that it takes away
//! ([`RangeGate::admit_beside`]), and threads that publish others enter.

#[cfg(all(loom, test))]
mod interleavings;

use super::event::{AtomicU32, WordEvent};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

const CLOSED: u32 = 1 << 31;
/// A thread sleeps until the word changes.
const WAITERS: u32 = 1 << 30;
/// It is closed for the pages that it names.
const BESIDE: u32 = 1 << 29;
const INSIDE: u32 = BESIDE - 1;

/// How many threads are inside, whether it is closed, and for which pages. All-zero memory is an open
/// gate.
#[derive(Default)]
#[cfg_attr(not(loom), repr(C))]
pub struct RangeGate {
    word: AtomicU32,
    /// The pages that are taken away, where the word has [`BESIDE`]: the first, and in the upper half the one after the last.
    taken: AtomicU32,
    event: WordEvent,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RangeGate>() == 8);

impl RangeGate {
    /// Enters; waits while the gate is closed.
    pub fn enter(&self) {
        while !self.try_enter() {
            self.sleep(|word| word & CLOSED != 0);
        }
    }

    /// Enters to publish some pages of the range; waits while the gate is closed for one of them.
    pub fn enter_for(&self, pages: &Range<usize>) {
        self.enter_for_all_or(pages, pages);
    }

    /// Enters to publish all of some pages, or one part of them where the gate is closed for the others alone. Returns true if
    /// it is for all.
    pub fn enter_for_all_or(&self, all: &Range<usize>, part: &Range<usize>) -> bool {
        loop {
            if self.try_enter() || self.try_enter_beside(all) {
                return true;
            }
            if self.try_enter_beside(part) {
                return false;
            }
            let is_admitted = |word| word & BESIDE != 0 && !self.takes_away(part);
            self.sleep(|word| word & CLOSED != 0 && !is_admitted(word));
        }
    }

    fn try_enter_beside(&self, pages: &Range<usize>) -> bool {
        let enter = |word: u32| (word & BESIDE != 0).then_some(word + 1);
        if self.takes_away(pages) || self.word.fetch_update(AcqRel, Acquire, enter).is_err() {
            return false;
        }
        // Another thread may have closed it since, and have named others.
        let is_admitted = !self.takes_away(pages);
        if !is_admitted {
            self.leave();
        }
        is_admitted
    }

    /// Returns true if one of these pages is among those that were named last.
    fn takes_away(&self, pages: &Range<usize>) -> bool {
        let taken = self.taken.load(Acquire);
        let (first, end) = ((taken & 0xffff) as usize, (taken >> 16) as usize);
        pages.start < end && first < pages.end
    }

    /// The closer takes these pages of the range away, which has 512 at most: threads that publish others may enter, until it
    /// opens the gate.
    pub fn admit_beside(&self, taken: &Range<usize>) {
        debug_assert!(taken.end <= 512);
        self.taken
            .store((taken.start | taken.end << 16) as u32, Relaxed);
        if self.word.fetch_or(BESIDE, AcqRel) & WAITERS != 0 {
            self.wake();
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
        let before = self.word.fetch_and(!(CLOSED | BESIDE), AcqRel);
        debug_assert_ne!(before & CLOSED, 0, "opening what is open");
        if before & WAITERS != 0 {
            self.wake();
        }
    }

    /// Sleeps until the word changes, if `wait` returns true for it.
    fn sleep(&self, wait: impl Fn(u32) -> bool) {
        let now = self.word.load(Acquire);
        if !wait(now) {
            return;
        }
        let asleep = now | WAITERS;
        if now == asleep
            || self
                .word
                .compare_exchange(now, asleep, AcqRel, Relaxed)
                .is_ok()
                // It may have been closed anew meanwhile, for other pages.
                && wait(self.word.load(Acquire))
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
