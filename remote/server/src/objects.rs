//! The paging objects of a server.

use crate::page_index::MAX_OBJECTS;
use crate::page_memory::PageMemory;
use crate::refusal::Refusal;
use remote_policy::identity::{Generation, ObjectId};
use remote_policy::permit::PermitId;
use remote_wire::{Header, Status};
use std::collections::BTreeMap;

/// A paging object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagingObject {
    /// Its name.
    pub id: ObjectId,
    /// The permit that it was created with.
    pub permit: PermitId,
    /// Its size.
    pub pages: u64,
    /// Which of the object's copies it is.
    pub generation: Generation,
    /// Pages written.
    pub written: u64,
}

impl PagingObject {
    /// Checks that a request is one of this copy's pages.
    ///
    /// # Errors
    /// The reply of a request that is not.
    pub fn check(&self, request: &Header) -> Result<(), Refusal> {
        if request.generation != self.generation {
            let text = format!(
                "{} has generation {} here, the request is for {}: one of them is left behind",
                self.id, self.generation.0, request.generation.0
            );
            return Err(Refusal::new(Status::Generation, text));
        }
        let end = request.page.0.checked_add(request.pages.into());
        if end.is_none_or(|end| end > self.pages) {
            let text = format!(
                "pages {} to {} of {}, which has {}",
                request.page.0,
                u128::from(request.page.0) + u128::from(request.pages),
                self.id,
                self.pages
            );
            return Err(Refusal::new(Status::Invalid, text));
        }
        Ok(())
    }
}

/// All objects, each in a slot.
#[derive(Default)]
pub(crate) struct ObjectTable {
    slots: Vec<Option<PagingObject>>,
    by_id: BTreeMap<ObjectId, u32>,
    free: Vec<u32>,
    /// Slots of removed objects that may have pages yet.
    removed: Vec<u32>,
}

impl ObjectTable {
    /// The slot of an object.
    pub fn find(&self, id: ObjectId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The object in a slot that [`ObjectTable::find`] returned.
    pub fn get(&self, slot: u32) -> Option<&PagingObject> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The object in a slot.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut PagingObject> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Adds an object that is not there.
    ///
    /// # Errors
    /// Where the table is full.
    pub fn insert(&mut self, object: PagingObject) -> Result<(), Refusal> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_OBJECTS as usize => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
            None => {
                let text = format!(
                    "cannot create {}: this server has {MAX_OBJECTS} objects, its most; use another server",
                    object.id
                );
                return Err(Refusal::new(Status::NoPages, text));
            }
        };
        self.slots[slot as usize] = Some(object);
        self.by_id.insert(object.id, slot);
        Ok(())
    }

    /// Removes an object. Its slot is not used again before its pages are free.
    pub fn remove(&mut self, id: ObjectId) {
        if let Some(slot) = self.by_id.remove(&id) {
            self.slots[slot as usize] = None;
            self.removed.push(slot);
        }
    }

    /// Returns true if removed objects may have pages yet.
    pub fn has_removed(&self) -> bool {
        !self.removed.is_empty()
    }

    /// Frees at most `most` pages of removed objects: those of one may be all that the server has.
    pub fn free_pages(&mut self, memory: &mut PageMemory, most: u32) {
        let mut left = most;
        while let Some(&slot) = self.removed.last() {
            left -= memory.discard_object(slot, left);
            if left == 0 {
                return;
            }
            self.removed.pop();
            self.free.push(slot);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &PagingObject> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remote_policy::identity::{HostId, Version};
    use wired::PAGE;

    fn object(number: u64) -> PagingObject {
        let id = ObjectId {
            client: HostId(1),
            number,
        };
        PagingObject {
            id,
            permit: PermitId {
                server: HostId(2),
                number: 1,
            },
            pages: 8,
            generation: Generation(1),
            written: 0,
        }
    }

    #[test]
    fn a_request_of_another_copy_or_beyond_its_end_is_refused() {
        let object = object(1);
        let request = |generation, page, pages| Header {
            generation: Generation(generation),
            page: remote_policy::identity::PageNumber(page),
            pages,
            ..Header::control(remote_wire::Kind::Read, 1)
        };
        let status = |request: Header| object.check(&request).map_err(|it| it.status);
        assert_eq!(status(request(1, 4, 4)), Ok(()));
        assert_eq!(status(request(2, 4, 4)), Err(Status::Generation));
        assert_eq!(status(request(1, 4, 5)), Err(Status::Invalid));
        assert_eq!(status(request(1, u64::MAX, 2)), Err(Status::Invalid));
    }

    #[test]
    fn a_removed_objects_pages_are_freed_in_steps_and_its_slot_is_used_afterwards() {
        let mut memory = PageMemory::new(8, None).unwrap();
        let mut objects = ObjectTable::default();
        objects.insert(object(1)).unwrap();
        for page in 0..5 {
            memory.write(0, page, Version(1), &[7; PAGE]).unwrap();
        }
        objects.remove(object(1).id);
        assert_eq!((objects.find(object(1).id), memory.used()), (None, 5));
        objects.free_pages(&mut memory, 3);
        assert!(objects.has_removed());
        assert_eq!(memory.used(), 2);
        objects.insert(object(2)).unwrap();
        assert_eq!(objects.find(object(2).id), Some(1));
        objects.free_pages(&mut memory, 3);
        assert!(!objects.has_removed());
        assert_eq!(memory.used(), 0);
        objects.insert(object(3)).unwrap();
        assert_eq!(objects.find(object(3).id), Some(0));
    }
}
