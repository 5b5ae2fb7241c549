//! Leaving: a tenant gives its contract back and goes on running.
//!
//! A tenant's frames, swap file, channels and disk time are free when its processes have
//! ended. A tenant that leaves does not end, so its word is not trusted: it is released when its
//! ledger shows that it owns no frame, and the kernel counts no more resident memory than a
//! program without a contract may have ([`ALLOWANCE`], and the pagers' own memory). Then the
//! limit of its ledger is zero, its processes move back into the control group that they came
//! from, the disk's thread releases its channels, and its swap file is released, in this
//! order: at no moment would a daemon that starts again kill it for a contract it has not.
//!
//! A tenant that disconnects before it attaches its ledger owns no frames: its program may have
//! been refused something else. Its RSS is measured; if it is within the allowance the tenant is
//! released and lives, otherwise it is killed. (A daemon that is started again in just that
//! moment finds a tenant that does not come back, and kills it.)
//!
//! Rule: a tenant that is not released keeps its contract as it was, and receives the figures.

use crate::frame_actions::OWN;
use crate::jobs::JobResult;
use crate::tenant::{Tenant, TenantPhase};
use crate::{ALLOWANCE, Daemon};
use frames::LimitControl;
use frames::allocator::TenantId;
use protocol::{DaemonEvent, TEXT, TenantNumber, cut};
use wired::Bytes;
use wired::PAGE;

impl Daemon {
    /// A tenant requests to give its contract back.
    pub(super) fn leave(&mut self, token: u64, number: TenantNumber) {
        let Some(tenancy) = self.tenants.get(&number) else {
            return;
        };
        let uid = tenancy.record.uid;
        if tenancy.phase != TenantPhase::Admitted {
            return self.refuse(token, "the contract is being given back, or not there yet");
        }
        // An exact count takes a thread, and a walk through the tenant's memory.
        if let Some(why) = self.hasty(uid) {
            return self.stays(number, &why);
        }
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        tenancy.phase = TenantPhase::Asking;
        self.weigh(number);
    }

