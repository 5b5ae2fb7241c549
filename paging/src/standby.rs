//! The standby list: pages taken from the program, but not yet evicted.
//!
//! `mremap(MREMAP_DONTUNMAP)` moves all pages of a unit into a *slot* of the staging area in
//! one shootdown (0.26 us a page at 64 of 512 present with two running threads, against 12 us
//! page by page). A slot's contents never change, so the writeback that stores them and a
//! fault that brings one back can read them at the same time. A staged page keeps its frame:
//! standby counts in n.
//!
//! Slots are used in the order they were staged; the oldest is written out and emptied first,
//! piece by piece ([`ring`]). A page that faults meanwhile comes back by a copy (`page_in.rs`: `fill`,
//! then `publish`; `unstage` here serves only where no frame is free): that is the list's second chance, and the reason why plain first in, first out suffices as the order
//! among ranges.

#[cfg(all(test, loom))]
mod interleavings;
pub(crate) mod ring;
mod slots;

pub(crate) use slots::{PageLocations, Slots};

use crate::evict::{DmaPins, PATIENCE, SpareMappings, VictimQueues, nap};
use crate::frame_source::FrameSource;
use crate::log::Log;
use crate::mm::Mm;
use crate::page::State;
use crate::stored_pages::StoredPages;
use crate::stretch::StretchState;
use frames::State as FrameState;
use ring::Claim;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use store::StoreError;
use translation::{MapError, Reservation, TranslationError};
use wired::PAGE;

/// How often a piece that another thread has claimed is checked again, [`PATIENCE`] apart,
/// before the fault gives up on a page in it: a second, in which a device writes 64 pages if
/// it ever does.
const PIECE_LOOKS: u32 = 500;

/// How often to retry a copy that meets a change of the address space.
const TRIES: usize = 1000;

