//! All tenants of the daemon, and how they are reached and killed.

use crate::connections::Connections;
use crate::jobs::{JobResult, JobRunner};
use crate::loop_time::{LoopTime, TurnClock, processor_time};
use crate::policy::ContractTotals;
use crate::refusal::Refusal;
use crate::tenant::{Tenant, TenantPhase};
use crate::user_limits::{UserLimits, is_trusted};
use crate::{CONNECTION, PRESSURE};
use disk::usd::ChannelId;
use protocol::{ChannelNumber, DaemonEvent, TenantNumber};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Descriptors of a tenant beside those of its channels: its bells, a file.
const FDS: usize = 4;

/// How long the memory of a killed tenant takes to be freed at most, except for processes that the kernel keeps.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The tenants, their connections and the jobs that end them.
pub(crate) struct Tenants {
    pub connections: Connections,
    pub jobs: JobRunner,
    loop_time: LoopTime,
    /// The time that the loop has spent since it charged a person.
    pub turn: TurnClock,
    by_number: BTreeMap<TenantNumber, Tenant>,
    by_channel: HashMap<ChannelId, (TenantNumber, ChannelNumber)>,
    next: TenantNumber,
}

impl Tenants {
    /// No tenants yet.
    pub fn new(connections: Connections, jobs: JobRunner) -> Self {
        Self {
            connections,
            jobs,
            loop_time: LoopTime::default(),
            turn: TurnClock::default(),
            by_number: BTreeMap::new(),
            by_channel: HashMap::new(),
            next: 1,
        }
    }

    /// A tenant.
    pub fn get(&self, number: TenantNumber) -> Option<&Tenant> {
        self.by_number.get(&number)
    }

    /// A tenant, mutably.
    pub fn get_mut(&mut self, number: TenantNumber) -> Option<&mut Tenant> {
        self.by_number.get_mut(&number)
    }

    /// All tenants.
    pub fn iter(&self) -> impl Iterator<Item = (TenantNumber, &Tenant)> {
        self.by_number.iter().map(|(number, t)| (*number, t))
    }

    /// All tenants, mutably.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (TenantNumber, &mut Tenant)> {
        self.by_number.iter_mut().map(|(number, t)| (*number, t))
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<TenantNumber> {
        self.by_number.keys().copied().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// The number of the next tenant.
    pub fn next_number(&self) -> TenantNumber {
        self.next
    }

    /// Adds a tenant. Its connection is served with tenants from now on.
    pub fn insert(&mut self, number: TenantNumber, tenant: Tenant) {
        if let Some(token) = tenant.connection {
            self.connections.set_tenant(token, Some(number));
        }
        self.next = self.next.max(number.wrapping_add(1)).max(1);
        self.by_number.insert(number, tenant);
    }

    /// Removes a tenant.
    pub fn remove(&mut self, number: TenantNumber) -> Option<Tenant> {
        let tenant = self.by_number.remove(&number)?;
        for id in tenant.channels.values() {
            self.by_channel.remove(id);
        }
        // Its processes have a descriptor of the same eventfd, which would be polled for as long as they keep that.
        if let Some(frames) = &tenant.frames {
            self.connections.unwatch(&frames.pressure_bell);
        }
        Some(tenant)
    }

    /// Adds a tenant's new channel.
    pub fn add_channel(&mut self, number: TenantNumber, channel: ChannelNumber, id: ChannelId) {
        if let Some(tenant) = self.by_number.get_mut(&number) {
            tenant.channels.insert(channel, id);
            self.by_channel.insert(id, (number, channel));
        }
    }

    /// Removes a closed channel. Returns its tenant and its number there, if the tenant is still there.
    pub fn remove_channel(&mut self, id: ChannelId) -> Option<(TenantNumber, ChannelNumber)> {
        let (number, channel) = self.by_channel.remove(&id)?;
        self.by_number.get_mut(&number)?.channels.remove(&channel);
        Some((number, channel))
    }

    /// The tenant of a channel, as the disk knows it.
    pub fn owner_of(&self, id: ChannelId) -> Option<TenantNumber> {
        self.by_channel.get(&id).map(|(number, _)| *number)
    }

    /// Sends an event to a tenant, or keeps it until the tenant reads.
    pub fn post(&self, number: TenantNumber, event: &DaemonEvent) {
        if let Some(token) = self.get(number).and_then(|tenant| tenant.connection) {
            self.connections.post(token, event);
        }
    }

    /// Sends an event to a tenant, if it is connected. Returns true if the event was queued: a tenant that
    /// does not read loses the event, and the daemon does not block.
    pub fn send(&self, number: TenantNumber, event: &DaemonEvent) -> bool {
        let token = self.get(number).and_then(|tenant| tenant.connection);
        token.is_some_and(|token| self.connections.send(token, event, &[]))
    }

    /// Polls the bell that a tenant rings at its limit of frames. The bell is never read: each ring
    /// is an edge, and a tenant cannot make a read block.
    pub fn watch_pressure(&self, bell: &OwnedFd, number: TenantNumber) -> Result<(), Refusal> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        self.connections
            .watch(bell, PRESSURE | u64::from(number), flags)
            .map_err(Refusal::NoWatch)
    }

