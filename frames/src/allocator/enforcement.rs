//! Answers to revocations, and the enforcement of their deadlines.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: if the frames are not all
//! unused, or the application fails to reply by time T, the domain is killed and all of its frames
//! reclaimed. Rule: an answer counts only once the frames are taken.

use super::tenant::{PendingRevocation, PendingTake};
use super::{Action, Allocator, TenantId, Violation};
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
