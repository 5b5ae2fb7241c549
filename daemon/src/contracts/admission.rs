//! Admission: a contract is admitted whole, or nothing of it is.
//!
//! *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7: admission is by the
//! sum of guaranteed frames, and by the sum of s/p of the disk. A swap file is allocated and
//! scrubbed too; only the new tenant waits for that.

use super::Contracts;
use super::postponed::JoinRequest;
use crate::persisted_tenants::{self, TenantRecord};
use crate::refusal::Refusal;
use crate::scrub::ScrubDone;
use crate::tenant::{Tenant, TenantFrames, TenantPhase};
use crate::{machine, policy};
use disk::atropos::ClientId;
use disk::swapfs::{FileId, FileName};
use frames::LimitControl;
use frames::allocator::{FrameRequest, Placement};
use iochannel::Doorbell;
use protocol::MIN_PROGRAM_FRAMES;
use protocol::contract_spec::{ContractSpec, DiskSpec, FramePlacement, FrameSpec};
use protocol::{DaemonEvent, ResumeToken, TenantNumber};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Frames that a tenant is granted at first, if its guarantee is as much: enough for a program to
/// start before the daemon handles its first request for more.
const INITIAL_GRANT: u32 = 2048;

fn placement(place: Option<FramePlacement>) -> Placement {
    match place {
        None => Placement::Any,
        Some(FramePlacement::Huge) => Placement::Huge,
        Some(FramePlacement::Node(node)) => Placement::Node(node),
    }
}

impl Contracts {
    /// Handles a request for a contract. Where it is refused while tenants are being released, it waits for their release.
    pub(crate) fn join(&mut self, request: JoinRequest) {
        let Err(why) = self.try_join(&request) else {
            return;
        };
        let token = request.token;
        if !(self.frames.tenants.is_any_ending() && self.postponed.keep(request, &why)) {
            self.frames.connections().refuse(token, why);
        }
    }

    /// Retries the requests that wait for the release of tenants.
    pub(crate) fn retry_joins(&mut self) {
        for request in self.postponed.take() {
            let connection = self.frames.tenants.connections.get(request.token);
            // The connection may have ended, or have a contract by another request.
            if connection.is_some_and(|connection| connection.tenant.is_none()) {
                self.join(request);
            }
        }
    }

    fn try_join(&mut self, request: &JoinRequest) -> Result<(), Refusal> {
        let mut tenants = self.frames.tenants.iter();
        let is_known = |(_, tenant): &(_, &Tenant)| tenant.resume_token == request.resume_token;
        let known = tenants.find(is_known).map(|(number, _)| number);
        drop(tenants);
        match known {
            Some(number) => self.join_again(request.token, number),
            None => self.admit(request),
        }
    }

    /// An earlier daemon admitted this tenant and ended before it could reply: the contract
    /// exists, and the reply is sent now.
    fn join_again(&mut self, token: u64, number: TenantNumber) -> Result<(), Refusal> {
        let connection = self.frames.connections().requesting(token)?;
        let (pid, start) = (connection.peer.pid, connection.peer.start()?);
        let is_peer = |t: &Tenant| t.record.process() == Some(pid) && t.record.start == start;
        let is_away = |t: &Tenant| matches!(t.phase, TenantPhase::Away(_)) && t.frames.is_some();
        let tenant = self.frames.tenants.get(number);
        if !tenant.is_some_and(|tenant| is_away(tenant) && is_peer(tenant)) {
            return Err(Refusal::TokenInUse);
        }
        let pressure_bell = self.frames.tenants.new_pressure_bell(number)?;
        let connections = &mut self.frames.tenants.connections;
        connections.set_tenant(token, Some(number));
        if let Some(tenant) = self.frames.tenants.get_mut(number) {
            (tenant.connection, tenant.phase) = (Some(token), TenantPhase::Scrubbing);
            if let Some(frames) = &mut tenant.frames {
                frames.pressure_bell = pressure_bell;
            }
        }
        self.scrub_file(number);
        Ok(())
    }

