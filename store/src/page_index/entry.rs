//! One entry of the page index: its state word, location and checksum.

use crate::backoff::Backoff;
use crate::ref_bitmap::ones;
use crate::{Checksum, HolderId};
use std::sync::atomic::{AtomicU64, Ordering};
use wired::Plain;

/// A stored page.
#[repr(C)]
pub(crate) struct PageEntry {
    state: AtomicU64,
    pub place: AtomicU64,
    sum: [AtomicU64; 2],
}

// SAFETY: atomics only.
unsafe impl Plain for PageEntry {}

const _: () = assert!(size_of::<PageEntry>() == 32);

/// The state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryWord(u64);

const STATE: u64 = 0b11;
const CLAIMED: u64 = 1;
const STORED: u64 = 2;
const FILLED: u64 = 3;
const LOCK_SHIFT: u32 = 16;
const LOCK: u64 = 0xffff << LOCK_SHIFT;
const COUNT_SHIFT: u32 = 32;
const COUNT_ONE: u64 = 1 << COUNT_SHIFT;

impl EntryWord {
    pub fn claimed_by(holder: HolderId) -> Self {
        EntryWord(CLAIMED | lock_of(holder))
    }

    pub fn is_free(self) -> bool {
        self.0 == 0
    }

    pub fn is_filled(self) -> bool {
        self.0 & STATE == FILLED
    }
    /// Returns true if the page can be read: stored or filled.
    pub fn is_page(self) -> bool {
        self.0 & STATE >= STORED
    }

    pub fn is_locked(self) -> bool {
        self.0 & LOCK != 0
    }

    pub fn is_locked_by(self, holder: HolderId) -> bool {
        self.0 & LOCK == lock_of(holder)
    }

    pub fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT
    }

    /// The word with so many holders.
    pub fn with_count(self, count: u64) -> Self {
        Self((self.0 % COUNT_ONE) | (count << COUNT_SHIFT))
    }
}

fn lock_of(holder: HolderId) -> u64 {
    (u64::from(holder) + 1) << LOCK_SHIFT
}

impl PageEntry {
    pub fn word(&self) -> EntryWord {
        EntryWord(self.state.load(Ordering::Acquire))
    }

    /// Unlocks the entry, with `change` more holders.
    pub fn unlock(&self, locked: EntryWord, change: i64) {
        let count = (COUNT_ONE as i64 * change) as u64;
        let word = (locked.0 & !LOCK).wrapping_add(count);
        self.state.store(word, Ordering::Release);
    }

    /// Counts one more holder of a page that another one holds meanwhile; `None` if that one was killed and its hold released.
    pub fn add_holder(&self) -> Option<()> {
        self.change(&mut || false, |word| (word.0 + COUNT_ONE, ()))
    }

    /// Counts one holder less, or locks the entry for the last one, which frees it; `None` if it is no page, or if `give_up`
    /// returned true.
    pub fn drop_holder(
        &self,
        holder: HolderId,
        give_up: &mut impl FnMut() -> bool,
    ) -> Option<HolderDropped> {
        self.change(give_up, |word| match word.count() {
            2.. => (word.0 - COUNT_ONE, HolderDropped::Counted),
            _ => {
                let locked = word.0 | lock_of(holder);
                (locked, HolderDropped::Last(EntryWord(locked)))
            }
        })
    }

    /// Claims a free entry. Returns true if it was free.
    pub fn claim(&self, holder: HolderId) -> bool {
        let claimed = EntryWord::claimed_by(holder).0;
        self.state
            .compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Publishes a claimed entry; the writer holds it.
    pub fn publish(&self, is_filled: bool) {
        let state = if is_filled { FILLED } else { STORED };
        self.state.store(state | COUNT_ONE, Ordering::Release);
    }

    pub fn free(&self) {
        self.state.store(0, Ordering::Release);
    }

    pub fn sum(&self) -> Checksum {
        let [low, high] = &self.sum;
        let high = u128::from(high.load(Ordering::Relaxed));
        Checksum(high << 64 | u128::from(low.load(Ordering::Relaxed)))
    }

    pub fn set_sum(&self, sum: Checksum) {
        self.sum[0].store(sum.0 as u64, Ordering::Relaxed);
        self.sum[1].store((sum.0 >> 64) as u64, Ordering::Relaxed);
    }

    /// Locks the entry as `holder`; `None` if it is no page, or if `give_up` returned true.
    pub fn lock(&self, holder: HolderId, give_up: &mut impl FnMut() -> bool) -> Option<EntryWord> {
        self.change(give_up, |word| {
            let locked = word.0 | lock_of(holder);
            (locked, EntryWord(locked))
        })
    }

    /// Changes the word of a page that is not locked; `None` if it is no page, or if `give_up` returned true.
    fn change<T>(
        &self,
        give_up: &mut impl FnMut() -> bool,
        next: impl Fn(EntryWord) -> (u64, T),
    ) -> Option<T> {
        let mut backoff = Backoff::default();
        loop {
            let word = self.word();
            if !word.is_page() {
                return None;
            }
            if !word.is_locked() {
                let (new, result) = next(word);
                if self
                    .state
                    .compare_exchange_weak(word.0, new, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return Some(result);
                }
                continue;
            }
            if backoff.is_exhausted() && give_up() {
                return None;
            }
            backoff.wait();
        }
    }
}

/// A hold was dropped.
#[derive(Clone, Copy)]
pub(crate) enum HolderDropped {
    /// Others hold the page.
    Counted,
    /// No other process holds it: the entry is locked.
    Last(EntryWord),
}

/// Entries claimed for writing, kept by a channel: part of one group of 64.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClaimSet {
    pub group: usize,
    pub mask: u64,
}

impl ClaimSet {
    /// The next entry, until all are used.
    pub fn take(&mut self) -> Option<u32> {
        let bit = ones(self.mask).next()?;
        self.mask &= !(1 << bit);
        Some(self.group as u32 * 64 + bit)
    }
}
