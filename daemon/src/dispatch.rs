//! Dispatch of requests that arrive at the control socket.
//!
//! Input is untrusted: identity comes from SO_PEERCRED, requests are validated against the
//! policy, and an invalid message ends the connection.

use crate::listener::Connection;
use crate::tenant::TenantPhase;
use crate::{Daemon, policy};
use disk::atropos::ClientId;
use disk::usd::ChannelId;
use frames::allocator::TenantId;
use host::seqpacket::Received;
use iochannel::ChannelGeometry;
use protocol::contract_spec::{DiskChange, DiskSpec, FrameSpec};
use protocol::{
    CapacitySummary, ChannelNumber, DaemonEvent, Request, TenantInfo, TenantNumber, decode,
};
use rustix::fd::AsFd;
use std::time::Duration;

impl Daemon {
    pub(super) fn hear(&mut self, token: u64, message: &mut Received) {
        let Some(ask) = decode::<Request>(message.as_slice()) else {
            return self.cut_off(
                token,
                "this is no message of this version: install both from one build",
            );
        };
        let tenant = self.connections.get(&token).and_then(|c| c.tenant);
        tracing::trace!(token, tenant, request = ?ask, "request");
        match (ask, tenant) {
            (
                Request::Join {
                    ticket,
                    name,
                    frames,
                    disk,
                    swap,
                    place,
                },
                None,
            ) => {
                let terms = self.config.default.terms(frames, disk, swap);
                self.join(token, ticket, &name, terms, place);
            }
            (Request::File { name, disk }, None) => {
                self.join_file(token, &name, disk, message.fds[0].as_ref())
            }
            (Request::Rejoin { ticket, channels }, None) => {
                self.rejoin(token, ticket, channels, message)
            }
            (ask @ (Request::List | Request::Capacity | Request::Trace { .. }), _) => {
                self.question(token, &ask)
            }
            (
                Request::Set {
                    tenant,
                    frames,
                    disk,
                },
                _,
            ) => self.set(token, tenant, frames, disk),
            (Request::Ledger, Some(number)) => self.ledger(token, number, message.fds[0].as_ref()),
            (Request::Channel(channel), Some(number)) => {
                self.take_channel_back(token, number, channel, message)
            }
            (Request::Open { depth, cookie }, Some(number)) => {
                self.open(token, number, depth, cookie)
            }
            (Request::Close(channel), Some(number)) => self.close_channel(number, channel),
            (Request::Faults { reservation, known }, Some(number)) => {
                self.faults(token, number, reservation, known)
            }
            (Request::FaultUnit(unit), Some(number)) => self.fault_unit(number, unit),
            (Request::Answered { round }, Some(number)) => self.answered(number, round),
            (Request::Leave, Some(number)) => self.leave(token, number),
            (_, None) => self.refuse(token, "ask for a contract first"),
            (_, Some(_)) => self.refuse(token, "this connection has a contract already"),
        }
    }

    /// Answers a query, within the rate limit of the user.
    fn question(&mut self, token: u64, ask: &Request) {
        let uid = self.connections.get(&token).map(|c| c.asker.uid);
        if let Some(why) = uid.and_then(|uid| self.curious(uid)) {
            return self.refuse(token, why);
        }
        match ask {
            Request::Trace { from } => self.trace(token, *from),
            Request::Capacity => _ = self.say_at(token, &DaemonEvent::Capacity(self.books()), &[]),
            _ => self.list(token),
        }
    }

