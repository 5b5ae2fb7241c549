//! Taking a unit's pages out of the program's reach.
//!
//! One `mremap` takes all pages present in 2 MiB, atomically against the program's writes;
//! staged contents cannot change any more. It runs behind the unit's closed gate, so that no
//! page becomes resident while its unit is taken.

use crate::counters::Counter;
use crate::page::{RangeGate, State};
use crate::standby::StandbyList;
use crate::stretch::StretchState;
use frames::State as FrameState;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use translation::{StageError, StageResult};
use wired::{HUGE_RANGE_PAGES, PAGE};

/// The state of staging, for one thread at a time.
pub(crate) struct Stager {
    pub(super) standby: Arc<StandbyList>,
    /// Where the last search for units in no queue ended: stretch, unit.
    pub(super) hand: (usize, usize),
    /// The same of the last release of stored copies.
    pub(super) copies_hand: (usize, usize),
}

impl Stager {
    pub(super) fn new(standby: Arc<StandbyList>) -> Self {
        Self {
            standby,
            hand: (0, 0),
            copies_hand: (0, 0),
        }
    }

    /// Takes the resident pages of one unit out of the program's reach. Returns how many.
    pub(crate) fn stage_unit(&self, stretch: &StretchState, unit: usize) -> u32 {
        self.stage_at_most(stretch, unit, self.standby.mm.unit_pages)
    }

    /// As [`Stager::stage_unit`], for at most as many pages as one sweep takes: a domain that
    /// holds few frames of those its contract allows loses its pages by parts of a unit.
    pub(super) fn stage_sweep(&self, stretch: &StretchState, unit: usize) -> u32 {
        self.stage_at_most(stretch, unit, self.standby.frames.sweep())
    }

    fn stage_at_most(&self, stretch: &StretchState, unit: usize, most: usize) -> u32 {
        if !stretch.evictable() || !self.standby.mm.may_evict() {
            return 0;
        }
        let table = stretch.table();
        let pages = match most < self.standby.mm.unit_pages {
            true => table.next_part(unit, most),
            false => Some(table.unit_pages(unit)),
        };
        pages.map_or(0, |pages| {
            self.stage_behind(stretch, unit, pages, RangeGate::try_close)
        })
    }

    /// As [`Stager::stage_unit`], for some pages of the unit, whatever the driver says. It waits for threads at the unit's gate.
    pub(super) fn stage_part(
        &self,
        stretch: &StretchState,
        unit: usize,
        pages: Range<usize>,
    ) -> u32 {
        let close = |gate: &RangeGate| {
            gate.close();
            true
        };
        self.stage_behind(stretch, unit, pages, close)
    }

    fn stage_behind(
        &self,
        stretch: &StretchState,
        unit: usize,
        pages: Range<usize>,
        close: impl Fn(&RangeGate) -> bool,
    ) -> u32 {
        let Some(slot) = self.standby.slots.ring.free_slot() else {
            return 0;
        };
        self.standby.spare_mappings.keep();
        let gate = stretch.table().gate(unit);
        if !close(gate) {
            return 0;
        }
        let count = self.stage_into(slot, stretch, unit, pages);
        gate.open();
        count
    }

    fn stage_into(
        &self,
        slot: usize,
        stretch: &StretchState,
        unit: usize,
        pages: Range<usize>,
    ) -> u32 {
        let table = stretch.table();
        let frames = self.standby.slots.frames(slot);
        let resident = |i: &usize| table.is_movable(*i);
        let (mut count, mut spans) = (0, 0);
        let mut from = pages.start;
        // Spans between pages that must stay in place.
        while let Some(start) = (from..pages.end).find(resident) {
            let end = (start..pages.end)
                .find(|i| !table.word(*i).load().may_stage())
                .unwrap_or(pages.end);
            let last = (start..end).rfind(resident).unwrap_or(start);
            count += self.stage_span(stretch, slot, frames, start..last + 1);
            spans += 1;
            from = end;
        }
        self.standby.slots.replace_split(slot, spans > 1);
        if count > 0 {
            table.sub_resident(unit, count);
            // A huge page that a device may hold was split.
            let whole = stretch.huge()
                && count as usize == HUGE_RANGE_PAGES
                && !self.standby.mm.is_careful();
            self.standby.slots.set_whole(slot, whole);
            self.standby.slots.count(count, 0);
            self.standby.slots.push(slot);
            self.standby.log.add(Counter::Staged, u64::from(count));
        }
        count
    }

