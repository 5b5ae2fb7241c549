//! What a ledger knows of its domains, for statistics and for whoever decides about them.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: the tuple {n, g, x} of
//! each domain. Rule: a view is what the words said one after the other, not one moment.

use crate::contract::{Contract, Process};
use crate::domain::{DomainId, Phase, Word};
use crate::layout::CLOSED;
use crate::ledger::Ledger;
use crate::ramtab::State;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// What the ledger knows of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainView {
    /// Its name.
    pub id: DomainId,
    /// Where it is in its life.
    pub phase: Phase,
    /// The process that holds it.
    pub process: Process,
    /// {g, x}.
    pub contract: Contract,
    /// Frames it owns.
    pub n: u32,
    /// Those of them with nothing resident, about.
    pub unused: u32,
    /// Frames it was asked to give back and has not.
    pub asked: u32,
    /// Frames it waits for.
    pub wanted: u32,
    /// Frames it took over from others, transparently, since it was admitted.
    pub taken_over: u64,
    /// Frames others took over from it.
    pub lost: u64,
    /// Frames it was ever asked for, intrusively.
    pub asked_ever: u64,
    /// Frames it gave back because it was asked.
    pub answered: u64,
    /// Requests of its that found no frame.
    pub refused: u64,
}

/// How many of a domain's frames are in each state, by the RamTab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// With nothing resident.
    pub unused: u32,
    /// With a page mapped.
    pub mapped: u32,
    /// With a page staged.
    pub standby: u32,
    /// With a page that must stay.
    pub nailed: u32,
    /// Set aside for a child, or changing hands.
    pub other: u32,
}

impl Census {
    /// Frames in all.
    pub fn total(&self) -> u32 {
        self.unused + self.mapped + self.standby + self.nailed + self.other
    }
}

impl Ledger {
    /// What the ledger knows of a domain.
    pub fn view(&self, id: DomainId) -> Option<DomainView> {
        self.views().find(|view| view.id == id)
    }

    /// All domains admitted.
    pub fn views(&self) -> impl Iterator<Item = DomainView> {
        (1..self.memory.reach()).filter_map(|owner| {
            let slot = self.memory.slot(owner);
            let word = Word::unpack(slot.state.load(SeqCst));
            word.admitted().then(|| DomainView {
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
                asked: slot.asked.load(SeqCst),
                wanted: slot.wanted.load(SeqCst),
                taken_over: slot.taken_over.load(Relaxed),
                lost: slot.lost.load(Relaxed),
                asked_ever: slot.asked_ever.load(Relaxed),
                answered: slot.answered.load(Relaxed),
                refused: slot.refused.load(Relaxed),
            })
        })
    }

    /// Counts a domain's frames in the RamTab: for statistics, 1 us for 4,000 frames.
    pub fn census(&self, id: DomainId) -> Census {
        let mut census = Census::default();
        for (_, entry) in self.memory.ramtab().entries() {
            if entry.owner() == id.slot {
                match entry.state() {
                    State::Free => (),
                    State::Unused => census.unused += 1,
                    State::Mapped => census.mapped += 1,
                    State::Standby => census.standby += 1,
                    State::Nailed => census.nailed += 1,
                    State::Reserved | State::Revoking => census.other += 1,
                }
            }
        }
        census
    }
}
