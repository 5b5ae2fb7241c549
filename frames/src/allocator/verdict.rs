//! What tenants answer, and what becomes of those who do not keep their word.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: if the frames are not all
//! unused, or the application fails to reply by time T, the domain is killed and all of its
//! frames reclaimed. Rule: an answer counts for nothing until the frames were taken.

use super::deadline::Deadline;
use super::tenant::{Debt, Take};
use super::{Allocator, Notice, Offence, Order, TenantId};
use std::time::Duration;

/// Times in a row that a tenant has too much resident before it is told: once may be a
/// fault under way or a count taken meanwhile.
const TWICE: u32 = 2;

impl Allocator {
    /// A tenant says that `k` more of the frames it was asked for are unused. They are looked
    /// for at once.
    pub fn answered(&mut self, victim: TenantId, k: u32, now: Duration) -> Vec<Order> {
        if let Ok(tenant) = self.live(victim) {
            tenant.claimed = tenant.claimed.saturating_add(k).min(tenant.owed());
        }
        self.look(victim);
        self.settle(now)
    }

    /// What came of [`Order::TakeUnused`]: the victim's limit is lower by `k`. Also to be said
    /// when a tenant gave frames back by itself.
    pub fn took(&mut self, victim: TenantId, k: u32, now: Duration) -> Vec<Order> {
        let Some(tenant) = self.tenants.get_mut(&victim) else {
            return self.settle(now);
        };
        let before = tenant.n;
        let take = tenant.taking.take();
        // What was paid since it was said to be there need not be there any more.
        let said = take.map_or(0, |take| take.k.min(tenant.owed()));
        tenant.lose(k);
        if let Some(take) = take {
            if k < take.k {
                tenant.usage.used = tenant.n;
            }
            // It owed them before its guarantee was raised: now it is owed them.
            let guaranteed = tenant.contract.g.min(before).saturating_sub(tenant.n);
            self.wait(victim, guaranteed, now);
            if take.claimed && k < said {
                let (answered, found) = (said, k);
                self.condemn(victim, Offence::Lied { answered, found }, now);
            }
        }
        self.look(victim);
        self.settle(now)
    }

    /// The kernel's count of a tenant's resident frames. One that has too many twice in a row
    /// is told, and killed if it still has when it has had the time to clean them.
    pub fn resident(&mut self, tenant: TenantId, frames: u32, now: Duration) -> Vec<Order> {
        let (allowance, deadline) = (self.settings.allowance, self.settings.deadline);
        let stall = self.stall;
        let Ok(own) = self.live(tenant) else {
            return self.settle(now);
        };
        let n = own.n;
        if frames <= n.saturating_add(allowance) {
            (own.over, own.over_by) = (0, None);
            return self.settle(now);
        }
        own.over += 1;
        match own.over_by {
            Some(by) if now > by.end(stall) => {
                let resident = frames;
                self.condemn(tenant, Offence::Over { resident, n }, now);
            }
            None if own.over >= TWICE => {
                let needed = own.cleaning.time_for(own.owed().saturating_add(frames - n));
                let by = now + own.cleaning.delay + deadline.max(needed);
                own.over_by = Some(Deadline::new(by, stall));
                let resident = frames;
                let notice = Notice::Over { resident, n, by };
                self.orders.push(Order::Tell { tenant, notice });
            }
            _ => (),
        }
        self.settle(now)
    }

    /// Looks for frames that a tenant says are unused.
    fn look(&mut self, victim: TenantId) {
        let Ok(tenant) = self.live(victim) else {
            return;
        };
        let k = tenant.claimed.min(tenant.owed());
        if k > 0 && tenant.taking.is_none() {
            tenant.claimed = 0;
            tenant.taking = Some(Take { k, claimed: true });
            self.orders.push(Order::TakeUnused { victim, k });
        }
    }

    /// Looks once for the frames of each tenant whose deadline is over, as if it had answered
    /// for those that are unused: its answer may be on the way. Condemns it at the next look.
    pub(super) fn condemn_late(&mut self, now: Duration) {
        let stall = self.stall;
        let is_over = |debt: &Debt| debt.deadline.end(stall) < now;
        let mut late = Vec::new();
        for (victim, tenant) in &mut self.tenants {
            let due = tenant.debts.iter().filter(|debt| is_over(debt));
            let missing = due.map(|debt| debt.k).sum();
            let Some(first) = tenant.debts.front_mut().filter(|debt| is_over(debt)) else {
                continue;
            };
            let k = tenant.n.saturating_sub(tenant.usage.used).min(missing);
            if k > 0 && !first.looked {
                first.looked = true;
                let claimed = false;
                tenant.taking = Some(Take { k, claimed });
                let victim = *victim;
                self.orders.push(Order::TakeUnused { victim, k });
            } else {
                let by = first.deadline.end(stall);
                late.push((*victim, Offence::Late { missing, by }));
            }
        }
        for (victim, offence) in late {
            self.condemn(victim, offence, now);
        }
    }

    fn condemn(&mut self, victim: TenantId, offence: Offence, now: Duration) {
        if let Ok(tenant) = self.live(victim) {
            tenant.condemned = Some(now);
            tenant.debts.clear();
            (tenant.claimed, tenant.taking) = (0, None);
            self.forget(victim);
            self.orders.push(Order::Kill { victim, offence });
        }
    }
}