    /// A tenant disconnected before it attached its ledger.
    pub(super) fn resign(&mut self, number: TenantNumber) {
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.phase = TenantPhase::Asking;
            self.weigh(number);
        }
    }

    /// Starts the exact RSS measurement of a tenant.
    fn weigh(&mut self, number: TenantNumber) {
        let frames = self.tenants.get(&number).and_then(|t| t.frames.as_ref());
        match frames.map(|frames| frames.group.clone()) {
            Some(group) => self
                .errands
                .start(move || JobResult::Weighed(number, group.resident_exactly(OWN))),
            // A file's contract is for the disk alone.
            None => self.weighed(number, 0),
        }
    }

    /// The RSS of a leaving tenant is known.
    pub(super) fn weighed(&mut self, number: TenantNumber, resident: u64) {
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        if tenancy.phase != TenantPhase::Asking {
            return;
        }
        if let Err(why) = take_all(tenancy, resident) {
            tenancy.phase = TenantPhase::Admitted;
            return match tenancy.connection {
                Some(_) => self.stays(number, &why),
                // Limits of its original group must not be evaded here.
                None => self.kill(number),
            };
        }
        tenancy.phase = TenantPhase::Leaving;
        let group = tenancy.frames.as_ref().map(|frames| frames.group.clone());
        let orders = self.allocator.on_tenant_gone(TenantId(number), self.now());
        self.carry_out(orders);
        match group {
            Some(group) => self.errands.start(move || {
                group.release();
                JobResult::Released(number)
            }),
            None => self.part(number),
        }
    }

    fn stays(&self, number: TenantNumber, why: &str) {
        self.say(number, &DaemonEvent::Stays(cut(why, TEXT)));
    }

    /// A tenant has left: its connection is as it was before the request.
    pub(super) fn let_go(&mut self, token: u64) {
        self.set_tenant(token, None);
        self.say_at(token, &DaemonEvent::Left, &[]);
    }

    /// A tenant's processes have ended, or it has given its frames back. The frames are free at
    /// once: requests for them do not wait for the tenant's disk. Its disk space and time are
    /// released only when none of its I/O is in flight, which a job thread waits for.
    ///
    /// The allocator receives this event for the second time: since [`Daemon::weighed`], or
    /// [`Daemon::emptied`], it has no record of that tenant. But each event also makes it evaluate
    /// what the other tenants have reported since, so the second one has an effect.
    pub(super) fn part(&mut self, number: TenantNumber) {
        let orders = self.allocator.on_tenant_gone(TenantId(number), self.now());
        self.carry_out(orders);
        let tenancy = self.tenants.get_mut(&number);
        match tenancy.and_then(|tenancy| tenancy.client.take()) {
            Some(client) => {
                let leaving = self.usd.begin_removal(client);
                self.errands.start(move || {
                    leaving.wait();
                    JobResult::Left(number)
                });
            }
            None => self.forget(number),
        }
    }

    pub(super) fn is_ending(&self, number: TenantNumber) -> bool {
        let tenancy = self.tenants.get(&number);
        tenancy.is_none_or(|tenancy| tenancy.phase == TenantPhase::Ending)
    }

    /// A tenant has ended or left: releases all that it had.
    pub(super) fn forget(&mut self, number: TenantNumber) {
        let Some(tenancy) = self.tenants.remove(&number) else {
            return;
        };
        let name = &tenancy.record.name;
        let left = tenancy.phase == TenantPhase::Leaving;
        let how = if left { "left" } else { "ended" };
        tracing::info!("tenant {number} ({name}) has {how}: all it had is free");
        if let Some(token) = tenancy.connection.filter(|_| !left) {
            self.close(token);
        }
        if let Some(file) = tenancy.file
            && let Err(why) = self.swap.release(file)
        {
            tracing::warn!("the swap file of tenant {number} stays taken: {why}");
        }
        if let Some(frames) = &tenancy.frames {
            frames.group.remove();
        }
        self.leave_fault_rates(number);
        // Last: a client that receives this may request all of it.
        if let Some(token) = tenancy.connection.filter(|_| left) {
            self.let_go(token);
        }
    }

    /// Kills tenants whose process has ended while their connection stayed open, and those that
    /// did not come back to this daemon in time.
    pub(super) fn end_the_lost(&mut self) {
        // A daemon's tenants are away from its start on, which is the stall's, too.
        let stalled = self.stall.total().min(crate::stall::MOST);
        let grace = self.config.memory.grace.0 + stalled;
        let lost = |tenancy: &Tenant| match tenancy.phase {
            TenantPhase::Away(since) => {
                tenancy.record.process().is_none() || since.elapsed() > grace
            }
            TenantPhase::Admitted | TenantPhase::Asking => {
                tenancy.frames.as_ref().is_some_and(|f| !f.group.is_alive())
            }
            TenantPhase::Wiping | TenantPhase::Leaving | TenantPhase::Ending => false,
        };
        let lost: Vec<_> = (self.tenants.iter())
            .filter_map(|(number, tenancy)| lost(tenancy).then_some(*number))
            .collect();
        lost.into_iter().for_each(|number| self.kill(number));
    }
}

/// Lowers the limit of a tenant that owns no frame to zero.
fn take_all(tenancy: &mut Tenant, resident: u64) -> Result<(), String> {
    let Some(frames) = &mut tenancy.frames else {
        return Ok(());
    };
    let owned = frames.quota.as_ref().map_or(0, LimitControl::committed);
    let most = u64::from(ALLOWANCE) * PAGE as u64;
    if owned > 0 || resident > most {
        return Err(format!(
            "{} of frames are owned, and {} of memory are resident beside the pagers' own, of which {} may be: give \
             back or unmap the rest, then leave",
            Bytes(u64::from(owned) * PAGE as u64),
            Bytes(resident),
            Bytes(most)
        ));
    }
    if let Some(quota) = &mut frames.quota {
        let limit = quota.limit();
        if quota.take_unused(limit) < limit {
            // The tenant took frames at this moment: its limit is restored.
            let taken = limit - quota.limit();
            quota.raise(taken);
            return Err("frames are being used: end that, then leave".into());
        }
    }
    Ok(())
}
