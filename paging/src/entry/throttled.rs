//! Faults that a handler thread has put off: their tasks are past their limits and sleep.
//!
//! The handler takes other faults meanwhile, and resumes each when it is due. A thread has one
//! fault at a time, so it has one place; an earlier fault of the thread, whose page another
//! thread's fault brought, is overwritten. If the kernel does not tell threads apart
//! ([`Feature::ThreadId`](translation::Feature::ThreadId)), a page has one place, for all
//! threads that wait for it; a fault that is resumed too late finds its page resident.
//!
//! Rule: a fault that sleeps holds nothing, neither the domain's gate nor a frame. A fork, the
//! end of a stretch and the end of the handler do not wait for it.

use crate::throttle::{Delay, ThrottleState};
use rate::TimeNs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wired::{PAGE, WiredMemory};

/// Threads that one handler can have throttled. The fault of a further thread is sent back, so
/// that the thread faults again.
const MOST: usize = 4096;

const WORDS: usize = 6;

/// A fault that sleeps.
#[derive(Clone, Copy)]
pub(crate) struct ThrottledFault {
    pub(crate) addr: usize,
    pub(crate) write: bool,
    pub(crate) thread: u32,
    pub(crate) state: ThrottleState,
}

/// The faults, in memory that is never paged.
pub(crate) struct ThrottledQueue {
    words: WiredMemory,
    count: usize,
    /// When the first is due.
    first: TimeNs,
}

impl ThrottledQueue {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            words: WiredMemory::private(MOST * WORDS * size_of::<AtomicU64>())?,
            count: 0,
            first: TimeNs::MAX,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many sleep.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// When the first is due; None if none sleeps.
    pub(crate) fn first_due(&self) -> Option<TimeNs> {
        (self.count > 0).then_some(self.first)
    }

    fn slot(&self, at: usize) -> &[AtomicU64] {
        self.words.slice(at * WORDS * size_of::<AtomicU64>(), WORDS)
    }

    /// Puts a fault off. Returns false if there is no room.
    pub(crate) fn put(&mut self, fault: ThrottledFault, delay: &Delay) -> bool {
        let thread = u64::from(fault.thread) << 1;
        let page = (fault.addr / PAGE) as u64;
        let same = |at: &usize| {
            let slot = self.slot(*at);
            slot[1].load(Relaxed) & !1 == thread
                && (thread != 0 || slot[0].load(Relaxed) / PAGE as u64 == page)
        };
        let at = (0..self.count).find(same).unwrap_or(self.count);
        if at == MOST {
            return false;
        }
        self.count = self.count.max(at + 1);
        let [generation, period, since] = fault.state.words();
        let due = delay.until;
        let addr = fault.addr as u64;
        let words = [
            addr,
            thread | u64::from(fault.write),
            generation,
            period,
            since,
            due,
        ];
        for (word, value) in self.slot(at).iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.first = self.first.min(due);
        true
    }

    /// Takes a fault that is due; all are due if `all`, because the limits have changed.
    pub(crate) fn take_due(&mut self, now: TimeNs, all: bool) -> Option<ThrottledFault> {
        if self.count == 0 || !(all || self.first <= now) {
            return None;
        }
        let due = |at: usize| self.slot(at)[5].load(Relaxed);
        let earliest = (0..self.count).min_by_key(|at| due(*at))?;
        if !all && due(earliest) > now {
            self.first = due(earliest);
            return None;
        }
        let taken = self.read(earliest);
        self.count -= 1;
        for (to, from) in self.slot(earliest).iter().zip(self.slot(self.count)) {
            to.store(from.load(Relaxed), Relaxed);
        }
        if self.count == 0 {
            self.first = TimeNs::MAX;
        }
        Some(taken)
    }

    fn read(&self, at: usize) -> ThrottledFault {
        let mut words = [0; WORDS];
        for (value, word) in words.iter_mut().zip(self.slot(at)) {
            *value = word.load(Relaxed);
        }
        let [addr, thread, generation, period, since, _] = words;
        ThrottledFault {
            addr: addr as usize,
            write: thread & 1 != 0,
            thread: (thread >> 1) as u32,
            state: ThrottleState::from_words([generation, period, since]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(thread: u32, page: usize) -> ThrottledFault {
        ThrottledFault {
            addr: page * PAGE,
            write: true,
            thread,
            state: ThrottleState::default(),
        }
    }

    #[test]
    fn a_thread_has_one_place_and_one_that_is_not_told_apart_one_for_each_page() {
        let mut throttled = ThrottledQueue::new().unwrap();
        let until = Delay::until(5);
        for (thread, page) in [(7, 1), (7, 2), (0, 3), (0, 4), (0, 3), (8, 2)] {
            assert!(throttled.put(fault(thread, page), &until));
        }
        let mut taken = Vec::new();
        while let Some(fault) = throttled.take_due(5, false) {
            taken.push((fault.thread, fault.addr / PAGE));
        }
        taken.sort_unstable();
        assert_eq!(taken, [(0, 3), (0, 4), (7, 2), (8, 2)]);
    }
}
