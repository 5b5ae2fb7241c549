//! Recovery: tenants of an earlier daemon reconnect to one that was started again.
//!
//! The swap filesystem names them; they hold the memory of their ledgers and channels
//! and hand it over. The daemon validates it like any untrusted input.
//!
//! Rule: until a tenant is back, or known to have ended, it keeps all that it had.

use crate::persisted_tenants::{self, TenantRecord};
use crate::tenant::{Tenant, TenantFrames, TenantPhase};
use crate::{Daemon, DaemonError};
use disk::swapfs::{FileId, SwapFs};
use frames::LimitControl;
use frames::allocator::{Placement, TenantId};
use host::seqpacket::Received;
use iochannel::{ChannelServer, Doorbell};
use protocol::{ChannelNumber, DaemonEvent, ResumeToken, TenantNumber};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use wired::PAGE;

/// Returns true if a tenant of an earlier daemon may come back.
pub(super) fn is_anybody_awaited(swap: &SwapFs) -> bool {
    let mut records = swap
        .files()
        .iter()
        .filter_map(|file| TenantRecord::decode(file.blob()));
    records.any(|record| record.process().is_some())
}

impl Daemon {
    /// Loads the persisted tenants. Swap files of those that have ended are free again.
    pub(super) fn find_tenants(&mut self) -> Result<(), DaemonError> {
        let files: Vec<_> = (self.swap.files().iter())
            .map(|file| {
                (
                    file.id(),
                    persisted_tenants::ticket(file.name()),
                    TenantRecord::decode(file.blob()),
                )
            })
            .collect();
        for (file, ticket, record) in files {
            let there = record.and_then(|record| record.process().map(|leader| (record, leader)));
            match (ticket, there) {
                (Some(ticket), Some((record, leader))) => {
                    self.remembered(file, ticket, record, leader)?;
                }
                _ => self.swap.release(file)?,
            }
        }
        self.groups
            .sweep(|number| self.tenants.contains_key(&number));
        if !self.tenants.is_empty() {
            let there = self.tenants.len();
            tracing::info!("{there} tenants of an earlier daemon are waited for");
        }
        Ok(())
    }

