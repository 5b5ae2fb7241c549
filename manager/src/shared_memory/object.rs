//! One memory object: a memfd, and where the contents of each of its pages are.

use super::clients::ClientId;
use super::locks::{LockedPages, Locks};
use super::object_memory::{NotAnObject, check_memory, write_page};
use super::pairs::Pairs;
use super::streams::Streams;
use super::{UNIT, removal};
use crate::page_table::PageState;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::ops::Range;

/// Objects of a tree.
pub(super) const MOST_OBJECTS: usize = 4096;

/// Objects of a tree: each is a descriptor of the supervisor's, which needs most of its own for the processes that start.
pub fn most_objects() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(MOST_OBJECTS, |limit| MOST_OBJECTS.min(limit as usize / 4))
}

/// An object.
#[derive(Debug)]
pub struct Object {
    memory: OwnedFd,
    inode: u64,
    pages: usize,
    /// The units that were ever used: an object is as long as its mapping, which costs a program no memory.
    units: BTreeMap<usize, UnitPages>,
    /// Processes that may map it.
    pub users: Vec<ClientId>,
    /// The process by whose mappings contents come in, once others have attached themselves (`placement`).
    pub(super) placer: Option<ClientId>,
    /// Pages that processes have locked.
    pub(super) locks: Locks,
    /// Faults in order.
    pub streams: Streams,
    /// Whether pages are used in pairs.
    pub pairs: Pairs,
}

/// The pages of a unit.
#[derive(Clone, Copy, Debug)]
struct UnitPages {
    /// A [`PageState`] each.
    words: [u32; UNIT],
    /// When each page left last, by the clock of [`ReuseClock`](super::reuse::ReuseClock).
    left: [u16; UNIT],
    residents: u8,
}

impl Default for UnitPages {
    fn default() -> Self {
        Self {
            words: [PageState::Zero.pack(); UNIT],
            left: [0; UNIT],
            residents: 0,
        }
    }
}

impl Object {
    /// An object of zeros, for a sealed memfd of that many pages, whose locks are counted in `locked`.
    pub fn new(memory: OwnedFd, pages: usize, locked: LockedPages) -> Result<Self, NotAnObject> {
        let inode = check_memory(&memory, pages)?;
        Ok(Self {
            memory,
            inode,
            pages,
            units: BTreeMap::new(),
            users: Vec::new(),
            placer: None,
            locks: Locks::new(locked),
            streams: Streams::default(),
            pairs: Pairs::default(),
        })
    }

    /// Tells its memory from that of other objects.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Its pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The pages of a unit.
    pub fn unit(&self, unit: usize) -> Range<usize> {
        unit * UNIT..((unit + 1) * UNIT).min(self.pages())
    }

    /// Resident pages of a unit; none of one that the object does not have.
    pub fn residents(&self, unit: usize) -> u32 {
        self.units.get(&unit).map_or(0, |it| it.residents).into()
    }

    /// The units with some of these pages that were ever used; the pages of all others are zeros.
    pub fn used_units(&self, pages: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let units = pages.start / UNIT..pages.end.div_ceil(UNIT);
        self.units.range(units).map(|(unit, _)| *unit)
    }

    /// Of these pages, those of units that were ever used.
    pub fn used_pages(&self, pages: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        self.used_units(pages.clone())
            .flat_map(|unit| self.unit(unit))
            .filter(move |page| pages.contains(page))
    }

    /// The state of a page.
    pub fn get(&self, page: usize) -> PageState {
        let unit = self.units.get(&(page / UNIT));
        unit.map_or(PageState::Zero, |unit| {
            PageState::unpack(unit.words[page % UNIT])
        })
    }

    /// The pages of the unit of a page, from now on among those used.
    fn unit_of(&mut self, page: usize) -> &mut UnitPages {
        self.units.entry(page / UNIT).or_default()
    }

    /// Sets the state of a page, and returns the former.
    pub fn set(&mut self, page: usize, state: PageState) -> PageState {
        let unit = self.unit_of(page);
        let word = &mut unit.words[page % UNIT];
        let was = PageState::unpack(std::mem::replace(word, state.pack()));
        unit.residents += u8::from(state.is_resident());
        unit.residents -= u8::from(was.is_resident());
        was
    }

