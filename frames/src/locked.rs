//! Room for memory that programs lock.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: nailed frames cannot be revoked. Rule: locks
//! leave room for pages that are not locked, or a domain could not page.

use crate::ledger::Ledger;
use crate::ramtab::State;
use std::sync::atomic::Ordering::SeqCst;

impl Ledger {
    /// How many more frames the domains may nail for programs: between them they leave an eighth,
    /// and at least `fewest` each, for other pages. One pass over the RamTab.
    pub fn room_to_nail(&self, fewest: u32) -> u32 {
        let memory = &self.memory;
        let entries = memory.ramtab().entries();
        let nailed = entries
            .filter(|(_, entry)| entry.state() == State::Nailed)
            .count();
        let locked =
            (1..memory.reach()).map(|owner| memory.slot(owner).locked.load(SeqCst) as usize);
        let nailed = nailed + locked.sum::<usize>();
        let all = self.max_guaranteed();
        let kept = (all / 8).max(self.domains().saturating_mul(fewest));
        let taken = kept.saturating_add(u32::try_from(nailed).unwrap_or(u32::MAX));
        all.saturating_sub(taken)
    }
}
