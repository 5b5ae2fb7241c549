//! Pages that a device may hold are detected before they are evicted.
//!
//! If a page that a device holds were copied out and discarded, what the device writes later
//! would be lost. So in careful mode staged pages are moved on to a *sieve*, which the kernel
//! refuses for pinned pages. Those go back to the program, the same pages of memory, and stay
//! nailed until the next check.

use super::Stager;
use crate::counters::Counter;
use crate::stretch::StretchState;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use translation::SeparateError;
use wired::{HUGE_RANGE_PAGES, PAGE};

impl Stager {
    /// Careful mode: pages that a device holds go back to the program, the others to the
    /// sieve, where they are known not to be held (new pins cannot arise after staging). Under
    /// the unit's closed gate, while the words are still `Resident`.
    pub(super) fn return_pinned(
        &self,
        stretch: &StretchState,
        slot: usize,
        frames: &[AtomicU32],
        span: Range<usize>,
        staged: usize,
    ) {
        let table = stretch.table();
        let Some(sieve) = self.sieve(slot) else {
            // Without a sieve no page is known to be free of pins: all go back.
            return self.return_all(stretch, frames, span, staged);
        };
        let sieve = sieve + table.offset_in_unit(span.start);
        let mut refused = [0; HUGE_RANGE_PAGES / 64];
        let outcome = self.separate(staged, sieve, span.len() * PAGE, |page| {
            refused[page / 64] |= 1u64 << (page % 64);
        });
        let done = match outcome {
            Ok(_) => span.len(),
            Err(stop) => {
                self.standby
                    .log
                    .write(format_args!("pinned pages could not be told apart: {stop}"));
                stop.done / PAGE
            }
        };
        for page in 0..done {
            let index = span.start + page;
            let slot_word = &frames[table.offset_in_unit(index) / PAGE];
            let frame = slot_word.load(Ordering::Relaxed);
            if refused[page / 64] & 1 << (page % 64) != 0 {
                self.retry_copy(stretch, slot, frames, index, staged + page * PAGE);
            } else if frame != 0 {
                self.standby
                    .places
                    .set_staged(frame - 1, sieve + page * PAGE);
            }
        }
        // The pages that have moved on are known not to be pinned; the rest goes back.
        let rest = span.start + done..span.end;
        self.return_all(stretch, frames, rest, staged + done * PAGE);
    }

    /// Moves staged pages to the sieve, and names those that the kernel refuses as pinned.
    fn separate(
        &self,
        from: usize,
        to: usize,
        len: usize,
        refused: impl FnMut(usize),
    ) -> Result<usize, SeparateError> {
        let mm = &self.standby.mm;
        let userfault = mm.userfault();
        // SAFETY: both areas are the pager's.
        unsafe {
            match mm.pagemap() {
                Some(pagemap) => {
                    translation::separate_pinned_sparse(userfault, pagemap, from, to, len, refused)
                }
                None => translation::separate_pinned(userfault, from, to, len, refused),
            }
        }
    }

    /// Retries a page that would not move to the sieve: the kernel refused it as pinned, or as
    /// shared with a child since a fork. In the second case a write that changes nothing gives
    /// this process a page of its own; a pinned page is never shared.
    fn retry_copy(
        &self,
        stretch: &StretchState,
        slot: usize,
        frames: &[AtomicU32],
        index: usize,
        staged: usize,
    ) {
        let offset = stretch.table().offset_in_unit(index);
        let slot_word = &frames[offset / PAGE];
        let Some(to) = self.standby.slots.sieve(slot).map(|sieve| sieve + offset) else {
            return;
        };
        let frame = slot_word.load(Ordering::Relaxed);
        if frame == 0 {
            // Not a page of the pager's: a mark, which no access may meet, and which goes with
            // the slot.
            return;
        }
        // SAFETY: staged and mapped.
        unsafe { wired::rewrite(staged as *mut u64) };
        let (userfault, mut moved) = (self.standby.mm.userfault(), true);
        // SAFETY: both areas are the pager's.
        let again =
            unsafe { translation::separate_pinned(userfault, staged, to, PAGE, |_| moved = false) };
        match again {
            Ok(_) if moved => self.standby.places.set_staged(frame - 1, to),
            _ => {
                let back = self
                    .standby
                    .put_back(stretch, index, slot_word, staged, true);
                self.standby.log.add(Counter::DmaPinnedSkips, 1);
                if back {
                    self.standby.pins.hold(stretch, index);
                }
            }
        }
    }

    fn return_all(
        &self,
        stretch: &StretchState,
        frames: &[AtomicU32],
        span: Range<usize>,
        staged: usize,
    ) {
        let table = stretch.table();
        for index in span.clone() {
            let slot_word = &frames[table.offset_in_unit(index) / PAGE];
            let staged = staged + (index - span.start) * PAGE;
            // Each may be held; without a pause the next fault would take and return them
            // again.
            if self
                .standby
                .put_back(stretch, index, slot_word, staged, true)
            {
                self.standby.pins.hold(stretch, index);
            }
        }
    }

    /// The sieve for a slot, made when first needed: the destination of staged pages that no
    /// device holds. Registered, since `UFFDIO_MOVE` requires that of its destination.
    fn sieve(&self, slot: usize) -> Option<usize> {
        if let Some(at) = self.standby.slots.sieve(slot) {
            return Some(at);
        }
        if !self.standby.mm.capabilities.may_evict(true) {
            return None;
        }
        #[cfg(test)]
        if self.standby.slots.no_sieve.load(Ordering::Relaxed) {
            return None;
        }
        let base = self.reserve_sieve().or_else(|| {
            let released = self.standby.spare_mappings.release();
            released.then(|| self.reserve_sieve()).flatten()
        })?;
        self.standby.slots.set_sieve(base);
        self.standby.slots.sieve(slot)
    }

    fn reserve_sieve(&self) -> Option<usize> {
        let area = translation::reserve_staging(self.standby.slots.bytes()).ok()?;
        let registered = self
            .standby
            .mm
            .userfault()
            .register(area.addr, area.len, true, false);
        if registered.is_err() {
            // SAFETY: just reserved; nothing is there.
            let _ = unsafe { translation::unmap_staging(area) };
        }
        registered.ok().map(|()| area.addr)
    }
}
