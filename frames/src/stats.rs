//! Statistics of a ledger's domains.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: the tuple {n, g, x} of each
//! domain. Rule: the words are read one after the other, not at one moment.

use crate::contract::{Contract, Process};
use crate::domain::{DomainId, DomainWord, Phase};
use crate::layout::CLOSED;
use crate::ledger::Ledger;
use crate::ramtab::State;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// Statistics of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainStats {
    /// Its id.
    pub id: DomainId,
    /// Its phase.
    pub phase: Phase,
    /// The process that holds it.
    pub process: Process,
    /// {g, x}.
    pub contract: Contract,
    /// Frames it owns.
    pub n: u32,
    /// Approximate number of them that are unused.
    pub unused: u32,
    /// Frames demanded from it and not yet released.
    pub demanded: u32,
    /// Frames it waits for.
    pub wanted: u32,
    /// Frames it took over from others transparently since it was admitted.
    pub taken_over: u64,
    /// Frames that others took over from it.
    pub lost: u64,
    /// Frames ever demanded from it.
    pub demanded_ever: u64,
    /// Frames it released on demand.
    pub released: u64,
    /// Its requests that found no frame.
    pub refused: u64,
}

/// How many of a domain's frames are in each state, by the RamTab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Without a resident page.
    pub unused: u32,
    /// With a page mapped.
    pub mapped: u32,
    /// With a page staged.
    pub standby: u32,
    /// With a nailed page.
    pub nailed: u32,
    /// Reserved for a child, or being revoked.
    pub other: u32,
}

impl StateCounts {
    /// Frames in all states.
    pub fn total(&self) -> u32 {
        self.unused + self.mapped + self.standby + self.nailed + self.other
    }
}

impl Ledger {
    /// Statistics of a domain; none if it is not admitted.
    pub fn stats(&self, id: DomainId) -> Option<DomainStats> {
        self.all_stats().find(|view| view.id == id)
    }

    /// Statistics of all admitted domains.
    pub fn all_stats(&self) -> impl Iterator<Item = DomainStats> {
        (1..self.memory.reach()).filter_map(|owner| {
            let slot = self.memory.slot(owner);
            let word = DomainWord::unpack(slot.state.load(SeqCst));
            word.admitted().then(|| DomainStats {
                id: DomainId {
                    slot: owner,
                    generation: word.generation,
                },
                phase: word.phase,
                process: Process {
                    pid: slot.pid.load(SeqCst),
                    start: slot.start.load(SeqCst),
                },
                contract: Contract {
                    g: slot.g.load(SeqCst),
                    x: slot.x.load(SeqCst),
                },
                n: slot.n.load(SeqCst) & !CLOSED,
                unused: self.memory.set(owner).len(),
                demanded: slot.demanded.load(SeqCst),
                wanted: slot.wanted.load(SeqCst),
                taken_over: slot.taken_over.load(Relaxed),
                lost: slot.lost.load(Relaxed),
                demanded_ever: slot.demanded_ever.load(Relaxed),
                released: slot.released.load(Relaxed),
                refused: slot.refused.load(Relaxed),
            })
        })
    }

    /// Counts a domain's frames in the RamTab by state: for statistics, 1 us for 4,000 frames.
    pub fn state_counts(&self, id: DomainId) -> StateCounts {
        let mut state_counts = StateCounts::default();
        for (_, entry) in self.memory.ramtab().entries() {
            if entry.owner() == id.slot {
                match entry.state() {
                    State::Free => (),
                    State::Unused => state_counts.unused += 1,
                    State::Mapped => state_counts.mapped += 1,
                    State::Standby => state_counts.standby += 1,
                    State::Nailed => state_counts.nailed += 1,
                    State::Reserved | State::Revoking => state_counts.other += 1,
                }
            }
        }
        state_counts
    }
}
