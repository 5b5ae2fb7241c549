//! Revocation inside a ledger: for a domain that waits, or for the tenant's frames allocator.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: intrusive revocation. A victim
//! evicts, puts the frames and releases them ([`crate::DomainFrames::release_demanded`]). Rule: no
//! domain is made to release a frame below its guarantee, and outstanding frames are not demanded
//! twice. The supervisor keeps the deadlines.
//!
//! A *trim* asks for frames without revoking them. Each domain evicts its own pages first, which
//! keeps tenants apart; but the processes of one tree share one contract, and are to use it as one
//! program would. So a domain whose oldest page is younger than another's last fault asks that one
//! for frames: all its pages are older, so that a least-recently-used order over the whole tree
//! would evict there. The other evicts by its own replacement, at its own cost, and keeps its
//! guarantee. Nothing waits for a trim: a domain that faults evicts its own pages until frames come.

use crate::domain::DomainId;
use crate::layout::DomainSlot;
use crate::ledger::Ledger;
use crate::millis::Millis;
use crate::ramtab::Owner;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Milliseconds in which a pager that runs answers a trim.
const ANSWER: u32 = 100;

/// Milliseconds in which a domain that waits renews its demand: it does so every few, and compressed RAM ten times a
/// second.
const RENEWAL: u32 = 1000;

