//! Pages coming back: at once out of the catalogue and RAM, by operations from disk.
//!
//! A page may move while it is read: from one place in RAM to another, or to disk. Its
//! checksum tells, and then its new place is looked up. A page that is read *ahead* may be
//! gone altogether, and its handle another page's. So nothing that is found on the way is
//! believed: a place is checked against the sizes of the tiers, decoding is checked, and
//! what comes of it is for the caller to verify.

use crate::api::{ReadPage, page};
use crate::catalogue::Found;
use crate::channel::Mover;
use crate::codec::fill;
use crate::ops::{Kind, RUN, Slot};
use crate::parts::Count;
use crate::place::Spot;
use crate::{Handle, Place, StoreError};
use wired::PAGE;

/// Pages that come from disk, gathered to find neighbours among them.
const GATHER: usize = 256;

/// How often a page that is read ahead is sought again because it moved.
const AHEAD_TRIES: usize = 3;

/// Pages to read from disk that have no operation yet, with their bloks.
pub(crate) struct Incoming {
    slots: Box<[(u32, Slot)]>,
    len: usize,
}

impl Incoming {
    pub fn new() -> Self {
        let none = (0, Slot::new(0, std::ptr::null_mut(), 0));
        Self {
            slots: vec![none; GATHER].into_boxed_slice(),
            len: 0,
        }
    }
}

impl Mover {
    /// Checks a page that was read.
    fn verify(
        &self,
        handle: Handle,
        contents: &[u8; PAGE],
        place: Place,
    ) -> Result<(), StoreError> {
        if self.parts.catalogue.verify(handle, contents) {
            return Ok(());
        }
        self.count(Count::Mismatches, 1);
        Err(StoreError::Mismatch { handle, place })
    }

    /// Reads what needs no I/O; otherwise says from which blok.
    pub(crate) fn read_at_once(
        &mut self,
        handle: Handle,
        into: *mut u8,
    ) -> Result<Option<u32>, StoreError> {
        // SAFETY: the caller gives a page of memory that is the channel's until completion.
        let to = unsafe { &mut *into.cast::<[u8; PAGE]>() };
        loop {
            let spot = match self.parts.catalogue.find(handle) {
                None => return Err(StoreError::NoSuchPage { handle }),
                Some(Found::Filled(value)) => {
                    fill(to, value);
                    self.verify(handle, to, Place::Filled)?;
                    break;
                }
                Some(Found::At(spot)) => spot,
            };
            match spot {
                Spot::Nowhere => return Err(StoreError::NoSuchPage { handle }),
                Spot::Disk { blok } => return Ok(Some(blok)),
                Spot::Ram { .. } => {
                    if self.get_from_ram(spot, to) && self.parts.catalogue.verify(handle, to) {
                        break;
                    }
                    // Unless it moved meanwhile and its old place was used again.
                    if self.parts.catalogue.is_at(handle.get(), spot) {
                        self.count(Count::Mismatches, 1);
                        return Err(StoreError::Mismatch {
                            handle,
                            place: spot.place(),
                        });
                    }
                }
            }
        }
        self.count(Count::Read, 1);
        Ok(None)
    }

    /// As [`Mover::read_at_once`], of a page that may go away or move at any moment.
    fn read_ahead_at_once(
        &mut self,
        handle: Handle,
        into: *mut u8,
    ) -> Result<Option<u32>, StoreError> {
        // SAFETY: the caller gives a page of memory that is the channel's until completion.
        let to = unsafe { &mut *into.cast::<[u8; PAGE]>() };
        for _ in 0..AHEAD_TRIES {
            match self.parts.catalogue.find(handle) {
                None | Some(Found::At(Spot::Nowhere)) => break,
                Some(Found::Filled(value)) => fill(to, value),
                Some(Found::At(Spot::Disk { blok })) => {
                    let there = self.parts.bloks.as_ref().is_some_and(|all| all.has(blok));
                    return match there {
                        true => Ok(Some(blok)),
                        false => Err(StoreError::NoSuchPage { handle }),
                    };
                }
                Some(Found::At(spot)) => {
                    let unpacked = self.get_from_ram(spot, to);
                    if !unpacked || !self.parts.catalogue.is_at(handle.get(), spot) {
                        continue;
                    }
                }
            }
            self.count(Count::Read, 1);
            return Ok(None);
        }
        Err(StoreError::NoSuchPage { handle })
    }

    /// Reads several pages, and returns how many of them come by operations.
    pub(crate) fn read_run(&mut self, run: &[ReadPage], kind: Kind) -> usize {
        let mut later = 0;
        for read in run {
            let found = match kind {
                Kind::Ahead => self.read_ahead_at_once(read.handle, read.into),
                _ => self.read_at_once(read.handle, read.into),
            };
            match found {
                Ok(None) => self.tell(read.token, Ok(None)),
                Err(error) => self.tell(read.token, Err(error)),
                Ok(Some(blok)) => {
                    later += 1;
                    self.gather(
                        kind,
                        blok,
                        Slot::new(read.handle.get(), read.into, read.token),
                    );
                }
            }
        }
        self.start_gathered(kind);
        self.flush();
        later
    }

    fn gather(&mut self, kind: Kind, blok: u32, slot: Slot) {
        self.incoming.slots[self.incoming.len] = (blok, slot);
        self.incoming.len += 1;
        if self.incoming.len == GATHER {
            self.start_gathered(kind);
        }
    }

    /// Starts an operation for each run of neighbours among the gathered pages, in whatever
    /// order they were asked for.
    fn start_gathered(&mut self, kind: Kind) {
        let count = std::mem::take(&mut self.incoming.len);
        self.incoming.slots[..count].sort_unstable_by_key(|&(blok, _)| blok);
        let mut run = [Slot::new(0, std::ptr::null_mut(), 0); RUN];
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

    /// A page came from disk, or could not.
    pub(crate) fn was_read(&mut self, kind: Kind, slot: Slot, blok: u32, error: Option<i32>) {
        let result = match (error, Handle::new(slot.handle)) {
            (Some(errno), _) => Err(StoreError::Io {
                op: crate::Op::Read,
                errno,
                blok,
            }),
            (None, Some(handle)) if kind == Kind::Read => {
                // SAFETY: the caller gave the page until completion, which is now.
                let contents = unsafe { page(slot.memory) };
                self.verify(handle, contents, Place::Disk { blok })
            }
            (None, _) => Ok(()),
        };
        if result.is_ok() {
            self.count(Count::Read, 1);
            self.count(Count::ReadDisk, 1);
        }
        self.tell(slot.token, result.map(|()| None));
    }
}
