//! The pages that each process holds: a bit for each handle, so that all of them can be released
//! after it was killed.
//!
//! Bits are grouped by 64 like the page index, so that a group's holds are one word. A summary has
//! a bit for each page of the bitmap that was ever touched: reading an untouched page of shared
//! memory would allocate it.

use crate::HolderId;
use crate::layout::{Geometry, HANDLES_PER_BITMAP_PAGE};
use std::sync::atomic::{AtomicU64, Ordering};

/// 64-handle groups in a page of the bitmap.
const GROUPS_PER_PAGE: usize = HANDLES_PER_BITMAP_PAGE / 64;

/// The bitmaps of all holders.
#[derive(Clone, Copy)]
pub(crate) struct RefBitmap {
    bits: &'static [AtomicU64],
    summaries: &'static [AtomicU64],
    groups: usize,
    summary_words: usize,
}

impl RefBitmap {
    pub fn new(
        bits: &'static [AtomicU64],
        summaries: &'static [AtomicU64],
        geometry: &Geometry,
    ) -> Self {
        Self {
            bits,
            summaries,
            groups: geometry.groups(),
            summary_words: geometry.summary_words(),
        }
    }

    fn word(&self, holder: HolderId, group: usize) -> &'static AtomicU64 {
        &self.bits[usize::from(holder) * self.groups + group]
    }

    fn summary(&self, holder: HolderId) -> &'static [AtomicU64] {
        let first = usize::from(holder) * self.summary_words;
        &self.summaries[first..first + self.summary_words]
    }

    /// Sets these bits of the group for `holder`.
    pub fn add(&self, holder: HolderId, group: usize, mask: u64) {
        let page = group / GROUPS_PER_PAGE;
        let summary = &self.summary(holder)[page / 64];
        if summary.load(Ordering::Relaxed) & 1 << (page % 64) == 0 {
            summary.fetch_or(1 << (page % 64), Ordering::AcqRel);
        }
        self.word(holder, group).fetch_or(mask, Ordering::AcqRel);
    }

    /// How many hold this handle.
    pub fn count(&self, handle: u32) -> u64 {
        let holders = self.bits.len() / self.groups;
        let (group, bit) = (handle as usize / 64, 1 << (handle % 64));
        let holds = |holder: &HolderId| self.held(*holder, group) & bit != 0;
        (0..holders as HolderId).filter(holds).count() as u64
    }

    /// Clears the bit of this handle for `holder`.
    pub fn remove(&self, holder: HolderId, handle: u32) {
        self.word(holder, handle as usize / 64)
            .fetch_and(!(1 << (handle % 64)), Ordering::AcqRel);
    }

    /// The handles of a group that `holder` holds.
    pub fn held(&self, holder: HolderId, group: usize) -> u64 {
        let page = group / GROUPS_PER_PAGE;
        let summary = self.summary(holder)[page / 64].load(Ordering::Acquire);
        match summary & 1 << (page % 64) {
            0 => 0,
            _ => self.word(holder, group).load(Ordering::Acquire),
        }
    }

    /// Returns true if `holder` holds this handle.
    pub fn has(&self, holder: HolderId, handle: u32) -> bool {
        let group = handle as usize / 64;
        group < self.groups
            && self.word(holder, group).load(Ordering::Acquire) & 1 << (handle % 64) != 0
    }

    /// The groups in which `holder` holds pages, with the bits.
    pub fn each(&self, holder: HolderId) -> impl Iterator<Item = (usize, u64)> + use<> {
        let this = *self;
        bits_of(self.summary(holder))
            .flat_map(move |page| page * GROUPS_PER_PAGE..(page + 1) * GROUPS_PER_PAGE)
            .filter_map(move |group| {
                let mask = this.word(holder, group).load(Ordering::Acquire);
                (mask != 0).then_some((group, mask))
            })
    }

    /// Returns true if `holder` held anything since its last [`RefBitmap::reset`].
    pub fn is_used(&self, holder: HolderId) -> bool {
        self.summary(holder)
            .iter()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Clears a holder's bitmap; touches nothing if it held nothing.
    pub fn reset(&self, holder: HolderId) {
        self.summary(holder)
            .iter()
            .for_each(|word| word.store(0, Ordering::Release));
    }
}

/// Numbers of the set bits.
fn bits_of(words: &'static [AtomicU64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(at, word)| {
        ones(word.load(Ordering::Acquire)).map(move |bit| at * 64 + bit as usize)
    })
}

/// Numbers of the set bits of one word, lowest first.
pub(crate) fn ones(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_are_counted_from_the_lowest() {
        assert_eq!(ones(0).count(), 0);
        assert_eq!(ones(1 << 63 | 0b101).collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(ones(u64::MAX).count(), 64);
    }
}