    /// Admission control: every term of the contract is checked here.
    fn admit(&mut self, request: &JoinRequest) -> Result<(), Refusal> {
        let JoinRequest { token, terms, .. } = *request;
        let number = self.frames.tenants.next_number();
        if !request.is_retry {
            self.count_change(token)?;
        }
        let mut tenant = self.new_tenant(token, request.resume_token, &request.name, terms)?;
        self.check_new_tenant(&tenant, &terms)?;
        let placement = placement(request.place);
        // Frames that the machine does not have are refused now, not by a fault.
        let first = FrameRequest {
            k: terms.frames.g,
            placement,
        };
        machine::topology().check(first)?;
        let pressure_bell = self.frames.tenants.new_pressure_bell(number)?;
        let cleaning = self.disk.cleaning_rate(&terms);
        self.frames.admit(number, terms.frames, cleaning)?;
        let name = persisted_tenants::file_name(&tenant.resume_token);
        let admitted = self.open_disk(name, &tenant);
        let (client, file) = admitted.inspect_err(|_| self.frames.on_tenant_gone(number))?;
        let pid = self.frames.connections().requesting(token)?.peer.pid;
        tenant.client = Some(client);
        tenant.file = Some(file);
        tenant.frames = Some(TenantFrames {
            group: self.groups.create(pid, tenant.record.start, number),
            quota: None,
            placement,
            pressure_bell,
            rounds: VecDeque::new(),
            unsent: None,
            measured_since: None,
        });
        self.frames.tenants.insert(number, tenant);
        self.scrub_file(number);
        Ok(())
    }

    /// Gives a new tenant disk time and a swap file.
    fn open_disk(
        &mut self,
        name: FileName,
        tenant: &Tenant,
    ) -> Result<(ClientId, FileId), Refusal> {
        let terms = tenant.record.terms;
        let client = self.disk.usd.admit(terms.disk.into())?;
        self.check_processor_time(client, terms.disk)?;
        let record = tenant.record.encode();
        match self.disk.swap.create(name, terms.swap, &record) {
            Ok(file) => Ok((client, file)),
            Err(why) => {
                self.disk.usd.remove(client);
                Err(why.into())
            }
        }
    }

    /// Refuses a new client of the disk where the processor time that comes with its share is promised to others.
    fn check_processor_time(&mut self, client: ClientId, disk: DiskSpec) -> Result<(), Refusal> {
        let (tenants, rates) = (&self.frames.tenants, &mut self.fault_rates);
        self.processor_time
            .check(disk, tenants, None, rates)
            .inspect_err(|_| self.disk.usd.remove(client))
    }

    /// Refuses a tenant whose former contract is not released yet, or whose guarantee is too small.
    fn check_new_tenant(&self, tenant: &Tenant, terms: &ContractSpec) -> Result<(), Refusal> {
        // Its previous cgroup is still being torn down; joining now would be undone.
        let is_leaving = |t: &Tenant| {
            let has = |f: &TenantFrames| f.group.contains(&tenant.record);
            t.phase == TenantPhase::Leaving && t.frames.as_ref().is_some_and(has)
        };
        if self.frames.tenants.iter().any(|(_, one)| is_leaving(one)) {
            return Err(Refusal::StillLeaving);
        }
        // For one program; the supervisor of a process tree requests more for its tree.
        let least = MIN_PROGRAM_FRAMES;
        if terms.frames.g < least {
            let g = terms.frames.g;
            let asked = FrameSpec { g, x: g };
            return Err(Refusal::TooFewFrames { asked, least });
        }
        Ok(())
    }

