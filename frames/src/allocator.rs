//! The frames allocator of the whole machine: who may own how many frames, and who loses some.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Every tenant has a
//! contract {g, x} and n frames. Below g a request is always granted, by revocation if it
//! must; from g to x when frames are free, those guaranteed to others but not asked for
//! included. What is revoked comes from whoever has the largest n - g: transparently where it
//! has frames unused, else intrusively, by a deadline that its own disk slice lets it keep.
//! Who is late or lies is killed.
//!
//! Rule: pure. Events go in with the time since start, actions come out, and the daemon carries
//! them out, in order and at once. Whatever tenants do, the sum of n is never more than the
//! frames managed, but for what tenants of a daemon before came back with, which they give up
//! first; and a guarantee waits for nobody's good will: frames promised by a deadline
//! are there then, or their holder is killed.
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
//! let actions = allocator.request(tenant, Request { k: 100, placement: Placement::Any }, now)?;
//! assert_eq!(actions, [Action::Grant { tenant, k: 100 }]);
//! # Ok::<(), AllocatorError>(())
//! ```

mod action;
mod deadline;
mod enforcement;
mod error;
mod request;
mod revocation;
mod tenant;

pub use action::{Action, TenantNotice, Violation};
pub use error::AllocatorError;
pub use request::{MachineTopology, PendingRequest, Placement, Request};

use crate::contract::Contract;
use deadline::Stall;
use request::OptimisticRequest;
use std::collections::BTreeMap;
use std::time::Duration;
use tenant::Tenant;

/// A tenant's number, of the daemon's choosing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl std::fmt::Display for TenantId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What the allocator goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorConfig {
    /// Frames of main memory it gives out.
    pub managed: u32,
    /// T: how long a victim has at least, when it is asked for frames.
    pub deadline: Duration,
    /// The most by which a deadline is put off for time in which threads waited for a processor
    /// ([`Allocator::stalled`]).
    pub stall: Duration,
    /// How long a guarantee stays after it was said that it will be lowered.
    pub notice: Duration,
    /// Frames a tenant may have resident above those granted: the pager's own.
    pub allowance: u32,
    /// Which particular frames there are.
    pub topology: MachineTopology,
}

/// How fast a tenant can clean frames by its own disk slice, or by compressing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleaningRate {
    /// Frames a second, in the long run.
    pub frames_per_second: u32,
    /// Longest it may have to wait before it begins: the rest of a period when its slice has
    /// just ended. Nothing where the slice comes at once.
    pub delay: Duration,
}

/// What a tenant uses of its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Frames it owns, as its quota says: the rest can be taken without its help.
    pub used: u32,
    /// Those of them that it undertakes to give up without writing, such as clean ones on its
    /// standby list. A tenant that overstates this is asked for more than it can give.
    pub ready: u32,
}

/// What the allocator knows of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantStats {
    /// Who.
    pub tenant: TenantId,
    /// {g, x} in force.
    pub contract: Contract,
    /// What they will be, and from when on.
    pub later: Option<(Contract, Duration)>,
    /// Frames granted.
    pub n: u32,
    /// Those of them that it came back with beyond what is managed.
    pub beyond: u32,
    /// What was last seen to be used of them.
    pub usage: Usage,
    /// Frames it was asked for and has not given.
    pub owed: u32,
    /// Guaranteed frames it waits for.
    pub waiting: u32,
    /// Optimistic frames it would like.
    pub wished: u32,
    /// Whether it is being killed.
    pub condemned: bool,
}

/// The books of all tenants.
pub struct Allocator {
    config: AllocatorConfig,
    tenants: BTreeMap<TenantId, Tenant>,
    waiting: Vec<PendingRequest>,
    optimistic: Vec<OptimisticRequest>,
    /// Until when tenants of the daemon before may come back.
    grace: Duration,
    stall: Stall,
    /// When to look again for victims that can be asked for more.
    round: Option<Duration>,
    actions: Vec<Action>,
}

impl Allocator {
    /// Books without tenants.
    pub fn new(config: AllocatorConfig) -> Self {
        Self {
            config,
            tenants: BTreeMap::new(),
            waiting: Vec::new(),
            optimistic: Vec::new(),
            grace: Duration::ZERO,
            stall: Stall {
                total: Duration::ZERO,
                most: config.stall,
            },
            round: None,
            actions: Vec::new(),
        }
    }

