//! A processor at once for threads whose pages have come.
//!
//! A contract's disk time is worth what a program can do with it: a thread that waits for a
//! processor after each page has its disk idle meanwhile, at its own charge (its laxity). So a
//! thread that faults on pages under a contract has the shortest slice from then on
//! ([`wired::slice`]), as pager threads have: beside eight threads that compute on two processors,
//! in the same session, the largest of figure 7's pagers has 222 Mbit/s instead of 133, and 237 on
//! a quiet machine (`selfpage bench qos --only figure7 --seconds 10`). It has no more processor
//! time than without.

use rate::thread_counters::ThreadKey;
use std::sync::atomic::{AtomicU32, Ordering};

/// Threads remembered at once. One that another has displaced is told again, in two calls.
const REMEMBERED: usize = 64;

/// The threads that have a short slice.
pub(crate) struct PromptThreads {
    /// Whether pages come from a disk whose time is promised.
    contract: bool,
    threads: [AtomicU32; REMEMBERED],
}

impl PromptThreads {
    pub(crate) fn new(contract: bool) -> Self {
        Self {
            contract,
            threads: [const { AtomicU32::new(0) }; REMEMBERED],
        }
    }

    /// Gives a thread that faults a short slice, once. `thread` is its number, or 0 for the calling
    /// thread.
    pub(crate) fn note(&self, key: ThreadKey, thread: i32) {
        if !self.contract {
            return;
        }
        let number = key.number();
        let place = &self.threads[number as usize % REMEMBERED];
        if place.load(Ordering::Relaxed) != number {
            place.store(number, Ordering::Relaxed);
            wired::slice::shorten(thread);
        }
    }
}