    fn stage_span(
        &self,
        stretch: &StretchState,
        slot: usize,
        frames: &[AtomicU32],
        span: Range<usize>,
    ) -> u32 {
        let table = stretch.table();
        let source = table.address(span.start);
        let length = span.len() * PAGE;
        let (slots, places) = (&self.standby.slots, &self.standby.places);
        let target = slots.address(slot) + table.offset_in_unit(span.start);
        let each = |from: usize, bytes: usize| {
            // The slot has the rights and the key of its pages. The program may have changed them by a call that the
            // library did not see; where there is nothing to open, the kernel finds that out at once.
            // SAFETY: the slot is the pager's.
            let _ = unsafe { translation::open_access(target + (from - source), bytes) };
            let first = table.index(from);
            for index in first..first + bytes / PAGE {
                let seen = table.word(index).load();
                if seen.state() != State::Resident || !seen.may_stage() {
                    continue;
                }
                let offset = table.offset_in_unit(index);
                places.set_home(seen.frame(), table.address(index));
                places.set_staged(seen.frame(), slots.address(slot) + offset);
                frames[offset / PAGE].store(seen.frame() + 1, Ordering::Relaxed);
            }
        };
        // SAFETY: the slot is the pager's and empty; the pages fault back in.
        unsafe { self.take_pieces(source, length, target, &each) };
        if self.standby.mm.is_careful() {
            self.return_pinned(stretch, slot, frames, span.clone(), target);
        }
        // Last: as soon as a word is `Staged`, a fault may copy the page from its slot.
        let mut count = 0;
        for index in span {
            let word = frames[table.offset_in_unit(index) / PAGE].load(Ordering::Relaxed);
            if word != 0 && table.word(index).stage().is_some() {
                self.standby.frames.mark(word - 1, FrameState::Standby);
                count += 1;
            }
        }
        count
    }

    /// Moves the mapped parts of `length` bytes at `source` to `target`; calls `taken` with
    /// the old address of each part.
    ///
    /// # Safety
    /// As for [`translation::stage_across_mappings`].
    unsafe fn take_pieces(
        &self,
        source: usize,
        length: usize,
        target: usize,
        taken: &dyn Fn(usize, usize),
    ) {
        let on_piece = |piece: translation::StagedRange| {
            let (from, to) = (source + piece.offset, target + piece.offset);
            match piece.outcome {
                StageResult::Moved => taken(from, piece.len),
                StageResult::Refused(StageError::NoMappings)
                    if self.standby.spare_mappings.release() =>
                {
                    // SAFETY: a part of what the caller promised; nothing has moved.
                    unsafe { self.take_pieces(from, piece.len, to, taken) };
                }
                StageResult::NotMapped | StageResult::Refused(StageError::NoMappings) => {}
                StageResult::Refused(error) => self.standby.log.write(format_args!(
                    "eviction could not take {} bytes at {from:#x}: {error}",
                    piece.len
                )),
            }
        };
        // SAFETY: the caller's promise.
        unsafe { translation::stage_across_mappings(source, length, target, on_piece) };
    }

    /// Releases the stored copies of about `most` resident pages, from where the last call ended, so that all copies have
    /// their turn. Returns how many.
    pub(super) fn release_copies(&mut self, most: u32) -> u32 {
        let standby = &*self.standby;
        let (mut n, mut unit) = self.copies_hand;
        let (mut released, mut wrapped) = (0, false);
        while released < most {
            let Some(table) = standby.mm.index.nth(n).map(StretchState::table) else {
                if wrapped {
                    break;
                }
                (n, unit, wrapped) = (0, 0, true);
                continue;
            };
            if unit >= table.unit_count() {
                (n, unit) = (n + 1, 0);
                continue;
            }
            if table.touched(unit) {
                let pages = table.unit_pages(unit);
                for handle in pages.filter_map(|i| table.word(i).take_handle()) {
                    standby.store.release(handle);
                    released += 1;
                }
            }
            unit += 1;
        }
        self.copies_hand = (n, unit);
        released
    }
}
