//! Requests for frames, any or particular ones, and those that wait.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a domain may ask for
//! frames within a special region. Linux has huge pages and NUMA nodes to offer, and no
//! physical addresses. A quota has no place, so the allocator says only whether such a request
//! makes sense; the tenant then asks the kernel.

use super::{Action, Allocator, AllocatorError, TenantId};
use crate::contract::Contract;
use std::time::Duration;
use wired::HUGE_RANGE_PAGES;

/// More frames for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many, at most.
    pub k: u32,
    /// Which ones.
    pub placement: Placement,
}

/// Which frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Whichever.
    Any,
    /// Those of huge pages.
    Huge,
    /// Those of a NUMA node.
    Node(u32),
}

/// What particular frames a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTopology {
    /// Whether the kernel gives huge pages.
    pub huge: bool,
    /// NUMA nodes.
    pub nodes: u32,
}

impl MachineTopology {
    /// Refuses what the machine does not have.
    pub fn check(self, request: Request) -> Result<(), AllocatorError> {
        let (asked, unit) = (request.k, HUGE_RANGE_PAGES as u32);
        match request.placement {
            Placement::Huge if !self.huge => Err(AllocatorError::NoHuge { asked }),
            Placement::Huge if !asked.is_multiple_of(unit) => {
                Err(AllocatorError::Huge { asked, unit })
            }
            Placement::Node(asked) if asked >= self.nodes => Err(AllocatorError::Node {
                asked,
                nodes: self.nodes,
            }),
            _ => Ok(()),
        }
    }
}

/// Guaranteed frames that are owed to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRequest {
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
pub(crate) struct OptimisticRequest {
    pub tenant: TenantId,
    pub k: u32,
    /// Whether others' unused frames are still to be verified for.
    pub fresh: bool,
}

impl PendingRequest {
    /// What is served first: what was promised, the earliest first; then the smallest, which
    /// delays a large one least.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        (self.due.is_none(), self.due, self.k, self.since)
    }
}

impl Allocator {
    /// A tenant asks for more frames. Guaranteed ones come at once or after a revocation,
    /// optimistic ones when there are any, whenever that is; a second request adds to the
    /// guaranteed ones waited for, and replaces the optimistic ones. AllocatorError when nothing of
    /// it could ever be granted.
    pub fn request(
        &mut self,
        tenant: TenantId,
        request: Request,
        now: Duration,
    ) -> Result<Vec<Action>, AllocatorError> {
        self.config.topology.check(request)?;
        let waiting = self.pending_of(tenant);
        let own = self.live_tenant(tenant)?;
        let Contract { g, x } = own.contract;
        let n = own.n + waiting;
        let k = request.k.min(x.saturating_sub(n));
        let guaranteed = k.min(g.saturating_sub(n));
        let revocable = own.cleaning.frames_per_second > 0;
        let optimistic = if revocable { k - guaranteed } else { 0 };
        if request.k > 0 && guaranteed + optimistic == 0 {
            let asked = request.k;
            return Err(match k {
                0 => AllocatorError::Most { asked, n, x },
                _ => AllocatorError::Irrevocable { asked },
            });
        }
        self.withdraw(tenant);
        self.add_pending(tenant, guaranteed, now);
        if optimistic > 0 {
            self.optimistic.push(OptimisticRequest {
                tenant,
                k: optimistic,
                fresh: true,
            });
        }
        Ok(self.run(now))
    }

    /// A tenant does not want the optimistic frames any more that it asked for.
    pub fn withdraw(&mut self, tenant: TenantId) {
        self.optimistic.retain(|request| request.tenant != tenant);
    }

    /// Guaranteed frames that tenants wait for.
    pub fn pending(&self) -> &[PendingRequest] {
        &self.waiting
    }

    pub(super) fn pending_of(&self, tenant: TenantId) -> u32 {
        let own = self.waiting.iter().filter(|w| w.tenant == tenant);
        own.map(|waiting| waiting.k).sum()
    }

    pub(super) fn optimistic_of(&self, tenant: TenantId) -> u32 {
        let own = self
            .optimistic
            .iter()
            .filter(|request| request.tenant == tenant);
        own.map(|request| request.k).sum()
    }

    /// Nobody waits for frames on this tenant's behalf any more.
    pub(super) fn drop_requests(&mut self, tenant: TenantId) {
        self.waiting.retain(|waiting| waiting.tenant != tenant);
        self.withdraw(tenant);
    }

    /// Makes what a tenant waits for and optimistic fit its changed contract.
    pub(super) fn fit_requests(&mut self, tenant: TenantId, now: Duration) {
        let wished = self.optimistic_of(tenant);
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
        // What was a request may be guaranteed now.
        self.add_pending(tenant, wished.min(owed), now);
        let waiting = self.pending_of(tenant);
        let left = (wished - wished.min(owed)).min(room - waiting);
        for request in self.optimistic.iter_mut().filter(|w| w.tenant == tenant) {
            request.k = left;
        }
        self.optimistic.retain(|request| request.k > 0);
    }

    pub(super) fn add_pending(&mut self, tenant: TenantId, k: u32, since: Duration) {
        if k > 0 {
            self.waiting.push(PendingRequest {
                tenant,
                k,
                since,
                due: None,
            });
        }
    }
}
