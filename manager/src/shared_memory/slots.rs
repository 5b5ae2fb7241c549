//! Slots: the contents of units that were evicted last.
//!
//! An eviction reads a unit into a slot. A page is *staged* until the store has it: its frame is in use, and a
//! fault takes it back. Afterwards it is *kept* until the slot is reused: a second chance
//! without the store.

use super::UNIT;
use super::mappings::ObjectId;
use rustix::io;
use wired::{PAGE, WiredMemory};

/// What a slot holds: a unit, and a bit for each of its pages.
#[derive(Clone, Copy, Debug, Default)]
struct EvictedUnit {
    object: ObjectId,
    unit: usize,
    staged: u64,
    kept: u64,
    /// Writes that are not complete; of pages that were taken back, too.
    writes: u32,
}

/// The slots, reused in turn.
pub struct Slots {
    memory: WiredMemory,
    slots: Vec<EvictedUnit>,
    next: usize,
}

/// Frames of a tree for each slot, and slots at least and at most: 8 MiB.
const FRAMES_PER_SLOT: usize = 16 * UNIT;
const FEWEST: usize = 8;
const MOST: usize = 128;

/// A page in a slot: the token of its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPage {
    /// The slot.
    pub slot: usize,
    /// The page's number within the unit.
    pub index: usize,
}

impl Slots {
    /// Slots for a tree of that many frames.
    pub fn new(frames: usize) -> io::Result<Self> {
        let count = (frames / FRAMES_PER_SLOT).clamp(FEWEST, MOST);
        Ok(Self {
            memory: WiredMemory::private(count * UNIT * PAGE)?,
            slots: vec![EvictedUnit::default(); count],
            next: 0,
        })
    }

    /// Takes the slot that has been free the longest, for a unit; none while all wait for the store.
    pub fn take(&mut self, object: ObjectId, unit: usize) -> Option<usize> {
        let slot = self.free()?;
        self.next = (slot + 1) % self.slots.len();
        self.slots[slot] = EvictedUnit {
            object,
            unit,
            ..EvictedUnit::default()
        };
        Some(slot)
    }

    /// The slot that the next eviction may use.
    pub fn free(&self) -> Option<usize> {
        let count = self.slots.len();
        let order = (0..count).map(|step| (self.next + step) % count);
        let is_free = |slot: &usize| self.slots[*slot].staged == 0 && self.slots[*slot].writes == 0;
        order.into_iter().find(is_free)
    }

    /// Where a page's contents lie.
    pub fn contents(&self, at: SlotPage) -> *mut u8 {
        // SAFETY: within the memory of `slots.len() * UNIT` pages.
        unsafe { self.memory.as_ptr().add((at.slot * UNIT + at.index) * PAGE) }
    }

    /// The object and page in a slot.
    pub fn page(&self, at: SlotPage) -> (ObjectId, usize) {
        let slot = &self.slots[at.slot];
        (slot.object, slot.unit * UNIT + at.index)
    }

    /// The page is to be written.
    pub fn stage(&mut self, at: SlotPage) {
        let slot = &mut self.slots[at.slot];
        slot.staged |= 1 << at.index;
        slot.writes += 1;
    }

    /// A write is complete. Returns true if the page is staged here: from now on it is kept if the store
    /// has it, and else in the caller's care.
    pub fn complete(&mut self, at: SlotPage, is_stored: bool) -> bool {
        let slot = &mut self.slots[at.slot];
        let bit = 1 << at.index;
        slot.writes -= 1;
        let is_staged = slot.staged & bit != 0;
        slot.staged &= !bit;
        if is_staged && is_stored {
            slot.kept |= bit;
        }
        is_staged
    }

    /// Returns true if the page waits for the store here.
    pub fn is_staged(&self, at: SlotPage) -> bool {
        self.slots[at.slot].staged >> at.index & 1 != 0
    }

    /// The place of a staged page.
    pub fn staged(&self, object: ObjectId, page: usize) -> Option<SlotPage> {
        self.find(object, page, |slot| slot.staged)
    }

    /// The place of a page that the store has, too.
    pub fn kept(&self, object: ObjectId, page: usize) -> Option<SlotPage> {
        self.find(object, page, |slot| slot.kept)
    }

    fn find(
        &self,
        object: ObjectId,
        page: usize,
        bits: impl Fn(&EvictedUnit) -> u64,
    ) -> Option<SlotPage> {
        let (unit, index) = (page / UNIT, page % UNIT);
        let has =
            |it: &EvictedUnit| it.object == object && it.unit == unit && bits(it) >> index & 1 != 0;
        let slot = self.slots.iter().position(has)?;
        Some(SlotPage { slot, index })
    }

    /// The page's contents are in its object again, or are to be forgotten.
    pub fn release(&mut self, at: SlotPage) {
        let slot = &mut self.slots[at.slot];
        slot.staged &= !(1 << at.index);
        slot.kept &= !(1 << at.index);
    }

    /// Forgets an object. Returns how many of its pages were staged.
    pub fn forget(&mut self, object: ObjectId) -> u32 {
        let slots = self.slots.iter_mut().filter(|it| it.object == object);
        let staged = slots.map(|it| {
            let staged = it.staged.count_ones();
            (it.staged, it.kept) = (0, 0);
            staged
        });
        staged.sum()
    }

    /// Pages that wait for the store.
    pub fn staged_pages(&self) -> u32 {
        self.slots.iter().map(|it| it.staged.count_ones()).sum()
    }
}

impl SlotPage {
    /// As a token of the store's channel.
    pub fn token(self) -> u64 {
        (self.slot * UNIT + self.index) as u64
    }

    /// From a token.
    pub fn from_token(token: u64) -> Self {
        let token = token as usize;
        Self {
            slot: token / UNIT,
            index: token % UNIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_for_its_writes_though_its_pages_were_taken_back() {
        let mut slots = Slots::new(0).unwrap();
        let slot = slots.take(1, 3).unwrap();
        let at = SlotPage { slot, index: 5 };
        slots.stage(at);
        assert_eq!(slots.staged(1, 3 * UNIT + 5), Some(at));
        slots.release(at);
        let is_reused = |slots: &mut Slots| (0..FEWEST).any(|_| slots.take(1, 4) == Some(slot));
        assert!(!is_reused(&mut slots), "its write is in flight");
        assert!(!slots.complete(at, true), "it was taken back");
        assert!(is_reused(&mut slots));
        assert_eq!(slots.kept(1, 3 * UNIT + 5), None);
        assert_eq!(SlotPage::from_token(at.token()), at);
    }

    #[test]
    fn a_page_that_the_store_has_is_kept_until_its_slot_is_reused() {
        let mut slots = Slots::new(0).unwrap();
        let slot = slots.take(1, 3).unwrap();
        let at = SlotPage { slot, index: 5 };
        slots.stage(at);
        assert!(slots.complete(at, true));
        assert_eq!(slots.kept(1, 3 * UNIT + 5), Some(at));
        for _ in 0..FEWEST {
            slots.take(2, 0).unwrap();
        }
        assert_eq!(slots.kept(1, 3 * UNIT + 5), None);
    }
}
