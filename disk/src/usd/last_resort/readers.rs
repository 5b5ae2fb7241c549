//! Slots that are read, and those that are to be free when their reads have ended.

use super::places::{Places, SlotId};

/// Reads in flight of each slot, and slots that no blok names any more.
pub(super) struct SlotReaders {
    reads: Box<[u16]>,
    leaving: Vec<SlotId>,
}

impl SlotReaders {
    /// Of so many slots.
    pub fn new(slots: u32) -> Self {
        Self {
            reads: vec![0; slots as usize].into(),
            // No more than are in flight leave at once.
            leaving: Vec::with_capacity(super::SPARE_SLOTS as usize),
        }
    }

    /// A read begins.
    pub fn on_begun(&mut self, slot: SlotId) {
        self.reads[slot.0 as usize] += 1;
    }

    /// It has ended.
    pub fn on_ended(&mut self, slot: SlotId) {
        self.reads[slot.0 as usize] -= 1;
    }

    /// A blok does not name the slot any more.
    pub fn leave(&mut self, slot: Option<SlotId>) {
        self.leaving.extend(slot);
    }

    /// Releases the slots that are not read any more.
    pub fn release_unread(&mut self, places: &mut Places) {
        let reads = &self.reads;
        self.leaving.retain(|slot| {
            let is_read = reads[slot.0 as usize] > 0;
            if !is_read {
                places.release(*slot);
            }
            is_read
        });
    }
}
