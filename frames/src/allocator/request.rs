//! Requests for frames with any or a particular placement, and pending ones.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a domain may request frames
//! within a special region. Linux has huge pages and NUMA nodes, and no physical addresses. A
//! quota has no location, so the allocator only checks that the machine has such a placement; the
//! tenant then requests it from the kernel.

use super::{AllocatorError, TenantId};
use crate::contract::Contract;
use std::time::Duration;
use wired::HUGE_RANGE_PAGES;

/// A request for more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRequest {
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
    pub fn check(self, request: FrameRequest) -> Result<(), AllocatorError> {
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
    /// True where they are for resident memory that is not paged: its ledger does not get them.
    pub unpaged: bool,
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

/// Frames to come, and when.
#[derive(Clone, Copy)]
pub(crate) struct Supply {
    pub k: u32,
    pub by: Duration,
}

/// All pending requests.
#[derive(Default)]
pub(crate) struct Requests {
    pub waiting: Vec<PendingRequest>,
    pub optimistic: Vec<OptimisticRequest>,
}

impl Requests {
    pub(super) fn pending_of(&self, tenant: TenantId) -> u32 {
        let own = self.waiting.iter().filter(|w| w.tenant == tenant);
        own.map(|waiting| waiting.k).sum()
    }

    /// Frames that it waits for on behalf of memory that is not paged.
    pub(super) fn unpaged_of(&self, tenant: TenantId) -> u32 {
        let own = self.waiting.iter().filter(|w| w.tenant == tenant);
        own.filter(|w| w.unpaged).map(|waiting| waiting.k).sum()
    }

    /// Drops what a tenant waits for beyond `most`, on behalf of memory that is not paged or of its
    /// ledger.
    pub(super) fn limit(&mut self, tenant: TenantId, unpaged: bool, mut most: u32) {
        for waiting in self.waiting.iter_mut() {
            if waiting.tenant == tenant && waiting.unpaged == unpaged {
                waiting.k = waiting.k.min(most);
                most -= waiting.k;
            }
        }
        self.waiting.retain(|waiting| waiting.k > 0);
    }

    pub(super) fn optimistic_of(&self, tenant: TenantId) -> u32 {
        let own = self.optimistic.iter().filter(|w| w.tenant == tenant);
        own.map(|request| request.k).sum()
    }

    /// Drops a tenant's request for optimistic frames.
    pub(super) fn withdraw(&mut self, tenant: TenantId) {
        self.optimistic.retain(|request| request.tenant != tenant);
    }

    /// Drops all requests of a tenant.
    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.waiting.retain(|waiting| waiting.tenant != tenant);
        self.withdraw(tenant);
    }

    /// Fits the requests of a tenant that has `n` frames to its changed contract.
    pub(super) fn fit(&mut self, tenant: TenantId, n: u32, contract: Contract, now: Duration) {
        let wished = self.optimistic_of(tenant);
        let Contract { g, x } = contract;
        let (mut owed, room) = (g.saturating_sub(n), x.saturating_sub(n));
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
        self.add(tenant, k, false, since);
    }

    /// Adds a request for frames that are reserved for memory that is not paged.
    pub(super) fn add_unpaged(&mut self, tenant: TenantId, k: u32, since: Duration) {
        self.add(tenant, k, true, since);
    }

    fn add(&mut self, tenant: TenantId, k: u32, unpaged: bool, since: Duration) {
        if k > 0 {
            self.waiting.push(PendingRequest {
                tenant,
                k,
                unpaged,
                since,
                due: None,
            });
        }
    }

    /// Promises frames to come to pending requests: those with a promise come first.
    pub(super) fn promise(&mut self, supply: Vec<Supply>) {
        self.waiting.sort_by_key(PendingRequest::rank);
        let promised: u32 = self.waiting.iter().map_while(|w| w.due.map(|_| w.k)).sum();
        let mut skip = promised;
        let mut supply = supply.into_iter().filter_map(|part| {
            let skipped = skip.min(part.k);
            skip -= skipped;
            (part.k > skipped).then(|| Supply {
                k: part.k - skipped,
                ..part
            })
        });
        let (mut left, mut by) = (0, None);
        let mut waiting = Vec::with_capacity(self.waiting.len() + 1);
        for mut one in self.waiting.drain(..) {
            while one.due.is_none() && left < one.k {
                let Some(part) = supply.next() else { break };
                (left, by) = (left + part.k, Some(part.by));
            }
            if one.due.is_some() || left >= one.k {
                left -= if one.due.is_some() { 0 } else { one.k };
                one.due = one.due.or(by);
                waiting.push(one);
            } else {
                let later = one.k - left;
                if left > 0 {
                    one.k = left;
                    one.due = by;
                    waiting.push(one);
                }
                one.k = later;
                one.due = None;
                waiting.push(one);
                left = 0;
            }
        }
        self.waiting = waiting;
    }
}
