//! Operations in progress of each holder, so that `retire` can finish or undo them after a crash.
//!
//! Before an operation changes two shared words it records an intent in one of its holder's intent
//! words; afterwards it clears the word. A killed process leaves the record, and `retire` reads it.
//! The record says where to look, never what is true: the words themselves show whether a step
//! happened.

use crate::HolderId;
use crate::backoff::Backoff;
use crate::layout::INTENTS;
use std::sync::atomic::{AtomicU64, Ordering};

/// An operation in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Word taken, no operation yet.
    Idle,
    /// Claiming or returning entries of this group of 64.
    Claim(u32),
    /// Dropping the holder's hold on this handle.
    Drop(u32),
    /// Giving this holder, a fork's child, holds in this group of 64.
    Adopt(u32),
    /// Setting or clearing bits of the blok bitmap: first blok, count.
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

/// Words of a holder for operations that last as long as an I/O. The others stay free for
/// operations that never wait.
const LONG: usize = 384;

/// Words that share a cache line: threads start their search that far apart.
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

/// Ends the operation that [`IntentLog::begin_long`] recorded.
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

    /// A word for short operations. `near` spreads threads over the words.
    pub fn begin(&self, holder: HolderId, near: usize) -> IntentGuard {
        let mut backoff = Backoff::default();
        loop {
            if let Some(word) = claim_word(&self.of(holder)[LONG..], near, Intent::Idle) {
                return IntentGuard { word };
            }
            backoff.wait();
        }
    }

    /// Records an operation that lasts as long as an I/O, unless all words for those are in use.
    /// Ends with [`end`].
    pub fn begin_long(&self, holder: HolderId, intent: Intent) -> Option<&'static AtomicU64> {
        claim_word(&self.of(holder)[..LONG], 0, intent)
    }

    /// The interrupted operations of a dead holder.
    pub fn left_by(&self, holder: HolderId) -> impl Iterator<Item = Intent> + use<> {
        self.of(holder)
            .iter()
            .filter_map(|word| Intent::decode(word.load(Ordering::Acquire)))
    }

    /// Returns true if one of these holders is moving this handle to this blok.
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

    /// Clears all words of a retired holder.
    pub fn clear(&self, holder: HolderId) {
        self.of(holder)
            .iter()
            .for_each(|word| word.store(0, Ordering::Release));
    }
}

/// A word to record intents in, until dropped.
pub(crate) struct IntentGuard {
    word: &'static AtomicU64,
}

impl IntentGuard {
    /// Records the intent. Every step of the operation is a store or exchange with release order,
    /// so no process sees a step without the record.
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
    fn intents_survive_encoding() {
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
