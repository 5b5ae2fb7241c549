//! The count of frames that no revocation takes: nailed ones, and those of locked pages.
//!
//! Rule: the header has it, so that the frames allocator knows it without a pass over the RamTab,
//! which it does not map.

use crate::acquire::lower_to_zero;
use crate::layout::{DomainSlot, LedgerMemory};
use crate::ramtab::{Frame, FrameEntry, State};
use std::sync::atomic::Ordering::SeqCst;

impl LedgerMemory {
    /// Changes a frame in use from exactly `from` to `to`. Returns true if it did.
    pub(crate) fn mark(&self, frame: Frame, from: FrameEntry, to: FrameEntry) -> bool {
        let nailed = &self.header().nailed;
        let is_nailed = |entry: FrameEntry| entry.state() == State::Nailed;
        if is_nailed(to) {
            nailed.fetch_add(1, SeqCst);
        }
        let changed = self.ramtab().change(frame, from, to);
        if is_nailed(if changed { from } else { to }) {
            lower_to_zero(nailed, 1);
        }
        changed
    }

    /// Sets how many pages a domain has locked without a nailed frame for each.
    pub(crate) fn note_locked(&self, slot: &DomainSlot, pages: u32) {
        let nailed = &self.header().nailed;
        nailed.fetch_add(pages, SeqCst);
        lower_to_zero(nailed, slot.locked.swap(pages, SeqCst));
    }
}
