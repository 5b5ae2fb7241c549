//! Recovery: a daemon that was killed or ended is restarted, and tenants of the earlier one reconnect.
//!
//! The swap filesystem has their records; they hold the memory of their ledgers and channels
//! and hand it over. The daemon validates that memory like any untrusted input.
//!
//! Rule: until a tenant has reconnected, or is known to have ended, it keeps all of its contract.

use super::Contracts;
use crate::DaemonError;
use crate::persisted_tenants::{self, TenantRecord};
use crate::refusal::Refusal;
use crate::tenant::{Tenant, TenantFrames, TenantPhase};
use disk::swapfs::{FileError, FileId, SwapFs};
use frames::LimitControl;
use frames::allocator::Placement;
use host::seqpacket::Received;
use iochannel::{ChannelServer, Doorbell};
use protocol::{ChannelNumber, DaemonEvent, ResumeToken, TenantNumber};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use wired::PAGE;

/// Returns true if a tenant of an earlier daemon may come back.
pub(crate) fn has_persisted_tenants(swap: &SwapFs) -> bool {
    let mut records = swap
        .files()
        .iter()
        .filter_map(|file| TenantRecord::decode(file.blob()));
    records.any(|record| record.process().is_some())
}

/// Changes of the file table that the device refused. Each is tried again once a second, and the log says so. A
/// contract that the table does not record is in force all the same.
#[derive(Default)]
pub(crate) struct UnwrittenChanges {
    records: BTreeSet<TenantNumber>,
    releases: Vec<FileId>,
}

impl Contracts {
    /// Loads the persisted tenants, and releases the swap files of those that have ended.
    pub(crate) fn load_tenants(&mut self) -> Result<(), DaemonError> {
        let files: Vec<_> = (self.disk.swap.files().iter())
            .map(|file| {
                (
                    file.id(),
                    persisted_tenants::resume_token(file.name()),
                    TenantRecord::decode(file.blob()),
                )
            })
            .collect();
        for (file, resume_token, record) in files {
            let there = record.and_then(|record| record.process().map(|leader| (record, leader)));
            match (resume_token, there) {
                (Some(resume_token), Some((record, leader))) => {
                    self.restore_tenant(file, resume_token, record, leader)?;
                }
                _ => self.disk.swap.release(file)?,
            }
        }
        self.groups
            .sweep(|number| self.frames.tenants.get(number).is_some());
        if self.frames.tenants.len() > 0 {
            let count = self.frames.tenants.len();
            tracing::info!("tenants of an earlier daemon that are awaited: {count}");
        }
        Ok(())
    }

    fn restore_tenant(
        &mut self,
        file: FileId,
        resume_token: ResumeToken,
        record: TenantRecord,
        leader: Pid,
    ) -> Result<(), DaemonError> {
        let number = record.number;
        let terms = record.terms;
        let (tenant, pid) = (format!("tenant {number} ({})", record.name), record.pid);
        let fail = |why: Refusal| DaemonError::Promised {
            tenant: tenant.clone(),
            pid,
            terms: terms.to_string(),
            why,
        };
        let pressure_bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(crate::call("make an eventfd"))?;
        // It keeps its guarantee and its slice while it is away.
        let cleaning = self.disk.cleaning_rate(&terms);
        self.frames
            .readmit(number, terms.frames, 0, cleaning)
            .map_err(|why| fail(why.into()))?;
        let client = self
            .disk
            .usd
            .admit(terms.disk.into())
            .map_err(|why| fail(why.into()))?;
        let group = self.groups.create_entered(leader, record.start, number);
        // The earlier daemon may have been killed while it lent them priority.
        host::lent_priority::end_all(group.processes());
        let tenant = Tenant {
            record,
            resume_token,
            phase: TenantPhase::Away(Instant::now()),
            rejoined: true,
            connection: None,
            frames: Some(TenantFrames {
                group,
                quota: None,
                // Its processes stay in their control group.
                placement: Placement::Any,
                pressure_bell,
                rounds: VecDeque::new(),
                unsent: None,
                measured_since: None,
            }),
            file: Some(file),
            client: Some(client),
            doorbell: Doorbell::new().map_err(|why| fail(why.into()))?,
            resident: 0,
            ran_first: Duration::ZERO,
            channels: BTreeMap::new(),
            unopened: VecDeque::new(),
            next_channel: 0,
        };
        let reservation = tenant.record.reservation;
        self.frames.tenants.insert(number, tenant);
        if let Some(reservation) = reservation {
            let tenants = &self.frames.tenants;
            let restored = self.fault_rates.restore(tenants, number, reservation);
            restored.map_err(fail)?;
        }
        self.announce_reduction(number).map_err(fail)
    }

    /// Records the contracts that have changed.
    pub(crate) fn persist_changed(&mut self) -> Result<(), FileError> {
        let changed = self.frames.update_records();
        let persisted = changed.into_iter().map(|number| self.persist(number));
        persisted.fold(Ok(()), Result::and)
    }

