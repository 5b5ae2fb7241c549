//! Which pages of which objects are written, and what is known of each.
//!
//! A hash table with chains, and a list of each object's pages, over tables of a fixed size. Rule:
//! nothing allocates after setup; a page that was never written takes no entry.

use crate::wired_table::{WiredTable, Zeroed};
use std::io;

/// Most paging objects of a server.
pub(crate) const MAX_OBJECTS: u32 = remote_policy::permit::MAX_OBJECTS as u32;

/// A written page: its number is its place on the disk, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId(pub u32);

/// What the server knows of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageEntry {
    /// Its number in the object.
    pub page: u64,
    /// Version of its last write.
    pub version: u64,
    /// Checksum of its bytes, where they are on the disk.
    pub sum: u64,
    /// The object's slot.
    pub object: u32,
    /// Its frame and one; zero without.
    pub frame: u32,
    /// The next page of its chain or, where the entry is free, the next free one; each and one.
    chain: u32,
    /// The neighbours in the object's list, each and one.
    next: u32,
    previous: u32,
    /// State, by `flag`.
    pub flags: u32,
}

// SAFETY: zeros are numbers.
unsafe impl Zeroed for PageEntry {}

/// Bits of `PageEntry::flags`.
pub(crate) mod flag {
    /// It was used since the clock hand passed.
    pub const REFERENCED: u32 = 1;
    /// It is being read from or written to the disk.
    pub const BUSY: u32 = 2;
    /// Its disk place does not have its bytes: its frame alone has them.
    pub const DIRTY: u32 = 4;
    /// Its object is gone while it is busy: it is freed when it no longer is.
    pub const ORPHAN: u32 = 8;
    /// The disk failed to store it: it is to be stored again.
    pub const UNSTORED: u32 = 16;
}

/// All written pages of a server.
pub(crate) struct PageIndex {
    entries: WiredTable<PageEntry>,
    /// First page of each chain, and one.
    buckets: WiredTable<u32>,
    /// First page of each object, and one.
    objects: WiredTable<u32>,
    /// First free entry of those that were used, and one.
    free: u32,
    /// Entries from here on were never used.
    fresh: u32,
    used: u32,
}

impl PageIndex {
    /// An index of at most `pages`.
    pub fn new(pages: u32) -> io::Result<Self> {
        Ok(Self {
            entries: WiredTable::new(pages as usize)?,
            buckets: WiredTable::new((pages as usize).next_power_of_two())?,
            objects: WiredTable::new(MAX_OBJECTS as usize)?,
            free: 0,
            fresh: 0,
            used: 0,
        })
    }

    /// Pages that it can hold.
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Pages that it holds, orphans too.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// What is known of a page.
    pub fn entry(&self, id: PageId) -> &PageEntry {
        &self.entries[id.0]
    }

    /// What is known of a page.
    pub fn entry_mut(&mut self, id: PageId) -> &mut PageEntry {
        &mut self.entries[id.0]
    }

    /// The page of that number, if it is written.
    pub fn find(&self, object: u32, page: u64) -> Option<PageId> {
        let mut link = self.buckets[self.bucket(object, page)];
        while let Some(at) = link.checked_sub(1) {
            let entry = &self.entries[at];
            if entry.object == object && entry.page == page {
                return Some(PageId(at));
            }
            link = entry.chain;
        }
        None
    }

    /// Adds a page that is not there. `None` if the index is full.
    pub fn insert(&mut self, object: u32, page: u64) -> Option<PageId> {
        let at = match self.free.checked_sub(1) {
            Some(at) => {
                self.free = self.entries[at].chain;
                at
            }
            None if self.fresh < self.capacity() => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.used += 1;
        let bucket = self.bucket(object, page);
        let next = self.objects[object];
        self.entries[at] = PageEntry {
            page,
            object,
            chain: self.buckets[bucket],
            next,
            ..PageEntry::default()
        };
        self.buckets[bucket] = at + 1;
        self.objects[object] = at + 1;
        if let Some(next) = next.checked_sub(1) {
            self.entries[next].previous = at + 1;
        }
        Some(PageId(at))
    }

    /// Removes a page, so that it is no longer found. Its entry stays until [`PageIndex::free`].
    pub fn unlink(&mut self, id: PageId) {
        let entry = self.entries[id.0];
        let bucket = self.bucket(entry.object, entry.page);
        match self.buckets[bucket] == id.0 + 1 {
            true => self.buckets[bucket] = entry.chain,
            false => {
                let mut before = self.buckets[bucket] - 1;
                while self.entries[before].chain != id.0 + 1 {
                    before = self.entries[before].chain - 1;
                }
                self.entries[before].chain = entry.chain;
            }
        }
        match entry.previous.checked_sub(1) {
            Some(previous) => self.entries[previous].next = entry.next,
            None => self.objects[entry.object] = entry.next,
        }
        if let Some(next) = entry.next.checked_sub(1) {
            self.entries[next].previous = entry.previous;
        }
    }

    /// Frees the entry of a page that was unlinked.
    pub fn free(&mut self, id: PageId) {
        self.entries[id.0] = PageEntry {
            chain: self.free,
            ..PageEntry::default()
        };
        self.free = id.0 + 1;
        self.used -= 1;
    }

    /// Any page of an object.
    pub fn first_of(&self, object: u32) -> Option<PageId> {
        self.objects[object].checked_sub(1).map(PageId)
    }

    fn bucket(&self, object: u32, page: u64) -> u32 {
        // The finalizer of splitmix64: pages of a run lie in a row otherwise, and so do their chains.
        let mut mixed = page ^ u64::from(object).rotate_right(24);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u32 & (self.buckets.len() as u32 - 1)
    }
}
