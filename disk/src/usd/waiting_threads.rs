//! The threads that wait for a client's requests: from the disk's thread, which sees them with each
//! request, to the owner, which may have them run before other work.
//!
//! Shared words, so that the disk's thread neither allocates nor wakes the owner: the owner looks
//! when it needs to know. Each word holds a thread, its part, and when it was last seen.
//!
//! Rule: all of it is a client's claim. A client that names a new thread with each request replaces
//! its own entries, and no others.

use crate::time::Time;
use iochannel::ClaimedThreads;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Threads of a client that are remembered: handler threads of a few processors, evictors, and the
/// program's threads that fault at once.
pub const MAX_THREADS: usize = 16;

/// How long a thread keeps its place, at least.
const KEPT_MS: u64 = 100;

const THREAD_BITS: u32 = 32;
const SUBMITTER: u64 = 1 << THREAD_BITS;
const SEEN_SHIFT: u32 = THREAD_BITS + 1;
/// Milliseconds, which wrap after 24 days.
const SEEN_MASK: u64 = u64::MAX >> SEEN_SHIFT;

/// A thread that a client says waits for its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitingThread {
    /// Its number, as the client's process identifies it.
    pub thread: u32,
    /// Whether it submits requests itself: a thread of the pager's, or of a linked program.
    pub submits: bool,
}

/// The threads of one client. Written by the disk's thread.
#[derive(Debug, Default)]
pub struct WaitingThreads([AtomicU64; MAX_THREADS]);

fn millis(now: Time) -> u64 {
    (now.0 / 1_000_000) & SEEN_MASK
}

fn age(word: u64, now: u64) -> u64 {
    now.wrapping_sub(word >> SEEN_SHIFT) & SEEN_MASK
}

impl WaitingThreads {
    /// The threads of a request that was taken.
    pub(super) fn note(&self, now: Time, claimed: ClaimedThreads) {
        let now = millis(now);
        self.note_one(now, u64::from(claimed.submitter) | SUBMITTER);
        if claimed.waiter != claimed.submitter {
            self.note_one(now, claimed.waiter.into());
        }
    }

    fn note_one(&self, now: u64, key: u64) {
        if key & !SUBMITTER == 0 {
            return;
        }
        let all = || self.0.iter().map(|word| (word, word.load(Relaxed)));
        let same = |word: u64| word & (SUBMITTER * 2 - 1) == key;
        let new = key | now << SEEN_SHIFT;
        if let Some((word, old)) = all().find(|&(_, word)| same(word)) {
            if old != new {
                word.store(new, Relaxed);
            }
            return;
        }
        let is_free = |word: u64| word == 0 || age(word, now) >= KEPT_MS;
        if let Some((word, _)) = all().find(|&(_, word)| is_free(word)) {
            word.store(new, Relaxed);
        }
    }

    /// The threads seen within `time` before `now`.
    pub fn seen_within(&self, time: Duration, now: Time) -> impl Iterator<Item = WaitingThread> {
        let now = millis(now);
        let words = self.0.iter().map(|word| word.load(Relaxed));
        words.filter(|&word| word != 0).filter_map(move |word| {
            let age = Duration::from_millis(age(word, now));
            (age <= time).then_some(WaitingThread {
                thread: word as u32,
                submits: word & SUBMITTER != 0,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn claimed(submitter: u32, waiter: u32) -> ClaimedThreads {
        ClaimedThreads { submitter, waiter }
    }

    fn seen(threads: &WaitingThreads, ms: u64, now: u64) -> Vec<(u32, bool)> {
        let time = Duration::from_millis(ms);
        let mut all: Vec<_> = threads.seen_within(time, at(now)).collect();
        all.sort_by_key(|thread| thread.thread);
        all.iter().map(|one| (one.thread, one.submits)).collect()
    }

    #[test]
    fn submitters_and_those_that_wait_behind_them_are_seen_for_a_while() {
        let threads = WaitingThreads::default();
        threads.note(at(5), claimed(7, 9));
        threads.note(at(50), claimed(8, 8));
        threads.note(at(60), claimed(0, 0));
        assert_eq!(seen(&threads, 100, 60), [(7, true), (8, true), (9, false)]);
        assert_eq!(seen(&threads, 20, 60), [(8, true)]);
        threads.note(at(70), claimed(7, 0));
        assert_eq!(seen(&threads, 20, 70), [(7, true), (8, true)]);
    }

    #[test]
    fn a_client_that_names_many_threads_displaces_none_that_was_just_seen() {
        let threads = WaitingThreads::default();
        (1..1000).for_each(|n| threads.note(at(5), claimed(n, n)));
        let first: Vec<_> = (1..=MAX_THREADS as u32).map(|n| (n, true)).collect();
        assert_eq!(seen(&threads, 10, 6), first);
        threads.note(at(5 + KEPT_MS), claimed(5000, 0));
        assert!(seen(&threads, 10, 5 + KEPT_MS).contains(&(5000, true)));
    }

    #[test]
    fn time_that_wraps_makes_nothing_old() {
        let threads = WaitingThreads::default();
        threads.note(at(SEEN_MASK), claimed(7, 0));
        assert_eq!(seen(&threads, 10, SEEN_MASK + 5), [(7, true)]);
        assert_eq!(seen(&threads, 10, SEEN_MASK + 50), []);
    }
}
