//! The memory of the standby list: its slots, and the pages in them.

use super::ring::{PIECE, StandbyRing};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use wired::{PAGE, WiredMemory};

/// Where a frame's page belongs and where it is staged.
#[derive(Default)]
struct PageLocation {
    home: AtomicU64,
    staged: AtomicU64,
}

/// For every frame of the contract: the page it holds.
pub(crate) struct PageLocations(WiredMemory, usize);

impl PageLocations {
    /// For frames numbered below `frames`.
    pub(crate) fn new(frames: usize) -> rustix::io::Result<Self> {
        Ok(Self(
            WiredMemory::wiped_in_children(frames * size_of::<PageLocation>())?,
            frames,
        ))
    }

    fn of(&self, frame: u32) -> &PageLocation {
        assert!((frame as usize) < self.1, "frame outside the contract");
        // SAFETY: in bounds; zero is a valid place.
        unsafe { &*self.0.as_ptr().cast::<PageLocation>().add(frame as usize) }
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

/// The slots: their memory, and which frame is at each page of them.
///
/// A slot's words belong to the thread that fills it (under the stager's lock) until it is
/// pushed, and then to the thread that claims the piece they are in.
pub(crate) struct Slots {
    base: usize,
    /// Where careful mode moves pages that no device holds: as large as the slots, made when
    /// first needed.
    sieve: AtomicU64,
    unit_pages: usize,
    slots: usize,
    /// `slots * unit_pages` words: the frame at each page of each slot, plus one.
    frames: WiredMemory,
    /// Slots whose memory is one huge page, as far as is known: to be reused whole.
    whole: Box<[AtomicBool]>,
    /// Slots that the kernel keeps as several mappings, as far as is known.
    split: Box<[AtomicBool]>,
    /// Frames in all slots.
    standby: AtomicU32,
    /// Which slots are in use.
    pub(crate) ring: StandbyRing,
    /// For tests: as if the kernel granted no sieve.
    #[cfg(test)]
    pub(crate) no_sieve: AtomicBool,
}

impl Slots {
    /// Room for `slots` units of `unit_pages` pages at `base`, an address range that is
    /// reserved for it.
    pub(crate) fn new(base: usize, slots: usize, unit_pages: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            base,
            sieve: AtomicU64::new(0),
            unit_pages,
            slots,
            // Empty at a fork.
            frames: WiredMemory::wiped_in_children(slots * unit_pages * 4)?,
            whole: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            split: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            standby: AtomicU32::new(0),
            ring: StandbyRing::new(slots, unit_pages),
            #[cfg(test)]
            no_sieve: AtomicBool::new(false),
        })
    }

    /// How many there are.
    pub(crate) fn number(&self) -> usize {
        self.slots
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.unit_pages * PAGE
    }

    /// Pages of a slot that are one piece.
    pub(crate) fn piece_pages(&self) -> usize {
        self.unit_pages.min(PIECE)
    }

    /// Bytes of the whole area.
    pub(crate) fn bytes(&self) -> usize {
        self.slots * self.slot_bytes()
    }

    /// Address of a slot.
    pub(crate) fn address(&self, slot: usize) -> usize {
        self.base + slot * self.slot_bytes()
    }

    /// Returns true if a slot's memory is to be reused whole.
    pub(crate) fn is_whole(&self, slot: usize) -> bool {
        self.whole[slot].load(Ordering::Acquire)
    }

    /// Sets whether it is.
    pub(crate) fn set_whole(&self, slot: usize, whole: bool) {
        self.whole[slot].store(whole, Ordering::Release);
    }

    /// Sets whether a slot is several mappings; returns what it was.
    pub(crate) fn replace_split(&self, slot: usize, split: bool) -> bool {
        self.split[slot].swap(split, Ordering::AcqRel)
    }

    /// The sieve's address for a slot, if there is a sieve.
    pub(crate) fn sieve(&self, slot: usize) -> Option<usize> {
        match self.sieve.load(Ordering::Acquire) as usize {
            0 => None,
            base => Some(base + slot * self.slot_bytes()),
        }
    }

    /// Sets the sieve's base.
    pub(crate) fn set_sieve(&self, base: usize) {
        self.sieve.store(base as u64, Ordering::Release);
    }

    /// The words of a slot.
    pub(crate) fn frames(&self, slot: usize) -> &[AtomicU32] {
        self.frames
            .slice(slot * self.unit_pages * 4, self.unit_pages)
    }

    /// The slot and the page in it of a staged address.
    pub(crate) fn page_at(&self, staged: usize) -> Option<(usize, usize)> {
        let bytes = self.bytes();
        let offset = [Some(self.address(0)), self.sieve(0)]
            .into_iter()
            .flatten()
            .find_map(|base| staged.checked_sub(base).filter(|o| *o < bytes))?;
        let slot = offset / self.slot_bytes();
        Some((slot, offset % self.slot_bytes() / PAGE))
    }

    /// Queues the slot given by `free_slot`, which now holds pages as its words describe.
    pub(crate) fn push(&self, slot: usize) {
        let words = self.frames(slot);
        let piece_pages = self.piece_pages();
        self.ring.push(|piece| {
            let words = &words[piece * piece_pages..][..piece_pages];
            words
                .iter()
                .filter(|word| word.load(Ordering::Relaxed) != 0)
                .count() as u32
        });
    }

    /// Frames on the standby list.
    pub(crate) fn standby(&self) -> u32 {
        self.standby.load(Ordering::Relaxed)
    }

    /// Adjusts the number of frames on the list.
    pub(crate) fn count(&self, came: u32, went: u32) {
        self.standby.fetch_add(came, Ordering::Relaxed);
        self.standby.fetch_sub(went, Ordering::Relaxed);
    }

    /// The child of a fork has no sieve: its registration did not come along. The standby list is empty.
    pub(crate) fn forget_sieve(&self) {
        let base = self.sieve.swap(0, Ordering::AcqRel) as usize;
        if base != 0 {
            let at = std::ptr::with_exposed_provenance_mut(base);
            // SAFETY: the sieve's own addresses, of which nothing uses any from here on.
            let _ = unsafe { rustix::mm::munmap(at, self.bytes()) };
        }
    }
}
