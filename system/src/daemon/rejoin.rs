//! Coming back: tenants that were here before the daemon was started again.
//!
//! The swap filesystem says who they are; they hold the memory of their ledgers and channels
//! and hand it over. What they hand over is checked like anything else that strangers send.
//!
//! Rule: until a tenant is back, or known to have ended, what it had stays its.

use super::record::{self, Record};
use super::tenancy::{Channel, Frames, Phase, Tenancy};
use super::{Daemon, DaemonError};
use crate::control::{ChannelNumber, Say, TenantNumber, Ticket};
use crate::socket::Received;
use disk::swapfs::{FileId, SwapFs};
use frames::Quota;
use frames::allocator::{Kind, TenantId};
use iochannel::{Doorbell, Server};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Whether a tenant of an earlier daemon may come back.
pub(super) fn is_anybody_awaited(swap: &SwapFs) -> bool {
    let mut records = swap
        .files()
        .iter()
        .filter_map(|file| Record::decode(file.blob()));
    records.any(|record| record.process().is_some())
}

impl Daemon {
    /// Finds the tenants there were. Swap files of those that have ended are free again.
    pub(super) fn find_tenants(&mut self) -> Result<(), DaemonError> {
        let files: Vec<_> = (self.swap.files().iter())
            .map(|file| {
                (
                    file.id(),
                    record::ticket(file.name()),
                    Record::decode(file.blob()),
                )
            })
            .collect();
        for (file, ticket, record) in files {
            match (ticket, record) {
                (Some(ticket), Some(record)) if record.process().is_some() => {
                    self.remembered(file, ticket, record)?;
                }
                _ => self.swap.release(file)?,
            }
        }
        self.groups
            .sweep(|number| self.tenants.contains_key(&number));
        if !self.tenants.is_empty() {
            let there = self.tenants.len();
            self.log(format_args!(
                "{there} tenants of an earlier daemon are waited for"
            ));
        }
        Ok(())
    }

    fn remembered(
        &mut self,
        file: FileId,
        ticket: Ticket,
        record: Record,
    ) -> Result<(), DaemonError> {
        let number = record.number;
        let Some(leader) = record.process() else {
            return Ok(());
        };
        let fail = |why: String| DaemonError::Disk(why);
        let terms = record.terms;
        let hunger = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(super::call("make an eventfd"))?;
        // Its guarantee and its slice stay its, whether it has come back or not.
        let cleaning = self.cleaning(&terms);
        self.allocator
            .readmit(TenantId(number), terms.frames.into(), 0, cleaning)
            .map_err(|why| fail(why.to_string()))?;
        let client = self
            .usd
            .admit(terms.disk.into())
            .map_err(|why| fail(why.to_string()))?;
        let tenancy = Tenancy {
            record,
            ticket,
            phase: Phase::Away(Instant::now()),
            connection: None,
            frames: Some(Frames {
                group: self.groups.take_in(leader, number),
                quota: None,
                // Its processes keep the place they have.
                kind: Kind::Any,
                hunger,
                rounds: VecDeque::new(),
            }),
            file: Some(file),
            client: Some(client),
            doorbell: Doorbell::new().map_err(|why| fail(why.to_string()))?,
            resident: 0,
            channels: BTreeMap::new(),
            next_channel: 0,
        };
        self.next_tenant = self.next_tenant.max(number.wrapping_add(1));
        self.tenants.insert(number, tenancy);
        Ok(())
    }

    /// A tenant shows its ticket.
    pub(super) fn rejoin(
        &mut self,
        token: u64,
        ticket: Ticket,
        channels: u32,
        mut message: Received,
    ) {
        let own = |(number, tenancy): (&TenantNumber, &Tenancy)| {
            let waits = matches!(tenancy.phase, Phase::Away(_));
            (tenancy.ticket == ticket && waits).then_some(*number)
        };
        let Some(number) = self.tenants.iter().find_map(own) else {
            return self.refuse(
                token,
                "no tenant with this ticket is waited for: it came back too late, or was here already",
            );
        };
        let [doorbell, hunger, ledger, ..] = &mut message.fds;
        let fds = (doorbell.take(), hunger.take(), ledger.take());
        if let Err(why) = self.try_rejoin(token, number, fds) {
            self.log(format_args!("tenant {number} is not taken back: {why}"));
            self.refuse(token, why);
            return self.kill(number);
        }
        self.log(format_args!(
            "tenant {number} is back, with {channels} channels"
        ));
    }

    fn try_rejoin(
        &mut self,
        token: u64,
        number: TenantNumber,
        (doorbell, hunger, ledger): (Option<OwnedFd>, Option<OwnedFd>, Option<OwnedFd>),
    ) -> Result<(), String> {
        let lack = || "descriptors did not come along: raise `ulimit -n`".to_owned();
        let (doorbell, hunger) = (doorbell.ok_or_else(lack)?, hunger.ok_or_else(lack)?);
        let doorbell = Doorbell::attach(doorbell).map_err(|why| why.to_string())?;
        let quota = ledger
            .map(|fd| Quota::attach(&fd))
            .transpose()
            .map_err(|why| why.to_string())?;
        self.watch_hunger(&hunger, number)?;
        let tenancy = self.tenants.get(&number).ok_or_else(lack)?;
        let (terms, ticket) = (tenancy.record.terms, tenancy.ticket);
        // What it says it owns counts, as far as its contract and the others' allow.
        let n = quota.as_ref().map_or(0, Quota::limit);
        let (id, now) = (TenantId(number), self.now());
        let orders = self.allocator.gone(id, now);
        self.carry_out(orders);
        let cleaning = self.cleaning(&terms);
        self.allocator
            .readmit(id, terms.frames.into(), n, cleaning)
            .map_err(|why| why.to_string())?;
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.tenant = Some(number);
        }
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.doorbell = doorbell;
            tenancy.connection = Some(token);
            tenancy.phase = Phase::Admitted;
            if let Some(frames) = &mut tenancy.frames {
                (frames.quota, frames.hunger) = (quota, hunger);
            }
        }
        self.back_by_file(number)?;
        let said = Say::Admitted {
            tenant: number,
            ticket,
            terms,
            note: String::new(),
        };
        self.say_at(token, &said, &[]);
        self.hungry(number);
        Ok(())
    }

    /// A tenant hands over a channel that an earlier daemon made. What was submitted there and
    /// not answered is done now.
    pub(super) fn take_channel_back(
        &mut self,
        token: u64,
        number: TenantNumber,
        channel: ChannelNumber,
        mut message: Received,
    ) {
        let [memory, bell, ..] = &mut message.fds;
        let (Some(memory), Some(bell)) = (memory.take(), bell.take()) else {
            return self.refuse(token, "a channel's descriptors did not come along");
        };
        let server = match Server::attach(memory, bell) {
            Ok(server) => server,
            Err(why) => {
                self.log(format_args!(
                    "tenant {number} hands over a channel that is none: {why}"
                ));
                return self.kill(number);
            }
        };
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        let Some(client) = tenancy
            .client
            .filter(|_| !tenancy.channels.contains_key(&channel))
        else {
            return;
        };
        let id = self.usd.add_channel(client, server);
        tenancy.channels.insert(channel, Channel { id });
        tenancy.next_channel = tenancy.next_channel.max(channel.wrapping_add(1));
    }
}
