//! The paging objects of one swap space: where their copies are, and which version each page has.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 2.2: the size of a paging object decides
//! how often one is created, and how finely storage moves. The space is cut into objects of
//! [`OBJECT_PAGES`]: 16 MiB, for which a request of creation costs a thousandth of writing the pages,
//! and which moves in a fraction of a second. A space fills from its lowest pages, so objects are
//! dense and their whole span is asked for at once.
//!
//! | state of a copy | receives writes | is read |
//! |---|---|---|
//! | creating | no | no |
//! | copying: pages of another copy are on their way | yes | no |
//! | current | yes | yes |
//!
//! Rule: a copy that is read has every acknowledged write, but for pages that no server could read when it
//! was made, of which the record says that what it has is old. Versions rise with each write of the space,
//! and a server keeps the highest, so a page that is copied late never covers a later write.

use crate::client_state::ClientState;
use crate::page_cipher::PageCipher;
use crate::page_records::PageRecords;
use crate::stripe_code::{MEMBERS, PARITIES};
use remote_policy::identity::{Generation, HostId, ObjectId, PageNumber, Version};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use wired::PAGE;

/// Pages of an object.
pub const OBJECT_PAGES: u64 = 4096;

/// A set of servers, by their index.
pub use remote_policy::redundancy::ServerSet;

/// The set of one server.
pub fn bit(server: usize) -> ServerSet {
    1 << server
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// Its server was asked for it, or for the permit.
    Creating,
    /// It receives writes, and lacks older pages.
    Copying,
    /// It has every acknowledged write.
    Current,
}

/// A copy of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectCopy {
    /// Index of its server.
    pub server: usize,
    /// How far it is.
    pub state: CopyState,
    /// The server wants it gone.
    pub is_leaving: bool,
    /// Each copy of an object has its own, so that no late request for an earlier copy is served.
    pub generation: Generation,
}

/// A paging object.
#[derive(Debug)]
pub struct PagingObject {
    /// Its copies.
    pub copies: Vec<ObjectCopy>,
    /// The generation of the copy that was made last.
    pub latest: Generation,
    /// Some page of it was written and acknowledged.
    pub has_pages: bool,
    /// Pages that some copies lack, since they could not be read when those were made. A copy is not
    /// given up for them.
    pub unreadable: BTreeSet<u64>,
    /// It may have changed since it was saved.
    is_changed: bool,
    /// The stripe that it is part of.
    stripe: Option<usize>,
}

impl PagingObject {
    /// One without copies and pages.
    pub fn empty() -> Self {
        Self {
            copies: Vec::new(),
            latest: Generation(0),
            has_pages: false,
            unreadable: BTreeSet::new(),
            is_changed: false,
            stripe: None,
        }
    }

    /// The servers with a copy in one of the states.
    pub fn servers(&self, is: impl Fn(CopyState) -> bool) -> ServerSet {
        let copies = self.copies.iter().filter(|copy| is(copy.state));
        copies.fold(0, |set, copy| set | bit(copy.server))
    }

    /// The servers that a read may go to.
    pub fn readable(&self) -> ServerSet {
        self.servers(|state| state == CopyState::Current)
    }

    /// Returns true if a server has the only current copy.
    pub fn is_only_current(&self, server: usize) -> bool {
        self.readable() == bit(server)
    }

    /// The servers that a write has to go to.
    pub fn writable(&self) -> ServerSet {
        self.servers(|state| state != CopyState::Creating)
    }

    /// Returns true if a copy is being created.
    pub fn is_creating(&self) -> bool {
        self.servers(|state| state == CopyState::Creating) != 0
    }

    /// Returns true if copies may lack some of the pages.
    pub fn has_unreadable(&self, pages: Range<u64>) -> bool {
        self.unreadable.range(pages).next().is_some()
    }

    /// The copy at a server.
    pub fn copy_at(&mut self, server: usize) -> Option<&mut ObjectCopy> {
        self.copies.iter_mut().find(|copy| copy.server == server)
    }
}

