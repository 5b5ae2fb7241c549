//! Flushing: the driver saves what is in a page, and the page stays in place.
//!
//! A page need not be evicted to be written, and many may not be: pages that are pinned, that
//! a device holds, and all pages if eviction would not be sound. So a flush nails one page at
//! a time, copies it, and gives the copy to the driver. The copy is of one moment, or of
//! several if the program writes meanwhile: whatever it wrote before the flush is in it.

use crate::driver::CleanOutcome;
use crate::page::State;
use crate::pager::Pager;
use crate::stretch::StretchState;
use store::StoreError;
use wired::PAGE;

/// How often a page on the standby list, which can be neither written nor put back, is checked
/// again.
const TRIES: u32 = 16;

impl Pager {
    /// Makes the driver save every page of a unit that the program may have changed. Returns
    /// why one could not be saved.
    pub(crate) fn flush_unit(&self, stretch: &StretchState, unit: usize) -> Option<StoreError> {
        let pages = stretch.table().unit_pages(unit);
        let refusals = pages.filter_map(|index| self.flush_page(stretch, index).err());
        refusals.reduce(|first, _| first)
    }

    fn flush_page(&self, stretch: &StretchState, index: usize) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            match stretch.table().word(index).wait_settled().state() {
                State::Resident => {
                    if let Some(kept) = self.flush_resident(stretch, index) {
                        return kept;
                    }
                }
                // The result of its write shows in the page's next state.
                State::Staged => self.evictor.drain(),
                _ => return Ok(()),
            }
        }
        Err(StoreError::Busy)
    }

    /// None if the page was evicted or discarded meanwhile.
    fn flush_resident(
        &self,
        stretch: &StretchState,
        index: usize,
    ) -> Option<Result<(), StoreError>> {
        let table = stretch.table();
        let page = table.address(index)..table.address(index) + PAGE;
        let nailed = self.nail(page.clone());
        // A page with the maximum pin count stays, too.
        if !nailed && table.word(index).load().nails() == 0 {
            return None;
        }
        let copy = copy_of(page.start);
        let kept = match stretch.driver().map(|driver| driver.clean(index, &copy)) {
            Some(CleanOutcome::Refused(error)) => Err(error),
            Some(CleanOutcome::Kept | CleanOutcome::ToStore) | None => Ok(()),
        };
        if nailed {
            self.unnail(page);
        }
        Some(kept)
    }
}

/// Copies a page that the program may be writing to.
fn copy_of(page: usize) -> [u8; PAGE] {
    let mut copy = [0; PAGE];
    for (word, bytes) in copy.chunks_exact_mut(size_of::<u64>()).enumerate() {
        let at = std::ptr::with_exposed_provenance::<u64>(page).wrapping_add(word);
        // SAFETY: a word of a stretch that may be read; volatile, since other threads may
        // write it.
        bytes.copy_from_slice(&unsafe { at.read_volatile() }.to_ne_bytes());
    }
    copy
}
