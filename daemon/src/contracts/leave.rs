//! Leaving: a tenant gives its contract back and goes on running.
//!
//! A tenant's frames, swap file, channels and disk time are released when its processes have
//! ended. The processes of a tenant that leaves go on, and its claim to own nothing is not trusted: it is released when its
//! ledger shows that it owns no frame, and the kernel counts no more resident memory than a
//! program without a contract may have ([`UNPAGED_ALLOWANCE`], and the pagers' own memory). Then the
//! limit of its ledger is zero, its processes move back into the control group that they came
//! from, the disk's thread releases its channels, and its swap file is released, in this
//! order: at no moment would a restarted daemon kill the processes for a contract that they no longer have.
//!
//! A tenant that disconnects before it attaches its ledger owns no frames, and is not in a group of the
//! daemon's yet: its program may have been refused something else. It is released, whatever memory it has.
//! (A daemon that is restarted at that very moment finds a tenant that does not come back, and kills it.)
//!
//! Rule: a tenant that is not released keeps its contract as it was, and receives the figures.

use super::Contracts;
use crate::frame_control::{PAGER_RESERVE, UNPAGED_ALLOWANCE};
use crate::jobs::JobResult;
use crate::refusal::Refusal;
use crate::tenant::{Tenant, TenantPhase};
use disk::swapfs::CancelledScrub;
use frames::LimitControl;
use protocol::{DaemonEvent, TEXT, TenantNumber, cut};
use std::io;
use wired::PAGE;

/// Why a tenant is killed that has not requested to leave.
const ENDED: &str = "the process that requested its contract has ended";
const NOT_BACK: &str = "it did not come back to this daemon within memory.restart_grace";

impl Contracts {
    /// Handles a tenant's request to give its contract back.
    pub(crate) fn leave(&mut self, token: u64, number: TenantNumber) {
        let Some(tenant) = self.frames.tenants.get(number) else {
            return;
        };
        let uid = tenant.record.uid;
        if tenant.phase != TenantPhase::Admitted {
            return self
                .frames
                .connections()
                .refuse(token, Refusal::CannotLeave);
        }
        // Rate-limited, since an exact count takes a thread and a walk through the tenant's memory.
        if let Some(why) = self
            .frames
            .tenants
            .connections
            .user_limits
            .over_change_rate(uid)
        {
            return self.refuse_leave(number, &why);
        }
        match self.frames.tenants.get_mut(number) {
            Some(tenant) if tenant.may_own_frames() => {
                tenant.phase = TenantPhase::LeaveRequested;
                self.measure_rss(number);
            }
            _ => self.release_unowned(number),
        }
    }

    /// Closes a connection whose peer has hung up; a tenant's contract ends with it.
    pub(crate) fn on_hang_up(&mut self, token: u64) {
        let tenants = &mut self.frames.tenants;
        let number = tenants.connections.get(token).and_then(|c| c.tenant);
        tenants.connections.close(token);
        let Some(number) = number else { return };
        let Some(tenant) = tenants.get_mut(number) else {
            return;
        };
        tenant.connection = None;
        match tenant.may_own_frames() {
            // This does nothing to a tenant that has released its frames already.
            true => tenants.kill(number),
            false => self.release_unowned(number),
        }
    }

    /// Ends a connection that violates the protocol, and the contract of its tenant.
    pub(crate) fn disconnect(&mut self, token: u64, why: &str) {
        let connections = &mut self.frames.tenants.connections;
        let Some(connection) = connections.get(token) else {
            return;
        };
        let (uid, pid) = (connection.identity.uid, connection.peer.pid);
        let tenant = connection.tenant;
        connections.refuse(token, why);
        let pid = pid.as_raw_nonzero();
        match tenant {
            Some(number) => tracing::warn!("tenant {number} is disconnected: {why}"),
            // Rate-limited: a client that reconnects again and again does not fill the log.
            None if connections.user_limits.over_change_rate(uid).is_none() => {
                tracing::warn!("process {pid} of user {uid} is disconnected: {why}")
            }
            None => {}
        }
        self.on_hang_up(token);
    }

    /// Starts the exact RSS measurement of a tenant.
    fn measure_rss(&mut self, number: TenantNumber) {
        let frames = self
            .frames
            .tenants
            .get(number)
            .and_then(|t| t.frames.as_ref());
        match frames.map(|frames| frames.group.clone()) {
            Some(group) => {
                self.frames.tenants.jobs.start(move || {
                    JobResult::LeaveRss(number, group.resident_exactly(PAGER_RESERVE))
                })
            }
            // A contract for a file is for the disk alone.
            None => self.on_leave_rss(number, Ok(0)),
        }
    }

    /// Handles the RSS of a tenant that requested to leave, or why it could not be counted.
    pub(crate) fn on_leave_rss(&mut self, number: TenantNumber, resident: io::Result<u64>) {
        let Some(tenant) = self.frames.tenants.get_mut(number) else {
            return;
        };
        if tenant.phase != TenantPhase::LeaveRequested {
            return;
        }
        let resident = resident.map_err(Refusal::NotCounted);
        if let Err(why) = resident.and_then(|resident| revoke_limit(tenant, resident)) {
            tenant.phase = TenantPhase::Admitted;
            return self.refuse_leave(number, &why);
        }
        self.release_unowned(number);
    }

