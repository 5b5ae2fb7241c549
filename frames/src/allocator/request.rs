//! Requests for frames, any or particular ones, and those that wait.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a domain may ask for
//! frames within a special region. Linux has huge pages and NUMA nodes to offer, and no
//! physical addresses. A quota has no place, so the allocator says only whether such a request
//! makes sense; the tenant then asks the kernel.

use super::{Allocator, Order, Refused, TenantId};
use crate::contract::Contract;
use std::time::Duration;
use wired::HUGE_RANGE_PAGES;

/// More frames for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many, at most.
    pub k: u32,
    /// Which ones.
    pub kind: Kind,
}

/// Which frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whichever.
    Any,
    /// Those of huge pages.
    Huge,
    /// Those of a NUMA node.
    Node(u32),
}

/// What particular frames a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Whether the kernel gives huge pages.
    pub huge: bool,
    /// NUMA nodes.
    pub nodes: u32,
}

impl Places {
    /// Refuses what the machine does not have.
    pub fn check(self, request: Request) -> Result<(), Refused> {
        let (asked, unit) = (request.k, HUGE_RANGE_PAGES as u32);
        match request.kind {
            Kind::Huge if !self.huge => Err(Refused::NoHuge { asked }),
            Kind::Huge if !asked.is_multiple_of(unit) => Err(Refused::Huge { asked, unit }),
            Kind::Node(asked) if asked >= self.nodes => Err(Refused::Node {
                asked,
                nodes: self.nodes,
            }),
            _ => Ok(()),
        }
    }
}

/// Guaranteed frames that are owed to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who waits.
    pub tenant: TenantId,
    /// For how many.
    pub k: u32,
    /// Since when.
    pub since: Duration,
    /// When they will have been revoked from others; none while the others cannot clean as
    /// many as are waited for, so that some come in later rounds. Should a victim have to be
    /// killed then, the killing comes on top.
    pub due: Option<Duration>,
}

/// Optimistic frames a tenant would like, when there are any.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub tenant: TenantId,
    pub k: u32,
    /// Whether others' unused frames are still to be looked for.
    pub fresh: bool,
}

impl Waiting {
    /// What is served first: what was promised, the earliest first; then the smallest, which
    /// delays a large one least.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        (self.due.is_none(), self.due, self.k, self.since)
    }
}

impl Allocator {
    /// A tenant asks for more frames. Guaranteed ones come at once or after a revocation,
    /// optimistic ones when there are any, whenever that is; a second request adds to the
    /// guaranteed ones waited for, and replaces the optimistic ones. Refused when nothing of
    /// it could ever be granted.
    pub fn request(
        &mut self,
        tenant: TenantId,
        request: Request,
        now: Duration,
    ) -> Result<Vec<Order>, Refused> {
        self.settings.places.check(request)?;
        let waiting = self.waiting_of(tenant);
        let own = self.live(tenant)?;
        let Contract { g, x } = own.contract;
        let n = own.n + waiting;
        let k = request.k.min(x.saturating_sub(n));
        let guaranteed = k.min(g.saturating_sub(n));
        let revocable = own.cleaning.frames_per_second > 0;
        let optimistic = if revocable { k - guaranteed } else { 0 };
        if request.k > 0 && guaranteed + optimistic == 0 {
            let asked = request.k;
            return Err(match k {
                0 => Refused::Most { asked, n, x },
                _ => Refused::Irrevocable { asked },
            });
        }
        self.withdraw(tenant);
        self.wait(tenant, guaranteed, now);
        if optimistic > 0 {
            self.wishes.push(Wish {
                tenant,
                k: optimistic,
                fresh: true,
            });
        }
        Ok(self.settle(now))
    }

    /// A tenant does not want the optimistic frames any more that it asked for.
    pub fn withdraw(&mut self, tenant: TenantId) {
        self.wishes.retain(|wish| wish.tenant != tenant);
    }

    /// Guaranteed frames that tenants wait for.
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    pub(super) fn waiting_of(&self, tenant: TenantId) -> u32 {
        let own = self.waiting.iter().filter(|w| w.tenant == tenant);
        own.map(|waiting| waiting.k).sum()
    }

    pub(super) fn wishes_of(&self, tenant: TenantId) -> u32 {
        let own = self.wishes.iter().filter(|wish| wish.tenant == tenant);
        own.map(|wish| wish.k).sum()
    }

    /// Nobody waits for frames on this tenant's behalf any more.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.waiting.retain(|waiting| waiting.tenant != tenant);
        self.withdraw(tenant);
    }

    /// Makes what a tenant waits for and wishes fit its changed contract.
    pub(super) fn trim(&mut self, tenant: TenantId, now: Duration) {
        let wished = self.wishes_of(tenant);
        let Some(own) = self.tenants.get(&tenant) else {
            return;
        };
        let Contract { g, x } = own.contract;
        let (mut owed, room) = (g.saturating_sub(own.n), x.saturating_sub(own.n));
        for waiting in self.waiting.iter_mut().filter(|w| w.tenant == tenant) {
            waiting.k = waiting.k.min(owed);
            owed -= waiting.k;
        }
        self.waiting.retain(|waiting| waiting.k > 0);
        // What was a wish may be guaranteed now.
        self.wait(tenant, wished.min(owed), now);
        let waiting = self.waiting_of(tenant);
        let left = (wished - wished.min(owed)).min(room - waiting);
        for wish in self.wishes.iter_mut().filter(|w| w.tenant == tenant) {
            wish.k = left;
        }
        self.wishes.retain(|wish| wish.k > 0);
    }

    pub(super) fn wait(&mut self, tenant: TenantId, k: u32, since: Duration) {
        if k > 0 {
            self.waiting.push(Waiting {
                tenant,
                k,
                since,
                due: None,
            });
        }
    }
}
