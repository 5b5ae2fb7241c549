//! Slots: the contents of pages that were evicted last.
//!
//! An eviction reads each page into a slot. A page is *staged* until the store has it: its frame is in use, and a
//! fault takes it back. Afterwards it is *kept* until the slot is reused: a second chance
//! without the store.

use super::mappings::ObjectId;
use rustix::io;
use std::collections::HashMap;
use wired::{PAGE, WiredMemory};

/// The number of a slot: the token of its page's write.
pub type SlotNumber = usize;

/// What a slot holds.
#[derive(Clone, Copy, Debug, Default)]
struct EvictedPage {
    object: ObjectId,
    page: usize,
    is_staged: bool,
    is_kept: bool,
    /// A write is not complete; it may be of a page that was taken back.
    is_written: bool,
}

/// The slots, reused in turn.
pub struct Slots {
    memory: WiredMemory,
    slots: Vec<EvictedPage>,
    /// Where each staged or kept page is.
    places: HashMap<(ObjectId, usize), SlotNumber>,
    next: SlotNumber,
    staged: u32,
}

/// Frames of a tree for each slot, and slots at least and at most: 8 MiB.
const FRAMES_PER_SLOT: usize = 16;
const FEWEST: usize = 128;
const MOST: usize = 2048;

impl Slots {
    /// Slots for a tree of that many frames.
    pub fn new(frames: usize) -> io::Result<Self> {
        let count = (frames / FRAMES_PER_SLOT).clamp(FEWEST, MOST);
        Ok(Self {
            memory: WiredMemory::private(count * PAGE)?,
            slots: vec![EvictedPage::default(); count],
            places: HashMap::with_capacity(2 * count),
            next: 0,
            staged: 0,
        })
    }

    /// Stages a page in the slot that has been free the longest: it is to be written. None while all slots wait
    /// for the store.
    pub fn stage(&mut self, object: ObjectId, page: usize) -> Option<SlotNumber> {
        let number = self.free()?;
        self.next = (number + 1) % self.slots.len();
        self.release(number);
        self.slots[number] = EvictedPage {
            object,
            page,
            is_staged: true,
            is_kept: false,
            is_written: true,
        };
        self.places.insert((object, page), number);
        self.staged += 1;
        Some(number)
    }

    /// The slot that the next page may use.
    pub fn free(&self) -> Option<SlotNumber> {
        let count = self.slots.len();
        let mut order = (0..count).map(|step| (self.next + step) % count);
        order.find(|number| !self.slots[*number].is_staged && !self.slots[*number].is_written)
    }

    /// Where a page's contents lie.
    pub fn contents(&self, number: SlotNumber) -> *mut u8 {
        debug_assert!(number < self.slots.len());
        // SAFETY: within the memory of a page for each slot.
        unsafe { self.memory.as_ptr().add(number * PAGE) }
    }

    /// The object and page in a slot.
    pub fn page(&self, number: SlotNumber) -> (ObjectId, usize) {
        let slot = &self.slots[number];
        (slot.object, slot.page)
    }

    /// A write is complete, or none is needed. Returns true if the page is staged here: from now on it is kept if
    /// the store has it, and else in the caller's care.
    pub fn complete(&mut self, number: SlotNumber, is_stored: bool) -> bool {
        let slot = &mut self.slots[number];
        slot.is_written = false;
        if !std::mem::take(&mut slot.is_staged) {
            return false;
        }
        slot.is_kept = is_stored;
        self.staged -= 1;
        if !is_stored {
            self.release(number);
        }
        true
    }

    /// The slot of a staged page.
    pub fn staged(&self, object: ObjectId, page: usize) -> Option<SlotNumber> {
        self.find(object, page)
            .filter(|it| self.slots[*it].is_staged)
    }

    /// The slot of a page that the store has, too.
    pub fn kept(&self, object: ObjectId, page: usize) -> Option<SlotNumber> {
        self.find(object, page).filter(|it| self.slots[*it].is_kept)
    }

    fn find(&self, object: ObjectId, page: usize) -> Option<SlotNumber> {
        self.places.get(&(object, page)).copied()
    }

    /// The page's contents are in its object again, or are to be forgotten.
    pub fn release(&mut self, number: SlotNumber) {
        let slot = &mut self.slots[number];
        slot.is_kept = false;
        self.staged -= u32::from(std::mem::take(&mut slot.is_staged));
        let page = (slot.object, slot.page);
        if self.places.get(&page) == Some(&number) {
            self.places.remove(&page);
        }
    }

    /// Forgets an object. Returns how many of its pages were staged.
    pub fn forget(&mut self, object: ObjectId) -> u32 {
        let before = self.staged;
        for number in 0..self.slots.len() {
            if self.slots[number].object == object {
                self.release(number);
            }
        }
        before - self.staged
    }

    /// Pages that wait for the store.
    pub fn staged_pages(&self) -> u32 {
        self.staged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_for_its_write_though_its_page_was_taken_back() {
        let mut slots = Slots::new(0).unwrap();
        let slot = slots.stage(1, 53).unwrap();
        assert_eq!((slots.staged(1, 53), slots.staged_pages()), (Some(slot), 1));
        slots.release(slot);
        assert_eq!((slots.staged(1, 53), slots.staged_pages()), (None, 0));
        let others: Vec<_> = (1..FEWEST).map(|page| slots.stage(2, page)).collect();
        assert!(others.iter().all(|it| it.is_some_and(|it| it != slot)));
        assert_eq!(slots.stage(2, 0), None, "its write is in flight");
        assert!(!slots.complete(slot, true), "it was taken back");
        assert_eq!(slots.stage(2, 0), Some(slot));
        assert_eq!(slots.kept(1, 53), None);
    }

    #[test]
    fn a_page_that_the_store_has_is_kept_until_its_slot_is_reused() {
        let mut slots = Slots::new(0).unwrap();
        let slot = slots.stage(1, 53).unwrap();
        assert!(slots.complete(slot, true));
        assert_eq!((slots.kept(1, 53), slots.staged(1, 53)), (Some(slot), None));
        for page in 0..FEWEST {
            slots.stage(2, page).unwrap();
        }
        assert_eq!(slots.kept(1, 53), None);
    }

    #[test]
    fn a_page_that_the_store_refused_and_an_object_that_ended_are_forgotten() {
        let mut slots = Slots::new(0).unwrap();
        let refused = slots.stage(1, 5).unwrap();
        assert!(slots.complete(refused, false));
        assert_eq!((slots.kept(1, 5), slots.staged(1, 5)), (None, None));
        let stored = slots.stage(1, 6).unwrap();
        assert!(slots.complete(stored, true));
        slots.stage(1, 7).unwrap();
        slots.stage(2, 7).unwrap();
        assert_eq!(slots.forget(1), 1);
        assert_eq!((slots.kept(1, 6), slots.staged(1, 7)), (None, None));
        assert!(slots.staged(2, 7).is_some());
    }
}
