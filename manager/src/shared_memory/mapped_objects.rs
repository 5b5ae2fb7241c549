//! The objects of a tree and the processes that map them: what is done to a page in one mapping, or in all.

use super::clients::{ClientId, Clients, ObjectClient};
use super::fetches::Waiter;
use super::locks::LockedPages;
use super::mappings::{Mappings, ObjectId};
use super::object::{MOST_OBJECTS, Object, most_objects};
use super::pending_children::PendingChildren;
use crate::page_table::PageState;
use frames::DomainId;
use rustix::fd::OwnedFd;
use selfpage::Key;
use std::collections::BTreeMap;
use std::ops::Range;
use translation::{Errno, MapError, Modes};
use wired::PAGE;

/// A fault on a page that the object lacks. Pages that it has the kernel maps by itself, with their neighbours.
const MODES: Modes = Modes {
    missing: true,
    write_protect: false,
    minor: false,
};

/// An object that no process maps any more.
pub(super) type EndedObject = (ObjectId, Object);

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultOutcome {
    Answered,
    /// An event is unread, no frame is free, or the store is busy.
    Deferred,
}

/// The objects, and their clients.
#[derive(Default)]
pub(super) struct MappedObjects {
    pub clients: Clients,
    pub objects: BTreeMap<ObjectId, Object>,
    pub locked: LockedPages,
    pub pending: PendingChildren,
    next: ObjectId,
}

impl MappedObjects {
    /// A client's mapping of a fresh memfd becomes an object.
    pub fn share(
        &mut self,
        id: ClientId,
        addr: usize,
        len: usize,
        memory: OwnedFd,
    ) -> Result<(), String> {
        let most = most_objects();
        if self.objects.len() >= most {
            return Err(format!(
                "{most} ranges of memory are shared already, a quarter of `ulimit -n` or {MOST_OBJECTS} at most"
            ));
        }
        let object = Object::new(memory, len / PAGE, self.locked.clone());
        let mut object = object.map_err(|why| why.to_string())?;
        let mut others = self.objects.values();
        if others.any(|other| other.inode() == object.inode()) {
            return Err("this memory is an object already".into());
        }
        let client = self.clients.get_mut(id).ok_or("the process has ended")?;
        let registered = client.uffd.register(addr, len, MODES);
        registered.map_err(|why| why.to_string())?;
        let number = self.next;
        self.next += 1;
        client.mappings.insert(addr, len, number, 0);
        object.users.push(id);
        self.objects.insert(number, object);
        Ok(())
    }

    /// Keeps what a process maps for its child.
    pub fn keep_for_child(
        &mut self,
        parent: Option<ClientId>,
        child: DomainId,
    ) -> Vec<EndedObject> {
        let parent = parent.and_then(|parent| self.clients.get(parent));
        let inherited = parent.map(|parent| parent.mappings.clone());
        let mut inherited = inherited.unwrap_or_default();
        inherited.unlock_all();
        let former = self.pending.insert(child, inherited);
        self.take_unmapped_of(former.as_ref())
    }

    /// A child maps what was kept for it. Returns the objects that no process maps any more.
    pub fn inherit(&mut self, child: ClientId, inherited: Mappings) -> Vec<EndedObject> {
        let Some(client) = self.clients.get_mut(child) else {
            return self.take_unmapped_of(Some(&inherited));
        };
        client.mappings = inherited.clone();
        for (addr, bytes, object) in inherited.iter() {
            match client.uffd.register(addr, bytes, MODES) {
                Ok(()) => {
                    if let Some(object) = self.objects.get_mut(&object) {
                        object.add_user(child);
                    }
                }
                // Advised not to be inherited: nothing is mapped there.
                Err(_) => client.mappings.remove(addr, bytes),
            }
        }
        self.take_unmapped_of(Some(&inherited))
    }

    /// A child does not come. Returns the objects that no process maps any more.
    pub fn give_up_child(&mut self, child: DomainId) -> Vec<EndedObject> {
        let inherited = self.pending.remove(child);
        self.take_unmapped_of(inherited.as_ref())
    }

