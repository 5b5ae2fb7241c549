//! Requests for frames with any or a particular placement, and pending ones.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a domain may request frames
//! within a special region. Linux has huge pages and NUMA nodes, and no physical addresses. A
//! quota has no location, so the allocator only checks that the machine has such a placement; the
//! tenant then requests it from the kernel.

use super::{Action, Allocator, AllocatorError, TenantId};
use crate::contract::Contract;
use std::time::Duration;
use wired::HUGE_RANGE_PAGES;

/// A request for more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The most to grant.
    pub k: u32,
    /// Where they are.
    pub placement: Placement,
}

/// The location of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Anywhere.
    Any,
    /// In huge pages.
    Huge,
    /// On a NUMA node.
    Node(u32),
}

/// The placements that a machine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTopology {
    /// True if the kernel has huge pages.
    pub huge: bool,
    /// Number of NUMA nodes.
    pub nodes: u32,
}

impl MachineTopology {
    /// Refuses a placement that the machine does not have.
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

/// Guaranteed frames that a tenant waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRequest {
    /// The tenant.
    pub tenant: TenantId,
    /// Number of frames.
    pub k: u32,
    /// Time of the request.
    pub since: Duration,
    /// When they will have been revoked from others; none while the others cannot clean as many,
    /// so that some follow in later rounds. Where a victim has to be killed then, that takes
    /// additional time.
    pub due: Option<Duration>,
}

/// Optimistic frames that a tenant waits for.
#[derive(Clone, Copy)]
pub(crate) struct OptimisticRequest {
    pub tenant: TenantId,
    pub k: u32,
    /// True until unused frames of others were searched for it.
    pub fresh: bool,
}

impl PendingRequest {
    /// Order of grants: promised ones by their time; then the smallest, which delays a large one
    /// least.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        (self.due.is_none(), self.due, self.k, self.since)
    }
}

impl Allocator {
    /// Requests more frames for a tenant. Guaranteed ones are granted at once or after a
    /// revocation, optimistic ones whenever there are any; a second request adds to the pending
    /// guaranteed ones and replaces the optimistic ones. Refused when no part of it could ever be
    /// granted.
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

    /// Drops a tenant's request for optimistic frames.
    pub fn withdraw(&mut self, tenant: TenantId) {
        self.optimistic.retain(|request| request.tenant != tenant);
    }

    /// Pending requests for guaranteed frames.
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

    /// Drops all requests of a tenant.
    pub(super) fn drop_requests(&mut self, tenant: TenantId) {
        self.waiting.retain(|waiting| waiting.tenant != tenant);
        self.withdraw(tenant);
    }

    /// Fits a tenant's requests to its changed contract.
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
        // Frames requested as optimistic may be guaranteed now.
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
