//! Statistics of the allocator's tenants.

use super::request::Requests;
use super::tenant::Tenant;
use super::{FrameUsage, TenantId};
use crate::contract::Contract;
use std::time::Duration;

/// Statistics of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantStats {
    /// Its number.
    pub tenant: TenantId,
    /// {g, x} in force.
    pub contract: Contract,
    /// The contract that will replace it, and when.
    pub later: Option<(Contract, Duration)>,
    /// Frames granted to its ledger.
    pub n: u32,
    /// Frames of its guarantee reserved beside them, for resident memory that is not paged.
    pub unpaged: u32,
    /// Those of them beyond the managed frames, with which it reconnected.
    pub beyond: u32,
    /// Frames above its guarantee that it gives back within [`super::MAX_REVOCATION`]: it is granted no more.
    pub revocable: u32,
    /// Its use of them, as last reported.
    pub usage: FrameUsage,
    /// Frames demanded from it and not yet released.
    pub owed: u32,
    /// Guaranteed frames it waits for.
    pub waiting: u32,
    /// Optimistic frames it requested and has not got.
    pub wished: u32,
    /// True if it is being killed.
    pub killed: bool,
}

impl TenantStats {
    pub(super) fn new(id: TenantId, tenant: &Tenant, requests: &Requests) -> Self {
        Self {
            tenant: id,
            contract: tenant.contract,
            later: tenant.later,
            n: tenant.n,
            unpaged: tenant.unpaged,
            beyond: tenant.beyond,
            revocable: tenant.revocable,
            usage: tenant.usage,
            owed: tenant.owed(),
            waiting: requests.pending_of(id),
            wished: requests.optimistic_of(id),
            killed: tenant.killed_at.is_some(),
        }
    }

    /// Frames that it has, in its ledger or reserved beside it.
    pub fn held(&self) -> u32 {
        self.n.saturating_add(self.unpaged)
    }
}
