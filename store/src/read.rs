//! Reads pages: at once from the page index and RAM, by operations from disk.
//!
//! A page may move while it is read: from one location in RAM to another, or to disk. Its checksum
//! detects that, and then its new location is looked up. A page that is read *ahead* may be gone
//! altogether, and its handle reused. So nothing found on the way is trusted: a location is checked
//! against the sizes of the tiers, decoding is checked, and the caller verifies the result.

use crate::channel::StoreChannel;
use crate::codec::fill;
use crate::inner::StoreCounter;
use crate::io::op::{IoKind, PageSlot, RUN};
use crate::location::Location;
use crate::page_index::Lookup;
use crate::segment::Age;
use crate::traits::{ReadPage, page};
use crate::{PageHandle, PageLocation, StoreError};
use wired::PAGE;

/// Pages to read from disk, gathered to find adjacent bloks among them.
const GATHER: usize = 256;

/// Lookups of a page that is read ahead, while it moves.
const AHEAD_TRIES: usize = 3;

/// Pages to read from disk that have no operation yet, with their bloks.
pub(crate) struct PendingReads {
    slots: Box<[(u32, PageSlot)]>,
    len: usize,
}

impl PendingReads {
    pub fn new() -> Self {
        let none = (0, PageSlot::NONE);
        Self {
            slots: vec![none; GATHER].into_boxed_slice(),
            len: 0,
        }
    }
}

impl StoreChannel {
    /// Verifies a page that was read.
    fn verify_checksum(
        &self,
        handle: PageHandle,
        contents: &[u8; PAGE],
        place: PageLocation,
    ) -> Result<(), StoreError> {
        if self.store.page_index.verify_checksum(handle, contents) {
            return Ok(());
        }
        self.store.count(StoreCounter::Mismatches, 1);
        Err(StoreError::Mismatch { handle, place })
    }

    /// Reads a page that needs no I/O; otherwise returns its blok.
    pub(crate) fn read_at_once(
        &mut self,
        handle: PageHandle,
        into: *mut u8,
    ) -> Result<Option<u32>, StoreError> {
        // SAFETY: the caller passes a page of memory that is the channel's until completion.
        let to = unsafe { &mut *into.cast::<[u8; PAGE]>() };
        loop {
            let location = match self.store.page_index.find(handle) {
                None => return Err(StoreError::NoSuchPage { handle }),
                Some(Lookup::Filled(value)) => {
                    fill(to, value);
                    self.verify_checksum(handle, to, PageLocation::Filled)?;
                    break;
                }
                Some(Lookup::At(location)) => location,
            };
            match location {
                Location::Nowhere => return Err(StoreError::NoSuchPage { handle }),
                Location::Disk { blok } => return Ok(Some(blok)),
                Location::Ram { segment, .. } => {
                    if self.ram.unpack(location, to)
                        && self.store.page_index.verify_checksum(handle, to)
                    {
                        self.count_age(segment);
                        break;
                    }
                    // Unless it moved meanwhile and its old location was reused.
                    if self.store.page_index.is_at(handle.get(), location) {
                        self.store.count(StoreCounter::Mismatches, 1);
                        return Err(StoreError::Mismatch {
                            handle,
                            place: location.place(),
                        });
                    }
                }
            }
        }
        self.store.count(StoreCounter::Read, 1);
        Ok(None)
    }

    /// Counts a page found in compressed RAM by the age of its segment: see [`crate::RamSizing`].
    fn count_age(&self, segment: u32) {
        match self.store.segments.age(segment) {
            Age::Young => self.store.count(StoreCounter::ReadYoung, 1),
            Age::Old => self.store.count(StoreCounter::ReadOld, 1),
            Age::Middle => {}
        }
    }