    /// Releases a tenant that owns no frame: its processes go on running, in the group that they came from.
    pub(super) fn release_unowned(&mut self, number: TenantNumber) {
        let Some(tenant) = self.frames.tenants.get_mut(number) else {
            return;
        };
        tenant.phase = TenantPhase::Leaving;
        let group = tenant.frames.as_ref().map(|frames| frames.group.clone());
        self.frames.on_tenant_gone(number);
        match group {
            Some(group) => self.frames.tenants.jobs.start(move || {
                group.release();
                JobResult::Released(number)
            }),
            None => self.release(number),
        }
    }

    fn refuse_leave(&self, number: TenantNumber, why: &Refusal) {
        self.frames.tenants.post(
            number,
            &DaemonEvent::LeaveRefused(cut(&why.to_string(), TEXT)),
        );
    }

    /// Tells a tenant that it has left: its connection is one without a contract again.
    pub(crate) fn detach_connection(&mut self, token: u64) {
        let connections = &mut self.frames.tenants.connections;
        connections.post(token, &DaemonEvent::Left);
        connections.set_tenant(token, None);
    }

    /// Releases a tenant whose processes have ended, or that has given its frames back. The frames are free at
    /// once: requests for them do not wait for the tenant's disk. Its disk space and time are
    /// released only when none of its I/O is in flight, nor a step of its scrub, which a job thread waits for.
    ///
    /// The allocator receives this event for the second time: since [`Contracts::release_unowned`], or
    /// the tenant's memory was freed, it has no record of that tenant. But each event also makes it evaluate
    /// what the other tenants have reported since, so the second one has an effect.
    pub(crate) fn release(&mut self, number: TenantNumber) {
        self.frames.on_tenant_gone(number);
        let tenant = self.frames.tenants.get_mut(number);
        let file = tenant.as_ref().and_then(|tenant| tenant.file);
        match tenant.and_then(|tenant| tenant.client.take()) {
            Some(client) => {
                let scrub = file.map(|file| self.disk.swap.begin_cancel(file));
                let leaving = self.disk.usd.begin_removal(client);
                self.frames.tenants.jobs.start(move || {
                    leaving.wait();
                    scrub.into_iter().for_each(CancelledScrub::wait);
                    JobResult::DiskDrained(number)
                });
            }
            None => self.remove(number),
        }
    }

    /// Removes a tenant that has ended or left, and releases the rest of its resources.
    pub(crate) fn remove(&mut self, number: TenantNumber) {
        let Some(tenant) = self.frames.tenants.remove(number) else {
            return;
        };
        let name = &tenant.record.name;
        let left = tenant.phase == TenantPhase::Leaving;
        let how = if left { "left" } else { "ended" };
        tracing::info!("tenant {number} ({name}) has {how}: its contract is over");
        if let Some(token) = tenant.connection.filter(|_| !left) {
            self.frames.tenants.connections.close(token);
        }
        if let Some(file) = tenant.file {
            self.release_file(number, file);
        }
        if let Some(frames) = &tenant.frames {
            frames.group.remove();
        }
        self.fault_rates.on_tenant_gone(number);
        // Last: a client that receives this may request all of the released resources.
        if let Some(token) = tenant.connection.filter(|_| left) {
            self.detach_connection(token);
        }
        self.retry_joins();
    }

    /// Kills tenants whose process has ended while their connection stayed open, and those that
    /// did not come back to this daemon in time.
    pub(crate) fn kill_lost(&mut self) {
        // Tenants are away from the daemon's start on, and the stall is counted from there, too.
        let stalled = self.frames.count_stall().min(crate::stall::MAX_EXTENSION);
        let grace = self.config.memory.restart_grace.0 + stalled + self.frames.paused();
        let lost = |tenant: &Tenant| match tenant.phase {
            TenantPhase::Away(_) if tenant.record.process().is_none() => Some(ENDED),
            TenantPhase::Away(since) => (since.elapsed() > grace).then_some(NOT_BACK),
            TenantPhase::Admitted | TenantPhase::LeaveRequested => {
                let has_ended = || tenant.record.process().is_none();
                let frames = tenant.frames.as_ref();
                // A contract for a file has no group.
                let has_ended = frames.map_or_else(has_ended, |frames| !frames.group.is_alive());
                has_ended.then_some(ENDED)
            }
            TenantPhase::Scrubbing | TenantPhase::Leaving | TenantPhase::Ending => None,
        };
        let lost: Vec<_> = (self.frames.tenants.iter())
            .filter_map(|(number, tenant)| Some((number, lost(tenant)?)))
            .collect();
        for (number, why) in lost {
            tracing::info!("tenant {number} is ended: {why}");
            self.frames.tenants.kill(number);
        }
    }
}

/// Lowers a tenant's limit to zero; refuses if the tenant owns frames, or has too much memory resident.
fn revoke_limit(tenant: &mut Tenant, resident: u64) -> Result<(), Refusal> {
    let Some(frames) = &mut tenant.frames else {
        return Ok(());
    };
    let owned = frames.quota.as_ref().map_or(0, LimitControl::committed);
    let most = u64::from(UNPAGED_ALLOWANCE) * PAGE as u64;
    if owned > 0 || resident > most {
        return Err(Refusal::FramesOwned {
            owned: u64::from(owned) * PAGE as u64,
            resident,
            most,
        });
    }
    if let Some(quota) = &mut frames.quota {
        let limit = quota.limit();
        if quota.take_unused(limit) < limit {
            // The tenant took frames meanwhile: its limit is restored.
            let taken = limit - quota.limit();
            quota.raise(taken);
            return Err(Refusal::FramesInUse);
        }
    }
    Ok(())
}