    /// A client maps at `to` pages from `first` on of the object with this inode.
    pub fn attach(
        &mut self,
        id: ClientId,
        inode: u64,
        first: usize,
        to: Range<usize>,
    ) -> Result<(), String> {
        let client = self.clients.get_mut(id).ok_or("the process has ended")?;
        let mut objects = self.objects.iter_mut();
        let (number, object) = objects
            .find(|(_, object)| object.inode() == inode)
            .ok_or("the object has ended")?;
        let pages = to.len() / PAGE;
        if first
            .checked_add(pages)
            .is_none_or(|end| end > object.pages())
        {
            return Err("the object has fewer pages".into());
        }
        let registered = client.uffd.register(to.start, to.len(), MODES);
        registered.map_err(|why| why.to_string())?;
        client.mappings.insert(to.start, to.len(), *number, first);
        object.placer = object.placer.or(object.users.first().copied());
        object.add_user(id);
        Ok(())
    }

    /// A client maps at `to` pages of the object that it maps at `like`: the first is found from the one at
    /// `like`.
    pub fn add_mapping(
        &mut self,
        id: ClientId,
        like: usize,
        first: impl FnOnce(usize) -> usize,
        to: Range<usize>,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(id) else {
            return Ok(());
        };
        let Some((number, page)) = client.mappings.find(like) else {
            return Ok(());
        };
        let Some(object) = self.objects.get_mut(&number) else {
            return Ok(());
        };
        let first = first(page);
        // Beyond the object's end an access fails, as natively. That part is registered, too: without it the
        // mapping would be two to the kernel, and `mremap` refuses both at once.
        let bytes = to.len().min(object.pages().saturating_sub(first) * PAGE);
        if bytes == 0 || !to.start.is_multiple_of(PAGE) {
            return Ok(());
        }
        let registered = client.uffd.register(to.start, to.len(), MODES);
        registered.map_err(|why| why.to_string())?;
        client.mappings.insert(to.start, bytes, number, first);
        object.add_user(id);
        Ok(())
    }

    /// A client has unmapped a range. Returns the objects that no process maps any more.
    pub fn unmap(&mut self, id: ClientId, addr: usize, len: usize) -> Vec<EndedObject> {
        let parts = self.pages_in(id, &(addr..addr.saturating_add(len)));
        if let Some(client) = self.clients.get_mut(id) {
            client.mappings.remove(addr, len);
        }
        let ended = parts.into_iter().filter_map(|(number, _)| {
            self.update_locks(id, number);
            self.take_unmapped(number)
        });
        ended.collect()
    }

    /// A client's address space has ended. Returns the client, and the objects that no process maps any more.
    pub fn remove_client(&mut self, id: ClientId) -> Option<(ObjectClient, Vec<EndedObject>)> {
        let client = self.clients.remove(id)?;
        let ended = self.take_unmapped_of(Some(&client.mappings));
        Some((client, ended))
    }

    /// Removes and returns objects of some mappings that no process maps any more, and no child inherits.
    pub fn take_unmapped_of(&mut self, mappings: Option<&Mappings>) -> Vec<EndedObject> {
        let numbers = mappings.into_iter().flat_map(Mappings::iter);
        let ended = numbers.filter_map(|(_, _, number)| self.take_unmapped(number));
        ended.collect()
    }

    /// Removes and returns an object that no process maps any more, and no child inherits.
    fn take_unmapped(&mut self, number: ObjectId) -> Option<EndedObject> {
        let clients = &self.clients;
        let maps = |id: &ClientId| clients.get(*id).is_some_and(|it| it.mappings.has(number));
        let object = self.objects.get_mut(&number)?;
        object.users.retain(maps);
        object.locks.keep(&object.users);
        match object.users.is_empty() && !self.pending.has(number) {
            true => self.objects.remove(&number).map(|object| (number, object)),
            false => None,
        }
    }

    /// The pages of a range of a client's addresses, by object.
    pub fn pages_in(&self, id: ClientId, range: &Range<usize>) -> Vec<(ObjectId, Range<usize>)> {
        let client = self.clients.get(id).into_iter();
        let parts = client.flat_map(|client| client.mappings.pages_in(range.start, range.len()));
        parts.collect()
    }

    /// Of the pages of a range of a client's addresses, those that may be others than zeros, by object.
    pub fn used_pages_in(&self, id: ClientId, range: &Range<usize>) -> Vec<(ObjectId, Vec<usize>)> {
        let parts = self.pages_in(id, range).into_iter();
        let used = parts.filter_map(|(number, pages)| {
            let object = self.objects.get(&number)?;
            Some((number, object.used_pages(pages).collect()))
        });
        used.collect()
    }