/// The size of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceSize {
    /// Bytes of its pages.
    pub bytes: u64,
    /// True if there is room for the parity of stripes.
    pub has_stripes: bool,
}

impl SpaceSize {
    /// Objects of its pages.
    fn data(self) -> usize {
        self.bytes.div_ceil(OBJECT_PAGES * PAGE as u64) as usize
    }

    /// Stripes of its objects at most.
    pub fn stripes(self) -> usize {
        match self.has_stripes {
            true => self.data() / MEMBERS,
            false => 0,
        }
    }

    fn objects(self) -> usize {
        self.data() + self.stripes() * PARITIES
    }

    /// Pages that have records.
    fn records(self) -> u64 {
        match self.stripes() {
            0 => self.bytes.div_ceil(PAGE as u64),
            _ => self.objects() as u64 * OBJECT_PAGES,
        }
    }
}

/// The objects of a space.
pub struct ObjectMap {
    client: HostId,
    objects: Vec<PagingObject>,
    records: PageRecords,
    pages: u64,
    /// Objects of the space; those of parity follow.
    data: usize,
    state: ClientState,
    /// Objects that may have changed since they were saved.
    changed: Vec<usize>,
}

impl ObjectMap {
    /// The state of a client with a space, in which nothing is written.
    pub fn new_state(space: SpaceSize, is_encrypted: bool) -> io::Result<ClientState> {
        let records = PageRecords::bytes(space.records(), is_encrypted);
        ClientState::new(space.objects(), space.stripes(), records)
    }

    /// The space in a client's state, without its copies, and a cipher to encrypt its pages by.
    pub fn new(
        client: HostId,
        space: SpaceSize,
        cipher: Option<PageCipher>,
        state: ClientState,
    ) -> Self {
        let pages = space.bytes.div_ceil(PAGE as u64);
        let count = space.objects();
        Self {
            client,
            data: space.data(),
            objects: std::iter::repeat_with(PagingObject::empty)
                .take(count)
                .collect(),
            records: PageRecords::at(state.records(), cipher),
            pages,
            state,
            changed: Vec::with_capacity(count),
        }
    }

    /// The client's state.
    pub fn state(&self) -> &ClientState {
        &self.state
    }

