//! Trimming: frames of domains that do not fault go to those of the same tree that do.
//!
//! Each domain evicts its own pages first (*Self-Paging in the Nemesis Operating System*, section
//! 6.2), which keeps tenants apart. The processes of one tree share one contract, and are to use
//! it as one program would: a domain whose oldest page is younger than another's last fault asks
//! that one for frames. All its pages are older, so that it is where a least-recently-used order
//! over the whole tree would evict. The other evicts by its own replacement, at its own cost, and
//! keeps its guarantee.
//!
//! Nothing waits for a trim: a domain that faults evicts its own pages until frames come.

use crate::domain::DomainId;
use crate::ledger::Ledger;
use crate::ramtab::Owner;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A time in milliseconds that wraps; times are compared if they are less than 24 days apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Millis(pub u32);

impl Millis {
    /// The time by the clock that all processes share.
    pub fn now() -> Self {
        Self((wired::clock::now() / 1_000_000) as u32)
    }

    /// Milliseconds from `earlier` to this time; 0 if that is later.
    pub fn since(self, earlier: Self) -> u32 {
        match self.0.wrapping_sub(earlier.0) {
            ahead if ahead > u32::MAX / 2 => 0,
            passed => passed,
        }
    }
}

impl Ledger {
    /// Asks domains that have not faulted since before `oldest` for up to `k` frames above their
    /// guarantee, the longest idle first. What domains were asked for and have not answered yet
    /// counts. Returns how many were asked for now. `id` is not asked, nor is a domain asked twice
    /// for one frame.
    pub fn trim_idle(&self, id: DomainId, k: u32, oldest: Millis) -> u32 {
        let spare = |owner: Owner| {
            let asked = self.memory.slot(owner).trim.load(Relaxed);
            self.spare(owner).saturating_sub(asked)
        };
        let idle = |owner: Owner| {
            let used_at = Millis(self.memory.slot(owner).used_at.load(Relaxed));
            oldest.since(used_at)
        };
        let owners = 1..self.memory.reach();
        let trims = owners.map(|owner| self.memory.slot(owner).trim.load(Relaxed));
        let k = k.saturating_sub(trims.fold(0, u32::saturating_add));
        let mut asked = 0;
        while asked < k {
            let longest = (1..self.memory.reach())
                .filter(|owner| *owner != id.slot && idle(*owner) > 0 && spare(*owner) > 0)
                .max_by_key(|owner| idle(*owner));
            let Some(owner) = longest else { break };
            let more = spare(owner).min(k - asked);
            if more == 0 {
                break;
            }
            self.memory.slot(owner).trim.fetch_add(more, SeqCst);
            self.memory.slot(owner).ring();
            asked += more;
        }
        asked
    }
}
