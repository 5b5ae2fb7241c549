//! A set of frames in shared memory: two levels of bits and a search hint.
//!
//! It finds an allocator free frames, and a domain its unused ones, in O(1). Rule: the set is a
//! hint, never data. Inserting and removing are idempotent on bits, a frame taken from the set
//! counts only if its RamTab entry agrees, and [`crate::Ledger::recount`] puts back a frame that
//! is missing because a process died in between.

use crate::ramtab::Frame;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Words before the bits: hint and count, on a cache line of their own.
const HEAD: usize = 8;
const BITS: usize = 64;

/// Access to a set.
#[derive(Clone, Copy)]
pub(crate) struct FrameSet<'a> {
    hint: &'a AtomicU64,
    count: &'a AtomicU64,
    /// One bit for each word of `words`: set when the word may have bits, possibly stale.
    summary: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl<'a> FrameSet<'a> {
    /// Number of 64-bit words of a set of frames below `total`.
    pub(crate) fn size(total: u32) -> usize {
        let words = (total as usize).div_ceil(BITS);
        (HEAD + words.div_ceil(BITS) + words).next_multiple_of(HEAD)
    }

    /// The set that occupies `memory`, which is `size(total)` words.
    pub(crate) fn new(memory: &'a [AtomicU64], total: u32) -> Self {
        let words = (total as usize).div_ceil(BITS);
        let (head, rest) = memory.split_at(HEAD);
        let (summary, rest) = rest.split_at(words.div_ceil(BITS));
        Self {
            hint: &head[0],
            count: &head[1],
            summary,
            words: &rest[..words],
        }
    }

    /// Approximate number of frames in the set: exact while no operation is in progress and none
    /// was cut short by a death.
    pub(crate) fn len(&self) -> u32 {
        (self.count.load(Relaxed) as i64).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Inserts a frame; the next pop searches near it.
    pub(crate) fn insert(&self, frame: Frame) {
        let (word, bit) = (frame.0 as usize / BITS, 1u64 << (frame.0 as usize % BITS));
        if self.words[word].fetch_or(bit, SeqCst) & bit == 0 {
            self.count.fetch_add(1, Relaxed);
        }
        // A remover clears the summary bit and then reads the word, an inserter sets the word and
        // then reads the summary: one of the two sees the other.
        let (line, mark) = (&self.summary[word / BITS], 1u64 << (word % BITS));
        if line.load(SeqCst) & mark == 0 {
            line.fetch_or(mark, SeqCst);
        }
        self.hint.store(word as u64, Relaxed);
    }

    /// Fills an empty set that is not shared yet with all frames below `total`: by words, since a
    /// contract of gigabytes has millions of frames.
    pub(crate) fn fill(&self, total: u32) {
        let fill = |words: &[AtomicU64], bits: usize| {
            for (at, word) in words.iter().enumerate() {
                let left = bits.saturating_sub(at * BITS).min(BITS) as u32;
                let mask = u64::MAX.checked_shr(BITS as u32 - left).unwrap_or(0);
                word.store(mask, Relaxed);
            }
        };
        let total = total as usize;
        fill(self.words, total);
        fill(self.summary, total.div_ceil(BITS));
        self.count.store(total as u64, SeqCst);
    }

    /// Removes a frame. Returns true if it was in the set.
    pub(crate) fn remove(&self, frame: Frame) -> bool {
        let (word, bit) = (frame.0 as usize / BITS, 1u64 << (frame.0 as usize % BITS));
        let was = self.words[word].fetch_and(!bit, SeqCst) & bit != 0;
        if was {
            self.count.fetch_sub(1, Relaxed);
        }
        was
    }

    /// Removes any frame.
    pub(crate) fn pop(&self) -> Option<Frame> {
        let hint = (self.hint.load(Relaxed) as usize).min(self.words.len() - 1);
        if let Some(frame) = self.pop_from(hint) {
            return Some(frame);
        }
        for step in 0..self.summary.len() {
            let line = (hint / BITS + step) % self.summary.len();
            let mut marks = self.summary[line].load(SeqCst);
            while marks != 0 {
                let word = line * BITS + marks.trailing_zeros() as usize;
                marks &= marks - 1;
                if let Some(frame) = self.pop_from(word) {
                    self.hint.store(word as u64, Relaxed);
                    return Some(frame);
                }
                self.tidy(word);
            }
        }
        None
    }

    /// The first frame that `accept` returns true for; it stays in the set. Frames inserted
    /// meanwhile may be missed.
    pub(crate) fn find(&self, mut accept: impl FnMut(Frame) -> bool) -> Option<Frame> {
        for (line, marks) in self.summary.iter().enumerate() {
            let mut marks = marks.load(SeqCst);
            while marks != 0 {
                let word = line * BITS + marks.trailing_zeros() as usize;
                marks &= marks - 1;
                let mut bits = self.words.get(word).map_or(0, |w| w.load(SeqCst));
                while bits != 0 {
                    let frame = Frame((word * BITS) as u32 + bits.trailing_zeros());
                    if accept(frame) {
                        return Some(frame);
                    }
                    bits &= bits - 1;
                }
            }
        }
        None
    }

    /// Returns true if the frame is in the set.
    pub(crate) fn contains(&self, frame: Frame) -> bool {
        let (word, bit) = (frame.0 as usize / BITS, 1u64 << (frame.0 as usize % BITS));
        self.words
            .get(word)
            .is_some_and(|w| w.load(SeqCst) & bit != 0)
    }

    /// The difference between the count and the number of frames in the set, which must not be
    /// changing: a process died between changing the one and the other.
    pub(crate) fn miscount(&self) -> i64 {
        let bits: u64 = self
            .words
            .iter()
            .map(|w| u64::from(w.load(SeqCst).count_ones()))
            .sum();
        self.count.load(SeqCst) as i64 - bits as i64
    }

    /// Corrects the count by a miscount.
    pub(crate) fn correct(&self, miscount: i64) {
        self.count.fetch_sub(miscount as u64, SeqCst);
    }

    /// Empties the set of a retired domain.
    pub(crate) fn clear(&self) {
        for (line, marks) in self.summary.iter().enumerate() {
            let mut marks = marks.swap(0, SeqCst);
            while marks != 0 {
                let word = line * BITS + marks.trailing_zeros() as usize;
                marks &= marks - 1;
                if let Some(word) = self.words.get(word) {
                    word.store(0, SeqCst);
                }
            }
        }
        self.count.store(0, Relaxed);
    }

    fn pop_from(&self, word: usize) -> Option<Frame> {
        let bits = self.words.get(word)?;
        let mut seen = bits.load(SeqCst);
        while seen != 0 {
            let bit = seen & seen.wrapping_neg();
            let before = bits.fetch_and(!bit, SeqCst);
            if before & bit != 0 {
                self.count.fetch_sub(1, Relaxed);
                return Some(Frame((word * BITS) as u32 + bit.trailing_zeros()));
            }
            seen = before;
        }
        None
    }

    /// Clears the summary bit of a word found empty.
    fn tidy(&self, word: usize) {
        let (line, mark) = (&self.summary[word / BITS], 1u64 << (word % BITS));
        line.fetch_and(!mark, SeqCst);
        if self.words.get(word).is_some_and(|w| w.load(SeqCst) != 0) {
            line.fetch_or(mark, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn memory(total: u32) -> Vec<AtomicU64> {
        (0..FrameSet::size(total))
            .map(|_| AtomicU64::new(0))
            .collect()
    }

    proptest! {
        #[test]
        fn a_filled_set_holds_every_frame_once(total in 1u32..20_000) {
            let memory = memory(total);
            let set = FrameSet::new(&memory, total);
            set.fill(total);
            prop_assert_eq!((set.len(), set.miscount()), (total, 0));
            let all: BTreeSet<_> = std::iter::from_fn(|| set.pop()).map(|frame| frame.0).collect();
            prop_assert!(all.into_iter().eq(0..total));
        }

        #[test]
        fn a_set_contains_what_was_inserted_and_not_removed(
            total in 1u32..20_000,
            steps in prop::collection::vec((0u8..3, any::<u32>()), 0..300),
        ) {
            let memory = memory(total);
            let set = FrameSet::new(&memory, total);
            let mut model = BTreeSet::new();
            for (what, number) in steps {
                let frame = Frame(number % total);
                match what {
                    0 => { set.insert(frame); model.insert(frame); }
                    1 => prop_assert_eq!(set.remove(frame), model.remove(&frame)),
                    _ => match set.pop() {
                        Some(frame) => prop_assert!(model.remove(&frame)),
                        None => prop_assert!(model.is_empty()),
                    },
                }
                prop_assert_eq!(set.len() as usize, model.len());
            }
            let mut found = BTreeSet::new();
            set.find(|frame| { found.insert(frame); false });
            prop_assert_eq!(&found, &model);
            set.clear();
            prop_assert_eq!(set.pop(), None);
        }
    }
}
