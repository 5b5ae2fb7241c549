//! The frames allocator of a whole machine: how many frames each tenant may own.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Every tenant has a contract
//! {g, x} and n frames. Below g a request is always granted, by revocation if necessary; from g to
//! x when frames are free, including those guaranteed to others but not requested. Frames are
//! revoked from the tenant with the largest n - g: transparently where it has unused frames, else
//! intrusively, by a deadline that its own disk slice lets it keep. A tenant that misses its
//! deadline or over-reports is killed.
//!
//! Rule: pure. Events go in with the time since start, actions come out, and the daemon executes
//! them in order and at once. Whatever tenants do, the sum of n never exceeds the managed frames,
//! except for frames with which tenants of a previous daemon reconnected, which are the first to
//! be revoked; and no guarantee depends on another tenant's cooperation: frames promised by a
//! deadline are there then, or their holder is killed, and none is promised later than [`MAX_REVOCATION`].
//!
//! ```
//! use frames::Contract;
//! use frames::allocator::*;
//! use std::time::Duration;
//!
//! let mut allocator = Allocator::new(AllocatorConfig {
//!     managed: 1000,
//!     deadline: Duration::from_millis(100),
//!     stall: Duration::from_secs(10),
//!     notice: Duration::from_secs(30),
//!     allowance: 64,
//!     topology: MachineTopology { huge: true, nodes: 1 },
//! });
//! let (tenant, now) = (TenantId(1), Duration::ZERO);
//! let cleaning = CleaningRate { frames_per_second: 3000, delay: Duration::from_millis(225) };
//! allocator.admit(tenant, Contract { g: 100, x: 500 }, cleaning)?;
//! let actions = allocator.request(tenant, FrameRequest { k: 100, placement: Placement::Any }, now)?;
//! assert_eq!(actions, [Action::Grant { tenant, k: 100 }]);
//! # Ok::<(), AllocatorError>(())
//! ```

mod action;
mod cleaning;
mod deadline;
mod enforcement;
mod error;
mod request;
mod revocation;
mod stats;
mod tenant;

pub use action::{Action, TenantNotice, Violation};
pub use cleaning::{CleaningRate, MAX_REVOCATION};
pub use error::AllocatorError;
pub use request::{FrameRequest, MachineTopology, PendingRequest, Placement};
pub use stats::TenantStats;
pub use tenant::FrameUsage;

use crate::contract::Contract;
use deadline::Stall;
use request::{OptimisticRequest, Requests};
use std::collections::BTreeMap;
use std::time::Duration;
use tenant::Tenant;

/// A tenant's number, chosen by the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl std::fmt::Display for TenantId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The allocator's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorConfig {
    /// Frames of main memory to allocate.
    pub managed: u32,
    /// T: the least time that a victim has to release frames.
    pub deadline: Duration,
    /// The most by which time in which threads waited for a processor extends a deadline
    /// ([`Allocator::on_stalled`]).
    pub stall: Duration,
    /// How long a guarantee stays in force after the tenant was notified of a lower one.
    pub notice: Duration,
    /// Frames a tenant may have resident above its own before more of its guarantee are reserved
    /// for them.
    pub allowance: u32,
    /// The placements that the machine offers.
    pub topology: MachineTopology,
}

/// The allocator's state: all tenants and their requests.
pub struct Allocator {
    config: AllocatorConfig,
    tenants: BTreeMap<TenantId, Tenant>,
    requests: Requests,
    /// Until when tenants of the previous daemon may reconnect.
    grace: Duration,
    stall: Stall,
    /// When to check again for victims that can release more.
    round: Option<Duration>,
    actions: Vec<Action>,
}

impl Allocator {
    /// An allocator without tenants.
    pub fn new(config: AllocatorConfig) -> Self {
        Self {
            config,
            tenants: BTreeMap::new(),
            requests: Requests::default(),
            grace: Duration::ZERO,
            stall: Stall {
                total: Duration::ZERO,
                most: config.stall,
            },
            round: None,
            actions: Vec::new(),
        }
    }

    /// An allocator after a restart of the daemon: until `grace` tenants may reconnect with what
    /// they own ([`Allocator::readmit`]), and no optimistic frames are granted.
    pub fn restarted(config: AllocatorConfig, grace: Duration) -> Self {
        Self {
            grace,
            ..Self::new(config)
        }
    }

    /// Admits a tenant, without frames at first.
    pub fn admit(
        &mut self,
        tenant: TenantId,
        contract: Contract,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.check(tenant, contract, Tenant::reserved)?;
        let new = Tenant::new(contract, 0, cleaning, self.config.deadline);
        self.tenants.insert(tenant, new);
        Ok(())
    }