    /// Returns true if objects are mapped in all of a range of a client's addresses.
    pub fn maps_all(&self, id: ClientId, range: &Range<usize>) -> bool {
        let parts = self.pages_in(id, range).into_iter();
        parts.map(|(_, pages)| pages.len() * PAGE).sum::<usize>() == range.len()
    }

    /// A client locks pages, of which `most` may be locked in all.
    pub fn lock(&mut self, id: ClientId, range: &Range<usize>, most: usize) -> Result<(), String> {
        let parts = self.pages_in(id, range);
        let wanted: usize = parts.iter().map(|(_, pages)| pages.len()).sum();
        // What it has locked there already is locked anew.
        let again = |(number, pages): &(ObjectId, Range<usize>)| {
            let object = self.objects.get(number);
            object.map_or(0, |object| object.locks.of(id, pages))
        };
        let again: usize = parts.iter().map(again).sum();
        // A page that is mapped twice in the range counts twice.
        let locked = self.locked.get().saturating_sub(again);
        if wanted > 0 && locked + wanted > most {
            return Err(format!(
                "{wanted} pages of shared memory cannot be locked beside {locked}: {most} fit into the frames"
            ));
        }
        self.set_locked(id, range, &parts, true);
        Ok(())
    }

    fn set_locked(
        &mut self,
        id: ClientId,
        range: &Range<usize>,
        parts: &[(ObjectId, Range<usize>)],
        is_locked: bool,
    ) {
        if let Some(client) = self.clients.get_mut(id) {
            client.mappings.set_locked(range, is_locked);
        }
        for (number, _) in parts {
            self.update_locks(id, *number);
        }
    }

    /// A page is locked as long as one of a client's mappings of it is.
    fn update_locks(&mut self, id: ClientId, number: ObjectId) {
        let client = self.clients.get(id);
        let pages = client.map(|client| client.mappings.locked_pages(number));
        if let Some(object) = self.objects.get_mut(&number) {
            object.locks.set(id, pages.unwrap_or_default());
        }
    }

    /// A client's locks end.
    pub fn unlock(&mut self, id: ClientId, range: &Range<usize>) {
        let parts = self.pages_in(id, range);
        self.set_locked(id, range, &parts, false);
    }

    /// Units that may have something to evict again, since locks have ended: by munlock, or with their mapping or process.
    pub fn take_unlocked(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        if !self.locked.take_ended() {
            return keys;
        }
        for (number, object) in &mut self.objects {
            if object.locks.take_ended() {
                let units = object.used_units(0..object.pages());
                let units = units.filter(|unit| object.residents(*unit) > 0);
                keys.extend(units.map(|unit| Key::new(*number, unit)));
            }
        }
        keys
    }

    /// The state of a page; none where its object has ended.
    pub fn state(&self, id: ObjectId, page: usize) -> Option<PageState> {
        self.objects.get(&id).map(|object| object.get(page))
    }

    /// Returns true if the object has a page in the page cache.
    pub fn is_resident(&self, id: ObjectId, page: usize) -> bool {
        self.state(id, page).is_some_and(PageState::is_resident)
    }

    /// Resident pages of a unit, if none of it is locked.
    pub fn evictable(&self, id: ObjectId, unit: usize) -> u32 {
        let object = self
            .objects
            .get(&id)
            .filter(|object| !object.locks.has(&object.unit(unit)));
        object.map_or(0, |object| object.residents(unit))
    }

    /// The thread that waits at an address faults again.
    pub fn wake(&self, at: Waiter) -> FaultOutcome {
        let client = self.clients.get(at.client);
        match client.map(|client| client.uffd.wake(at.addr, PAGE)) {
            Some(Err(why)) if why.errno == Errno::AGAIN => FaultOutcome::Deferred,
            _ => FaultOutcome::Answered,
        }
    }

    /// Makes an access fail.
    pub fn poison(&self, at: Waiter) -> FaultOutcome {
        let Some(client) = self.clients.get(at.client) else {
            return FaultOutcome::Answered;
        };
        match client.uffd.poison(at.addr, PAGE) {
            Ok(()) | Err(MapError::Exists { .. } | MapError::Gone) => self.wake(at),
            Err(MapError::Again { .. } | MapError::NoMemory) => FaultOutcome::Deferred,
            // Before Linux 6.6. Woken, the thread would fault again at once, without end.
            Err(why) => {
                tracing::error!(
                    "shared memory: an access to {:#x} waits for ever: {why}",
                    at.addr
                );
                FaultOutcome::Answered
            }
        }
    }
}