impl Ledger {
    /// Demands frames from domains above their guarantee, so that `id` can have `k`: from the
    /// largest n - g first. Frames demanded before and still outstanding count. Returns how many
    /// are outstanding in all; fewer than `k` when the others have no more to release. The
    /// supervisor decides about a domain that does not release in time: see
    /// [`crate::DomainStats::demanded`].
    ///
    /// From g on `id` has no precedence: the others release down to the fair share only, and
    /// until `id` has its frames, or has not renewed the demand for a second, no domain above that
    /// share gets more.
    pub fn demand(&self, id: DomainId, k: u32) -> u32 {
        let Some(slot) = self.find(id) else { return 0 };
        let now = Millis::now();
        slot.wanted_at.store(now.0, Relaxed);
        slot.wanted.store(k, SeqCst);
        self.end_stale_demands(now);
        let wants = self.memory.sum_wants();
        let guaranteed = slot.n.load(SeqCst) < slot.g.load(SeqCst);
        let keep = if guaranteed { 0 } else { self.memory.fair() };
        while self.outstanding() < wants {
            let others = (1..self.memory.reach()).filter(|owner| *owner != id.slot);
            let spare = |owner: &Owner| {
                let n = self.memory.slot(*owner).n.load(SeqCst);
                let above = self.memory.surplus(*owner).min(n.saturating_sub(keep));
                above.saturating_sub(self.memory.demanded(*owner))
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

    /// Demands frames until all domains together commit at most `to`: in proportion to their
    /// n - g, from the largest first. Until the limit is lowered to `to`, or raised, no optimistic
    /// frame is granted above `to`. Returns how many frames are outstanding;
    /// [`Ledger::reclaim_done`] returns true once they are released. With `to` at the limit or
    /// above the reclaim ends. Allocates: not for the page path.
    pub fn reclaim_to(&self, to: u32) -> u32 {
        let header = self.memory.header();
        // A tenant that reconnected with more frames than fit has a limit below what it owns.
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
            // Rounded up, so that the largest surpluses bear the remainders.
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

    /// Asks domains that have not faulted since before `oldest` for up to `k` frames above their
    /// guarantee, the longest idle first. What domains were asked for and have not answered yet
    /// counts, but for those that have not for 100 ms: their pagers are stopped, or wait. Returns how many were
    /// asked for now. `id` is not asked, nor is a domain asked twice for one frame.
    ///
    /// A domain that was refused a frame for another one's demand asks so, and ends the demand if it is stale.
    pub fn trim_idle(&self, id: DomainId, k: u32, oldest: Millis, now: Millis) -> u32 {
        if self.memory.header().wants.load(Relaxed) > 0 {
            self.end_stale_demands(now);
        }
        let is_silent = |owner: Owner| {
            let slot = self.memory.slot(owner);
            let since = Millis(slot.trim_at.load(Relaxed));
            slot.trim.load(Relaxed) > 0 && now.since(since) > ANSWER
        };
        let spare = |owner: Owner| {
            let asked = self.memory.slot(owner).trim.load(Relaxed);
            self.spare(owner).saturating_sub(asked)
        };
        let idle = |owner: Owner| {
            let used_at = Millis(self.memory.slot(owner).used_at.load(Relaxed));
            oldest.since(used_at)
        };
        let asked_of = |owner| {
            let asked = self.memory.slot(owner).trim.load(Relaxed);
            asked.min(self.memory.surplus(owner))
        };
        let trims = self
            .owners()
            .filter(|owner| !is_silent(*owner))
            .map(asked_of);
        let k = k.saturating_sub(trims.fold(0, u32::saturating_add));
        let mut asked = 0;
        while asked < k {
            let longest = (1..self.memory.reach())
                .filter(|owner| *owner != id.slot && idle(*owner) > 0 && spare(*owner) > 0)
                .filter(|owner| !is_silent(*owner))
                .max_by_key(|owner| idle(*owner));
            let Some(owner) = longest else { break };
            let more = spare(owner).min(k - asked);
            if more == 0 {
                break;
            }
            let slot = self.memory.slot(owner);
            if slot.trim.load(Relaxed) == 0 {
                slot.trim_at.store(now.0, Relaxed);
            }
            slot.trim.fetch_add(more, SeqCst);
            slot.ring();
            asked += more;
        }
        asked
    }

    /// How many more frames the domains may nail for programs: between them they leave an eighth,
    /// and at least `fewest` each, for other pages.
    pub fn room_to_nail(&self, fewest: u32) -> u32 {
        let all = self.max_guaranteed();
        let kept = (all / 8).max(self.domains().saturating_mul(fewest));
        let nailed = self.memory.header().nailed.load(SeqCst);
        all.saturating_sub(kept.saturating_add(nailed))
    }

    /// Returns true if the frames owned, or owed to guarantees, are at most `to`: the limit can be
    /// lowered that far.
    pub fn reclaim_done(&self, to: u32) -> bool {
        self.owned().max(self.committed()) <= to
    }

    /// Ends demands that are not renewed. Their processes are stopped, or were killed and are not retired yet, and would
    /// keep all others from frames above their share for as long. One that goes on demands again.
    fn end_stale_demands(&self, now: Millis) {
        let mut has_ended = false;
        for slot in self.owners().map(|owner| self.memory.slot(owner)) {
            let wanted = slot.wanted.load(SeqCst);
            let demanded_at = Millis(slot.wanted_at.load(Relaxed));
            if wanted > 0 && now.since(demanded_at) > RENEWAL {
                let ended = slot.wanted.compare_exchange(wanted, 0, SeqCst, SeqCst);
                has_ended |= ended.is_ok();
            }
        }
        if has_ended {
            self.memory.sum_wants();
        }
    }

    /// Frames demanded from domains and not yet released.
    fn outstanding(&self) -> u32 {
        self.owners()
            .map(|owner| self.memory.demanded(owner))
            .fold(0, u32::saturating_add)
    }

    /// Frames that can still be demanded from a domain.
    fn spare(&self, owner: Owner) -> u32 {
        let demanded = self.memory.demanded(owner);
        self.memory.surplus(owner).saturating_sub(demanded)
    }

    fn owners(&self) -> impl Iterator<Item = Owner> {
        1..self.memory.reach()
    }
}

impl DomainSlot {
    fn demand(&self, more: u32) {
        self.demanded.fetch_add(more, SeqCst);
        self.demanded_ever.fetch_add(u64::from(more), Relaxed);
        self.ring();
    }
}
