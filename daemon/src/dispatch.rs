//! Dispatch of requests that arrive at the control socket.
//!
//! Input is untrusted: identity comes from SO_PEERCRED, requests are validated against the
//! policy, and an invalid message ends the connection.

mod faults;

use crate::connections::{Incoming, LISTENER, MAX_SERVICE};
use crate::contracts::JoinRequest;
use crate::refusal::Refusal;
use crate::tenant::TenantPhase;
use crate::{Daemon, policy};
use disk::atropos::ClientId;
use host::seqpacket::Received;
use iochannel::ChannelGeometry;
use protocol::contract_spec::{ContractSpec, DiskChange, DiskSpec, FrameSpec};
use protocol::{ChannelNumber, DaemonEvent, TenantNumber, TenantRequest, decode};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

impl Daemon {
    /// Serves a connection: `most` messages at most.
    pub(super) fn serve(&mut self, token: u64, most: usize) {
        if self.connections().take_writable(token) {
            self.on_writable(token);
        }
        for _ in 0..most {
            match self.connections_mut().receive(token) {
                Incoming::Message(mut arrived, person) => {
                    self.dispatch(token, &mut arrived.message);
                    self.connections_mut().discard(*arrived, person);
                }
                Incoming::HungUp => self.contracts.on_hang_up(token),
                Incoming::Violation(why) => self.contracts.disconnect(token, why),
                Incoming::Nothing => return,
            }
        }
    }

    /// Serves connections without a contract, if it is time: one message of each in turn, since a message may take
    /// a millisecond, and one user may have thousands of connections.
    pub(super) fn serve_unidentified(&mut self) {
        if self.connections().timeout() != Some(Duration::ZERO) {
            return;
        }
        let begin = Instant::now();
        while begin.elapsed() <= MAX_SERVICE
            && let Some(token) = self.connections_mut().next_unidentified()
        {
            match token {
                LISTENER => self.contracts.frames.tenants.accept(),
                _ => self.serve(token, 1),
            }
        }
        self.connections_mut().suspend_unidentified(begin);
    }

    pub(crate) fn dispatch(&mut self, token: u64, message: &mut Received) {
        let Some(request) = decode::<TenantRequest>(message.as_slice()) else {
            return self.contracts.disconnect(
                token,
                "this is no message of this version: install both from one build",
            );
        };
        let tenant = self.connections().get(token).and_then(|c| c.tenant);
        tracing::trace!(token, tenant, ?request, "request");
        match (request, tenant) {
            (
                query @ (TenantRequest::List
                | TenantRequest::Capacity
                | TenantRequest::Trace { .. }),
                _,
            ) => self.query(token, &query),
            (
                TenantRequest::Set {
                    tenant,
                    frames,
                    disk,
                },
                _,
            ) => self.set(token, tenant, frames, disk),
            (request, None) => self.admit(token, request, message),
            (request, Some(number)) => self.serve_tenant(token, number, request, message),
        }
    }

    /// Handles a request for a contract.
    fn admit(&mut self, token: u64, request: TenantRequest, message: &Received) {
        let contracts = &mut self.contracts;
        match request {
            TenantRequest::Join {
                resume_token,
                name,
                frames,
                disk,
                swap,
                place,
            } => {
                let terms = contracts.config.default.terms(frames, disk, swap);
                contracts.join(JoinRequest {
                    token,
                    resume_token,
                    name,
                    terms,
                    place,
                    since: Instant::now(),
                    is_retry: false,
                });
            }
            TenantRequest::File { name, disk } => {
                contracts.join_file(token, &name, disk, message.fds[0].as_ref())
            }
            TenantRequest::Rejoin {
                resume_token,
                channels,
            } => contracts.rejoin(token, resume_token, channels, message),
            _ => self.connections().refuse(token, Refusal::NoContract),
        }
    }

    /// Continues what waits for a peer to read: its revocation, its channels and its list.
    pub(crate) fn on_writable(&mut self, token: u64) {
        let connection = self.connections().get(token);
        let list_from = connection.and_then(|c| c.list_from);
        if let Some(number) = connection.and_then(|c| c.tenant) {
            self.contracts.frames.on_writable(number);
            self.open_channels(token, number);
        }
        if let Some(from) = list_from {
            self.list(token, from);
        }
    }