    fn open(&mut self, token: u64, number: TenantNumber, depth: u16, cookie: u64) {
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        let (Some(client), true) = (tenancy.client, tenancy.phase == TenantPhase::Admitted) else {
            return self.refuse(
                token,
                "the contract has no disk yet, or is being given back",
            );
        };
        let uid = tenancy.record.uid;
        let (full, channel) = (tenancy.full(), tenancy.free_channel());
        if let Some(why) = full.or_else(|| self.crowded(uid)) {
            return self.refuse(token, why);
        }
        let (server, ends) = match iochannel::create(ChannelGeometry::for_depth(depth.into())) {
            Ok(made) => made,
            Err(why) => return self.refuse(token, why),
        };
        let fds = [
            ends.memory.as_fd(),
            ends.bell.as_fd(),
            ends.server_bell.as_fd(),
        ];
        // A channel whose announcement cannot be sent is closed: the client would not know it.
        if !self.say_at(token, &DaemonEvent::Opened { cookie, channel }, &fds) {
            return;
        }
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            let id = self.usd.add_channel(client, server);
            tenancy.channels.insert(channel, id);
        }
    }

    fn close_channel(&mut self, number: TenantNumber, channel: ChannelNumber) {
        let known = self
            .tenants
            .get(&number)
            .and_then(|t| t.channels.get(&channel));
        match known {
            Some(id) => self.usd.close_channel(*id),
            // An earlier daemon's, or never there: nothing of it is under way.
            None => self.say(number, &DaemonEvent::Closed(channel)),
        }
    }

    /// Nothing of a channel is under way any more.
    pub(super) fn channel_closed(&mut self, id: ChannelId) {
        let mut closed = None;
        for (number, tenancy) in &mut self.tenants {
            tenancy.channels.retain(|channel, known| {
                if *known == id {
                    closed = Some((*number, *channel));
                }
                *known != id
            });
        }
        if let Some((number, channel)) = closed {
            self.say(number, &DaemonEvent::Closed(channel));
        }
    }

    /// The weight of a connection's peer, against others, in sharing out faults.
    pub(super) fn fault_weight(&self, token: u64) -> u32 {
        let asker = self.connections.get(&token).map(|c| &c.asker);
        asker.map_or(1, |asker| policy::fault_weight(&self.config.allow, asker))
    }

    fn is_admin(&self, token: u64) -> bool {
        let own = rustix::process::getuid().as_raw();
        let may = |c: &Connection| policy::is_admin(&self.config.allow, own, &c.asker);
        self.connections.get(&token).is_some_and(may)
    }

    /// Lists the contracts of the peer's own user, and for administrators all.
    fn may_see(&self, token: u64, number: TenantNumber) -> bool {
        let uid = self.connections.get(&token).map(|c| c.asker.uid);
        let own = self.tenants.get(&number).map(|t| t.record.uid);
        self.is_admin(token) || (uid.is_some() && uid == own)
    }

    fn list(&mut self, token: u64) {
        let numbers: Vec<_> = self.tenants.keys().copied().collect();
        for number in numbers {
            self.report(number);
            if self.may_see(token, number)
                && let Some(listed) = self.listed(number)
            {
                self.say_at(token, &DaemonEvent::Tenant(listed), &[]);
            }
        }
        self.say_at(token, &DaemonEvent::End, &[]);
    }

    /// What there is to promise: no secret, since a refusal has the same figures.
    fn books(&self) -> CapacitySummary {
        let usage = self.swap.usage();
        let promised = self.tenants.values().filter(|t| t.client.is_some());
        let (processors, reserved) = self.fault_rates.processors();
        CapacitySummary {
            tenants: self.tenants.len() as u32,
            managed: self.allocator.managed(),
            guaranteed: self.allocator.guaranteed(),
            free: self.allocator.free(),
            swap: usage.total,
            swap_free: usage.free,
            capacity: f64::from(self.model.capacity),
            promised: promised.fold(0.0, |sum, t| sum + t.record.terms.disk.share()),
            channels: self.tenants.values().map(|t| t.channels.len() as u32).sum(),
            processors,
            reserved,
            faults: self.fault_rates.all(),
        }
    }

    pub(super) fn listed(&self, number: TenantNumber) -> Option<TenantInfo> {
        let tenancy = self.tenants.get(&number)?;
        let record = &tenancy.record;
        let view = self.allocator.stats(TenantId(number));
        let disk = tenancy
            .client
            .and_then(|client| self.usd.client_stats(client))
            .unwrap_or_default();
        Some(TenantInfo {
            tenant: number,
            name: record.name.clone(),
            pid: record.pid as u32,
            uid: record.uid,
            terms: record.terms,
            later: view.and_then(|view| {
                let (contract, from) = view.later?;
                Some((contract.into(), from.saturating_sub(self.now())))
            }),
            n: view.map_or(0, |view| view.n),
            used: view.map_or(0, |view| view.usage.used),
            resident: tenancy.resident,
            client: tenancy.client.map_or(u32::MAX, |client| client.number()),
            charged: Duration::from_nanos(disk.totals.charged.0),
            lax: Duration::from_nanos(disk.totals.lax.0),
            transactions: disk.totals.transactions,
            bytes: disk.totals.bytes,
            faults: self.fault_rates.held(number),
        })
    }

    /// Everything the scheduler did since event number `from`, as far as it remembers.
    fn trace(&mut self, token: u64, from: u64) {
        if !self.is_admin(token) {
            return self.refuse(
                token,
                "the trace shows all tenants' disk use: reading it needs a rule with admin = true",
            );
        }
        let seen = self.usd.trace().since(from);
        let written = protocol::disk_trace::write(&seen);
        match written {
            Ok(memory) => _ = self.say_at(token, &DaemonEvent::Trace, &[memory.as_fd()]),
            Err(errno) => self.refuse(token, format_args!("no memory for the trace: {errno}")),
        }
    }

    /// Changes a contract that is kept.
    fn set(
        &mut self,
        token: u64,
        number: TenantNumber,
        frames: Option<FrameSpec>,
        disk: Option<DiskChange>,
    ) {
        if !self.may_see(token, number) {
            return self.refuse(
                token,
                format_args!("there is no tenant {number} that this user may change"),
            );
        }
        let uid = self.connections.get(&token).map(|c| c.asker.uid);
        if let Some(why) = uid.and_then(|uid| self.hasty(uid)) {
            return self.refuse(token, why);
        }
        match self.try_set(token, number, frames, disk) {
            Ok(()) => {
                if let Some(listed) = self.listed(number) {
                    self.say_at(token, &DaemonEvent::Tenant(listed), &[]);
                }
                self.say_at(token, &DaemonEvent::End, &[]);
            }
            Err(why) => self.refuse(token, why),
        }
    }

    fn try_set(
        &mut self,
        token: u64,
        number: TenantNumber,
        frames: Option<FrameSpec>,
        disk: Option<DiskChange>,
    ) -> Result<(), String> {
        let tenancy = self
            .tenants
            .get(&number)
            .ok_or_else(|| format!("there is no tenant {number}"))?;
        if tenancy.phase != TenantPhase::Admitted {
            return Err(format!(
                "tenant {number} has not come in, or is ending: try again"
            ));
        }
        let mut terms = tenancy.record.terms;
        let (client, was) = (tenancy.client, terms.disk);
        if let Some(asked) = frames {
            let quota = tenancy.frames.as_ref().and_then(|f| f.quota.as_ref());
            let most = quota
                .ok_or("it has no frames: its contract is for the disk alone")?
                .total();
            if asked.x > most {
                let most = FrameSpec { g: most, x: most };
                return Err(format!(
                    "tenant {number} was started for {most} of frames at most, and cannot have {asked}: start it \
                     again with more"
                ));
            }
        }
        let disk = disk.map(|change| change.of(was));
        terms.frames = frames.unwrap_or(terms.frames);
        terms.disk = disk.unwrap_or(was);
        let own = rustix::process::getuid().as_raw();
        if let Some(connection) = self.connections.get(&token) {
            // The bounds are those of the contract's owner, also where an administrator sets it.
            let held = self.held(tenancy.record.uid, Some(number));
            policy::check(&self.config.allow, own, &connection.asker, held, &terms)?;
        }
        // All checks come before any change.
        if let Some(asked) = frames {
            let may = self
                .allocator
                .check_set_contract(TenantId(number), asked.into());
            may.map_err(|why| why.to_string())?;
        }
        if let Some(disk) = disk {
            self.change_disk(number, client, was, disk)?;
        }
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.record.terms.disk = terms.disk;
        }
        let cleaning = self.cleaning(&terms);
        self.allocator.set_cleaning(TenantId(number), cleaning);
        if let Some(asked) = frames {
            let orders = self
                .allocator
                .set_contract(TenantId(number), asked.into(), self.now());
            self.carry_out(orders.map_err(|why| why.to_string())?);
            self.hungry(number);
        }
        self.remember_frames()?;
        self.remember(number)
    }

    /// Gives a tenant another share of the disk's time.
    fn change_disk(
        &mut self,
        number: TenantNumber,
        client: Option<ClientId>,
        was: DiskSpec,
        disk: DiskSpec,
    ) -> Result<(), String> {
        disk.check().map_err(|why| why.to_string())?;
        let client = client.ok_or("it has no disk yet")?;
        let owed = self.allocator.stats(TenantId(number)).map_or(0, |v| v.owed);
        if owed > 0 && disk.share() < was.share() {
            return Err(format!(
                "tenant {number} is giving back {owed} frames by a deadline that its {was} of the disk lets it \
                 keep: ask again in a moment"
            ));
        }
        self.usd
            .change(client, disk.into())
            .map_err(|why| why.to_string())
    }

    /// Persists a tenant for the next daemon.
    pub(super) fn remember(&mut self, number: TenantNumber) -> Result<(), String> {
        let Some(tenancy) = self.tenants.get(&number) else {
            return Ok(());
        };
        let Some(file) = tenancy.file else {
            return Ok(());
        };
        let record = tenancy.record.encode();
        self.swap
            .set_blob(file, &record)
            .map_err(|why| why.to_string())
    }
}
