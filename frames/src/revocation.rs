//! Asking domains for frames back: for one that waits, or for the tenant's landlord.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: intrusive revocation.
//! The demanded evict, put the frames and answer ([`crate::DomainFrames::answer`]). Rule: nobody is
//! demanded for a frame below its guarantee, and frames on their way are not demanded for again.
//! Deadlines are kept by the supervisor.

use crate::domain::DomainId;
use crate::layout::DomainSlot;
use crate::ledger::Ledger;
use crate::ramtab::Owner;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Ledger {
    /// Asks domains with more than their guarantee to give back frames, so that `id` can
    /// have `k`: the largest n - g first. Frames demanded for before and still on their way
    /// count. Returns how many are on their way in all; fewer than `k` when the others
    /// have no more to give. What happens to a domain that does not answer in time is the
    /// supervisor's to decide: see [`crate::DomainStats::demanded`].
    ///
    /// From g on `id` is no better than the others: they are demanded down to the fair share
    /// only, and until `id` has its frames none above that share gets more.
    pub fn demand(&self, id: DomainId, k: u32) -> u32 {
        let Some(slot) = self.find(id) else { return 0 };
        slot.wanted.store(k, SeqCst);
        let wants = self
            .slots()
            .map(|slot| slot.wanted.load(SeqCst))
            .fold(0, u32::saturating_add);
        self.memory.header().wants.store(wants, SeqCst);
        let guaranteed = slot.n.load(SeqCst) < slot.g.load(SeqCst);
        let keep = if guaranteed { 0 } else { self.memory.fair() };
        while self.outstanding() < wants {
            let others = (1..self.memory.reach()).filter(|owner| *owner != id.slot);
            let spare = |owner: &Owner| {
                let slot = self.memory.slot(*owner);
                let above = self.memory.surplus(*owner);
                let demanded = slot.demanded.load(SeqCst);
                above
                    .min(slot.n.load(SeqCst).saturating_sub(keep))
                    .saturating_sub(demanded)
            };
            let Some(victim) = others.max_by_key(spare).filter(|v| spare(v) > 0) else {
                break;
            };
            let (most, missing) = (spare(&victim), wants.saturating_sub(self.outstanding()));
            let more = most.min(missing);
            if more == 0 {
                break;
            }
            self.memory.slot(victim).demand(more);
        }
        self.outstanding()
    }

    /// Asks domains for frames until all of them together can do with `to`: those with the
    /// largest n - g first, each for its share. Until the limit is there, or is raised, no
    /// optimistic frame is granted above `to`. Returns how many frames are on their way; when
    /// they have come [`Ledger::reclaim_done`] says so. Nothing is to be shed any more when `to`
    /// is the limit or above. Allocates: not for the page path.
    pub fn reclaim_to(&self, to: u32) -> u32 {
        let header = self.memory.header();
        // Who came back with more than fits has a limit below what it owns.
        if to >= header.limit.limit() && self.owned() <= to {
            header.clear_reclaim_target();
            return 0;
        }
        header.reclaim_target.store(to, SeqCst);
        let above = self.committed().saturating_sub(to);
        let mut missing = above.saturating_sub(self.outstanding());
        let mut spare: Vec<(u32, Owner)> = (1..self.memory.reach())
            .map(|owner| (self.spare(owner), owner))
            .filter(|(spare, _)| *spare > 0)
            .collect();
        spare.sort_unstable_by(|one, other| other.cmp(one));
        let mut left: u64 = spare.iter().map(|(spare, _)| u64::from(*spare)).sum();
        for (spare, owner) in spare {
            // Rounded up, so that the largest bear the remainders.
            let share = (u64::from(spare) * u64::from(missing)).div_ceil(left.max(1));
            let share = spare.min(missing).min(share as u32);
            left -= u64::from(spare);
            missing -= share;
            if share > 0 {
                self.memory.slot(owner).demand(share);
            }
        }
        self.outstanding()
    }

    /// Whether what is owned, or owed to guarantees, is at most `to`: the limit can be
    /// lowered that far.
    pub fn reclaim_done(&self, to: u32) -> bool {
        self.owned().max(self.committed()) <= to
    }

    /// Frames domains were demanded for and have not given.
    fn outstanding(&self) -> u32 {
        self.slots()
            .map(|slot| slot.demanded.load(SeqCst))
            .fold(0, u32::saturating_add)
    }

    /// Frames a domain can still be demanded for.
    fn spare(&self, owner: Owner) -> u32 {
        let demanded = self.memory.slot(owner).demanded.load(SeqCst);
        self.memory.surplus(owner).saturating_sub(demanded)
    }

    fn slots(&self) -> impl Iterator<Item = &DomainSlot> {
        (1..self.memory.reach()).map(|owner| self.memory.slot(owner))
    }
}

impl DomainSlot {
    fn demand(&self, more: u32) {
        self.demanded.fetch_add(more, SeqCst);
        self.demanded_ever.fetch_add(u64::from(more), Relaxed);
        self.ring();
    }
}