    /// Handles a request of a tenant.
    fn serve_tenant(
        &mut self,
        token: u64,
        number: TenantNumber,
        request: TenantRequest,
        message: &Received,
    ) {
        let contracts = &mut self.contracts;
        match request {
            TenantRequest::Ledger => {
                contracts.attach_ledger(token, number, message.fds[0].as_ref())
            }
            TenantRequest::Channel(channel) => {
                contracts.reattach_channel(token, number, channel, message)
            }
            TenantRequest::Open { depth, cookie } => self.open(token, number, depth, cookie),
            TenantRequest::Close(channel) => self.close_channel(number, channel),
            TenantRequest::Faults { reservation, known } => {
                faults::request(self, token, number, reservation, known)
            }
            TenantRequest::FaultUnit(unit) => contracts.fault_rates.report(number, unit),
            TenantRequest::RevocationDone { round } => {
                contracts.frames.on_revocation_done(number, round)
            }
            TenantRequest::Leave => contracts.leave(token, number),
            _ => {
                let why = Refusal::HasContract;
                self.connections().refuse(token, why);
            }
        }
    }

    /// Opens a channel. A tenant whose queue is full receives it when it reads again: requests to
    /// open channels are answered in order, except that a request beyond the quota is refused at once.
    fn open(&mut self, token: u64, number: TenantNumber, depth: u16, cookie: u64) {
        let Some(tenant) = self.contracts.frames.tenants.get_mut(number) else {
            return;
        };
        if let Some(why) = tenant.over_open_quota() {
            return self.connections().refuse_channel(token, cookie, &why);
        }
        tenant.unopened.push_back((depth, cookie));
        if !self.connections().is_full(token) {
            self.open_channels(token, number);
        }
    }

    fn open_channels(&mut self, token: u64, number: TenantNumber) {
        while let Some(tenant) = self.tenants().get(number)
            && let Some(&(depth, cookie)) = tenant.unopened.front()
        {
            match self.try_open(token, number, depth, cookie) {
                Ok(true) => {}
                Ok(false) => return,
                Err(why) => self.connections().refuse_channel(token, cookie, &why),
            }
            if let Some(tenant) = self.contracts.frames.tenants.get_mut(number) {
                tenant.unopened.pop_front();
            }
        }
    }