    /// Readmits a tenant of the previous daemon with the `n` frames it owns.
    ///
    /// It may own more than its contract allows, where the contract was lowered and not all
    /// frames above it were demanded yet, and more than is managed now: then it keeps its frames
    /// for a while, since unmanaged memory backs them. Frames that others own, or that are
    /// guaranteed to tenants that may yet reconnect, stay theirs. The rest is demanded from it by
    /// deadlines that its slice lets it keep, like frames above a contract.
    pub fn readmit(
        &mut self,
        tenant: TenantId,
        contract: Contract,
        n: u32,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.check(tenant, contract, |other| other.contract.g)?;
        let taken = |tenant: &Tenant| u64::from(tenant.managed().max(tenant.contract.g));
        let taken: u64 = self.tenants.values().map(taken).sum();
        let left = u64::from(self.config.managed).saturating_sub(taken) as u32;
        let fit = n.min(left.max(contract.g)).min(self.free());
        let mut back = Tenant::new(contract, n, cleaning, self.config.deadline);
        back.beyond = n - fit;
        self.tenants.insert(tenant, back);
        Ok(())
    }

    fn check(
        &self,
        tenant: TenantId,
        contract: Contract,
        promised: fn(&Tenant) -> u32,
    ) -> Result<(), AllocatorError> {
        if self.tenants.contains_key(&tenant) {
            return Err(AllocatorError::Known(tenant));
        }
        self.check_contract(tenant, contract, promised)
    }

    /// Checks a contract beside what is `promised` to each other tenant.
    fn check_contract(
        &self,
        tenant: TenantId,
        contract: Contract,
        promised: fn(&Tenant) -> u32,
    ) -> Result<(), AllocatorError> {
        let Contract { g, x } = contract;
        if x == 0 || g > x {
            return Err(AllocatorError::Contract { g, x });
        }
        let others = || self.tenants.iter().filter(|(other, _)| **other != tenant);
        let guaranteed: u32 = others().map(|(_, tenant)| promised(tenant)).sum();
        let managed = self.config.managed;
        match guaranteed.checked_add(g) {
            Some(sum) if sum <= managed => Ok(()),
            _ => Err(AllocatorError::Guarantee {
                asked: g,
                guaranteed,
                managed,
                tenants: others().count() as u32,
            }),
        }
    }

    /// Checks that [`Allocator::set_contract`] would succeed now.
    pub fn check_set_contract(
        &self,
        tenant: TenantId,
        contract: Contract,
    ) -> Result<(), AllocatorError> {
        let live = |own: &&Tenant| own.killed_at.is_none();
        let own = self.tenants.get(&tenant).filter(live);
        let own = own.ok_or(AllocatorError::Unknown(tenant))?;
        match contract.g > own.contract.g {
            true => self.check_contract(tenant, contract, Tenant::reserved),
            false => self.check_contract(tenant, contract, |other| other.contract.g),
        }
    }

    /// Changes a tenant's contract and notifies the tenant. A raise takes effect at once, a lower guarantee after the
    /// notice. A maximum that is lowered, though not below the guarantee, does at once: optimistic frames can be revoked.
    pub fn set_contract(
        &mut self,
        tenant: TenantId,
        contract: Contract,
        now: Duration,
    ) -> Result<Vec<Action>, AllocatorError> {
        self.check_set_contract(tenant, contract)?;
        let latest = now + self.config.notice;
        let own = self.live_tenant(tenant)?;
        let from = own.lowered_from(contract, latest);
        let g = own.contract.g.max(contract.g);
        own.contract = Contract {
            g,
            x: contract.x.max(g),
        };
        let lowered = own.contract != contract;
        own.later = lowered.then_some((contract, from));
        let (n, grantable) = (own.held(), own.grantable());
        let from = if lowered { from } else { now };
        let notice = TenantNotice::Contract { contract, from };
        self.actions.push(Action::Notify { tenant, notice });
        self.requests.fit(tenant, n, grantable, now);
        Ok(self.run(now))
    }

    /// Changes the number of managed frames.
    pub fn set_managed(
        &mut self,
        managed: u32,
        now: Duration,
    ) -> Result<Vec<Action>, AllocatorError> {
        let reserved = self.tenants.values().map(Tenant::reserved);
        let (reserved, owned) = (reserved.fold(0, u32::saturating_add), self.owned());
        if managed < reserved.max(owned) {
            return Err(AllocatorError::Managed {
                asked: managed,
                reserved,
                owned,
            });
        }
        self.config.managed = managed;
        Ok(self.run(now))
    }