    /// Saves the objects that may have changed, with `save_servers` between copies that are gone and those that are
    /// new (`client_state`).
    pub fn save(&mut self, save_servers: impl FnOnce(&ClientState)) {
        for object in &self.changed {
            self.state.promote_copies(*object, &self.objects[*object]);
        }
        for object in &self.changed {
            self.state.remove_copies(*object, &self.objects[*object]);
        }
        save_servers(&self.state);
        for object in self.changed.drain(..) {
            self.objects[object].is_changed = false;
            self.state.save_copies(object, &self.objects[object]);
        }
        self.state.settle();
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// An object, which may be changed.
    pub fn get(&mut self, object: usize) -> &mut PagingObject {
        if !std::mem::replace(&mut self.objects[object].is_changed, true) {
            self.changed.push(object);
        }
        &mut self.objects[object]
    }

    /// An object, to be looked at.
    pub fn at(&self, object: usize) -> &PagingObject {
        &self.objects[object]
    }

    /// Objects of the space: those of parity follow.
    pub fn data(&self) -> usize {
        self.data
    }

    /// The stripe that an object is part of.
    pub fn stripe_of(&self, object: usize) -> Option<usize> {
        self.objects[object].stripe
    }

    /// Has an object be part of a stripe, or of none.
    pub fn set_stripe(&mut self, object: usize, stripe: Option<usize>) {
        self.objects[object].stripe = stripe;
    }

    /// Forgets the pages of an object: they count as never written.
    pub fn forget(&mut self, object: usize) {
        self.objects[object].has_pages = false;
        let pages = self.pages_of(object);
        pages.for_each(|page| self.records.forget(Self::number(object, page)));
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &PagingObject)> {
        self.objects.iter().enumerate()
    }

    /// The name of an object.
    pub fn id(&self, object: usize) -> ObjectId {
        ObjectId {
            client: self.client,
            number: object as u64,
        }
    }

    /// The generation of an object's copy at a server; zero where there is none.
    pub fn generation(&self, object: usize, server: usize) -> Generation {
        let mut copies = self.objects[object].copies.iter();
        let copy = copies.find(|copy| copy.server == server);
        copy.map_or(Generation(0), |copy| copy.generation)
    }

    /// The object of a server's name for it.
    pub fn find(&self, id: ObjectId) -> Option<usize> {
        let number = usize::try_from(id.number).ok()?;
        (id.client == self.client && number < self.objects.len()).then_some(number)
    }

    /// The page of an object that is a page of the space.
    pub fn page(page: u64) -> (usize, PageNumber) {
        let object = (page / OBJECT_PAGES) as usize;
        (object, PageNumber(page % OBJECT_PAGES))
    }

    /// What is known of the pages.
    pub fn records(&self) -> &PageRecords {
        &self.records
    }

    /// The page of the space that is a page of an object.
    pub fn number(object: usize, page: u64) -> u64 {
        object as u64 * OBJECT_PAGES + page
    }

    /// The acknowledged version of a page of an object.
    pub fn version(&self, object: usize, page: u64) -> Version {
        self.records.acknowledged(Self::number(object, page))
    }

    /// Returns true if a page of an object was written and is lost.
    pub fn is_lost(&self, object: usize, page: u64) -> bool {
        self.records.is_lost(Self::number(object, page))
    }

    /// Returns true if some server has a page of an object: it was written, and is not lost.
    pub fn is_held(&self, object: usize, page: u64) -> bool {
        self.version(object, page).0 != 0 && !self.is_lost(object, page)
    }

    /// Notes the acknowledged write of a page.
    pub fn acknowledge(&mut self, object: usize, page: u64, version: Version) {
        self.objects[object].has_pages = true;
        self.objects[object].unreadable.remove(&page);
        let page = Self::number(object, page);
        self.records.on_write_acknowledged(page, version);
    }

    /// Marks the written pages of an object lost, and returns how many they are.
    pub fn lose(&mut self, object: usize) -> u64 {
        self.objects[object].has_pages = false;
        self.objects[object].unreadable.clear();
        let pages = self.pages_of(object);
        let lost = pages.filter(|page| self.records.lose(Self::number(object, *page)));
        lost.count() as u64
    }

    /// The pages of an object: the last may be shorter than the others.
    pub fn pages_of(&self, object: usize) -> Range<u64> {
        match object < self.data {
            true => 0..(self.pages - object as u64 * OBJECT_PAGES).min(OBJECT_PAGES),
            false => 0..OBJECT_PAGES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = (OBJECT_PAGES + 10) * PAGE as u64;

    fn map() -> ObjectMap {
        let space = SpaceSize {
            bytes: SIZE,
            has_stripes: false,
        };
        let state = ObjectMap::new_state(space, false).unwrap();
        ObjectMap::new(HostId(1), space, None, state)
    }

    #[test]
    fn a_space_ends_within_its_last_object() {
        let map = map();
        assert_eq!(
            (map.len(), map.pages_of(0), map.pages_of(1)),
            (2, 0..OBJECT_PAGES, 0..10)
        );
        assert_eq!(ObjectMap::page(OBJECT_PAGES + 3), (1, PageNumber(3)));
        assert_eq!((map.find(map.id(1)), map.find(map.id(2))), (Some(1), None));
    }

    #[test]
    fn a_lost_page_stays_lost_until_it_is_written_again() {
        let mut map = map();
        map.acknowledge(1, 4, Version(7));
        map.acknowledge(1, 4, Version(6));
        assert_eq!(map.version(1, 4), Version(7));
        assert_eq!(map.lose(1), 1);
        assert!(map.is_lost(1, 4) && !map.is_lost(1, 5));
        assert!(!map.is_held(1, 4) && !map.is_held(1, 5));
        map.acknowledge(1, 4, Version(8));
        assert_eq!(map.version(1, 4), Version(8));
        assert!(map.is_held(1, 4));
    }
}
