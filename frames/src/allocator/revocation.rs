//! Granting free frames, and choosing victims when they do not suffice.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: the victim is the domain with
//! the most optimistic frames; unused ones are taken transparently, others by intrusive
//! revocation. Rules: pending guaranteed frames precede optimistic ones. Frames are demanded only
//! for guarantees, and from tenants above their contract. Outstanding frames are not demanded
//! twice, and a pending request is promised a time only for frames that are due by then.

use super::deadline::Deadline;
use super::request::Supply;
use super::tenant::{PendingRevocation, PendingTake, Tenant};
use super::{Action, Allocator, AllocatorError, CleaningRate, PendingRequest, TenantId};
use std::time::Duration;

/// Parts of T after which victims that could release no more are checked again.
const ROUNDS: u32 = 4;

impl Allocator {
    /// Checks that [`Allocator::set_cleaning`] would succeed now: a tenant does not become slower while it
    /// has more above its guarantee than it could give back in time.
    pub fn check_set_cleaning(
        &self,
        tenant: TenantId,
        cleaning: CleaningRate,
        now: Duration,
    ) -> Result<(), AllocatorError> {
        let own = self.tenants.get(&tenant);
        let own = own.ok_or(AllocatorError::Unknown(tenant))?;
        let most = own.would_revoke(cleaning, self.config.deadline, now);
        let was = own.revocable;
        let above = own.held().saturating_sub(own.contract.g);
        if most < was && above > most {
            return Err(AllocatorError::Slower {
                tenant,
                above,
                most,
            });
        }
        Ok(())
    }

    /// Changes a tenant's cleaning rate.
    pub fn set_cleaning(
        &mut self,
        tenant: TenantId,
        cleaning: CleaningRate,
        now: Duration,
    ) -> Result<(), AllocatorError> {
        self.check_set_cleaning(tenant, cleaning, now)?;
        let deadline = self.config.deadline;
        let own = self.live_tenant(tenant)?;
        own.set_cleaning(cleaning, deadline, now);
        let (n, grantable) = (own.held(), own.grantable());
        self.requests.fit(tenant, n, grantable, now);
        Ok(())
    }

    /// Changes the deadline of revocations and the notice of lowered guarantees, of those that
    /// begin from now on.
    pub fn set_times(&mut self, deadline: Duration, notice: Duration, now: Duration) {
        (self.config.deadline, self.config.notice) = (deadline, notice);
        for own in self.tenants.values_mut() {
            own.update_revocable(deadline, now);
        }
    }

    /// After any event: grants, revokes, promises. Returns the actions to execute.
    pub(super) fn run(&mut self, now: Duration) -> Vec<Action> {
        if self.grace <= now {
            self.grace = Duration::ZERO;
        }
        self.grant_free();
        self.notify_unpaged();
        self.round = None;
        // The outcome of a taking is known before frames are demanded.
        if !self.is_taking() {
            self.take_unused();
        }
        if !self.is_taking() {
            self.requests
                .optimistic
                .iter_mut()
                .for_each(|request| request.fresh = false);
            self.revoke(now);
            let supply = self.supply();
            self.requests.promise(supply);
        }
        std::mem::take(&mut self.actions)
    }

    fn is_taking(&self) -> bool {
        self.tenants.values().any(|tenant| tenant.taking.is_some())
    }

    /// Grants free frames.
    fn grant_free(&mut self) {
        let mut free = self.free();
        self.requests.waiting.sort_by_key(PendingRequest::rank);
        let mut waiting = std::mem::take(&mut self.requests.waiting);
        for waiting in &mut waiting {
            waiting.k -= match waiting.unpaged {
                true => self.reserve(waiting.tenant, waiting.k, &mut free),
                false => self.grant(waiting.tenant, waiting.k, &mut free),
            };
        }
        waiting.retain(|waiting| waiting.k > 0);
        self.requests.waiting = waiting;
        if self.requests.waiting.is_empty() && self.grace.is_zero() {
            // Frames that a tenant already has are not taken away to be lent again.
            for tenant in self.tenants.values_mut() {
                let k = tenant.undemanded_beyond().min(free);
                tenant.beyond -= k;
                free -= k;
            }
            let mut optimistic = std::mem::take(&mut self.requests.optimistic);
            for request in &mut optimistic {
                // A tenant that owes frames would have to return these, too.
                let owes = |tenant: &Tenant| tenant.owed() > 0;
                if !self.tenants.get(&request.tenant).is_some_and(owes) {
                    request.k -= self.grant(request.tenant, request.k, &mut free);
                }
            }
            optimistic.retain(|request| request.k > 0);
            self.requests.optimistic = optimistic;
        }
    }

    fn grant(&mut self, tenant: TenantId, k: u32, free: &mut u32) -> u32 {
        let k = k.min(*free);
        if let Some(own) = self.tenants.get_mut(&tenant).filter(|_| k > 0) {
            own.n += k;
            *free -= k;
            self.actions.push(Action::Grant { tenant, k });
        }
        k
    }

