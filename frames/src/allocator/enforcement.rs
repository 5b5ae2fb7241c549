//! Answers to revocations, resident memory, and the enforcement of their deadlines.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: if the frames are not all
//! unused, or the application fails to reply by time T, the domain is killed and all of its frames
//! reclaimed. Rule: an answer counts only once the frames are taken.
//!
//! There all memory is a domain's frames. A Linux program also has memory that its ledger does not
//! count: written pages of private file mappings, stacks, the pager's own tables. Rules: the kernel's count of
//! resident memory is covered by frames of the guarantee, first by those that were not granted yet, then by
//! those that the ledger releases for it; both are reserved, so no other tenant has them. Beyond
//! the guarantee and the allowance a tenant is late.

use super::cleaning::MAX_REVOCATION;
use super::deadline::Deadline;
use super::tenant::{PendingRevocation, PendingTake, Tenant};
use super::{Action, Allocator, TenantId, TenantNotice, Violation};
use std::time::Duration;

/// Answers in a row of which frames are missing. A tree that starts a hundred processes a second
/// starts one between its answer and the check about once in a hundred times.
const MAX_SHORT_ANSWERS: u32 = 8;

impl Allocator {
    /// A tenant reports `k` more of the demanded frames as unused. They are verified at once.
    pub fn on_answer(&mut self, victim: TenantId, k: u32, now: Duration) -> Vec<Action> {
        if let Ok(tenant) = self.live_tenant(victim) {
            tenant.claimed = tenant.claimed.saturating_add(k).min(tenant.owed());
        }
        self.verify_claim(victim);
        self.run(now)
    }

    /// The outcome of [`Action::TakeUnused`]: the victim's limit is lower by `k`. Also to be
    /// called when a tenant released frames by itself.
    pub fn on_taken(&mut self, victim: TenantId, k: u32, now: Duration) -> Vec<Action> {
        let Some(tenant) = self.tenants.get_mut(&victim) else {
            return self.run(now);
        };
        let before = tenant.held();
        let take = tenant.taking.take();
        // Frames released since the claim need not be found any more.
        let said = take.map_or(0, |take| take.k.min(tenant.owed()));
        tenant.take_frames(k);
        if let Some(take) = take {
            if k < take.k {
                tenant.usage.used = tenant.n;
            }
            // Demanded before its guarantee was raised, the frames are now owed to it.
            let guaranteed = tenant.contract.g.min(before).saturating_sub(tenant.held());
            self.requests.add_pending(victim, guaranteed, now);
            if take.claimed && k < said {
                self.on_short_answer(victim, said, k, now);
            }
        }
        self.verify_claim(victim);
        self.run(now)
    }

    /// A tenant reported `answered` frames as unused, and only `found` were. A process that it
    /// admitted since then may have its guarantee of the others, so they are demanded again, by their
    /// old deadline. A tenant whose reports stay false is killed.
    fn on_short_answer(&mut self, victim: TenantId, answered: u32, found: u32, now: Duration) {
        let Ok(tenant) = self.live_tenant(victim) else {
            return;
        };
        tenant.short_answers += 1;
        let times = tenant.short_answers;
        let Some(first) = tenant.revocations.front() else {
            return;
        };
        if times > MAX_SHORT_ANSWERS {
            let violation = Violation::FalseAnswer {
                answered,
                found,
                times,
            };
            return self.kill(victim, violation, now);
        }
        let (by, keep) = (first.deadline.by, tenant.n.saturating_sub(tenant.owed()));
        self.actions.push(Action::Revoke {
            victim,
            k: answered - found,
            keep,
            by,
        });
    }

    /// Orders the frames that a tenant reported as unused to be taken.
    fn verify_claim(&mut self, victim: TenantId) {
        let Ok(tenant) = self.live_tenant(victim) else {
            return;
        };
        let k = tenant.claimed.min(tenant.owed());
        if k > 0 && tenant.taking.is_none() {
            tenant.claimed = 0;
            tenant.taking = Some(PendingTake { k, claimed: true });
            self.actions.push(Action::TakeUnused { victim, k });
        }
    }

    /// At a deadline, orders frames that are unused to be taken as if the tenant had answered,
    /// once: its answer may be on the way. The next time the tenant is killed.
    pub(super) fn kill_overdue(&mut self, now: Duration) {
        let stall = self.stall;
        let is_over = |revocation: &PendingRevocation| revocation.deadline.end(stall) < now;
        let mut late = Vec::new();
        for (victim, tenant) in &mut self.tenants {
            let due = tenant
                .revocations
                .iter()
                .filter(|revocation| is_over(revocation));
            let missing = due.map(|revocation| revocation.k).sum();
            let Some(first) = tenant
                .revocations
                .front_mut()
                .filter(|revocation| is_over(revocation))
            else {
                continue;
            };
            let k = tenant.n.saturating_sub(tenant.usage.used).min(missing);
            if k > 0 && !first.verified {
                first.verified = true;
                let claimed = false;
                tenant.taking = Some(PendingTake { k, claimed });
                let victim = *victim;
                self.actions.push(Action::TakeUnused { victim, k });
            } else {
                let by = first.deadline.end(stall);
                late.push((*victim, Violation::Late { missing, by }));
            }
        }
        for (victim, violation) in late {
            self.kill(victim, violation, now);
        }
    }

    pub(super) fn kill(&mut self, victim: TenantId, violation: Violation, now: Duration) {
        if let Ok(tenant) = self.live_tenant(victim) {
            tenant.killed_at = Some(now);
            tenant.revocations.clear();
            (tenant.claimed, tenant.taking) = (0, None);
            self.requests.remove(victim);
            self.actions.push(Action::Kill { victim, violation });
        }
    }
}

/// Counts of too many resident frames, more than of others, before any have an effect: a single one may be a fault in progress
/// or a count taken meanwhile.
const MAX_OVERRUNS: u32 = 2;
/// Most that are counted: half as many counts without end what they had as an effect.
const KEPT_OVERRUNS: u32 = 4;

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
        own.over = match missing {
            0 => own.over.saturating_sub(KEPT_OVERRUNS / 2),
            _ => (own.over + 1).min(KEPT_OVERRUNS),
        };
        own.over_by = own.over_by.filter(|_| own.over > 0);
        if missing > 0 && own.over >= MAX_OVERRUNS {
            missing -= self.cover(tenant, missing, now);
            let own = self.tenants.get_mut(&tenant);
            if let Some(own) = own.filter(|_| missing == 0) {
                // Its guarantee covers all of it.
                own.over_by = None;
            }
        }
        if missing > 0 {
            self.on_overrun(tenant, frames, now);
        }
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
    fn on_overrun(&mut self, tenant: TenantId, resident: u32, now: Duration) {
        let (deadline, stall) = (self.config.deadline, self.stall);
        let Ok(own) = self.live_tenant(tenant) else {
            return;
        };
        // What is not reserved yet is still to come.
        let n = own.held().max(own.contract.g);
        match own.over_by {
            Some(by) if now > by.end(stall) => {
                self.kill(tenant, Violation::Over { resident, n }, now);
            }
            None if own.over >= MAX_OVERRUNS => {
                let frames = own.owed().saturating_add(resident.saturating_sub(n));
                let cleaning = own.cleaning_now(now);
                let needed = cleaning.time_for(frames).min(MAX_REVOCATION);
                let by = now + cleaning.delay + deadline.max(needed);
                own.over_by = Some(Deadline::new(by, stall));
                let notice = TenantNotice::Over { resident, n, by };
                self.actions.push(Action::Notify { tenant, notice });
            }
            _ => (),
        }
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
