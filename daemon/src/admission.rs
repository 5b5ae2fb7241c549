//! Admission: a contract is admitted whole, or nothing of it is.
//!
//! *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7: admission is by the
//! sum of guaranteed frames, and by the sum of s/p of the disk. A swap file is allocated and
//! wiped too; only the newcomer waits for that.

use crate::persisted_tenants::{self, TenantRecord};
use crate::scrub::ScrubDone;
use crate::tenant::{Tenant, TenantFrames, TenantPhase};
use crate::{Daemon, HUNGER, machine, policy};
use disk::usd::IoTarget;
use frames::LimitControl;
use frames::allocator::{Placement, Request, TenantId};
use iochannel::Doorbell;
use protocol::MIN_PROGRAM_FRAMES;
use protocol::contract_spec::{ContractSpec, DiskSpec, FramePlacement, FrameSpec};
use protocol::{DaemonEvent, ResumeToken, TenantNumber};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};
use wired::PAGE;

/// TenantFrames a tenant has to begin with, if its guarantee is as much: enough for a program to
/// start before the daemon handles its first request for more.
const FIRST: u32 = 2048;

fn placement(place: Option<FramePlacement>) -> Placement {
    match place {
        None => Placement::Any,
        Some(FramePlacement::Huge) => Placement::Huge,
        Some(FramePlacement::Node(node)) => Placement::Node(node),
    }
}

impl Daemon {
    /// Handles a request for a contract.
    pub(super) fn join(
        &mut self,
        token: u64,
        ticket: ResumeToken,
        name: &str,
        terms: ContractSpec,
        place: Option<FramePlacement>,
    ) {
        let known = self.tenants.iter().find(|(_, t)| t.ticket == ticket);
        let joined = match known.map(|(number, _)| *number) {
            Some(number) => self.join_again(token, number),
            None => self.try_join(token, ticket, name, terms, place),
        };
        if let Err(why) = joined {
            self.refuse(token, why);
        }
    }

