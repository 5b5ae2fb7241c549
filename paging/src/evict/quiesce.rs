//! Quiescing evictions, for operations that must not overlap one.
//!
//! A fork, a move of contents and the end of a stretch need every slot and every stretch to
//! themselves. They hold all cleaners and the stager. A thread that faults meanwhile and finds
//! no frame waits.

use super::writeback::{Cleaner, MOST_CLEANERS, WritebackProgress};
use super::{Evictor, PATIENCE, Stager, nap};
use crate::standby::ring::ClaimPass;
use crate::stretch::StretchState;
use std::ops::Range;
use store::{Store, StoreError};
use wired::{PiGuard, PiLock};

/// How often pages that could be neither written nor put back are checked again.
const TRIES: u32 = 16;

/// No other thread evicts while this is held.
pub(crate) struct QuiesceGuard<'a> {
    cleaners: [Option<PiGuard<'a, Cleaner>>; MOST_CLEANERS],
    stager: PiGuard<'a, Stager>,
}

impl QuiesceGuard<'_> {
    /// The stager's state.
    pub(crate) fn stager(&mut self) -> &mut Stager {
        &mut self.stager
    }

    /// Switches to the child process: its own channels.
    pub(crate) fn become_child(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let mut cleaners = self.cleaners.iter_mut().flatten();
        cleaners.try_for_each(|cleaner| cleaner.become_child(Some(store)))
    }
}

impl Evictor {
    /// Waits until no thread evicts, and prevents further evictions.
    pub(crate) fn quiesce(&self) -> QuiesceGuard<'_> {
        QuiesceGuard {
            cleaners: std::array::from_fn(|n| self.cleaners.get(n).map(PiLock::lock)),
            stager: self.stager.lock(),
        }
    }

    /// Empties every slot of the standby list, so that no page is in two places.
    pub(crate) fn drain(&self) {
        self.drain_quiesced(&mut self.quiesce());
    }

    /// As [`Evictor::drain`], but leaves pages that can be neither written nor put back.
    pub(crate) fn drain_quiesced(&self, quiesced: &mut QuiesceGuard<'_>) -> Option<StoreError> {
        let cleaner = quiesced.cleaners.iter_mut().flatten().next()?;
        let mut done = WritebackProgress::default();
        let mut tries = 0;
        while !self.standby.slots.ring.is_empty() && tries < TRIES {
            if !cleaner.take_up(ClaimPass::First) {
                tries += 1;
                // A page can do neither while a fault takes it back in its own frame.
                if !cleaner.take_up(ClaimPass::Retry) {
                    nap(PATIENCE / 8);
                }
            }
            done = done.and(cleaner.end_all());
        }
        done.refusal
    }

    /// Returns true if a slot is free, after emptying some if none was.
    pub(crate) fn make_room(&self, quiesced: &mut QuiesceGuard<'_>) -> bool {
        if self.standby.slots.ring.free_slot().is_none() {
            self.drain_quiesced(quiesced);
        }
        self.standby.slots.ring.free_slot().is_some()
    }

    /// Moves a range of pages to the standby list and keeps their contents.
    pub(crate) fn stage_pages(&self, stretch: &StretchState, pages: Range<usize>) {
        let table = stretch.table();
        if pages.is_empty() {
            return;
        }
        for unit in table.unit_of(pages.start)..=table.unit_of(pages.end - 1) {
            let mut stager = self.stager.lock();
            if self.standby.slots.ring.free_slot().is_none() {
                drop(stager);
                let mut quiesced = self.quiesce();
                self.make_room(&mut quiesced);
                drop(quiesced);
                stager = self.stager.lock();
            }
            let of_unit = table.unit_pages(unit);
            let part = of_unit.start.max(pages.start)..of_unit.end.min(pages.end);
            stager.stage_part(stretch, unit, part);
        }
    }
}