    fn remembered(
        &mut self,
        file: FileId,
        ticket: ResumeToken,
        record: TenantRecord,
        leader: Pid,
    ) -> Result<(), DaemonError> {
        let number = record.number;
        let terms = record.terms;
        let (tenant, pid) = (format!("tenant {number} ({})", record.name), record.pid);
        let fail = |why: String| DaemonError::Promised {
            tenant: tenant.clone(),
            pid,
            terms: terms.to_string(),
            why,
        };
        let hunger = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(super::call("make an eventfd"))?;
        // It keeps its guarantee and its slice, whether it has come back or not.
        let cleaning = self.cleaning(&terms);
        self.allocator
            .readmit(TenantId(number), terms.frames.into(), 0, cleaning)
            .map_err(|why| fail(why.to_string()))?;
        let client = self
            .usd
            .admit(terms.disk.into())
            .map_err(|why| fail(why.to_string()))?;
        let group = self.groups.take_in(leader, record.start, number);
        let tenancy = Tenant {
            record,
            ticket,
            phase: TenantPhase::Away(Instant::now()),
            rejoined: true,
            connection: None,
            frames: Some(TenantFrames {
                group,
                quota: None,
                // Its processes stay in their control group.
                placement: Placement::Any,
                hunger,
                rounds: VecDeque::new(),
                counting: None,
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
        self.lower_again(number).map_err(fail)
    }

    /// A tenant presents its ticket.
    pub(super) fn rejoin(
        &mut self,
        token: u64,
        ticket: ResumeToken,
        channels: u32,
        message: &Received,
    ) {
        let own = |(number, tenancy): (&TenantNumber, &Tenant)| {
            let waits = matches!(tenancy.phase, TenantPhase::Away(_));
            (tenancy.ticket == ticket && waits).then_some(*number)
        };
        let Some(number) = self.tenants.iter().find_map(own) else {
            return self.refuse(
                token,
                "no tenant with this ticket is waited for: it came back too late, or was here already",
            );
        };
        if let Err(why) = self.try_rejoin(token, number, message) {
            tracing::warn!("tenant {number} is not taken back: {why}");
            self.refuse(token, why);
            return self.kill(number);
        }
        tracing::info!("tenant {number} is back, with {channels} channels");
    }

    fn try_rejoin(
        &mut self,
        token: u64,
        number: TenantNumber,
        message: &Received,
    ) -> Result<(), String> {
        let lack = || "descriptors did not come along: raise `ulimit -n`".to_owned();
        let [doorbell, hunger, ledger, ..] = &message.fds;
        let bell = |fd: &Option<OwnedFd>| {
            let fd = fd.as_ref().ok_or_else(lack)?;
            Doorbell::attach(fd).map_err(|why| why.to_string())
        };
        let doorbell = bell(doorbell)?;
        // Polling any other kind of file would call into the program that serves it.
        let hunger: OwnedFd = bell(hunger)?.into();
        let mut quota = ledger
            .as_ref()
            .map(LimitControl::attach)
            .transpose()
            .map_err(|why| why.to_string())?;
        self.watch_hunger(&hunger, number)?;
        let tenancy = self.tenants.get(&number).ok_or_else(lack)?;
        let terms = tenancy.record.terms;
        let resident = tenancy.frames.as_ref().map_or(0, |f| f.group.resident(0));
        let resident = u32::try_from(resident / PAGE as u64).unwrap_or(u32::MAX);
        let (id, now) = (TenantId(number), self.now());
        let orders = self.allocator.on_tenant_gone(id, now);
        self.carry_out(orders);
        // The frames it claims count as far as its contract and the others' allow, and beyond
        // that as far as the kernel counts them: a tenant that claims too much gains nothing. A
        // tenant whose contract was lowered may not have had all its revocations yet.
        let claimed = quota.as_ref().map_or(0, LimitControl::limit);
        let claimed = claimed.min(resident.max(terms.frames.x));
        let n = claimed.min(resident.max(self.left_for(id)).max(terms.frames.g));
        if let Some(quota) = &mut quota {
            quota.set_limit(n);
        }
        let cleaning = self.cleaning(&terms);
        self.allocator
            .readmit(id, terms.frames.into(), n, cleaning)
            .map_err(|why| why.to_string())?;
        self.set_tenant(token, Some(number));
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.doorbell = doorbell;
            tenancy.connection = Some(token);
            tenancy.phase = TenantPhase::Admitted;
            if let Some(frames) = &mut tenancy.frames {
                (frames.quota, frames.hunger) = (quota, hunger);
            }
        }
        self.back_by_file(number)?;
        let said = DaemonEvent::Admitted {
            tenant: number,
            terms,
            note: String::new(),
        };
        self.say_at(token, &said, &[]);
        self.revoke_excess(number, n, claimed);
        self.lower_again(number)?;
        // Its excess frames are revoked now.
        let orders = self.allocator.tick(self.now());
        self.carry_out(orders);
        self.hungry(number);
        Ok(())
    }

    /// Revokes what a tenant that came back with `n` frames had `claimed` beyond them.
    fn revoke_excess(&mut self, number: TenantNumber, n: u32, claimed: u32) {
        let beyond = self
            .allocator
            .stats(TenantId(number))
            .map_or(0, |view| view.beyond);
        if beyond > 0 {
            let managed = self.allocator.managed();
            tracing::warn!(
                "tenant {number} came back with {n} frames, {beyond} more than fit into the {managed} that are \
                 managed: it is asked for them, in its own disk time"
            );
        }
        if n < claimed {
            let by = self.now() + self.config.memory.revocation.0;
            self.revoke(number, 0, n, by);
        }
    }

    /// A contract that an earlier daemon had announced to lower is lowered after the notice, which
    /// begins anew: how much of it was left is not persisted.
    fn lower_again(&mut self, number: TenantNumber) -> Result<(), String> {
        let later = self.tenants.get(&number).and_then(|t| t.record.later);
        if let Some(later) = later {
            let (id, now) = (TenantId(number), self.now());
            let orders = self.allocator.set_contract(id, later.into(), now);
            self.carry_out(orders.map_err(|why| why.to_string())?);
        }
        Ok(())
    }

    /// TenantFrames that a tenant can own while all others have theirs, or the guarantee that
    /// they may yet come back for.
    fn left_for(&self, id: TenantId) -> u32 {
        let others = self.allocator.all_stats().filter(|view| view.tenant != id);
        let taken: u64 = others
            .map(|view| u64::from((view.n - view.beyond).max(view.contract.g)))
            .sum();
        u64::from(self.allocator.managed()).saturating_sub(taken) as u32
    }

    /// A tenant hands over a channel that an earlier daemon made. Requests submitted there and
    /// not completed are served now.
    pub(super) fn take_channel_back(
        &mut self,
        token: u64,
        number: TenantNumber,
        channel: ChannelNumber,
        message: &Received,
    ) {
        let [Some(memory), Some(bell), ..] = &message.fds else {
            return self.refuse(token, "a channel's descriptors did not come along");
        };
        let server = match ChannelServer::attach(memory, bell) {
            Ok(server) => server,
            Err(why) => {
                tracing::warn!("tenant {number}: invalid channel: {why}");
                return self.kill(number);
            }
        };
        let uid = self.connections.get(&token).map(|c| c.asker.uid);
        let crowded = uid.and_then(|uid| self.crowded(uid));
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        if let Some(why) = crowded.or_else(|| tenancy.full()) {
            return self.refuse(token, why);
        }
        let is_new =
            !tenancy.channels.contains_key(&channel) && tenancy.phase == TenantPhase::Admitted;
        let Some(client) = tenancy.client.filter(|_| is_new) else {
            return;
        };
        let id = self.usd.add_channel(client, server);
        tenancy.channels.insert(channel, id);
    }
}
