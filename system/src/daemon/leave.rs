//! Leaving: a contract is given back by who goes on living.
//!
//! A tenant's frames, swap file, channels and disk time are free when its processes have
//! ended. One that leaves does not end, so it is not believed: it is let go when its ledger
//! says that it owns no frame, and the kernel that it has no more resident than a program
//! without a contract may ([`ALLOWANCE`], and what pagers have of their own). Then the limit
//! of its ledger is nothing, its processes are put back into the control group that they came
//! from, the disk's thread lets go of its channels, and its swap file is released, in this
//! order: at no moment would a daemon that starts again kill it for a contract it has not.
//!
//! Who hangs up before the ledger is shown has nothing yet, and wants none of it any more:
//! its program may have been refused something else. It is weighed and let go likewise, and
//! lives; one that has more than it may take along is killed. (Where the daemon is started
//! again in just that moment it finds a tenant that does not come back, and ends it.)
//!
//! Rule: who is not let go keeps its contract as it was, and is told the figures.

use super::frame_actions::OWN;
use super::jobs::Done;
use super::tenant::{Phase, Tenancy};
use super::{ALLOWANCE, Daemon};
use crate::protocol::{Say, TEXT, TenantNumber, cut};
use frames::LimitControl;
use frames::allocator::TenantId;
use wired::Bytes;
use wired::PAGE;

impl Daemon {
    /// A tenant wants to give its contract back.
    pub(super) fn leave(&mut self, token: u64, number: TenantNumber) {
        let Some(tenancy) = self.tenants.get(&number) else {
            return;
        };
        let uid = tenancy.record.uid;
        if tenancy.phase != Phase::Admitted {
            return self.refuse(token, "the contract is being given back, or not there yet");
        }
        // What is counted exactly takes a thread, and a walk through its memory.
        if let Some(why) = self.hasty(uid) {
            return self.stays(number, &why);
        }
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        tenancy.phase = Phase::Asking;
        self.weigh(number);
    }

    /// A tenant that has not begun has hung up.
    pub(super) fn resign(&mut self, number: TenantNumber) {
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.phase = Phase::Asking;
            self.weigh(number);
        }
    }

    /// Has it counted, exactly, what a tenant has.
    fn weigh(&mut self, number: TenantNumber) {
        let frames = self.tenants.get(&number).and_then(|t| t.frames.as_ref());
        match frames.map(|frames| frames.group.clone()) {
            Some(group) => self
                .errands
                .start(move || Done::Weighed(number, group.resident_exactly(OWN))),
            // A file's contract is for the disk alone.
            None => self.weighed(number, 0),
        }
    }

    /// What a tenant has that wants to leave is known.
    pub(super) fn weighed(&mut self, number: TenantNumber, resident: u64) {
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        if tenancy.phase != Phase::Asking {
            return;
        }
        if let Err(why) = take_all(tenancy, resident) {
            tenancy.phase = Phase::Admitted;
            return match tenancy.connection {
                Some(_) => self.stays(number, &why),
                // It does not keep here what was limited where it came from.
                None => self.kill(number),
            };
        }
        tenancy.phase = Phase::Leaving;
        let group = tenancy.frames.as_ref().map(|frames| frames.group.clone());
        let orders = self.allocator.on_tenant_gone(TenantId(number), self.now());
        self.carry_out(orders);
        match group {
            Some(group) => self.errands.start(move || {
                group.release();
                Done::Released(number)
            }),
            None => self.part(number),
        }
    }

    fn stays(&self, number: TenantNumber, why: &str) {
        self.say(number, &Say::Stays(cut(why, TEXT)));
    }

    /// A tenant is none any more: its connection is as it was before it asked.
    pub(super) fn let_go(&mut self, token: u64) {
        self.set_tenant(token, None);
        self.say_at(token, &Say::Left, &[]);
    }
}

/// Lowers a tenant's limit to nothing, if it has nothing.
fn take_all(tenancy: &mut Tenancy, resident: u64) -> Result<(), String> {
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
            // It took some at this moment. What was taken back it may have again.
            let taken = limit - quota.limit();
            quota.raise(taken);
            return Err("frames are being used: end that, then leave".into());
        }
    }
    Ok(())
}