    /// Records a tenant for the next daemon.
    pub(crate) fn persist(&mut self, number: TenantNumber) -> Result<(), FileError> {
        let tenant = self.frames.tenants.get(number);
        let written = tenant.map_or(Ok(()), |tenant| self.disk.persist(tenant));
        let unwritten = &mut self.unwritten.records;
        match &written {
            Ok(()) if unwritten.remove(&number) => {
                tracing::info!("the contract of tenant {number} is recorded");
            }
            Err(why) if unwritten.insert(number) => {
                tracing::warn!(
                    "the contract of tenant {number} is not recorded, and is tried again: {why}"
                );
            }
            _ => {}
        }
        written
    }

    /// Releases the swap file of a tenant that has ended or left, and with it the tenant's record.
    pub(super) fn release_file(&mut self, number: TenantNumber, file: FileId) {
        self.unwritten.records.remove(&number);
        if let Err(why) = self.disk.swap.release(file) {
            tracing::warn!(
                "the swap file of tenant {number} stays taken, and is tried again: {why}"
            );
            self.unwritten.releases.push(file);
        }
    }

    /// Tries the writes again that the device refused.
    pub(crate) fn retry_writes(&mut self) {
        for number in self.unwritten.records.clone() {
            let _ = self.persist(number);
        }
        self.unwritten.releases.retain(|file| {
            let released = self.disk.swap.release(*file);
            if released.is_ok() {
                tracing::info!("{file} is free");
            }
            released.is_err_and(|why| !matches!(why, FileError::Missing(_)))
        });
    }

    /// Handles a tenant that presents its resume token.
    pub(crate) fn rejoin(
        &mut self,
        token: u64,
        resume_token: ResumeToken,
        channels: u32,
        message: &Received,
    ) {
        let own = |(number, tenant): (TenantNumber, &Tenant)| {
            let is_away = matches!(tenant.phase, TenantPhase::Away(_));
            (tenant.resume_token == resume_token && is_away).then_some(number)
        };
        let Some(number) = self.frames.tenants.iter().find_map(own) else {
            return self
                .frames
                .connections()
                .post(token, &DaemonEvent::UnknownToken);
        };
        let quota = match self.attach_returned(number, message) {
            Ok(quota) => quota,
            // The tenant tries again until its time is up: a descriptor may be lacking for a moment only.
            Err(why) => {
                tracing::debug!("tenant {number} is not taken back yet: {why}");
                return self.frames.connections().refuse(token, why);
            }
        };
        if let Err(why) = self.readmit(token, number, quota) {
            tracing::warn!("tenant {number} is not taken back: {why}");
            return self.frames.tenants.kill(number);
        }
        tracing::info!("tenant {number} is back, with {channels} channels");
    }

    /// Attaches the descriptors that a returning tenant has kept; returns its ledger, unless it has none yet.
    fn attach_returned(
        &mut self,
        number: TenantNumber,
        message: &Received,
    ) -> Result<Option<LimitControl>, Refusal> {
        let missing = || Refusal::NoDescriptor("descriptors");
        if message.fds_lost {
            return Err(missing());
        }
        let [doorbell, pressure_bell, ledger, ..] = &message.fds;
        let bell = |fd: &Option<OwnedFd>| {
            let fd = fd.as_ref().ok_or_else(missing)?;
            Doorbell::attach(fd).map_err(Refusal::from)
        };
        let doorbell = bell(doorbell)?;
        // Checked to be an eventfd: polling another kind of file could call into the program that serves it.
        let pressure_bell: OwnedFd = bell(pressure_bell)?.into();
        let quota = ledger.as_ref().map(LimitControl::attach).transpose()?;
        let tenant = self.frames.tenants.get_mut(number).ok_or_else(missing)?;
        tenant.doorbell = doorbell;
        self.disk.attach_file(tenant)?;
        self.frames.tenants.watch_pressure(&pressure_bell, number)?;
        let tenant = self.frames.tenants.get_mut(number);
        if let Some(frames) = tenant.and_then(|tenant| tenant.frames.as_mut()) {
            frames.pressure_bell = pressure_bell;
        }
        Ok(quota)
    }