    /// Counts a request for a contract, also one that is refused, as a change, whose rate is limited for each user.
    fn count_change(&mut self, token: u64) -> Result<(), Refusal> {
        let connections = &mut self.frames.tenants.connections;
        let uid = connections.requesting(token)?.identity.uid;
        let why = connections.user_limits.over_change_rate(uid);
        why.map_or(Ok(()), Err)
    }

    /// A tenant for the peer of a connection, if the policy allows its request.
    fn new_tenant(
        &mut self,
        token: u64,
        resume_token: ResumeToken,
        name: &str,
        terms: ContractSpec,
    ) -> Result<Tenant, Refusal> {
        let connection = self.frames.connections().requesting(token)?;
        let own = rustix::process::getuid().as_raw();
        let (tenants, identity) = (&self.frames.tenants, &connection.identity);
        let number = tenants.numbers_of(identity.uid).count();
        policy::check_number(&self.config.allow, own, identity, number)?;
        let held = tenants.contract_totals(identity.uid, None);
        policy::check(&self.config.allow, own, identity, held, &terms)?;
        terms.disk.check()?;
        let (pid, uid) = (connection.peer.pid, connection.identity.uid);
        // Guard against pid reuse: a peer that passed its socket on and exited must not be
        // mistaken for the process that now has its pid.
        let start = connection.peer.start()?;
        if let Some(why) = self.frames.tenants.over_fd_quota(uid) {
            return Err(why);
        }
        let number = self.frames.tenants.next_number();
        let mut record = TenantRecord::new(number, name, pid, start, uid, terms);
        record.disk = Some(self.disk.model);
        Ok(Tenant {
            record,
            resume_token,
            phase: TenantPhase::Scrubbing,
            rejoined: false,
            connection: Some(token),
            frames: None,
            file: None,
            client: None,
            doorbell: Doorbell::new()?,
            resident: 0,
            ran_first: Duration::ZERO,
            channels: BTreeMap::new(),
            unopened: VecDeque::new(),
            next_channel: 0,
        })
    }

    /// Starts to scrub a tenant's swap file, if it may hold another tenant's data.
    pub(crate) fn scrub_file(&mut self, number: TenantNumber) {
        let Some(file) = self.frames.tenants.get(number).and_then(|t| t.file) else {
            return;
        };
        match self.disk.swap.scrub(file) {
            Ok(Some(scrub)) => self.scrubber.scrub(number, scrub),
            Ok(None) => self.activate(number),
            Err(why) => self.abandon(number, &why.into()),
        }
    }

    /// Handles the result of scrubbing a new tenant's swap file.
    pub(crate) fn on_scrubbed(&mut self, number: TenantNumber, scrubbed: ScrubDone) {
        if self
            .frames
            .tenants
            .get(number)
            .is_none_or(|t| t.phase != TenantPhase::Scrubbing)
        {
            return;
        }
        let completed = scrubbed.result.map_err(Refusal::from);
        let result = completed.and_then(|()| {
            let complete = self.disk.swap.complete_scrub(scrubbed.scrub);
            Ok(complete?)
        });
        match result {
            Ok(()) => self.activate(number),
            Err(why) => self.abandon(number, &why),
        }
    }

    /// Puts a contract in force whose swap file is scrubbed.
    fn activate(&mut self, number: TenantNumber) {
        let Some(tenant) = self.frames.tenants.get_mut(number) else {
            return;
        };
        if let Err(why) = self.disk.attach_file(tenant) {
            return self.abandon(number, &why);
        }
        tenant.phase = TenantPhase::Admitted;
        let terms = tenant.record.terms;
        let Some(token) = tenant.connection else {
            return;
        };
        let Some(tenant) = self.frames.tenants.get(number) else {
            return;
        };
        let protect = |frames: &TenantFrames| self.groups.protect(&frames.group);
        let note = tenant.frames.as_ref().map_or("", protect);
        let warnings = [note, self.processor_time.warning()];
        let warnings: Vec<_> = (warnings.into_iter())
            .filter(|text| !text.is_empty())
            .collect();
        let event = DaemonEvent::Admitted {
            tenant: number,
            terms,
            note: warnings.join("; "),
        };
        let mut fds = vec![tenant.doorbell.as_fd()];
        fds.extend(
            tenant
                .frames
                .as_ref()
                .map(|frames| frames.pressure_bell.as_fd()),
        );
        self.frames.connections().send(token, &event, &fds);
        tracing::info!("tenant {number} ({}) has {terms}", tenant.record.name);
    }