    /// Like [`StoreChannel::read_at_once`], for a page that may be freed or moved at any moment.
    fn read_ahead_at_once(
        &mut self,
        handle: PageHandle,
        into: *mut u8,
    ) -> Result<Option<u32>, StoreError> {
        // SAFETY: the caller passes a page of memory that is the channel's until completion.
        let to = unsafe { &mut *into.cast::<[u8; PAGE]>() };
        for _ in 0..AHEAD_TRIES {
            match self.store.page_index.find(handle) {
                None | Some(Lookup::At(Location::Nowhere)) => break,
                Some(Lookup::Filled(value)) => fill(to, value),
                Some(Lookup::At(Location::Disk { blok })) => {
                    let there = self.store.bloks.as_ref().is_some_and(|all| all.has(blok));
                    return match there {
                        true => Ok(Some(blok)),
                        false => Err(StoreError::NoSuchPage { handle }),
                    };
                }
                Some(Lookup::At(location)) => {
                    let unpacked = self.ram.unpack(location, to);
                    if !unpacked || !self.store.page_index.is_at(handle.get(), location) {
                        continue;
                    }
                }
            }
            self.store.count(StoreCounter::Read, 1);
            return Ok(None);
        }
        Err(StoreError::NoSuchPage { handle })
    }

    /// Reads several pages, and returns the number of pending ones.
    pub(crate) fn read_run(&mut self, run: &[ReadPage], kind: IoKind) -> usize {
        let mut later = 0;
        for read in run {
            let found = match kind {
                IoKind::Ahead => self.read_ahead_at_once(read.handle, read.into),
                _ => self.read_at_once(read.handle, read.into),
            };
            match found {
                Ok(None) => self.complete_with(read.token, Ok(None)),
                Err(error) => self.complete_with(read.token, Err(error)),
                Ok(Some(blok)) => {
                    later += 1;
                    self.gather(
                        kind,
                        blok,
                        PageSlot::new(read.handle.get(), read.into, read.token),
                    );
                }
            }
        }
        self.start_gathered(kind);
        self.submit_io();
        later
    }

    fn gather(&mut self, kind: IoKind, blok: u32, slot: PageSlot) {
        self.incoming.slots[self.incoming.len] = (blok, slot);
        self.incoming.len += 1;
        if self.incoming.len == GATHER {
            self.start_gathered(kind);
        }
    }

    /// Starts an operation for each run of adjacent bloks among the gathered pages, in any order of
    /// request.
    fn start_gathered(&mut self, kind: IoKind) {
        let count = std::mem::take(&mut self.incoming.len);
        self.incoming.slots[..count].sort_unstable_by_key(|&(blok, _)| blok);
        let mut run = [PageSlot::NONE; RUN];
        let (mut first, mut len) = (0, 0);
        for at in 0..count {
            let (blok, slot) = self.incoming.slots[at];
            if len > 0 && (len == RUN || u64::from(blok) != u64::from(first) + len as u64) {
                self.start(kind, first, &run[..len]);
                len = 0;
            }
            if len == 0 {
                first = blok;
            }
            run[len] = slot;
            len += 1;
        }
        if len > 0 {
            self.start(kind, first, &run[..len]);
        }
    }

    /// Completes a page of a finished disk read.
    pub(crate) fn on_read(&mut self, kind: IoKind, slot: PageSlot, blok: u32, error: Option<i32>) {
        let result = match (error, PageHandle::new(slot.handle)) {
            (Some(errno), _) => Err(StoreError::Io {
                op: crate::DiskOp::Read,
                errno,
                blok,
            }),
            (None, Some(handle)) if kind == IoKind::Read => {
                // SAFETY: the caller lent the page until completion, which is now.
                let contents = unsafe { page(slot.memory) };
                self.verify_checksum(handle, contents, PageLocation::Disk { blok })
            }
            (None, _) => Ok(()),
        };
        if result.is_ok() {
            self.store.count(StoreCounter::Read, 1);
            self.store.count(StoreCounter::ReadDisk, 1);
        }
        self.complete_with(slot.token, result.map(|()| None));
    }
}
