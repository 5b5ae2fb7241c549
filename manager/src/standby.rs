//! Copies of the units that were evicted last: the second chance of their pages.
//!
//! An eviction reads a unit into a slot, and the slot stays until another eviction needs it. A page that
//! faults meanwhile comes back by a copy, without the store, and its unit counts as warm. The slots'
//! pages are frames of the client's contract.

use crate::page_table::UNIT;
use std::io;
use wired::{PAGE, WiredMemory};

/// One slot's contents.
#[derive(Clone, Copy, Default)]
struct Slot {
    unit: usize,
    /// A bit for each page of the unit that is here and not in its place.
    pages: u64,
}

/// The slots, reused in turn.
pub struct Standby {
    memory: WiredMemory,
    slots: Vec<Slot>,
    next: usize,
}

/// Frames for each slot, and slots at most.
const FRAMES_PER_SLOT: usize = 16 * UNIT;
const MOST_SLOTS: usize = 16;

impl Standby {
    /// Slots for a contract of that many frames: one at least.
    pub fn new(frames: usize) -> io::Result<Self> {
        let slots = (frames / FRAMES_PER_SLOT).clamp(1, MOST_SLOTS);
        Ok(Self {
            memory: WiredMemory::private(slots * UNIT * PAGE)?,
            slots: vec![Slot::default(); slots],
            next: 0,
        })
    }

    /// Frames that the slots take.
    pub fn frames(&self) -> usize {
        self.slots.len() * UNIT
    }

    /// Empties the slot that is the oldest, for a unit. Returns its number.
    pub fn reuse(&mut self, unit: usize) -> usize {
        let slot = self.next;
        self.next = (slot + 1) % self.slots.len();
        self.slots[slot] = Slot { unit, pages: 0 };
        slot
    }

    /// Where a page of the slot's unit lies.
    pub fn page(&self, slot: usize, page: usize) -> *mut u8 {
        let at = slot * UNIT + page % UNIT;
        // SAFETY: within the memory of `slots.len() * UNIT` pages.
        unsafe { self.memory.as_ptr().add(at * PAGE) }
    }

    /// The slot's page is the only copy in memory from now on. An older one, of a page that came back by another way, is
    /// not its contents any more.
    pub fn keep(&mut self, slot: usize, page: usize) {
        self.take(page);
        self.slots[slot].pages |= 1 << (page % UNIT);
    }

    /// Takes a page out: where its contents lie, if they are here.
    pub fn take(&mut self, page: usize) -> Option<*const u8> {
        let bit = 1 << (page % UNIT);
        let has = |it: &Slot| it.unit == page / UNIT && it.pages & bit != 0;
        let slot = self.slots.iter().position(has)?;
        self.slots[slot].pages &= !bit;
        Some(self.page(slot, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_taken_once_and_lost_with_its_slot() {
        let mut standby = Standby::new(2 * FRAMES_PER_SLOT).unwrap();
        assert_eq!(standby.frames(), 2 * UNIT);
        for unit in [3, 4] {
            let slot = standby.reuse(unit);
            standby.keep(slot, unit * UNIT + 5);
        }
        assert!(standby.take(3 * UNIT + 4).is_none());
        assert!(standby.take(4 * UNIT + 5).is_some());
        assert!(standby.take(4 * UNIT + 5).is_none());
        let again = standby.reuse(4);
        standby.keep(again, 4 * UNIT + 6);
        let newer = standby.reuse(4);
        standby.keep(newer, 4 * UNIT + 6);
        let (contents, place) = (
            standby.take(4 * UNIT + 6),
            standby.page(newer, 4 * UNIT + 6),
        );
        assert_eq!(contents, Some(place.cast_const()));
        assert!(
            standby.take(4 * UNIT + 6).is_none(),
            "the older copy is gone"
        );
        standby.reuse(9);
        assert!(standby.take(3 * UNIT + 5).is_none(), "its slot was reused");
    }
}