    /// Books after a restart of the daemon: until `grace` tenants come back with what they
    /// own ([`Allocator::readmit`]), and no optimistic frames are given out.
    pub fn restarted(config: AllocatorConfig, grace: Duration) -> Self {
        Self {
            grace,
            ..Self::new(config)
        }
    }

    /// Admits a tenant, with no frames yet.
    pub fn admit(
        &mut self,
        tenant: TenantId,
        contract: Contract,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.check(tenant, contract)?;
        let new = Tenant::new(contract, 0, cleaning);
        self.tenants.insert(tenant, new);
        Ok(())
    }

    /// Takes a tenant of the daemon before back, with the `n` frames it owns.
    ///
    /// It may own more than its contract allows, where that was lowered and it was not asked for
    /// all of them yet, and more than is there to be managed now: its frames are there all the same,
    /// since the memory that is not managed is theirs for a while. What others own, or are
    /// guaranteed and may yet come back for, stays theirs. The rest is asked back from it by
    /// the deadlines that its slice lets it keep, like what is above a contract.
    pub fn readmit(
        &mut self,
        tenant: TenantId,
        contract: Contract,
        n: u32,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.check(tenant, contract)?;
        let taken = |tenant: &Tenant| u64::from(tenant.managed().max(tenant.contract.g));
        let taken: u64 = self.tenants.values().map(taken).sum();
        let left = u64::from(self.config.managed).saturating_sub(taken) as u32;
        let fit = n.min(left.max(contract.g)).min(self.free());
        let mut back = Tenant::new(contract, n, cleaning);
        back.beyond = n - fit;
        self.tenants.insert(tenant, back);
        Ok(())
    }

    fn check(&self, tenant: TenantId, contract: Contract) -> Result<(), AllocatorError> {
        match self.tenants.contains_key(&tenant) {
            true => Err(AllocatorError::Known(tenant)),
            false => self.check_contract(tenant, contract),
        }
    }

