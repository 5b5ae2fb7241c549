//! Requests for frames, any or particular ones, and those that wait.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a domain may ask for
//! frames within a special region. Linux has huge pages and NUMA nodes to offer, and no
//! physical addresses. A quota has no place, so the allocator says only whether such a request
//! makes sense; the tenant then asks the kernel.

use super::{Refused, TenantId};
use std::time::Duration;
use wired::RANGE_PAGES;

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
    pub(crate) fn check(self, request: Request) -> Result<(), Refused> {
        let (asked, unit) = (request.k, RANGE_PAGES as u32);
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
