//! How many frames all domains of a ledger may own, and how many they own.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2, where unused frames are
//! revoked transparently. A tree of processes may itself be the tenant of a frames allocator in
//! another process, which moves the limit. Rule: limit and owned are one word, so that a tree can
//! take frames up to its limit, and the allocator take back all that is not owned, at the same
//! time and without each other's help. Owned never exceeds the limit.

use crate::layout::Header;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use wired::Plain;

/// The word: the limit in its high half, the frames owned in its low one.
#[repr(transparent)]
pub(crate) struct LimitWord(AtomicU64);
// SAFETY: an atomic; every bit pattern is a value.
unsafe impl Plain for LimitWord {}

/// A [`LimitWord`]'s value at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitValue {
    pub limit: u32,
    pub owned: u32,
}

impl LimitValue {
    fn unpack(word: u64) -> Self {
        Self {
            limit: (word >> 32) as u32,
            owned: word as u32,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.limit) << 32 | u64::from(self.owned)
    }

    fn with(self, owned: u32) -> Self {
        Self { owned, ..self }
    }
}

impl LimitWord {
    pub(crate) fn read(&self) -> LimitValue {
        LimitValue::unpack(self.0.load(SeqCst))
    }

    pub(crate) fn limit(&self) -> u32 {
        self.read().limit
    }

    pub(crate) fn owned(&self) -> u32 {
        self.read().owned
    }

    /// Sets the limit of a ledger that is not shared yet.
    pub(crate) fn set(&self, limit: u32) {
        self.0.store(LimitValue { limit, owned: 0 }.pack(), SeqCst);
    }

    /// Counts one more frame as owned, if the limit allows it. Returns true if it does.
    pub(crate) fn try_take(&self) -> bool {
        let more =
            |bound: LimitValue| (bound.owned < bound.limit).then(|| bound.with(bound.owned + 1));
        self.update(more)
    }

    /// Counts `by` frames as no longer owned.
    pub(crate) fn release(&self, by: u32) {
        self.update(|bound| Some(bound.with(bound.owned.saturating_sub(by))));
    }

    /// Moves owned by the difference between `said` and `truth`.
    pub(crate) fn correct(&self, said: u32, truth: u32) {
        let difference = truth.wrapping_sub(said);
        self.update(|bound| Some(bound.with(bound.owned.wrapping_add(difference))));
    }

    /// Raises the limit in one step, which no concurrent change can make fail.
    pub(crate) fn raise(&self, by: u32) {
        self.0.fetch_add(u64::from(by) << 32, SeqCst);
    }

    /// Sets `limit` if the word still has the value `seen`. Returns true if it did.
    pub(crate) fn replace(&self, seen: LimitValue, limit: u32) -> bool {
        let next = LimitValue { limit, ..seen }.pack();
        let swapped = self.0.compare_exchange(seen.pack(), next, SeqCst, SeqCst);
        swapped.is_ok()
    }

    /// Changes the word. Returns true unless `next` refused.
    fn update(&self, next: impl Fn(LimitValue) -> Option<LimitValue>) -> bool {
        let next = |word| next(LimitValue::unpack(word)).map(LimitValue::pack);
        self.0.fetch_update(SeqCst, SeqCst, next).is_ok()
    }
}

impl Header {
    /// The most that optimistic frames may raise the sum of max(n, g) to: the limit, or the
    /// reclaim target.
    pub(crate) fn max_committed(&self) -> u32 {
        self.limit.limit().min(self.reclaim_target.load(SeqCst))
    }

    /// Updates the peak of owned frames. Called after owned was raised.
    pub(crate) fn update_peak(&self) {
        let owned = self.limit.owned();
        if owned > self.peak_owned.load(SeqCst) {
            self.peak_owned.fetch_max(owned, SeqCst);
        }
    }

    /// Ends a reclaim.
    pub(crate) fn clear_reclaim_target(&self) {
        self.reclaim_target.store(u32::MAX, SeqCst);
    }
}
