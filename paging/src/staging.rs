//! The standby list: pages taken from the program, not yet given up.
//!
//! `mremap(MREMAP_DONTUNMAP)` moves all pages of a unit into a *slot* of the staging
//! area in one shootdown (0.26 us a page at 64 of 512 present with two running threads,
//! against 12 us page by page). A slot's contents never change, so they can be read by
//! the writer that stores them and by a fault that brings one back, at the same time.
//! A staged page keeps its frame: standby counts in n.
//!
//! Slots are used in the order they were staged; the oldest is written out and emptied
//! first. A page that faults meanwhile comes back by a copy: that is the list's second
//! chance, and why the order among ranges can be as plain as first in, first out.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wired::{PAGE, Region};

/// Where a frame's page belongs and where it is staged.
#[derive(Default)]
struct Place {
    home: AtomicU64,
    staged: AtomicU64,
}

/// For every frame of the contract: the page it holds.
pub(crate) struct Places(Region, usize);

impl Places {
    /// For frames numbered below `frames`.
    pub(crate) fn new(frames: usize) -> rustix::io::Result<Self> {
        Ok(Self(Region::private(frames * size_of::<Place>())?, frames))
    }

    fn of(&self, frame: u32) -> &Place {
        assert!((frame as usize) < self.1, "frame outside the contract");
        // SAFETY: in bounds; zero is a valid place.
        unsafe { &*self.0.as_ptr().cast::<Place>().add(frame as usize) }
    }

    /// The page's address in its stretch.
    pub(crate) fn home(&self, frame: u32) -> usize {
        self.of(frame).home.load(Ordering::Acquire) as usize
    }

    /// Where the staged contents can be read.
    pub(crate) fn staged(&self, frame: u32) -> usize {
        self.of(frame).staged.load(Ordering::Acquire) as usize
    }

    /// The page now belongs at `home` (first staged, or moved to another address).
    pub(crate) fn set_home(&self, frame: u32, home: usize) {
        self.of(frame).home.store(home as u64, Ordering::Release);
    }

    /// The page's contents are at `staged`.
    pub(crate) fn set_staged(&self, frame: u32, staged: usize) {
        self.of(frame)
            .staged
            .store(staged as u64, Ordering::Release);
    }
}

/// The slots, used as a ring under the evictor's lock.
pub(crate) struct Staging {
    base: usize,
    /// Where pages that no device holds are moved in careful mode: as large as the
    /// slots, made when first needed.
    sieve: AtomicU64,
    unit_pages: usize,
    slots: usize,
    /// `slots * unit_pages` words: the frame at each page of each slot, plus one.
    frames: Region,
    /// Ring positions: slots from `oldest` to `next` are in use.
    oldest: AtomicU32,
    next: AtomicU32,
    /// Frames in all slots.
    standby: AtomicU32,
}

impl Staging {
    /// Room for `slots` units of `unit_pages` pages at `base`, an address range that is
    /// reserved for it.
    pub(crate) fn new(base: usize, slots: usize, unit_pages: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            base,
            sieve: AtomicU64::new(0),
            unit_pages,
            slots,
            frames: Region::private(slots * unit_pages * 4)?,
            oldest: AtomicU32::new(0),
            next: AtomicU32::new(0),
            standby: AtomicU32::new(0),
        })
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.unit_pages * PAGE
    }

    /// Bytes of the whole area.
    pub(crate) fn bytes(&self) -> usize {
        self.slots * self.slot_bytes()
    }

    /// Address of a slot.
    pub(crate) fn address(&self, slot: usize) -> usize {
        self.base + slot * self.slot_bytes()
    }

    /// The sieve's address for a slot, where there is a sieve.
    pub(crate) fn sieve(&self, slot: usize) -> Option<usize> {
        match self.sieve.load(Ordering::Acquire) as usize {
            0 => None,
            base => Some(base + slot * self.slot_bytes()),
        }
    }

    /// From now on there is a sieve at `base`.
    pub(crate) fn set_sieve(&self, base: usize) {
        self.sieve.store(base as u64, Ordering::Release);
    }

    /// The words of a slot.
    pub(crate) fn frames(&self, slot: usize) -> &[AtomicU32] {
        self.frames
            .slice(slot * self.unit_pages * 4, self.unit_pages)
    }

    /// Frames on the standby list.
    pub(crate) fn standby(&self) -> u32 {
        self.standby.load(Ordering::Relaxed)
    }

    /// Notes frames that came or went.
    pub(crate) fn count(&self, came: u32, went: u32) {
        self.standby.fetch_add(came, Ordering::Relaxed);
        self.standby.fetch_sub(went, Ordering::Relaxed);
    }

    /// The next free slot, where there is one. It is in use once [`Staging::push`]ed.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        let next = self.next.load(Ordering::Relaxed);
        let used = next.wrapping_sub(self.oldest.load(Ordering::Relaxed)) as usize;
        (used < self.slots).then_some(next as usize % self.slots)
    }

    /// The slot given by `free_slot` now holds pages.
    pub(crate) fn push(&self) {
        self.next.fetch_add(1, Ordering::Relaxed);
    }

    /// The slot that was staged first.
    pub(crate) fn oldest(&self) -> Option<usize> {
        let oldest = self.oldest.load(Ordering::Relaxed);
        (oldest != self.next.load(Ordering::Relaxed)).then_some(oldest as usize % self.slots)
    }

    /// The oldest slot is empty again.
    pub(crate) fn pop(&self) {
        self.oldest.fetch_add(1, Ordering::Relaxed);
    }

    /// The child of a fork has no sieve: its registration did not come along.
    pub(crate) fn forget_sieve(&self) {
        self.sieve.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_emptied_in_the_order_they_were_filled() {
        let staging = Staging::new(0x1000_0000, 3, 4).unwrap();
        for expected in [0, 1, 2] {
            assert_eq!(staging.free_slot(), Some(expected));
            staging.push();
        }
        assert_eq!(staging.free_slot(), None);
        assert_eq!(staging.oldest(), Some(0));
        staging.pop();
        assert_eq!(staging.free_slot(), Some(0));
        assert_eq!(staging.oldest(), Some(1));
    }
}