    fn check_contract(&self, tenant: TenantId, contract: Contract) -> Result<(), AllocatorError> {
        let Contract { g, x } = contract;
        if x == 0 || g > x {
            return Err(AllocatorError::Contract { g, x });
        }
        let others = || self.tenants.iter().filter(|(other, _)| **other != tenant);
        let guaranteed: u32 = others().map(|(_, tenant)| tenant.contract.g).sum();
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

    /// Whether [`Allocator::set_contract`] would change a tenant's contract to this now.
    pub fn check_set_contract(
        &self,
        tenant: TenantId,
        contract: Contract,
    ) -> Result<(), AllocatorError> {
        self.check_contract(tenant, contract)?;
        let found = self.tenants.get(&tenant);
        match found.is_some_and(|tenant| tenant.condemned.is_none()) {
            true => Ok(()),
            false => Err(AllocatorError::Unknown(tenant)),
        }
    }

    /// Changes a tenant's contract. What is raised is so at once, what is lowered after the
    /// notice; the tenant is told. A most that is lowered, not below the guarantee, is so at
    /// once: optimistic frames can be revoked at short notice.
    pub fn set_contract(
        &mut self,
        tenant: TenantId,
        contract: Contract,
        now: Duration,
    ) -> Result<Vec<Action>, AllocatorError> {
        self.check_set_contract(tenant, contract)?;
        let from = now + self.config.notice;
        let own = self.live_tenant(tenant)?;
        let g = own.contract.g.max(contract.g);
        own.contract = Contract {
            g,
            x: contract.x.max(g),
        };
        let lowered = own.contract != contract;
        own.later = lowered.then_some((contract, from));
        let from = if lowered { from } else { now };
        let notice = TenantNotice::Contract { contract, from };
        self.actions.push(Action::Notify { tenant, notice });
        self.fit_requests(tenant, now);
        Ok(self.run(now))
    }

    /// Changes what there is to give out.
    pub fn set_managed(
        &mut self,
        managed: u32,
        now: Duration,
    ) -> Result<Vec<Action>, AllocatorError> {
        let (guaranteed, owned) = (self.guaranteed(), self.owned());
        if managed < guaranteed.max(owned) {
            return Err(AllocatorError::Managed {
                asked: managed,
                guaranteed,
                owned,
            });
        }
        self.config.managed = managed;
        Ok(self.run(now))
    }

    /// Changes how fast a tenant can clean.
    pub fn set_cleaning(&mut self, tenant: TenantId, cleaning: CleaningRate) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.cleaning = cleaning;
        }
    }

    /// What a tenant's quota says it uses. Worth saying before a request is made, and now and
    /// then.
    pub fn report_usage(&mut self, tenant: TenantId, usage: Usage) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.usage = Usage {
                used: usage.used.min(tenant.n),
                ..usage
            };
        }
    }

    /// How long, since the start, threads of the machine waited for a processor. To be said
    /// before anything else that happens at that time.
    pub fn on_stalled(&mut self, total: Duration) {
        self.stall.total = self.stall.total.max(total);
    }

    /// A tenant has ended, by itself or killed, and its memory is the machine's again.
    pub fn on_tenant_gone(&mut self, tenant: TenantId, now: Duration) -> Vec<Action> {
        self.tenants.remove(&tenant);
        self.drop_requests(tenant);
        self.run(now)
    }

    /// To be called when [`Allocator::next_timeout`] says so, after what tenants said until then was
    /// passed on.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        let mut changed = Vec::new();
        for (id, tenant) in &mut self.tenants {
            if let Some((contract, _)) = tenant.later.filter(|(_, from)| *from <= now) {
                (tenant.contract, tenant.later) = (contract, None);
                changed.push(*id);
            }
        }
        changed
            .into_iter()
            .for_each(|id| self.fit_requests(id, now));
        self.condemn_overdue(now);
        self.run(now)
    }

    /// When there is something to do, whatever happens until then.
    pub fn next_timeout(&self) -> Option<Duration> {
        let later = self.tenants.values().filter_map(|t| t.later.map(|l| l.1));
        let live = self.tenants.values().filter(|t| t.condemned.is_none());
        // Late is who has not answered by then: the moment after.
        let late = live
            .filter_map(|t| t.revocations.front())
            .map(|revocation| revocation.deadline.end(self.stall) + Duration::from_nanos(1));
        let grace = Some(self.grace).filter(|grace| !grace.is_zero());
        later.chain(late).chain(grace).chain(self.round).min()
    }

    /// Frames of main memory given out or to give out.
    pub fn managed(&self) -> u32 {
        self.config.managed
    }

    /// Frames nobody owns.
    pub fn free(&self) -> u32 {
        self.config.managed.saturating_sub(self.owned())
    }

    /// Sum of the guarantees in force.
    pub fn guaranteed(&self) -> u32 {
        self.tenants.values().map(|t| t.contract.g).sum()
    }

    /// All tenants, in the order of their numbers.
    pub fn all_stats(&self) -> impl Iterator<Item = TenantStats> {
        let all = self.tenants.iter();
        all.map(|(id, tenant)| self.stats_of(*id, tenant))
    }

    /// One of them.
    pub fn stats(&self, tenant: TenantId) -> Option<TenantStats> {
        let found = self.tenants.get(&tenant)?;
        Some(self.stats_of(tenant, found))
    }

    fn stats_of(&self, id: TenantId, tenant: &Tenant) -> TenantStats {
        TenantStats {
            tenant: id,
            contract: tenant.contract,
            later: tenant.later,
            n: tenant.n,
            beyond: tenant.beyond,
            usage: tenant.usage,
            owed: tenant.owed(),
            waiting: self.pending_of(id),
            wished: self.optimistic_of(id),
            condemned: tenant.condemned.is_some(),
        }
    }

    fn owned(&self) -> u32 {
        self.tenants.values().map(Tenant::managed).sum()
    }

    /// A tenant that is not being killed.
    fn live_tenant(&mut self, tenant: TenantId) -> Result<&mut Tenant, AllocatorError> {
        let live = self.tenants.get_mut(&tenant);
        live.filter(|tenant| tenant.condemned.is_none())
            .ok_or(AllocatorError::Unknown(tenant))
    }
}
