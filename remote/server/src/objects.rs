//! The paging objects of a server.

use crate::page_index::MAX_OBJECTS;
use crate::refusal::Refusal;
use remote_policy::identity::ObjectId;
use remote_policy::migration::Generation;
use remote_policy::permit::PermitId;
use remote_wire::Status;
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
    /// Whether a write is acknowledged only when it is on the disk.
    pub is_durable: bool,
    /// Pages written.
    pub written: u64,
}

/// All objects, each in a slot.
#[derive(Default)]
pub(crate) struct ObjectTable {
    slots: Vec<Option<PagingObject>>,
    by_id: BTreeMap<ObjectId, u32>,
    free: Vec<u32>,
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

    /// Removes an object and returns the slot that it had.
    pub fn remove(&mut self, id: ObjectId) -> Option<u32> {
        let slot = self.by_id.remove(&id)?;
        self.slots[slot as usize] = None;
        self.free.push(slot);
        Some(slot)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &PagingObject> {
        self.slots.iter().flatten()
    }
}
