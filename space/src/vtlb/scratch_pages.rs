//! Scratch pages of no-exception mappings (3.4.1).

use super::{MissOutcome, Vtlb};
use crate::region::{Mapping, Region};
use translation::TranslationError;

impl Vtlb {
    /// Gives a piece of a no-exception mapping scratch pages where its object cannot be mapped: a client may
    /// have sealed it, or it is a file without a mapping.
    pub(super) fn give_scratch_for(
        &mut self,
        index: usize,
        mapping: &Mapping,
        addr: usize,
        error: TranslationError,
    ) -> Result<(), TranslationError> {
        let record = mapping.no_exception.ok_or(error)?;
        let piece = self.entries.region(index);
        // SAFETY: the region is the space's, and the piece is inaccessible.
        unsafe { translation::map_scratch(piece.start, piece.end - piece.start) }?;
        self.entries.mark_scratch(index);
        self.stats.scratch_faults += 1;
        // SAFETY: the record outlives the region, which exists while the caller holds the section.
        unsafe { record.as_ref() }.note(addr);
        Ok(())
    }

    /// Gives the rest of a piece, from the page of `addr` on, scratch pages: the object ends before.
    pub(crate) fn give_scratch(
        &mut self,
        region: &Region,
        addr: usize,
    ) -> Result<MissOutcome, TranslationError> {
        let missed = self.miss(region, addr)?;
        let MissOutcome::Entered(index) = missed else {
            return Ok(missed);
        };
        let piece = self.entries.region(index);
        let page = addr & !(wired::PAGE - 1);
        self.stats.scratch_faults += 1;
        self.entries.mark_scratch(index);
        // SAFETY: the region is the space's; the object has no memory there.
        unsafe { translation::map_scratch(page, piece.end - page) }?;
        Ok(missed)
    }
}
