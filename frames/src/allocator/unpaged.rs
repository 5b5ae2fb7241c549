//! Resident memory that is not paged, and the enforcement of what a tenant may have resident.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2, where all memory is a domain's
//! frames. A Linux program also has memory that its ledger does not count: written pages of
//! private file mappings, stacks, the pager's own tables. Rules: the kernel's count of resident
//! memory is covered by frames of the guarantee, first by those that were not granted yet, then by
//! those that the ledger releases for it; both are reserved, so no other tenant has them. Beyond
//! the guarantee and the allowance a tenant is late.

use super::deadline::Deadline;
use super::tenant::Tenant;
use super::{Action, Allocator, TenantId, TenantNotice, Violation};
use std::time::Duration;

/// Consecutive counts of too many resident frames before any have an effect: a single one may be
/// a fault in progress or a count taken meanwhile.
const MAX_OVERRUNS: u32 = 2;

impl Allocator {
    /// The kernel's count of a tenant's resident frames. Where it exceeds the tenant's frames
    /// twice in a row, frames of the guarantee are reserved for the rest. A tenant with too many
    /// for that is notified, and killed if it still has too many after the time to clean them.
    pub fn on_resident(&mut self, tenant: TenantId, frames: u32, now: Duration) -> Vec<Action> {
        let allowance = self.config.allowance;
        let Ok(own) = self.live_tenant(tenant) else {
            return self.run(now);
        };
        let left = own.limit_unpaged(frames);
        let covered = own.held().saturating_add(own.moving);
        self.requests.limit(tenant, true, left);
        let covered = covered.saturating_add(self.requests.unpaged_of(tenant));
        let mut missing = frames.saturating_sub(covered.saturating_add(allowance));
        let Ok(own) = self.live_tenant(tenant) else {
            return self.run(now);
        };
        own.over = if missing == 0 { 0 } else { own.over + 1 };
        if own.over >= MAX_OVERRUNS {
            missing -= self.cover(tenant, missing, now);
        }
        match missing {
            0 => self.tenants.get_mut(&tenant).map(|own| own.over_by = None),
            _ => self.on_overrun(tenant, frames, now),
        };
        self.run(now)
    }

    /// Reserves up to `missing` frames of a tenant's guarantee for memory that is not paged.
    /// Returns how many: some of them are still to come. Those that the ledger has are the
    /// last; it requests again what it waited for.
    fn cover(&mut self, tenant: TenantId, missing: u32, now: Duration) -> u32 {
        let reserving = self.requests.unpaged_of(tenant);
        let Ok(own) = self.live_tenant(tenant) else {
            return 0;
        };
        let (g, fixed) = (own.contract.g, own.usage.fixed);
        let taken = own.unpaged + own.moving + reserving;
        let room = g.saturating_sub(fixed).saturating_sub(taken).min(missing);
        let open = g.saturating_sub(own.held().saturating_add(reserving));
        let reserve = room.min(open);
        let movable = match own.cleaning.frames_per_second {
            0 => 0,
            _ => own.n.saturating_sub(fixed.saturating_add(own.moving)),
        };
        let moving = (room - reserve).min(movable);
        own.moving += moving;
        self.requests.limit(tenant, false, open - reserve);
        self.requests.add_unpaged(tenant, reserve, now);
        reserve + moving
    }

    /// More frames of a tenant are resident than its guarantee covers.
    fn on_overrun(&mut self, tenant: TenantId, resident: u32, now: Duration) -> Option<()> {
        let (deadline, stall) = (self.config.deadline, self.stall);
        let own = self.live_tenant(tenant).ok()?;
        // What is not reserved yet is still to come.
        let n = own.held().max(own.contract.g);
        match own.over_by {
            Some(by) if now > by.end(stall) => {
                self.kill(tenant, Violation::Over { resident, n }, now);
            }
            None if own.over >= MAX_OVERRUNS => {
                let frames = own.owed().saturating_add(resident.saturating_sub(n));
                let needed = own.cleaning.time_for(frames);
                let by = now + own.cleaning.delay + deadline.max(needed);
                own.over_by = Some(Deadline::new(by, stall));
                let notice = TenantNotice::Over { resident, n, by };
                self.actions.push(Action::Notify { tenant, notice });
            }
            _ => (),
        }
        Some(())
    }

    /// Notifies tenants of what is reserved for their memory that is not paged.
    pub(super) fn notify_unpaged(&mut self) {
        for (id, own) in &mut self.tenants {
            if own.unpaged != own.notified && own.killed_at.is_none() {
                own.notified = own.unpaged;
                let frames = own.unpaged;
                let notice = TenantNotice::Unpaged { frames };
                self.actions.push(Action::Notify {
                    tenant: *id,
                    notice,
                });
            }
        }
    }
}

impl Tenant {
    /// Releases what is reserved beyond the memory that is not paged, where `resident` frames are
    /// in all. Returns how much of that memory is left without frames that are reserved or moving.
    fn limit_unpaged(&mut self, resident: u32) -> u32 {
        let most = resident.saturating_sub(self.usage.used);
        self.unpaged = self.unpaged.min(most);
        self.moving = self.moving.min(most - self.unpaged);
        most - self.unpaged - self.moving
    }

    /// Fits what is reserved to its contract.
    pub(super) fn fit_unpaged(&mut self) {
        self.unpaged = self.unpaged.min(self.contract.g);
        self.moving = self.moving.min(self.contract.g - self.unpaged);
    }
}