/// Why a page did not go back to its place.
#[derive(Debug, thiserror::Error)]
enum NotBack {
    #[error("the address space is changing")]
    Later,
    #[error(transparent)]
    NotMoved(#[from] TranslationError),
    #[error(transparent)]
    NotCopied(#[from] MapError),
}

/// Slots of a domain at most.
pub(crate) const MOST_SLOTS: usize = 256;

/// The staged pages of a domain, and what staging, writing and putting them back shares.
pub(crate) struct StandbyList {
    pub(crate) mm: Arc<Mm>,
    pub(crate) frames: Arc<FrameSource>,
    pub(crate) store: Arc<StoredPages>,
    pub(crate) log: Arc<Log>,
    pub(crate) slots: Slots,
    pub(crate) places: PageLocations,
    /// Which unit is staged next.
    pub(crate) queues: VictimQueues,
    /// Pages that a device held when they were selected for eviction.
    pub(crate) pins: DmaPins,
    /// Reserve for evictions when the program has used up its mappings.
    pub(crate) spare_mappings: SpareMappings,
}

impl StandbyList {
    /// An empty list. Frame numbers are below `total_frames`.
    pub(crate) fn new(
        mm: Arc<Mm>,
        frames: Arc<FrameSource>,
        store: Arc<StoredPages>,
        log: Arc<Log>,
        total_frames: usize,
    ) -> Result<Self, crate::DomainError> {
        // As many slots as units could be resident at once, up to a bound: a slot is an
        // address range and one mapping while it is in use.
        let most = frames.client().contract().x as usize;
        let slots = (most / mm.unit_pages.min(64)).clamp(2, MOST_SLOTS);
        let area = translation::reserve_staging(slots * mm.unit_pages * PAGE)
            .map_err(crate::DomainError::Translation)?;
        let memory = crate::DomainError::Memory;
        Ok(Self {
            slots: Slots::new(area.addr, slots, mm.unit_pages).map_err(memory)?,
            places: PageLocations::new(total_frames).map_err(memory)?,
            queues: VictimQueues::new(most),
            pins: DmaPins::new(frames.clone(), total_frames),
            spare_mappings: SpareMappings::default(),
            mm,
            frames,
            store,
            log,
        })
    }

    /// The page that a frame holds: its stretch, and its number there.
    pub(crate) fn home(&self, frame: u32) -> Option<(&StretchState, usize)> {
        let home = self.places.home(frame);
        let stretch = self.mm.index.find(home)?;
        Some((stretch, stretch.table().index(home)))
    }

    /// Puts one staged page back at its address, in its frame. A page that a device may hold
    /// goes back as the same page of memory, without the key of its address; a copy of any other
    /// comes under the rights and the key of its address. Under the unit's closed gate; the caller
    /// updates the word. Returns false if there was no page, or the kernel refused.
    pub(crate) fn put_back(
        &self,
        stretch: &StretchState,
        index: usize,
        slot_word: &AtomicU32,
        staged: usize,
        held: bool,
    ) -> bool {
        let word = slot_word.load(Ordering::Relaxed);
        if word == 0 {
            return false;
        }
        let addr = stretch.table().address(index);
        let put = match held {
            true => self.move_back(addr, staged, stretch.odd_access()),
            false => self.copy_back(addr, staged),
        };
        match put {
            Ok(()) => {
                slot_word.store(0, Ordering::Relaxed);
                self.frames.mark(word - 1, FrameState::Mapped);
                true
            }
            // The address space is changing: the page keeps its place until the next turn.
            Err(NotBack::Later) => false,
            Err(error) => {
                self.log.write(format_args!(
                    "a page could not be put back at {addr:#x}: {error}"
                ));
                false
            }
        }
    }

    /// A page that a device holds is lost if it stays, so this waits for a mapping as long as
    /// it takes. With `odd` rights the page takes along those that its address has: a change of
    /// them in that moment is lost.
    fn move_back(&self, addr: usize, staged: usize, odd: bool) -> Result<(), NotBack> {
        loop {
            // The slot is open to the pager; its page takes the rights of its address along.
            let access = self.mm.access(addr).filter(|_| odd);
            if let Some(access) = access {
                // SAFETY: no thread reads a page that a device holds from its slot.
                let closed = unsafe { translation::set_access(staged, PAGE, access) };
                if closed.is_err_and(|error| error.errno == Errno::NOMEM) {
                    self.await_room();
                    continue;
                }
            }
            // SAFETY: the page's own place, missing; the closed gate keeps fillers out.
            let put =
                unsafe { translation::restore_pinned(staged, addr, self.mm.userfault(), false) };
            if access.is_some() && put.is_err() {
                // SAFETY: the slot is the pager's.
                let _ = unsafe { translation::open_access(staged, PAGE) };
            }
            match put {
                Err(error) if error.errno == Errno::NOMEM => self.await_room(),
                put => return Ok(put?),
            }
        }
    }

    fn copy_back(&self, addr: usize, staged: usize) -> Result<(), NotBack> {
        let from = std::ptr::with_exposed_provenance(staged);
        let wake = translation::Wake::Yes;
        for _ in 0..TRIES {
            match self.mm.userfault().copy(addr, from, PAGE, wake) {
                Err(MapError::Again { .. }) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    // SAFETY: its contents are in their place.
                    let _ = unsafe { translation::discard(staged, PAGE) };
                    return Ok(());
                }
            }
        }
        Err(NotBack::Later)
    }

    /// Puts a page of the standby list back at its address, unless a fault is filling it
    /// already. Under the unit's closed gate, by the thread that has claimed its piece.
    pub(crate) fn put_back_staged(&self, stretch: &StretchState, index: usize, frame: u32) -> bool {
        let word = stretch.table().word(index);
        let seen = word.load();
        if seen.state() != State::Staged || seen.frame() != frame || !word.begin_fill(seen) {
            return false;
        }
        let staged = self.places.staged(frame);
        let back = self.slots.page_at(staged).is_some_and(|(slot, page)| {
            let slot_word = &self.slots.frames(slot)[page];
            // On the sieve are pages that no device holds.
            let held = self.mm.is_careful() && staged == self.slots.address(slot) + page * PAGE;
            self.put_back(stretch, index, slot_word, staged, held)
        });
        if back {
            word.finish_in_place();
            let table = stretch.table();
            table.add_resident(table.unit_of(index), 1);
        } else {
            word.abort_fill(seen);
        }
        back
    }

    /// Brings a staged page back in the frame it has, if no other frame can be found.
    pub(crate) fn unstage(&self, stretch: &StretchState, index: usize) -> bool {
        let table = stretch.table();
        let word = table.word(index);
        for _ in 0..PIECE_LOOKS {
            let seen = word.load();
            if seen.state() != State::Staged {
                return false;
            }
            let frame = seen.frame();
            let Some((slot, page)) = self.slots.page_at(self.places.staged(frame)) else {
                return false;
            };
            let piece = page / self.slots.piece_pages();
            let Some(claim) = self.slots.ring.claim_piece(slot, piece) else {
                nap(PATIENCE);
                continue;
            };
            // Unless the frame was released before the piece was claimed.
            let here = self.slots.frames(slot)[page].load(Ordering::Relaxed) == frame + 1;
            let unit = table.unit_of(index);
            let mut back = false;
            if here {
                table.gate(unit).close();
                back = self.put_back_staged(stretch, index, frame);
                table.gate(unit).open();
            }
            if back {
                self.slots.count(0, 1);
                self.queues.requeue(stretch, unit);
            }
            self.release(&claim, false);
            if here {
                return back;
            }
        }
        false
    }

    /// Releases a claim: pages that its slot's words still name are kept.
    pub(crate) fn release(&self, claim: &Claim, swept: bool) {
        let piece_pages = self.slots.piece_pages();
        let words = self.slots.frames(claim.slot);
        let kept = |piece: usize| {
            let words = &words[piece * piece_pages..][..piece_pages];
            let there = words.iter().filter(|w| w.load(Ordering::Relaxed) != 0);
            there.count() as u32
        };
        if self.slots.ring.release(claim, kept) {
            if !swept {
                self.empty_slot(claim.slot);
            }
            self.slots.ring.vacate(claim.slot);
        }
    }

    /// Discards all of a slot. A slot whose pages came in several moves becomes one mapping
    /// again: the kernel limits a program's mappings.
    pub(crate) fn empty_slot(&self, slot: usize) {
        let bytes = self.slots.slot_bytes();
        if self.slots.replace_split(slot, false) {
            // SAFETY: all its contents are elsewhere.
            let _ = unsafe { translation::renew(self.slots.address(slot), bytes) };
        }
        self.discard_staged(slot, 0..bytes);
    }

    pub(crate) fn discard_staged(&self, slot: usize, bytes: std::ops::Range<usize>) {
        let areas = [Some(self.slots.address(slot)), self.slots.sieve(slot)];
        for base in areas.into_iter().flatten() {
            // SAFETY: all its contents are elsewhere.
            let _ = unsafe { translation::discard(base + bytes.start, bytes.len()) };
        }
    }

    /// Returns true if a channel of the store found no mapping for its memory, and now there are those of the reserve.
    pub(crate) fn is_without_mappings<T>(&self, submitted: &Result<T, StoreError>) -> bool {
        let no_memory = Errno::NOMEM.raw_os_error();
        let lacks = |why: &StoreError| matches!(why, StoreError::Channel { errno, .. } if *errno == no_memory);
        submitted.as_ref().is_err_and(lacks) && self.spare_mappings.release()
    }

    /// Waits briefly for a slot to come free, or for the kernel to have a mapping left; does
    /// not wait if some mappings are in reserve.
    pub(crate) fn await_room(&self) {
        if !self.spare_mappings.release() {
            nap(PATIENCE);
        }
    }
}

impl Drop for StandbyList {
    fn drop(&mut self) {
        self.spare_mappings.unmap();
        let len = self.slots.bytes();
        for addr in [Some(self.slots.address(0)), self.slots.sieve(0)]
            .into_iter()
            .flatten()
        {
            // SAFETY: the list's own areas, and no thread evicts any more.
            let _ = unsafe { translation::unmap_staging(Reservation { addr, len }) };
        }
    }
}