    /// How many pages from `page` on are like it, by `is_alike`, of those that a window takes.
    pub fn window(&mut self, page: usize, is_alike: impl Fn(PageState) -> bool) -> usize {
        let window = self.streams.window(page);
        let pages = page..self.pages().min(page + window);
        let count = pages.take_while(|page| is_alike(self.get(*page))).count();
        self.streams.advance(page, count);
        count
    }

    /// A process maps it.
    pub fn add_user(&mut self, client: ClientId) {
        if !self.users.contains(&client) {
            self.users.push(client);
        }
    }

    /// A page's contents have come into the page cache.
    pub fn set_resident(&mut self, page: usize) {
        let then = match self.get(page) {
            PageState::Stored(copy) | PageState::ResidentStored(copy) => {
                PageState::ResidentStored(copy)
            }
            _ => PageState::Resident,
        };
        self.set(page, then);
    }

    /// When a page left last.
    pub fn left(&self, page: usize) -> u16 {
        let unit = self.units.get(&(page / UNIT));
        unit.map_or(0, |unit| unit.left[page % UNIT])
    }

    /// A page leaves now.
    pub fn set_left(&mut self, page: usize, now: u16) {
        self.unit_of(page).left[page % UNIT] = now;
    }

    /// Resident pages of a unit.
    pub fn resident_pages(&self, unit: usize) -> impl Iterator<Item = usize> + '_ {
        self.unit(unit).filter(|page| self.get(*page).is_resident())
    }

    /// Its memfd.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Writes a page that no process maps, and that is not resident.
    pub fn write(&self, page: usize, from: *const u8) -> io::Result<()> {
        write_page(self.memory(), page, from)
    }

    /// Ends the contents of resident pages.
    pub fn punch(&self, pages: &Range<usize>) -> io::Result<()> {
        removal::punch(self.memory(), pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wired::PAGE;

    fn object(pages: usize) -> Object {
        let memory = wired::sealed_memory("test", (pages * PAGE) as u64).unwrap();
        Object::new(memory, pages, LockedPages::default()).unwrap()
    }

    #[test]
    fn windows_end_at_other_contents_and_with_the_object() {
        let mut object = object(100);
        let is_zero = |state| state == PageState::Zero;
        object.set(90, PageState::Resident);
        let mut page = 60;
        for expected in [1, 2, 4, 8, 15] {
            assert_eq!(object.window(page, is_zero), expected);
            page += expected;
        }
        assert_eq!(object.window(90, is_zero), 0);
        assert_eq!(
            object.window(91, is_zero),
            9,
            "the stream went on past it, to the end"
        );
    }

    #[test]
    fn an_object_as_long_as_an_address_space_takes_what_is_used_of_it() {
        let mut object = object(1 << 34);
        object.set(3, PageState::Resident);
        object.set((1 << 34) - 1, PageState::Lost);
        let last = (1 << 34) / UNIT - 1;
        let all = 0..object.pages();
        assert_eq!(object.used_units(all).collect::<Vec<_>>(), [0, last]);
        assert_eq!(
            object.used_pages(2..1 << 33).collect::<Vec<_>>(),
            Vec::from_iter(2..UNIT)
        );
        assert_eq!(object.get(1 << 20), PageState::Zero);
    }

    #[test]
    fn residents_are_counted_by_units() {
        let mut object = object(UNIT + 10);
        for page in [3, 4, 9, UNIT - 1, UNIT, UNIT + 9] {
            object.set(page, PageState::Resident);
        }
        let pages = |unit| object.resident_pages(unit).collect::<Vec<_>>();
        assert_eq!(pages(0), [3, 4, 9, UNIT - 1]);
        assert_eq!(pages(1), [UNIT, UNIT + 9]);
        let counts = [0, 1, 2].map(|unit| object.residents(unit));
        assert_eq!(counts, [4, 2, 0]);
    }
}
