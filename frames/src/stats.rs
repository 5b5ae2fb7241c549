//! Statistics of a ledger's domains.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: the tuple {n, g, x} of each
//! domain. Rule: the words are read one after the other, not at one moment.

use crate::contract::Contract;
use crate::domain::{DomainId, DomainPhase};
use crate::layout::{CLOSED, LedgerMemory};
use crate::ramtab::Owner;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// Statistics of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainStats {
    /// Its id.
    pub id: DomainId,
    /// Its phase.
    pub phase: DomainPhase,
    /// Whether it is of a child that its creator may still be about to fork.
    pub has_creator: bool,
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

impl DomainStats {
    /// Reads a domain's words; none if it is not admitted.
    pub(crate) fn read(memory: &LedgerMemory, owner: Owner) -> Option<Self> {
        let slot = memory.slot(owner);
        let word = slot.word();
        word.is_admitted().then(|| Self {
            id: DomainId {
                slot: owner,
                generation: word.generation,
            },
            phase: word.phase,
            has_creator: word.creator != 0,
            contract: Contract {
                g: slot.g.load(SeqCst),
                x: slot.x.load(SeqCst),
            },
            n: slot.n.load(SeqCst) & !CLOSED,
            unused: memory.set(owner).len(),
            demanded: memory.demanded(owner),
            wanted: slot.wanted.load(SeqCst),
            taken_over: slot.taken_over.load(Relaxed),
            lost: slot.lost.load(Relaxed),
            demanded_ever: slot.demanded_ever.load(Relaxed),
            released: slot.released.load(Relaxed),
            refused: slot.refused.load(Relaxed),
        })
    }
}
