//! The paging objects of a server, and the pages written under each permit.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.4. Rule: the pages written under
//! a permit never exceed those granted, except for pages that a revocation has demanded back.

use super::{ObjectError, ServerCapacity};
use crate::identity::ObjectId;
use crate::lru_size::ObjectUse;
use crate::permit::{MAX_OBJECTS, PermitId};
use std::collections::btree_map::Entry;
use std::time::Duration;

/// Objects that a permit may have at least, as far as it has pages: a client may use few pages of each.
const FEW_OBJECTS: u64 = 64;

/// The most objects of a permit: its part of the server's objects is that of its pages, so that one client leaves the
/// others some.
fn most_objects(granted_pages: u64, owned_pages: u64) -> u64 {
    let part = u128::from(MAX_OBJECTS) * u128::from(granted_pages) / u128::from(owned_pages.max(1));
    let part = part.min(MAX_OBJECTS.into()) as u64;
    granted_pages.min(part.max(FEW_OBJECTS))
}

/// An object as its server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredObject {
    pub permit: PermitId,
    pub written_pages: u64,
    pub last_used: Duration,
    pub faults: u64,
    /// When its organizer was last sent an abdicate request for it.
    pub abdicate_requested: Option<Duration>,
}

impl StoredObject {
    pub fn usage(&self, object: ObjectId) -> ObjectUse {
        ObjectUse {
            object,
            size_pages: self.written_pages,
            last_used: self.last_used,
            faults: self.faults,
        }
    }
}

impl ServerCapacity {
    /// Creates an object under a permit. One that exists under the same permit stays as it is.
    ///
    /// # Errors
    /// [`ObjectError::NoPermit`], [`ObjectError::NotCovered`], [`ObjectError::Objects`].
    pub fn create(
        &mut self,
        permit: PermitId,
        object: ObjectId,
        now: Duration,
    ) -> Result<(), ObjectError> {
        let grant = self
            .grants
            .get_mut(&permit)
            .ok_or(ObjectError::NoPermit(permit))?;
        let other = self
            .objects
            .get(&object)
            .is_some_and(|stored| stored.permit != permit);
        if other || !grant.permit.covers(object) {
            return Err(ObjectError::NotCovered { permit, object });
        }
        let objects = grant.objects.len() as u64;
        let most = most_objects(grant.permit.granted_pages, self.owned_pages);
        if objects >= most && !self.objects.contains_key(&object) {
            return Err(ObjectError::Objects { permit, objects });
        }
        let new = StoredObject {
            permit,
            written_pages: 0,
            last_used: now,
            faults: 0,
            abdicate_requested: None,
        };
        if let Entry::Vacant(free) = self.objects.entry(object) {
            free.insert(new);
            grant.objects.insert(object);
        }
        Ok(())
    }

    /// How many objects are under a permit.
    pub fn objects_under(&self, permit: PermitId) -> usize {
        let grant = self.grants.get(&permit);
        grant.map_or(0, |grant| grant.objects.len())
    }

    /// Counts a write of `new_pages` that were not written before, and of any number that were.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`], and [`ObjectError::Full`] before any of them is written.
    pub fn write(
        &mut self,
        object: ObjectId,
        new_pages: u64,
        now: Duration,
    ) -> Result<(), ObjectError> {
        let stored = self
            .objects
            .get_mut(&object)
            .ok_or(ObjectError::NoObject(object))?;
        let permit = stored.permit;
        let grant = self
            .grants
            .get_mut(&permit)
            .ok_or(ObjectError::NoPermit(permit))?;
        let granted = grant.permit.granted_pages;
        if new_pages > granted.saturating_sub(grant.written_pages) && new_pages > 0 {
            return Err(ObjectError::Full {
                permit,
                asked: new_pages,
                written: grant.written_pages,
                granted,
            });
        }
        grant.written_pages += new_pages;
        stored.written_pages += new_pages;
        stored.last_used = now;
        Ok(())
    }

    /// Counts a read that a fault of the client made.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`].
    pub fn read(&mut self, object: ObjectId, now: Duration) -> Result<(), ObjectError> {
        let stored = self
            .objects
            .get_mut(&object)
            .ok_or(ObjectError::NoObject(object))?;
        stored.last_used = now;
        stored.faults += 1;
        Ok(())
    }

    /// Counts pages that the client discards.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`].
    pub fn discard(&mut self, object: ObjectId, pages: u64) -> Result<(), ObjectError> {
        let stored = self
            .objects
            .get_mut(&object)
            .ok_or(ObjectError::NoObject(object))?;
        let pages = pages.min(stored.written_pages);
        stored.written_pages -= pages;
        if let Some(grant) = self.grants.get_mut(&stored.permit) {
            grant.written_pages -= pages;
        }
        Ok(())
    }

    /// Frees an object: its client terminated it, or it migrated. One that is gone stays gone.
    pub fn terminate(&mut self, object: ObjectId) {
        let Some(stored) = self.objects.remove(&object) else {
            return;
        };
        if let Some(grant) = self.grants.get_mut(&stored.permit) {
            grant.written_pages -= stored.written_pages;
            grant.objects.remove(&object);
        }
    }
}