    /// Requests more frames for a tenant. Guaranteed ones are granted at once or after a
    /// revocation, optimistic ones whenever there are any; a second request adds to the pending
    /// guaranteed ones and replaces the optimistic ones. Refused when no part of it could ever be
    /// granted.
    pub fn request(
        &mut self,
        tenant: TenantId,
        request: FrameRequest,
        now: Duration,
    ) -> Result<Vec<Action>, AllocatorError> {
        self.config.topology.check(request)?;
        let waiting = self.requests.pending_of(tenant);
        let own = self.live_tenant(tenant)?;
        let Contract { g, x } = own.grantable();
        let n = own.held() + waiting;
        let k = request.k.min(x.saturating_sub(n));
        let guaranteed = k.min(g.saturating_sub(n));
        let optimistic = k - guaranteed;
        if request.k > 0 && k == 0 {
            return Err(own.refusal(request.k, n));
        }
        self.requests.withdraw(tenant);
        self.requests.add_pending(tenant, guaranteed, now);
        if optimistic > 0 {
            self.requests.optimistic.push(OptimisticRequest {
                tenant,
                k: optimistic,
                fresh: true,
            });
        }
        Ok(self.run(now))
    }

    /// Pending requests for guaranteed frames.
    pub fn pending(&self) -> &[PendingRequest] {
        &self.requests.waiting
    }

    /// Records a tenant's use of its frames, by its ledger: to be called before a request, and
    /// from time to time.
    pub fn report_usage(&mut self, tenant: TenantId, usage: FrameUsage) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.usage = FrameUsage {
                used: usage.used.min(tenant.n),
                ..usage
            };
        }
    }

    /// Records how long, since the start, threads of the machine waited for a processor: to be
    /// called before any other event of the same time.
    pub fn on_stalled(&mut self, total: Duration) {
        self.stall.total = self.stall.total.max(total);
    }

    /// A tenant has ended, by itself or killed, and its memory is free.
    pub fn on_tenant_gone(&mut self, tenant: TenantId, now: Duration) -> Vec<Action> {
        self.tenants.remove(&tenant);
        self.requests.remove(tenant);
        self.run(now)
    }

    /// Applies what is due: to be called at [`Allocator::next_timeout`], after all events up to
    /// then.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        for (id, tenant) in &mut self.tenants {
            tenant.update_revocable(self.config.deadline, now);
            if let Some((contract, _)) = tenant.later.filter(|(_, from)| *from <= now) {
                (tenant.contract, tenant.later) = (contract, None);
                tenant.fit_unpaged();
                self.requests
                    .fit(*id, tenant.held(), tenant.grantable(), now);
            }
        }
        self.kill_overdue(now);
        self.run(now)
    }

    /// When [`Allocator::tick`] is due, without other events until then.
    pub fn next_timeout(&self) -> Option<Duration> {
        let all = || self.tenants.values();
        let later = all().filter_map(|t| t.later.map(|l| l.1));
        let slices = all().filter_map(Tenant::cleans_later_from);
        let live = all().filter(|t| t.killed_at.is_none());
        // A tenant is late the moment after its deadline.
        let late = live
            .filter_map(|t| t.revocations.front())
            .map(|revocation| revocation.deadline.end(self.stall) + Duration::from_nanos(1));
        let grace = Some(self.grace).filter(|grace| !grace.is_zero());
        later
            .chain(slices)
            .chain(late)
            .chain(grace)
            .chain(self.round)
            .min()
    }

    /// Frames of main memory, granted or free.
    pub fn managed(&self) -> u32 {
        self.config.managed
    }

    /// Frames that no tenant owns.
    pub fn free(&self) -> u32 {
        self.config.managed.saturating_sub(self.owned())
    }

    /// Sum of the guarantees in force.
    pub fn guaranteed(&self) -> u32 {
        self.tenants.values().map(|t| t.contract.g).sum()
    }

    /// Statistics of all tenants, in the order of their numbers.
    pub fn all_stats(&self) -> impl Iterator<Item = TenantStats> {
        let all = self.tenants.iter();
        all.map(|(id, tenant)| TenantStats::new(*id, tenant, &self.requests))
    }

    /// Statistics of one tenant.
    pub fn stats(&self, tenant: TenantId) -> Option<TenantStats> {
        let found = self.tenants.get(&tenant)?;
        Some(TenantStats::new(tenant, found, &self.requests))
    }

    fn owned(&self) -> u32 {
        self.tenants.values().map(Tenant::managed).sum()
    }

    /// A tenant that is not being killed.
    fn live_tenant(&mut self, tenant: TenantId) -> Result<&mut Tenant, AllocatorError> {
        let live = self.tenants.get_mut(&tenant);
        live.filter(|tenant| tenant.killed_at.is_none())
            .ok_or(AllocatorError::Unknown(tenant))
    }
}