    fn reserve(&mut self, tenant: TenantId, k: u32, free: &mut u32) -> u32 {
        let k = k.min(*free);
        if let Some(own) = self.tenants.get_mut(&tenant) {
            own.unpaged += k;
            *free -= k;
        }
        k
    }

    /// Pending guaranteed frames beyond the outstanding ones.
    fn missing(&self) -> u32 {
        let wanted: u32 = self.requests.waiting.iter().map(|waiting| waiting.k).sum();
        let coming = self.supply().into_iter().map(|part| part.k);
        wanted.saturating_sub(coming.fold(0, u32::saturating_add))
    }

    /// Orders unused frames to be taken: those above contracts, and as many as are requested.
    fn take_unused(&mut self) {
        for victim in self.victims(Tenant::excess) {
            self.order_take(victim, u32::MAX);
        }
        let fresh = |sum: u32, request: &super::OptimisticRequest| {
            if request.fresh {
                sum.saturating_add(request.k)
            } else {
                sum
            }
        };
        let mut missing = if self.requests.waiting.is_empty() && self.grace.is_zero() {
            self.requests.optimistic.iter().fold(0, fresh)
        } else {
            self.missing()
        };
        for victim in self.victims(Tenant::unused) {
            let optimistic = self
                .requests
                .optimistic
                .iter()
                .any(|request| request.tenant == victim);
            if missing > 0 && !optimistic {
                missing -= self.order_take(victim, missing);
            }
        }
    }

    /// Orders up to `most` of a victim's unused frames to be taken. Returns how many.
    fn order_take(&mut self, victim: TenantId, most: u32) -> u32 {
        let Some(tenant) = self.tenants.get_mut(&victim) else {
            return 0;
        };
        let k = tenant.unused().min(most);
        if k == 0 || tenant.taking.is_some() {
            return 0;
        }
        tenant.taking = Some(PendingTake { k, claimed: false });
        self.actions.push(Action::TakeUnused { victim, k });
        k
    }

    /// Demands frames that no tenant has unused.
    fn revoke(&mut self, now: Duration) {
        for victim in self.victims(Tenant::excess) {
            let tenant = &self.tenants[&victim];
            let (excess, above) = (tenant.excess(), tenant.undemanded_above());
            self.demand(victim, excess, above, now);
        }
        let mut missing = self.missing();
        for victim in self.victims(Tenant::surplus) {
            let surplus = self.tenants[&victim].surplus();
            missing -= self.demand(victim, missing.min(surplus), surplus, now);
        }
        let excess = self.tenants.values().any(|tenant| tenant.excess() > 0);
        if missing > 0 || excess {
            self.round = Some(now + self.config.deadline / ROUNDS);
        }
    }

    /// Demands up to `most` frames from a victim, as many as it can clean in time. Those beyond
    /// `others` are for its own memory that is not paged. Returns how many.
    fn demand(&mut self, victim: TenantId, most: u32, others: u32, now: Duration) -> u32 {
        let deadline = self.config.deadline;
        let Some(tenant) = self.tenants.get_mut(&victim).filter(|_| most > 0) else {
            return 0;
        };
        let Some((k, by)) = tenant.cleanable(most, now, deadline) else {
            return 0;
        };
        let deadline = Deadline::new(by, self.stall);
        let verified = false;
        let revocation = PendingRevocation {
            k,
            moving: k.saturating_sub(others),
            deadline,
            verified,
        };
        tenant.add_revocation(revocation, now);
        let keep = tenant.n.saturating_sub(tenant.owed());
        self.actions.push(Action::Revoke {
            victim,
            k,
            keep,
            by,
        });
        k
    }

    /// Tenants with frames to lose by this measure, in order of falling n - g.
    fn victims(&self, measure: fn(&Tenant) -> u32) -> Vec<TenantId> {
        let with = self.tenants.iter().filter(|(_, t)| measure(t) > 0);
        let mut victims: Vec<_> = with.map(|(id, t)| (t.surplus(), *id)).collect();
        victims.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        victims.into_iter().map(|(_, id)| id).collect()
    }

    /// Frames to come, in order of time: all of a tenant that is being killed, and those demanded
    /// from others. Frames beyond the managed ones come to no tenant, and those that are moved stay
    /// their tenant's.
    fn supply(&self) -> Vec<Supply> {
        let killed = |t: &Tenant| {
            let k = t.managed();
            t.killed_at.map(|by| Supply { k, by })
        };
        let tenants = || self.tenants.values();
        let mut supply: Vec<_> = tenants().filter_map(killed).collect();
        supply.extend(tenants().flat_map(|tenant| {
            let mut beyond = tenant.beyond;
            tenant.revocations.iter().map(move |revocation| {
                let others = revocation.k - revocation.moving;
                let k = others.saturating_sub(beyond);
                beyond = beyond.saturating_sub(others);
                let by = revocation.deadline.by;
                Supply { k, by }
            })
        }));
        supply.sort_by_key(|part| part.by);
        supply
    }
}
