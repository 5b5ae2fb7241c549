//! Contents that are put into an object, by a mapping of it.
//!
//! Rule: by one that is a mapping of it for certain. Where the preload library has a memfd take the place of a tree's memory, each
//! is. A process that attaches itself to an object says so of memory of its own, and may lie: contents that are placed there are
//! in no object, and lost to all others. Then they come by the mappings of the process that shared the object alone; the thread of
//! another one's fault is woken, and finds them in the page cache.

use super::clients::ClientId;
use super::fetches::Waiter;
use super::mapped_objects::MappedObjects;
use super::mappings::ObjectId;
use std::ops::Range;
use translation::{MapError, Wake};
use wired::PAGE;

/// What became of contents that were to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    /// The object has the page.
    There,
    /// An event is unread.
    Later,
    /// No process maps the page.
    Nowhere,
}

/// Contents of a page.
#[derive(Clone, Copy)]
pub(super) enum Contents {
    Zeros,
    At(*const u8),
}

impl MappedObjects {
    /// Returns true if contents may come by a process's mappings of an object. Where its placer has left, all others have given it up.
    fn may_place(&self, id: ObjectId, client: ClientId) -> bool {
        let object = self.objects.get(&id);
        let placer = object.and_then(|it| it.placer.filter(|placer| it.users.contains(placer)));
        placer.is_none_or(|placer| placer == client)
    }

    /// Fills pages from one on with zeros, by a mapping of all of them. The thread of the fault is awake where some are there.
    pub fn fill(
        &self,
        id: ObjectId,
        page: usize,
        count: usize,
        fault: Waiter,
    ) -> Result<(), MapError> {
        let by = match self.may_place(id, fault.client) {
            true => fault,
            false => self.places(id, page).next().ok_or(MapError::Gone)?,
        };
        let client = self.clients.get(by.client).ok_or(MapError::Gone)?;
        let filled = client.uffd.zero(by.addr, count * PAGE, Wake::Yes);
        let done = filled
            .as_ref()
            .map_or_else(MapError::done, |()| count * PAGE);
        if by != fault && done > 0 {
            self.wake(fault);
        }
        filled
    }

    /// Puts contents into an object, by the mapping of the fault or else of any process. The thread of the fault
    /// is awake then.
    pub fn place(
        &self,
        id: ObjectId,
        page: usize,
        contents: Contents,
        first: Option<Waiter>,
    ) -> Placed {
        let own = first.filter(|at| self.may_place(id, at.client));
        for at in own.into_iter().chain(self.places(id, page)) {
            let Some(client) = self.clients.get(at.client) else {
                continue;
            };
            let result = match contents {
                Contents::Zeros => client.uffd.zero(at.addr, PAGE, Wake::Yes),
                Contents::At(from) => client.uffd.copy(at.addr, from, PAGE, Wake::Yes),
            };
            match result {
                Ok(()) if first == Some(at) => {}
                Ok(()) | Err(MapError::Exists { .. }) => {
                    first.into_iter().for_each(|first| _ = self.wake(first));
                }
                Err(MapError::Again { .. } | MapError::NoMemory) => return Placed::Later,
                // Unmapped by now.
                Err(_) => continue,
            }
            return Placed::There;
        }
        // The access fails as one to unmapped memory does.
        first.into_iter().for_each(|first| _ = self.wake(first));
        Placed::Nowhere
    }

    /// Puts the contents of pages side by side into an object, by a mapping that has all of them: that of a fault, or else any.
    /// Returns how many of the first are there, and by which addresses: threads that wait at them are awake.
    pub fn place_run(
        &self,
        id: ObjectId,
        pages: &Range<usize>,
        from: *const u8,
        fault: Option<Waiter>,
    ) -> (usize, Option<(ClientId, Range<usize>)>) {
        let users = self
            .objects
            .get(&id)
            .map_or(&[][..], |object| &object.users);
        let bytes = pages.len() * PAGE;
        let own = fault.map(|at| at.client);
        for number in own.iter().chain(users) {
            let Some(client) = self
                .clients
                .get(*number)
                .filter(|_| self.may_place(id, *number))
            else {
                continue;
            };
            let mut places = client.mappings.places(id, pages.clone());
            let Some((addr, _)) = places.find(|(_, len)| *len == bytes) else {
                continue;
            };
            let copied = client.uffd.copy(addr, from, bytes, Wake::Yes);
            let done = copied.map_or_else(|why| why.done(), |()| bytes);
            return (done / PAGE, Some((*number, addr..addr + done)));
        }
        (0, None)
    }

    /// Where a page is mapped.
    fn places(&self, id: ObjectId, page: usize) -> impl Iterator<Item = Waiter> + '_ {
        let users = self
            .objects
            .get(&id)
            .into_iter()
            .flat_map(|object| &object.users)
            .filter(move |client| self.may_place(id, **client));
        users.flat_map(move |number| {
            let client = self.clients.get(*number).into_iter();
            let places = client.flat_map(move |it| it.mappings.places(id, page..page + 1));
            places.map(|(addr, _)| Waiter {
                client: *number,
                addr,
            })
        })
    }
}
