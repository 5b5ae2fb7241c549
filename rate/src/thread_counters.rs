//! The fault counters of one process's threads, a word each: task.fault_count (figure 7).
//!
//! The paper's task is a thread here, known by its id. The word holds the id, too, so that a new
//! thread finds its own word or takes an expired one, and a thread that ends needs no cleanup.
//! Where all words that a thread may use are taken it shares a word with another thread: the two then
//! have the limit of one thread.

use crate::window_counter::WindowCounter;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a thread id: Linux has at most as many.
pub const ID_BITS: u32 = 22;
const PERIOD_BITS: u32 = 22;
const COUNT_BITS: u32 = 20;
const _: () = assert!(ID_BITS + PERIOD_BITS + COUNT_BITS == 64);

/// Most faults that a counter counts.
pub const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;

/// Words that one thread may use of a table.
pub(crate) const MAX_PROBES: usize = 16;

/// A table of words for threads.
///
/// # Panics
/// Where there are fewer than `MAX_PROBES` words, or not a power of two of them.
pub(crate) fn checked(words: &[AtomicU64]) -> &[AtomicU64] {
    let count = words.len();
    assert!(
        count >= MAX_PROBES && count.is_power_of_two(),
        "words for threads"
    );
    words
}

/// A thread's id, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadKey(u32);

impl ThreadKey {
    /// The last of the ids, for work that belongs to no thread: a thread has it only where the largest `kernel.pid_max` is used
    /// up, and is counted with that work then.
    pub const LAST: Self = Self((1 << ID_BITS) - 1);

    /// The key of a thread id, or of another number that tells threads apart.
    pub fn new(number: u32) -> Self {
        Self((number & ((1 << ID_BITS) - 1)).max(1))
    }

    /// The id.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The words of a table that the thread may use, in the order of probing.
    pub(crate) fn words_of(self, table: &[AtomicU64]) -> impl Iterator<Item = &AtomicU64> {
        let first = self.0.wrapping_mul(0x9E37_79B1) as usize >> 8;
        let mask = table.len() - 1;
        (0..MAX_PROBES).map(move |i| &table[(first + i) & mask])
    }
}

/// The counters' words.
#[derive(Clone, Copy)]
pub struct ThreadCounters<'a>(&'a [AtomicU64]);

struct CounterWord {
    key: u32,
    period: u64,
    count: u32,
}

impl CounterWord {
    fn unpack(word: u64) -> Self {
        Self {
            key: (word >> (PERIOD_BITS + COUNT_BITS)) as u32,
            period: (word >> COUNT_BITS) & ((1 << PERIOD_BITS) - 1),
            count: (word as u32) & MAX_COUNT,
        }
    }

    fn pack(key: ThreadKey, counter: WindowCounter) -> u64 {
        let period = counter.period & ((1 << PERIOD_BITS) - 1);
        let count = u64::from(counter.count.min(MAX_COUNT));
        u64::from(key.0) << (PERIOD_BITS + COUNT_BITS) | period << COUNT_BITS | count
    }

    /// Returns true if the counter is of this period.
    fn is_of(&self, period: u64) -> bool {
        self.period == period & ((1 << PERIOD_BITS) - 1)
    }
}

impl<'a> ThreadCounters<'a> {
    /// Counters in `words`, zero at first.
    ///
    /// # Panics
    /// Where there are fewer than `MAX_PROBES`, or not a power of two of them.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self(checked(words))
    }

    /// Finds the word of a thread in a period, and its value.
    fn find(&self, key: ThreadKey, period: u64) -> (&'a AtomicU64, u64) {
        let mut free = None;
        for at in key.words_of(self.0) {
            let seen = at.load(Relaxed);
            let word = CounterWord::unpack(seen);
            if word.key == key.0 {
                return (at, seen);
            }
            // The phases of two threads' periods differ by less than one period.
            let unexpired = [period.wrapping_sub(1), period, period + 1];
            let is_live = word.key != 0 && unexpired.iter().any(|period| word.is_of(*period));
            if !is_live && free.is_none() {
                free = Some((at, seen));
            }
        }
        free.unwrap_or_else(|| {
            let mut words = key.words_of(self.0);
            let first = words.next().expect("a table has words");
            (first, first.load(Relaxed))
        })
    }

    /// Changes a thread's counter in a period.
    pub fn update<T>(
        &self,
        key: ThreadKey,
        period: u64,
        change: impl Fn(WindowCounter) -> (WindowCounter, T),
    ) -> (WindowCounter, T) {
        loop {
            let (word, seen) = self.find(key, period);
            let there = CounterWord::unpack(seen);
            // An unexpired counter of another thread is shared.
            let count = if there.is_of(period) { there.count } else { 0 };
            let (counter, decision) = change(WindowCounter { period, count });
            let packed = CounterWord::pack(key, counter);
            if packed == seen
                || word
                    .compare_exchange(seen, packed, Relaxed, Relaxed)
                    .is_ok()
            {
                return (counter, decision);
            }
        }
    }
}