    /// Returns false where the tenant's queue has no room for the channel.
    fn try_open(
        &mut self,
        token: u64,
        number: TenantNumber,
        depth: u16,
        cookie: u64,
    ) -> Result<bool, Refusal> {
        let tenants = &mut self.contracts.frames.tenants;
        let tenant = tenants.get_mut(number).ok_or(Refusal::NoTenant(number))?;
        let (Some(client), true) = (tenant.client, tenant.phase == TenantPhase::Admitted) else {
            return Err(Refusal::NoChannels);
        };
        let uid = tenant.record.uid;
        let (over, channel) = (tenant.over_channel_quota(), tenant.free_channel());
        if let Some(why) = over.or_else(|| tenants.over_fd_quota(uid)) {
            return Err(why);
        }
        let (server, ends) = iochannel::create(ChannelGeometry::for_depth(depth.into()))?;
        let fds = [
            ends.memory.as_fd(),
            ends.bell.as_fd(),
            ends.server_bell.as_fd(),
        ];
        let opened = DaemonEvent::Opened { cookie, channel };
        // A channel that the client does not know is closed.
        match tenants.connections.send_now(token, &opened, &fds) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(why) => return Err(why.into()),
        }
        let id = self.contracts.disk.usd.add_channel(client, server);
        tenants.add_channel(number, channel, id);
        self.contracts.persist_channels(number);
        Ok(true)
    }

    fn close_channel(&mut self, number: TenantNumber, channel: ChannelNumber) {
        let tenant = self.tenants().get(number);
        match tenant.and_then(|tenant| tenant.channels.get(&channel)) {
            Some(id) => self.contracts.disk.usd.close_channel(*id),
            // It was an earlier daemon's, or never existed: no I/O of it is in flight.
            None => self.tenants().post(number, &DaemonEvent::Closed(channel)),
        }
    }

    /// Handles a request to change the terms of a contract.
    fn set(
        &mut self,
        token: u64,
        number: TenantNumber,
        frames: Option<FrameSpec>,
        disk: Option<DiskChange>,
    ) {
        if !self.may_see(token, number) {
            return self.connections().refuse(token, Refusal::NotYours(number));
        }
        let uid = self.connections().get(token).map(|c| c.identity.uid);
        let limits = &mut self.connections_mut().user_limits;
        if let Some(why) = uid.and_then(|uid| limits.over_change_rate(uid)) {
            return self.connections().refuse(token, why);
        }
        match self.try_set(token, number, frames, disk) {
            Ok(()) => {
                if let Some(info) = self.tenant_info(number) {
                    self.connections()
                        .send(token, &DaemonEvent::Tenant(Box::new(info)), &[]);
                }
                self.connections().send(token, &DaemonEvent::End, &[]);
            }
            Err(why) => self.connections().refuse(token, why),
        }
    }

    fn try_set(
        &mut self,
        token: u64,
        number: TenantNumber,
        frames: Option<FrameSpec>,
        disk: Option<DiskChange>,
    ) -> Result<(), Refusal> {
        let tenant = self
            .tenants()
            .get(number)
            .ok_or(Refusal::NoTenant(number))?;
        if tenant.phase != TenantPhase::Admitted {
            return Err(Refusal::NotAdmitted(number));
        }
        let mut terms = tenant.record.terms;
        let (client, former) = (tenant.client, terms.disk);
        if let Some(asked) = frames {
            let unpaged = self
                .contracts
                .frames
                .stats(number)
                .map_or(0, |stats| stats.unpaged);
            tenant.check_frames(number, unpaged, asked)?;
        }
        let disk = disk.map(|change| change.applied_to(former));
        disk.as_ref().map_or(Ok(()), DiskSpec::check)?;
        terms.frames = frames.unwrap_or(terms.frames);
        terms.disk = disk.unwrap_or(former);
        let (uid, grown) = (tenant.record.uid, growth(&tenant.record.terms, terms));
        // A rule bounds what users request for themselves, and not what an administrator gives another user.
        let owner = self.connections().get(token).map(|c| &c.identity);
        if let Some(owner) = owner.filter(|identity| identity.uid == uid) {
            let own = rustix::process::getuid().as_raw();
            let held = self.tenants().contract_totals(uid, Some(number));
            policy::check(&self.contracts.config.allow, own, owner, held, &grown)?;
        }
        // All checks come before any change.
        if let Some(asked) = frames {
            self.contracts.frames.check_set_contract(number, asked)?;
        }
        let cleaning = self.contracts.disk.cleaning_rate(&terms);
        let allocator = &self.contracts.frames;
        allocator.check_set_cleaning(number, cleaning)?;
        if let Some(disk) = disk {
            self.change_disk(number, client, former, disk)?;
        }
        let allocator = &mut self.contracts.frames;
        if let Some(tenant) = allocator.tenants.get_mut(number) {
            tenant.record.terms.disk = terms.disk;
        }
        allocator.set_cleaning(number, cleaning)?;
        if let Some(asked) = frames {
            allocator.set_contract(number, asked)?;
        }
        allocator.on_pressure(number);
        let changed = self.contracts.persist_changed();
        let recorded = changed.and(self.contracts.persist(number));
        recorded.map_err(|why| Refusal::Unrecorded { number, why })
    }

    /// Gives a tenant another share of the disk's time.
    fn change_disk(
        &mut self,
        number: TenantNumber,
        client: Option<ClientId>,
        former: DiskSpec,
        disk: DiskSpec,
    ) -> Result<(), Refusal> {
        let client = client.ok_or(Refusal::NoDisk)?;
        let owed = self.contracts.frames.stats(number).map_or(0, |v| v.owed);
        // Deadlines that are set count on the former rate, and on how soon a slice comes.
        let is_slower = disk.share() < former.share() || disk.period > former.period;
        if owed > 0 && is_slower {
            return Err(Refusal::Revoking {
                number,
                owed,
                former,
            });
        }
        if disk.share() > former.share() {
            let contracts = &mut self.contracts;
            let (tenants, rates) = (&contracts.frames.tenants, &mut contracts.fault_rates);
            contracts
                .processor_time
                .check(disk, tenants, Some(number), rates)?;
        }
        Ok(self.contracts.disk.usd.change(client, disk.into())?)
    }
}

/// The terms that grow with a change; the others are zero, and no rule refuses them.
fn growth(former: &ContractSpec, terms: ContractSpec) -> ContractSpec {
    let mut grown = terms;
    if terms.frames.x <= former.frames.x {
        grown.frames = FrameSpec { g: 0, x: 0 };
    }
    if terms.disk.share() <= former.disk.share() {
        grown.disk.slice = Duration::ZERO;
    }
    // The swap size never changes.
    ContractSpec { swap: 0, ..grown }
}
