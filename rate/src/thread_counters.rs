//! The accounts of the tasks of one process, each a word: task.fault_count (figure 7).
//!
//! A task is a thread, known by a number. Its word holds the number, too, so that a task
//! that comes finds its own or takes one that has expired, and nothing is to be done for one
//! that ends. Where all words that a task may have are others' it shares one with them: the
//! two then have the limit of one.

use crate::account::Account;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a task's number: as many as a thread's number has on Linux at most.
pub const KEY_BITS: u32 = 22;
const PERIOD_BITS: u32 = 22;
const COUNT_BITS: u32 = 20;
const _: () = assert!(KEY_BITS + PERIOD_BITS + COUNT_BITS == 64);

/// The most faults that a task's account counts.
pub const MOST: u32 = (1 << COUNT_BITS) - 1;

/// Words that one task may have.
const REACH: usize = 16;

/// A task's number, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u32);

impl Key {
    /// A number that no thread has: for work that is no thread's.
    pub const LAST: Self = Self((1 << KEY_BITS) - 1);

    /// Of a thread's number, or of any other that tells threads apart.
    pub fn new(number: u32) -> Self {
        Self((number & ((1 << KEY_BITS) - 1)).max(1))
    }

    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The words.
#[derive(Clone, Copy)]
pub struct Tasks<'a>(&'a [AtomicU64]);

struct Word {
    key: u32,
    period: u64,
    count: u32,
}

impl Word {
    fn unpack(word: u64) -> Self {
        Self {
            key: (word >> (PERIOD_BITS + COUNT_BITS)) as u32,
            period: (word >> COUNT_BITS) & ((1 << PERIOD_BITS) - 1),
            count: (word as u32) & MOST,
        }
    }

    fn pack(key: Key, account: Account) -> u64 {
        let period = account.period & ((1 << PERIOD_BITS) - 1);
        let count = u64::from(account.count.min(MOST));
        u64::from(key.0) << (PERIOD_BITS + COUNT_BITS) | period << COUNT_BITS | count
    }

    /// Whether it is of this period.
    fn is_of(&self, period: u64) -> bool {
        self.period == period & ((1 << PERIOD_BITS) - 1)
    }
}

impl<'a> Tasks<'a> {
    /// Accounts in `words`, zero at first.
    ///
    /// # Panics
    /// Where there are fewer than a task looks at, or not a power of two of them.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        let count = words.len();
        assert!(count >= REACH && count.is_power_of_two(), "words for tasks");
        Self(words)
    }

    /// The word of a task in a period, and what is in it.
    fn find(&self, key: Key, period: u64) -> (&'a AtomicU64, u64) {
        let first = key.0.wrapping_mul(0x9E37_79B1) as usize >> 8;
        let mask = self.0.len() - 1;
        let at = |i: usize| &self.0[(first + i) & mask];
        let mut free = None;
        for i in 0..REACH {
            let seen = at(i).load(Relaxed);
            let word = Word::unpack(seen);
            if word.key == key.0 {
                return (at(i), seen);
            }
            // Periods of tasks are apart from each other by less than one.
            let near = [period.wrapping_sub(1), period, period + 1];
            let live = word.key != 0 && near.iter().any(|period| word.is_of(*period));
            if !live && free.is_none() {
                free = Some((at(i), seen));
            }
        }
        free.unwrap_or_else(|| (at(0), at(0).load(Relaxed)))
    }

    /// Changes the account of a task in a period.
    pub fn update<T>(
        &self,
        key: Key,
        period: u64,
        change: impl Fn(Account) -> (Account, T),
    ) -> (Account, T) {
        loop {
            let (word, seen) = self.find(key, period);
            let there = Word::unpack(seen);
            // One of another task that has not expired is shared.
            let count = if there.is_of(period) { there.count } else { 0 };
            let (account, answer) = change(Account { period, count });
            let packed = Word::pack(key, account);
            if packed == seen
                || word
                    .compare_exchange(seen, packed, Relaxed, Relaxed)
                    .is_ok()
            {
                return (account, answer);
            }
        }
    }
}