    /// Refuses and releases a new tenant that cannot be admitted after all.
    fn abandon(&mut self, number: TenantNumber, why: &Refusal) {
        if let Some(token) = self.frames.tenants.get(number).and_then(|t| t.connection) {
            self.frames.connections().refuse(token, why);
            self.frames.tenants.connections.set_tenant(token, None);
        }
        if let Some(tenant) = self.frames.tenants.get_mut(number) {
            tenant.connection = None;
        }
        self.release_unowned(number);
    }

    /// Attaches the ledger that a tenant has made. From now on the tenant may own frames, and its processes are in its group.
    pub(crate) fn attach_ledger(&mut self, token: u64, number: TenantNumber, fd: Option<&OwnedFd>) {
        let Some(fd) = fd else {
            return self
                .frames
                .connections()
                .refuse(token, Refusal::NoDescriptor("the ledger's descriptor"));
        };
        let quota = match LimitControl::attach(fd) {
            Ok(quota) => quota,
            Err(why) => return self.frames.connections().refuse(token, why),
        };
        let Some(tenant) = self.frames.tenants.get_mut(number) else {
            return;
        };
        let terms = tenant.record.terms;
        match &mut tenant.frames {
            Some(frames) if tenant.phase == TenantPhase::Admitted && frames.quota.is_none() => {
                frames.group.enter();
                let quota = frames.quota.insert(quota);
                // The tenant owns only the frames granted to it, whatever limit its ledger had.
                quota.set_limit(0);
            }
            _ => {
                return self
                    .frames
                    .connections()
                    .refuse(token, Refusal::LedgerTwice);
            }
        }
        self.frames
            .request(number, terms.frames.g.min(INITIAL_GRANT));
        self.frames.connections().post(token, &DaemonEvent::Started);
    }

    /// Handles a request for disk time for a client's own file.
    pub(crate) fn join_file(
        &mut self,
        token: u64,
        name: &str,
        disk: DiskSpec,
        fd: Option<&OwnedFd>,
    ) {
        if let Err(why) = self.try_join_file(token, name, disk, fd) {
            self.frames.connections().refuse(token, why);
        }
    }

    fn try_join_file(
        &mut self,
        token: u64,
        name: &str,
        disk: DiskSpec,
        fd: Option<&OwnedFd>,
    ) -> Result<(), Refusal> {
        let fd = fd.ok_or(Refusal::NoDescriptor("the file's descriptor"))?;
        let frames = FrameSpec { g: 0, x: 0 };
        let terms = ContractSpec {
            frames,
            disk,
            swap: 0,
        };
        let number = self.frames.tenants.next_number();
        // Never presented: the client of a file makes a new request after a restart.
        let resume_token = ResumeToken::draw()?;
        self.count_change(token)?;
        let mut tenant = self.new_tenant(token, resume_token, name, terms)?;
        let backing = crate::backing::file(fd, &self.disk.swap)?;
        // Before the disk admits the client: nothing fails after that.
        let doorbell = tenant.share_doorbell()?;
        let user_limits = &self.frames.tenants.connections.user_limits;
        let person = user_limits.person(tenant.record.uid);
        let client = self.disk.usd.admit_for(person, disk.into())?;
        self.check_processor_time(client, disk)?;
        self.disk.usd.set_target(client, backing, doorbell);
        tenant.client = Some(client);
        self.frames.tenants.insert(number, tenant);
        self.activate(number);
        Ok(())
    }
}