    /// An earlier daemon admitted this tenant and ended before it could reply: the contract
    /// exists, and the reply is sent now.
    fn join_again(&mut self, token: u64, number: TenantNumber) -> Result<(), String> {
        let connection = self.connections.get(&token).ok_or("it has gone")?;
        let (pid, start) = (connection.peer.pid, connection.peer.start());
        let asks = |t: &Tenant| t.record.process() == Some(pid) && Some(t.record.start) == start;
        let waits = |t: &Tenant| matches!(t.phase, TenantPhase::Away(_)) && t.frames.is_some();
        let there = self.tenants.get(&number);
        if !there.is_some_and(|tenancy| waits(tenancy) && asks(tenancy)) {
            return Err("there is a contract by this ticket already".into());
        }
        let hunger = self.new_hunger(number)?;
        self.set_tenant(token, Some(number));
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            (tenancy.connection, tenancy.phase) = (Some(token), TenantPhase::Wiping);
            // The earlier daemon sent it none of a newcomer's messages.
            tenancy.rejoined = false;
            if let Some(frames) = &mut tenancy.frames {
                frames.hunger = hunger;
            }
        }
        self.wipe_file(number);
        Ok(())
    }

    fn try_join(
        &mut self,
        token: u64,
        ticket: ResumeToken,
        name: &str,
        terms: ContractSpec,
        place: Option<FramePlacement>,
    ) -> Result<(), String> {
        let text = |why: &dyn std::fmt::Display| why.to_string();
        let number = self.next_tenant;
        let mut tenancy = self.newcomer(token, ticket, name, terms)?;
        self.check_newcomer(&tenancy, &terms)?;
        let placement = placement(place);
        // TenantFrames that the machine does not have are refused now, not by a fault.
        let first = Request {
            k: terms.frames.g,
            placement,
        };
        machine::topology().check(first).map_err(|why| text(&why))?;
        let hunger = self.new_hunger(number)?;
        self.allocator
            .admit(TenantId(number), terms.frames.into(), self.cleaning(&terms))
            .map_err(|why| text(&why))?;
        let name = persisted_tenants::file_name(&tenancy.ticket);
        let admitted = self
            .usd
            .admit(terms.disk.into())
            .map_err(|why| text(&why))
            .and_then(|client| {
                let made = self.swap.create(name, terms.swap, &tenancy.record.encode());
                made.map(|file| (client, file)).map_err(|why| {
                    self.usd.remove(client);
                    text(&why)
                })
            });
        let (client, file) = match admitted {
            Ok(admitted) => admitted,
            Err(why) => {
                let orders = self.allocator.on_tenant_gone(TenantId(number), self.now());
                self.carry_out(orders);
                return Err(why);
            }
        };
        let pid = self
            .connections
            .get(&token)
            .map(|c| c.peer.pid)
            .ok_or("it has gone")?;
        tenancy.client = Some(client);
        tenancy.file = Some(file);
        tenancy.frames = Some(TenantFrames {
            group: self.groups.take_in(pid, tenancy.record.start, number),
            quota: None,
            placement,
            hunger,
            rounds: VecDeque::new(),
            counting: None,
        });
        self.enter(token, number, tenancy);
        self.wipe_file(number);
        Ok(())
    }

    /// Refuses a tenant whose last contract is not returned yet, or with too few frames.
    fn check_newcomer(&self, tenancy: &Tenant, terms: &ContractSpec) -> Result<(), String> {
        // Its previous cgroup is still being torn down; joining now would be undone.
        let leaves = |t: &Tenant| {
            let group = t.frames.as_ref().map(|frames| &frames.group);
            t.phase == TenantPhase::Leaving && group.is_some_and(|group| group.has(&tenancy.record))
        };
        if self.tenants.values().any(leaves) {
            return Err(
                "the contract it had is still being given back: ask again in a moment".into(),
            );
        }
        // A tree of processes requests more on its own account.
        let least = MIN_PROGRAM_FRAMES;
        if terms.frames.g < least {
            return Err(format!(
                "{} of guaranteed frames are fewer than the {least} frames one program needs: ask for more",
                FrameSpec {
                    g: terms.frames.g,
                    x: terms.frames.g
                }
            ));
        }
        Ok(())
    }

    /// A tenancy for the peer of a connection, if the policy allows its request.
    fn newcomer(
        &mut self,
        token: u64,
        ticket: ResumeToken,
        name: &str,
        terms: ContractSpec,
    ) -> Result<Tenant, String> {
        let connection = self.connections.get(&token).ok_or("it has gone")?;
        let own = rustix::process::getuid().as_raw();
        let held = self.held(connection.asker.uid, None);
        policy::check(&self.config.allow, own, &connection.asker, held, &terms)?;
        terms.disk.check().map_err(|why| why.to_string())?;
        let (pid, uid) = (connection.peer.pid, connection.asker.uid);
        // Guard against pid reuse: a peer that passed its socket on and exited must not be
        // mistaken for the process that now has its pid.
        let start = connection.peer.start().ok_or("the process has ended")?;
        if let Some(why) = self.crowded(uid).or_else(|| self.hasty(uid)) {
            return Err(why);
        }
        Ok(Tenant {
            record: TenantRecord::new(self.next_tenant, name, pid, start, uid, terms),
            ticket,
            phase: TenantPhase::Wiping,
            rejoined: false,
            connection: Some(token),
            frames: None,
            file: None,
            client: None,
            doorbell: Doorbell::new().map_err(|why| why.to_string())?,
            resident: 0,
            channels: BTreeMap::new(),
            next_channel: 0,
        })
    }

    fn enter(&mut self, token: u64, number: TenantNumber, tenancy: Tenant) {
        self.set_tenant(token, Some(number));
        self.tenants.insert(number, tenancy);
        self.next_tenant = self.next_tenant.wrapping_add(1).max(1);
    }

    /// What a newcomer is to ring when it wants frames, listened to.
    fn new_hunger(&self, number: TenantNumber) -> Result<OwnedFd, String> {
        let hunger = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|why| why.to_string())?;
        self.watch_hunger(&hunger, number)?;
        Ok(hunger)
    }

    /// Polls the bell that a tenant rings when it wants frames. It is never read: each ring is
    /// an edge, and a tenant cannot make a read block.
    pub(super) fn watch_hunger(
        &self,
        hunger: &OwnedFd,
        number: TenantNumber,
    ) -> Result<(), String> {
        let data = epoll::EventData::new_u64(HUNGER | u64::from(number));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, hunger, data, flags)
            .map_err(|errno| format!("one more tenant cannot be watched: {errno}"))
    }

    /// Starts wiping a tenant's swap file, if there is anything to wipe.
    pub(super) fn wipe_file(&mut self, number: TenantNumber) {
        let Some(file) = self.tenants.get(&number).and_then(|t| t.file) else {
            return;
        };
        match self.swap.scrub(file) {
            Ok(Some(scrub)) => self.wiper.wipe(number, scrub),
            Ok(None) => self.admit(number),
            Err(why) => self.fail(number, &why.to_string()),
        }
    }

    /// A newcomer's swap file was wiped.
    pub(super) fn wiped(&mut self, number: TenantNumber, wiped: ScrubDone) {
        if self
            .tenants
            .get(&number)
            .is_none_or(|t| t.phase != TenantPhase::Wiping)
        {
            return;
        }
        let result = wiped.result.map_err(|why| why.to_string());
        let result = result.and_then(|()| {
            self.swap
                .complete_scrub(wiped.scrub)
                .map_err(|why| why.to_string())
        });
        match result {
            Ok(()) => self.admit(number),
            Err(why) => self.fail(number, &why),
        }
    }

    /// The contract holds from now on.
    fn admit(&mut self, number: TenantNumber) {
        if let Err(why) = self.back_by_file(number) {
            return self.fail(number, &why);
        }
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        tenancy.phase = TenantPhase::Admitted;
        let terms = tenancy.record.terms;
        let Some(token) = tenancy.connection else {
            return;
        };
        let Some(tenancy) = self.tenants.get(&number) else {
            return;
        };
        let guaranteed = u64::from(terms.frames.g) * PAGE as u64;
        let protect = |frames: &TenantFrames| self.groups.protect(&frames.group, guaranteed);
        let note = tenancy.frames.as_ref().map_or("", protect);
        let said = DaemonEvent::Admitted {
            tenant: number,
            terms,
            note: note.into(),
        };
        let mut fds = vec![tenancy.doorbell.as_fd()];
        fds.extend(tenancy.frames.as_ref().map(|frames| frames.hunger.as_fd()));
        self.say_at(token, &said, &fds);
        tracing::info!("tenant {number} ({}) has {terms}", tenancy.record.name);
    }

    /// Gives the disk a tenant's swap file, as far as it may be given out.
    pub(super) fn back_by_file(&mut self, number: TenantNumber) -> Result<(), String> {
        let Some(tenancy) = self.tenants.get(&number) else {
            return Ok(());
        };
        if let (Some(client), Some(file)) = (tenancy.client, tenancy.file) {
            let extents = self.swap.extents(file).map_err(|why| why.to_string())?;
            let doorbell = tenancy.bell()?;
            self.usd
                .set_target(client, IoTarget::Swap(extents), doorbell);
        }
        Ok(())
    }

    /// A newcomer cannot be had after all.
    fn fail(&mut self, number: TenantNumber, why: &str) {
        if let Some(token) = self.tenants.get(&number).and_then(|t| t.connection) {
            self.refuse(token, why);
            self.set_tenant(token, None);
        }
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.connection = None;
            tenancy.phase = TenantPhase::Ending;
        }
        self.part(number);
    }

    /// A tenant shows the ledger it made.
    pub(super) fn ledger(&mut self, token: u64, number: TenantNumber, fd: Option<&OwnedFd>) {
        let Some(fd) = fd else {
            return self.refuse(token, "the ledger's descriptor did not come along");
        };
        let quota = match LimitControl::attach(fd) {
            Ok(quota) => quota,
            Err(why) => return self.refuse(token, why),
        };
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        let terms = tenancy.record.terms;
        match &mut tenancy.frames {
            Some(frames) if tenancy.phase == TenantPhase::Admitted && frames.quota.is_none() => {
                let quota = frames.quota.insert(quota);
                // The tenant owns the frames granted to it, whatever its ledger says.
                quota.set_limit(0);
            }
            _ => return self.refuse(token, "a ledger is shown once, after admission"),
        }
        self.ask(number, terms.frames.g.min(FIRST));
        self.say_at(token, &DaemonEvent::Started, &[]);
    }

    /// Handles a request for disk time for a file of the client's own.
    pub(super) fn join_file(
        &mut self,
        token: u64,
        name: &str,
        disk: DiskSpec,
        fd: Option<&OwnedFd>,
    ) {
        if let Err(why) = self.try_join_file(token, name, disk, fd) {
            self.refuse(token, why);
        }
    }

    fn try_join_file(
        &mut self,
        token: u64,
        name: &str,
        disk: DiskSpec,
        fd: Option<&OwnedFd>,
    ) -> Result<(), String> {
        let text = |why: &dyn std::fmt::Display| why.to_string();
        let fd = fd.ok_or("the file's descriptor did not come along")?;
        let frames = FrameSpec { g: 0, x: 0 };
        let terms = ContractSpec {
            frames,
            disk,
            swap: 0,
        };
        let number = self.next_tenant;
        // Not used to resume: file clients request anew after a restart.
        let ticket = ResumeToken::draw().map_err(|why| text(&why))?;
        let mut tenancy = self.newcomer(token, ticket, name, terms)?;
        let backing = super::backing::file(fd, &self.swap)?;
        let client = self.usd.admit(disk.into()).map_err(|why| text(&why))?;
        let doorbell = tenancy.bell()?;
        self.usd.set_target(client, backing, doorbell);
        tenancy.client = Some(client);
        self.enter(token, number, tenancy);
        self.admit(number);
        Ok(())
    }
}