    /// The bell that a new tenant rings at its limit of frames, polled.
    pub fn new_pressure_bell(&self, number: TenantNumber) -> Result<OwnedFd, Refusal> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.watch_pressure(&bell, number)?;
        Ok(bell)
    }

    /// Charges a tenant's person for the time since `begin`, in which the loop served the tenant's
    /// connection or bell, and for the loop's other work since it charged a person last. A person that is over its part is
    /// not polled for a while.
    pub fn charge(&mut self, token: u64, begin: Instant) {
        let took = self.turn.lap(begin.elapsed(), processor_time());
        let uid = match token & !0xffff_ffff {
            CONNECTION => self.connections.tenant_uid(token),
            PRESSURE => self.get(token as TenantNumber).map(|t| t.record.uid),
            _ => None,
        };
        let Some(uid) = uid.filter(|uid| !is_trusted(*uid)) else {
            return;
        };
        let (person, now) = (self.connections.user_limits.person(uid), Instant::now());
        if self.loop_time.charge(person, token, took, now) {
            self.poll(token, false);
        }
    }

    /// The person of a tenant, whose time of the loop is limited; `None` for a trusted user.
    fn limited_person(&self, number: TenantNumber) -> Option<u32> {
        let uid = self.get(number)?.record.uid;
        (!is_trusted(uid)).then(|| self.connections.user_limits.person(uid))
    }

    /// Returns true if a tenant's person has used its part of the loop's time.
    pub fn is_over_time(&self, number: TenantNumber) -> bool {
        let person = self.limited_person(number);
        person.is_some_and(|person| self.loop_time.is_over(person, Instant::now()))
    }

    /// Charges a tenant's person for work since `begin`.
    pub fn charge_work(&mut self, number: TenantNumber, begin: Instant) {
        self.turn.skip(processor_time());
        if let Some(person) = self.limited_person(number) {
            let now = Instant::now();
            self.loop_time.charge_work(person, now - begin, now);
        }
    }

    /// Polls suspended descriptors again that are due.
    pub fn resume(&mut self) {
        for token in self.loop_time.take_due(Instant::now()) {
            self.poll(token, true);
        }
    }

    /// Time until a suspended descriptor is due.
    pub fn timeout(&self) -> Option<Duration> {
        self.loop_time.timeout(Instant::now())
    }

    fn poll(&mut self, token: u64, on: bool) {
        if token & !0xffff_ffff == CONNECTION {
            return self.connections.set_suspended(token, !on);
        }
        let tenant = self.get(token as TenantNumber);
        if let Some(frames) = tenant.and_then(|tenant| tenant.frames.as_ref()) {
            let flags = match on {
                true => epoll::EventFlags::IN | epoll::EventFlags::ET,
                false => epoll::EventFlags::ET,
            };
            self.connections.repoll(&frames.pressure_bell, token, flags);
        }
    }

    /// Accepts connections.
    pub fn accept(&mut self) {
        let tenants = &self.by_number;
        self.connections.accept(
            |limits, person| fds_of(tenants, limits, person),
            |peer| tenants.values().any(|tenant| tenant.awaits(peer)),
        );
    }

    /// The reason if a user may have no more connections, contracts or channels.
    pub fn over_fd_quota(&self, uid: u32) -> Option<Refusal> {
        let limits = &self.connections.user_limits;
        let held = fds_of(&self.by_number, limits, limits.person(uid));
        self.connections.over_fd_quota(uid, held)
    }

    /// The tenants of a user's person.
    pub fn numbers_of(&self, uid: u32) -> impl Iterator<Item = TenantNumber> {
        self.of_person(uid).map(|(number, _)| number)
    }

    /// The sum of the contracts of a user's person, without that of `but`.
    pub fn contract_totals(&self, uid: u32, but: Option<TenantNumber>) -> ContractTotals {
        self.of_person(uid)
            .filter(|(number, _)| Some(*number) != but)
            .fold(ContractTotals::default(), |held, (_, tenant)| {
                held.with(&tenant.record.terms)
            })
    }

    fn of_person(&self, uid: u32) -> impl Iterator<Item = (TenantNumber, &Tenant)> {
        let limits = &self.connections.user_limits;
        let person = limits.person(uid);
        self.iter()
            .filter(move |(_, tenant)| limits.person(tenant.record.uid) == person)
    }

    /// Returns true if a tenant is being killed, or removed.
    pub fn is_ending(&self, number: TenantNumber) -> bool {
        self.get(number)
            .is_none_or(|tenant| tenant.phase == TenantPhase::Ending)
    }

    /// Returns true if the resources of any tenant are being released.
    pub fn is_any_ending(&self) -> bool {
        let mut phases = self.by_number.values().map(|tenant| &tenant.phase);
        phases.any(|phase| matches!(phase, TenantPhase::Ending | TenantPhase::Leaving))
    }

    /// Kills a tenant's processes on a job thread: [`JobResult::MemoryFreed`] and
    /// [`JobResult::Killed`] follow. A tenant that has released its frames is not killed.
    pub fn kill(&mut self, number: TenantNumber) {
        let Some(tenant) = self.by_number.get_mut(&number) else {
            return;
        };
        if matches!(tenant.phase, TenantPhase::Ending | TenantPhase::Leaving) {
            return;
        }
        tenant.phase = TenantPhase::Ending;
        let Some(group) = tenant.frames.as_ref().map(|frames| frames.group.clone()) else {
            return self.jobs.done(JobResult::Killed(number));
        };
        self.jobs.start(move || {
            group.kill_and_await_memory(KILL_TIMEOUT);
            JobResult::MemoryFreed(number)
        });
    }

    /// Awaits the end of a killed tenant's processes, whose memory is freed, on a job thread.
    pub fn await_end(&mut self, number: TenantNumber) {
        let frames = self.get(number).and_then(|tenant| tenant.frames.as_ref());
        let Some(group) = frames.map(|frames| frames.group.clone()) else {
            return self.jobs.done(JobResult::Killed(number));
        };
        self.jobs.start(move || {
            group.kill_and_await_exit(KILL_TIMEOUT);
            JobResult::Killed(number)
        });
    }
}

/// Descriptors that the contracts of a person take.
fn fds_of(tenants: &BTreeMap<TenantNumber, Tenant>, limits: &UserLimits, person: u32) -> usize {
    let own = tenants
        .values()
        .filter(|tenant| limits.person(tenant.record.uid) == person);
    own.map(|tenant| FDS + tenant.channels.len()).sum()
}
