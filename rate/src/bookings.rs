//! The booking of each of one process's threads, a word each: the period in which its suspended fault is handled.
//!
//! A signal interrupts a thread that is suspended in a fault. The thread faults again, at the same page or, in its signal
//! handler, at another one, and that is a new fault to the pager. Without these words it would book a period anew and leave
//! its booking behind, which would keep the faults of all threads of the tree waiting: a timer's signals can come as fast as
//! the tree may fault. So a booking belongs to a thread, which has one fault at a time: the thread's next fault takes the
//! booking over, and an earlier fault that is still suspended has no booking any more.
//!
//! Where all words that a thread may use hold bookings of other threads, its booking is in its fault's token alone.

use crate::limiter::ChargeToken;
use crate::thread_counters::{ID_BITS, ThreadKey, checked};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GENERATION_BITS: u32 = 6;
const PERIOD_BITS: u32 = 36;
const _: () = assert!(ID_BITS + GENERATION_BITS + PERIOD_BITS == 64);

/// The period of a booking that was used.
const USED: u64 = (1 << PERIOD_BITS) - 1;

/// The bookings' words.
#[derive(Clone, Copy)]
pub struct Bookings<'a>(&'a [AtomicU64]);

fn pack(key: ThreadKey, generation: u32, period: u64) -> u64 {
    let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
    let number = u64::from(key.number());
    number << (GENERATION_BITS + PERIOD_BITS) | generation << PERIOD_BITS | period & USED
}

fn key_of(word: u64) -> u32 {
    (word >> (GENERATION_BITS + PERIOD_BITS)) as u32
}

impl<'a> Bookings<'a> {
    /// Bookings in `words`, which are zero at first: no thread has a booking.
    ///
    /// # Panics
    /// Where there are fewer than `MAX_PROBES`, or not a power of two of them.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self(checked(words))
    }

    fn word_of(self, key: ThreadKey) -> Option<&'a AtomicU64> {
        let mut words = key.words_of(self.0);
        words.find(|word| key_of(word.load(Relaxed)) == key.number())
    }

    /// The token of a thread's new fault, under the limits of a generation: the booking of the thread's fault before, if a
    /// signal has interrupted that fault.
    pub fn token(self, key: ThreadKey, generation: u32) -> Option<ChargeToken> {
        let word = self.word_of(key)?.load(Relaxed);
        let period = word & USED;
        let is_live = period != USED && word == pack(key, generation, period);
        is_live.then(|| ChargeToken::from_words([generation.into(), period]))
    }

    /// Returns true if a suspended fault is not its thread's last one: a later fault has, or had, the booking.
    pub fn is_stale(self, key: ThreadKey, token: ChargeToken) -> bool {
        let [generation, period] = token.words();
        let word = self.word_of(key);
        let own = pack(key, generation as u32, period);
        word.is_some_and(|word| word.load(Relaxed) != own)
    }

    /// Records that a thread's fault is suspended with this token.
    pub fn book(self, key: ThreadKey, token: ChargeToken, now: u64) {
        let [generation, period] = token.words();
        // A booking of a period that is over belongs to a thread that has ended.
        let is_free = |word: &&AtomicU64| {
            let period = word.load(Relaxed) & USED;
            period == USED || period < now & USED
        };
        let word = self
            .word_of(key)
            .or_else(|| key.words_of(self.0).find(is_free));
        if let Some(word) = word {
            word.store(pack(key, generation as u32, period), Relaxed);
        }
    }

    /// Records that a thread's fault is handled: its booking is used up.
    pub fn end(self, key: ThreadKey) {
        if let Some(word) = self.word_of(key) {
            word.store(pack(key, 0, USED), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_counters::MAX_PROBES;

    fn token(generation: u64, period: u64) -> ChargeToken {
        ChargeToken::from_words([generation, period])
    }

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_new_fault_takes_over_the_booking_of_its_thread_and_the_fault_before_is_stale() {
        let words = words(64);
        let bookings = Bookings::new(&words);
        let (one, other) = (ThreadKey::new(7), ThreadKey::new(8));
        assert_eq!(bookings.token(one, 3), None);
        bookings.book(one, token(3, 20), 10);
        assert_eq!(bookings.token(one, 3), Some(token(3, 20)));
        assert_eq!(bookings.token(one, 4), None, "the limits have changed");
        assert_eq!(bookings.token(other, 3), None);
        assert!(!bookings.is_stale(one, token(3, 20)));
        assert!(bookings.is_stale(one, token(3, 19)));
        bookings.end(one);
        assert_eq!(bookings.token(one, 3), None);
        assert!(bookings.is_stale(one, token(3, 20)), "it was used");
    }

    #[test]
    fn a_booking_that_finds_no_word_is_in_its_token_alone() {
        let words = words(MAX_PROBES);
        let bookings = Bookings::new(&words);
        let keys = (1..=MAX_PROBES as u32).map(ThreadKey::new);
        keys.for_each(|key| bookings.book(key, token(1, 30), 10));
        let further = ThreadKey::new(100);
        bookings.book(further, token(1, 31), 10);
        assert_eq!(bookings.token(further, 1), None);
        assert!(!bookings.is_stale(further, token(1, 31)));
        // The others' periods are over.
        bookings.book(further, token(1, 41), 31);
        assert_eq!(bookings.token(further, 1), Some(token(1, 41)));
    }
}