    fn readmit(
        &mut self,
        token: u64,
        number: TenantNumber,
        mut quota: Option<LimitControl>,
    ) -> Result<(), Refusal> {
        let tenant = self.frames.tenants.get(number);
        let tenant = tenant.ok_or(Refusal::NoTenant(number))?;
        let terms = tenant.record.terms;
        let frames = tenant.frames.as_ref();
        let resident = frames.map_or(0, |frames| frames.group.resident_estimate(0));
        let resident = u32::try_from(resident / PAGE as u64).unwrap_or(u32::MAX);
        self.frames.on_tenant_gone(number);
        // The frames it claims count as far as its contract and the others' allow, and beyond
        // that as far as the kernel counts them: a tenant that claims too much gains nothing. A
        // tenant whose contract was lowered may not have had all its revocations yet.
        let claimed = quota.as_ref().map_or(0, LimitControl::limit);
        let claimed = claimed.min(resident.max(terms.frames.x));
        let n = claimed.min(
            resident
                .max(self.frames.unclaimed_beside(number))
                .max(terms.frames.g),
        );
        if let Some(quota) = &mut quota {
            quota.set_limit(n);
        }
        let cleaning = self.disk.cleaning_rate(&terms);
        self.frames.readmit(number, terms.frames, n, cleaning)?;
        let connections = &mut self.frames.tenants.connections;
        connections.set_tenant(token, Some(number));
        if let Some(tenant) = self.frames.tenants.get_mut(number) {
            tenant.connection = Some(token);
            tenant.phase = TenantPhase::Admitted;
            if let Some(frames) = &mut tenant.frames {
                frames.quota = quota;
            }
        }
        let event = DaemonEvent::Admitted {
            tenant: number,
            terms,
            note: String::new(),
        };
        self.frames.connections().send(token, &event, &[]);
        self.revoke_excess(number, n, claimed);
        self.announce_reduction(number)?;
        // Its excess frames are revoked now.
        self.frames.tick();
        self.frames.on_pressure(number);
        Ok(())
    }

    /// Revokes the frames that a returning tenant claimed beyond the `n` that count.
    fn revoke_excess(&mut self, number: TenantNumber, n: u32, claimed: u32) {
        let beyond = self.frames.stats(number).map_or(0, |stats| stats.beyond);
        if beyond > 0 {
            let managed = self.frames.allocator().managed();
            tracing::warn!(
                "tenant {number} came back with {n} frames, {beyond} more than fit into the {managed} that are \
                 managed: it is asked for them, in its own disk time"
            );
        }
        if n < claimed {
            let by = self.frames.now() + self.config.memory.revocation_deadline.0;
            self.frames.revoke(number, 0, n, by);
        }
    }

    /// Announces again the reduction of a contract that an earlier daemon had announced. The notice
    /// starts over: how much of it was left is not persisted.
    fn announce_reduction(&mut self, number: TenantNumber) -> Result<(), Refusal> {
        let later = self.frames.tenants.get(number).and_then(|t| t.record.later);
        if let Some(later) = later {
            let lowered = self.frames.set_contract(number, later);
            lowered?;
        }
        Ok(())
    }

    /// Attaches a channel that an earlier daemon made and the tenant hands over. Requests that were submitted on it and
    /// not completed are served now.
    pub(crate) fn reattach_channel(
        &mut self,
        token: u64,
        number: TenantNumber,
        channel: ChannelNumber,
        message: &Received,
    ) {
        match self.try_reattach(number, channel, message) {
            Ok(()) => {}
            Err(why) if why.is_lack() => {
                let later = DaemonEvent::NoRoomYet(channel);
                self.frames.connections().post(token, &later);
            }
            Err(why) => {
                tracing::warn!("tenant {number}: invalid channel: {why}");
                self.frames.tenants.kill(number);
            }
        }
    }

    fn try_reattach(
        &mut self,
        number: TenantNumber,
        channel: ChannelNumber,
        message: &Received,
    ) -> Result<(), Refusal> {
        // Else a new channel could get its number while descriptors for it are lacking.
        if let Some(tenant) = self.frames.tenants.get_mut(number) {
            tenant.next_channel = tenant.next_channel.max(channel.saturating_add(1));
        }
        let [Some(memory), Some(bell), ..] = &message.fds else {
            return Err(Refusal::NoDescriptor("a channel's descriptors"));
        };
        let server = ChannelServer::attach(memory, bell)?;
        let tenants = &mut self.frames.tenants;
        let tenant = tenants.get(number).ok_or(Refusal::NoTenant(number))?;
        // An earlier daemon has admitted the recorded number: none of their requests may wait for descriptors of others.
        if tenant.channels.len() >= tenant.record.channels as usize {
            let crowded = tenants.over_fd_quota(tenant.record.uid);
            if let Some(why) = crowded.or_else(|| tenant.over_channel_quota()) {
                return Err(why);
            }
        }
        let is_new =
            !tenant.channels.contains_key(&channel) && tenant.phase == TenantPhase::Admitted;
        if let Some(client) = tenant.client.filter(|_| is_new) {
            let id = self.disk.usd.add_channel(client, server);
            self.frames.tenants.add_channel(number, channel, id);
        }
        Ok(())
    }

    /// Persists how many channels a tenant has had at a time, rounded up to a power of two: each change is a write on the disk,
    /// for which the loop waits.
    pub(crate) fn persist_channels(&mut self, number: TenantNumber) {
        let Some(tenant) = self.frames.tenants.get_mut(number) else {
            return;
        };
        let there = tenant.channels.len() as u32;
        if there <= tenant.record.channels {
            return;
        }
        tenant.record.channels = there.next_power_of_two();
        let _ = self.persist(number);
    }
}
