//! What a holder is in the middle of, so that its death there can be finished or undone.
//!
//! Before an operation changes two shared words it notes what it is about to do in one of
//! its holder's intent words; after, it clears the word. A killed process leaves the note,
//! and `retire` reads it. The note says where to look, never what is true: whether a step
//! happened is read from the words themselves.

use crate::HolderId;
use crate::backoff::Backoff;
use crate::layout::INTENTS;
use std::sync::atomic::{AtomicU64, Ordering};

/// An operation under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Slot taken, nothing begun.
    Idle,
    /// Claiming or giving back entries of this group of 64.
    Claim(u32),
    /// Dropping the holder's hold on this handle.
    Drop(u32),
    /// Giving this holder, a fork's child, holds in this group of 64.
    Adopt(u32),
    /// Taking or giving back bits of the blok bitmap: first blok, count.
    BlokAllocator(u32, u32),
    /// Moving this handle to this blok.
    Demote(u32, u32),
}

impl Intent {
    /// Kind in bits 60 to 63; two operands of 28 and 32 bits.
    fn encode(self) -> u64 {
        let (kind, a, b) = match self {
            Intent::Idle => (1, 0, 0),
            Intent::Claim(group) => (2, group, 0),
            Intent::Drop(handle) => (3, handle, 0),
            Intent::Adopt(group) => (4, group, 0),
            Intent::BlokAllocator(first, count) => (5, count, first),
            Intent::Demote(handle, blok) => (6, handle, blok),
        };
        kind << 60 | u64::from(a) << 32 | u64::from(b)
    }

    fn decode(word: u64) -> Option<Self> {
        let a = (word >> 32 & ((1 << 28) - 1)) as u32;
        let b = word as u32;
        Some(match word >> 60 {
            1 => Intent::Idle,
            2 => Intent::Claim(a),
            3 => Intent::Drop(a),
            4 => Intent::Adopt(a),
            5 => Intent::BlokAllocator(b, a),
            6 => Intent::Demote(a, b),
            _ => return None,
        })
    }
}

/// Of a holder's words, those for operations that last as long as an I/O. The others stay
/// free for operations that nothing waits for.
const LONG: usize = 384;

/// Notes that share a cache line: threads start their search for one that far apart.
pub(crate) const NOTES_IN_LINE: usize = 8;

fn claim_word(
    words: &'static [AtomicU64],
    near: usize,
    intent: Intent,
) -> Option<&'static AtomicU64> {
    (0..words.len())
        .map(|step| &words[(near + step) % words.len()])
        .find(|word| {
            word.load(Ordering::Relaxed) == 0
                && word
                    .compare_exchange(0, intent.encode(), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })
}

/// The operation that [`IntentLog::begin_long`] noted is over.
pub(crate) fn end(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

/// The intent words of all holders.
#[derive(Clone, Copy)]
pub(crate) struct IntentLog {
    words: &'static [AtomicU64],
}

impl IntentLog {
    pub fn new(words: &'static [AtomicU64]) -> Self {
        Self { words }
    }

    fn of(&self, holder: HolderId) -> &'static [AtomicU64] {
        let first = usize::from(holder) * INTENTS;
        &self.words[first..first + INTENTS]
    }

    /// A word to note short operations in. `near` spreads threads over the words.
    pub fn begin(&self, holder: HolderId, near: usize) -> IntentGuard {
        let mut backoff = Backoff::default();
        loop {
            if let Some(word) = claim_word(&self.of(holder)[LONG..], near, Intent::Idle) {
                return IntentGuard { word };
            }
            backoff.wait();
        }
    }

    /// Notes an operation that lasts as long as an I/O, unless the words for those are all
    /// in use. Ends with [`end`].
    pub fn begin_long(&self, holder: HolderId, intent: Intent) -> Option<&'static AtomicU64> {
        claim_word(&self.of(holder)[..LONG], 0, intent)
    }

    /// What a dead holder was in the middle of.
    pub fn left_by(&self, holder: HolderId) -> impl Iterator<Item = Intent> + use<> {
        self.of(holder)
            .iter()
            .filter_map(|word| Intent::decode(word.load(Ordering::Acquire)))
    }

    /// Whether one of these holders is moving this handle to this blok.
    pub fn any_demotes(
        &self,
        mut holders: impl Iterator<Item = HolderId>,
        handle: u32,
        blok: u32,
    ) -> bool {
        let sought = Intent::Demote(handle, blok).encode();
        holders.any(|holder| {
            self.of(holder)
                .iter()
                .any(|word| word.load(Ordering::Acquire) == sought)
        })
    }

    /// A retired holder is in the middle of nothing.
    pub fn clear(&self, holder: HolderId) {
        self.of(holder)
            .iter()
            .for_each(|word| word.store(0, Ordering::Release));
    }
}

/// A word to note intents in, until dropped.
pub(crate) struct IntentGuard {
    word: &'static AtomicU64,
}

impl IntentGuard {
    /// About to do this. Every step of the operation is a store or exchange with release
    /// order, so nobody sees a step without the note.
    pub fn set(&self, intent: Intent) {
        self.word.store(intent.encode(), Ordering::Release);
    }
}

impl Drop for IntentGuard {
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_back() {
        for intent in [
            Intent::Idle,
            Intent::Claim(5),
            Intent::Drop((1 << 28) - 1),
            Intent::Adopt(9),
            Intent::BlokAllocator(u32::MAX, 64),
            Intent::Demote((1 << 28) - 1, u32::MAX),
        ] {
            assert_eq!(Intent::decode(intent.encode()), Some(intent));
        }
        assert_eq!(Intent::decode(0), None);
    }
}
