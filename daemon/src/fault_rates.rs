//! The fault rates of all tenants: the resource manager of RAPHA (Ko and Yoo, section 4.1) for
//! a machine.
//!
//! Each tree reports its reservation of processor time, if any, when it joins, and receives
//! its number of faults in a period. When a reservation comes or goes, or the measured cost of
//! faults changes, the daemon sends new shares to all, at most once in [`SHARE_INTERVAL`].
//!
//! Rule: one person moves the limits of others only little, by however many contracts. The tenants of a
//! person have the person's weight together. The cost of a fault is the median over persons, each of whom counts by
//! the median of their tenants' reports; a report is clamped to an eighth of the configured unit at least and
//! eight times the unit at most.

use crate::config::Faults;
use crate::refusal::Refusal;
use crate::tenants::Tenants;
use protocol::{DaemonEvent, FaultGrant, FaultShare, TenantNumber};
use rate::reservations::{ReservationTable, Task, TaskId};
use rate::shared_limits::is_near;
use rate::{Capacity, Reservation, TimeNs, Utilization};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The factor by which a report may differ from the configured unit, up or down.
const MAX_DEVIATION: TimeNs = 8;

/// Least time between two rounds of changed shares. A tenant's reservation may come and go as fast
/// as the tenant sends messages, and every change is a message to each other tenant.
const SHARE_INTERVAL: Duration = Duration::from_millis(100);

/// A tenant with a share.
struct TenantRate {
    task: TaskId,
    /// The person whose contract it is, and the person's weight by the rules.
    person: u32,
    weight: u32,
    /// The reserved runtime and period, as reported.
    reservation: Option<(Duration, Duration)>,
    /// The cost of its faults, as reported; the configured unit until then.
    unit: TimeNs,
    /// The share last sent to it.
    sent: Option<FaultShare>,
}

/// Parts of a weight, which the tenants of a person divide.
const WEIGHT_PARTS: u64 = 1 << 12;

/// The tenants with a share, and the machine's processor time.
pub(super) struct FaultRates {
    config: Faults,
    table: ReservationTable,
    entries: BTreeMap<TenantNumber, TenantRate>,
    /// True if shares may have changed since they were sent.
    is_changed: bool,
    /// Changed shares are not sent before this.
    not_before: Instant,
}

fn nanos(time: Duration) -> TimeNs {
    TimeNs::try_from(time.as_nanos()).unwrap_or(TimeNs::MAX)
}

/// The processors that a reservation takes: runtime by period.
pub(crate) fn processors_of(reservation: Option<(Duration, Duration)>) -> f64 {
    reservation.map_or(0.0, |(runtime, period)| {
        runtime.as_secs_f64() / period.as_secs_f64().max(f64::MIN_POSITIVE)
    })
}

fn median(mut units: Vec<TimeNs>) -> Option<TimeNs> {
    units.sort_unstable();
    units.get(units.len() / 2).copied()
}

impl FaultRates {
    /// Fault rates without tenants.
    pub(super) fn new(config: Faults) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let share = Utilization::new(config.cpu_share).unwrap_or_default();
        let whole = share.of_processors(processors);
        Self {
            table: ReservationTable::new(
                whole,
                nanos(config.period.0),
                nanos(config.initial_cost.0),
            ),
            config,
            entries: BTreeMap::new(),
            is_changed: false,
            not_before: Instant::now(),
        }
    }

    /// Takes over the settings of a new configuration: tenants keep their shares and reservations.
    fn reconfigure(&mut self, config: Faults) {
        let mut new = Self::new(config);
        for (number, entry) in &self.entries {
            let Some(task) = self.table.task(entry.task) else {
                continue;
            };
            let entry = TenantRate {
                task: new.table.restore(task),
                sent: None,
                ..*entry
            };
            new.entries.insert(*number, entry);
        }
        *self = new;
        self.measure();
    }

    /// Gives a tenant a share, or refuses it. A tenant of an earlier daemon is `known`, and
    /// is not refused: it holds its reservation already.
    fn admit(
        &mut self,
        number: TenantNumber,
        person: u32,
        task: Task,
        reservation: Option<(Duration, Duration)>,
        known: bool,
    ) -> Result<(), Refusal> {
        let weight = task.weight;
        let former = self.entries.get(&number).map(|entry| entry.task);
        let had = former.and_then(|former| self.table.task(former));
        if let Some(former) = former {
            self.table.remove(former);
        }
        let admitted = match known {
            true => Ok(self.table.restore(task)),
            false => self.table.admit(task),
        };
        // A tenant that is refused keeps what it had.
        if let (Err(_), Some(had), Some(entry)) = (&admitted, had, self.entries.get_mut(&number)) {
            entry.task = self.table.restore(had);
        }
        let task = admitted?;
        let entry = TenantRate {
            task,
            person,
            weight,
            reservation,
            unit: nanos(self.config.initial_cost.0),
            sent: None,
        };
        self.entries.insert(number, entry);
        self.divide_weights();
        self.measure();
        Ok(())
    }

    /// Removes a tenant. Returns true if it had a share.
    fn remove(&mut self, number: TenantNumber) -> bool {
        let entry = self.entries.remove(&number);
        let is_removed = entry.is_some_and(|entry| self.table.remove(entry.task));
        self.divide_weights();
        is_removed
    }

    /// Divides each person's weight among the person's tenants that share in the faults.
    fn divide_weights(&mut self) {
        let sharing = || (self.entries.values()).filter(|entry| entry.reservation.is_none());
        let mut tenants = BTreeMap::<u32, u64>::new();
        for entry in sharing() {
            *tenants.entry(entry.person).or_default() += 1;
        }
        for entry in sharing() {
            let part = u64::from(entry.weight) * WEIGHT_PARTS / tenants[&entry.person];
            let weight = u32::try_from(part).unwrap_or(u32::MAX);
            self.table.set_weight(entry.task, weight);
        }
    }

    /// Takes over the cost of faults that a tenant reports.
    pub(crate) fn report(&mut self, number: TenantNumber, unit: TimeNs) {
        let configured = nanos(self.config.initial_cost.0);
        if let Some(entry) = self.entries.get_mut(&number) {
            let least = (configured / MAX_DEVIATION).max(1);
            entry.unit = unit.clamp(least, configured.saturating_mul(MAX_DEVIATION));
        }
        self.measure();
    }

    fn measure(&mut self) {
        let mut units = BTreeMap::<u32, Vec<TimeNs>>::new();
        for entry in self.entries.values() {
            units.entry(entry.person).or_default().push(entry.unit);
        }
        if let Some(median) = median(units.into_values().filter_map(median).collect()) {
            self.table.set_fault_unit(median);
        }
    }

    /// Processors that can be reserved, and those that are reserved.
    pub(super) fn processors(&self) -> (f64, f64) {
        let in_processors = |capacity: Capacity| capacity.within(1_000_000_000) as f64 / 1e9;
        (
            in_processors(self.table.total()),
            in_processors(self.table.pc()),
        )
    }

    /// Faults of all tenants in a period, and the period.
    pub(super) fn all(&self) -> (u64, Duration) {
        (self.table.fault_limit(), self.config.period.0)
    }

    /// The warning if less is to be shared out now than was promised.
    fn overcommit_warning(&self) -> Option<String> {
        let (reserved, whole) = (self.table.pc(), self.table.total());
        self.table.is_overcommitted().then(|| {
            format!(
                "faults.cpu_share is {whole} now, and {reserved} are reserved: reservations stay, and every program's faults \
                 have their floor; nothing more is promised until programs with a reservation end"
            )
        })
    }

    /// The processors that a tenant has reserved.
    pub(crate) fn reserved(&self, number: TenantNumber) -> f64 {
        let entry = self.entries.get(&number);
        processors_of(entry.and_then(|entry| entry.reservation))
    }

    /// The reservation and the share of a tenant.
    pub(super) fn held(&self, number: TenantNumber) -> Option<FaultGrant> {
        let entry = self.entries.get(&number)?;
        Some(FaultGrant {
            reservation: entry.reservation,
            share: self.share_of(entry.task),
            unit: Duration::from_nanos(entry.unit),
        })
    }

    fn share_of(&self, task: TaskId) -> FaultShare {
        FaultShare {
            period: self.config.period.0,
            limit: self.table.limit_of(task).unwrap_or(0),
            system: u32::try_from(self.table.fault_limit()).unwrap_or(u32::MAX),
        }
    }

    /// The shares that have changed and were not sent yet.
    fn changed_shares(&mut self) -> Vec<(TenantNumber, FaultShare)> {
        let mut changed = Vec::new();
        let shares: Vec<_> = (self.entries.iter())
            .map(|(number, entry)| (*number, self.share_of(entry.task)))
            .collect();
        for (number, share) in shares {
            let Some(entry) = self.entries.get_mut(&number) else {
                continue;
            };
            let same = entry.sent.is_some_and(|sent| {
                sent.period == share.period
                    && is_near(share.limit, sent.limit)
                    && is_near(share.system, sent.system)
            });
            if !same {
                entry.sent = Some(share);
                changed.push((number, share));
            }
        }
        changed
    }

    /// Checks that the processor time that comes with a share of the disk fits beside the
    /// reservations; `promised` comes with those of the other tenants.
    pub(crate) fn check_paging(
        &mut self,
        asked: Capacity,
        promised: Capacity,
    ) -> Result<(), Refusal> {
        self.table.set_paging(promised);
        Ok(self.table.check_paging(asked)?)
    }

    /// Handles a tenant's report of its reservation and its request for a share of the faults. A tenant that has the
    /// reservation from an earlier daemon is `known`.
    pub(crate) fn request(
        &mut self,
        tenants: &Tenants,
        number: TenantNumber,
        weight: u32,
        reservation: Option<(Duration, Duration)>,
        known: bool,
        paging: Capacity,
    ) -> Result<(), Refusal> {
        self.table.set_paging(paging);
        self.admit_tenant(tenants, number, weight, reservation, known)?;
        self.reply(tenants, number);
        Ok(())
    }

    /// Restores the reservation of a tenant of an earlier daemon, before the tenant reconnects and requests its share.
    pub(crate) fn restore(
        &mut self,
        tenants: &Tenants,
        number: TenantNumber,
        reservation: (Duration, Duration),
    ) -> Result<(), Refusal> {
        self.admit_tenant(tenants, number, 1, Some(reservation), true)
    }

    fn admit_tenant(
        &mut self,
        tenants: &Tenants,
        number: TenantNumber,
        weight: u32,
        reservation: Option<(Duration, Duration)>,
        known: bool,
    ) -> Result<(), Refusal> {
        let reserved = reservation.map(|(runtime, period)| Reservation::new(runtime, period));
        let reserved = reserved.transpose()?;
        let pc = reserved.map_or(Capacity::ZERO, |reservation| reservation.pc());
        self.is_changed = true;
        let uid = tenants.get(number).map_or(0, |tenant| tenant.record.uid);
        let person = tenants.connections.user_limits.person(uid);
        self.admit(number, person, Task { pc, weight }, reservation, known)
    }

    /// Removes a tenant that has ended: the other tenants get its part.
    pub(crate) fn on_tenant_gone(&mut self, number: TenantNumber) {
        self.is_changed |= self.remove(number);
    }

    /// Takes over the settings of a configuration that was read again.
    pub(crate) fn reload(&mut self, config: Faults) {
        if self.config != config {
            self.reconfigure(config);
            self.is_changed = true;
            if let Some(warning) = self.overcommit_warning() {
                tracing::warn!("{warning}");
            }
        }
    }

    /// Sends a tenant the share that it has requested.
    fn reply(&mut self, tenants: &Tenants, number: TenantNumber) {
        if let Some(task) = self.entries.get(&number).map(|entry| entry.task) {
            let share = self.share_of(task);
            let entry = self.entries.get_mut(&number);
            entry.into_iter().for_each(|entry| entry.sent = Some(share));
            tenants.post(number, &DaemonEvent::Faults(share));
        }
    }

    /// Notes that shares may differ from those sent, since costs were reported or time has passed.
    pub(crate) fn on_measured(&mut self) {
        self.is_changed = true;
    }

    /// Time until changed shares are to be sent, if any may have changed.
    pub(crate) fn timeout(&self, now: Instant) -> Option<Duration> {
        self.is_changed
            .then(|| self.not_before.saturating_duration_since(now))
    }

    /// Sends changed shares to their tenants, when that is due.
    pub(crate) fn send_due(&mut self, tenants: &Tenants) {
        for (number, share) in self.due_shares(Instant::now()) {
            // A tenant that does not read gets the share of a later round, and never an outdated one.
            if !tenants.is_ending(number)
                && !tenants.send(number, &DaemonEvent::Faults(share))
                && let Some(entry) = self.entries.get_mut(&number)
            {
                entry.sent = None;
            }
        }
    }

    fn due_shares(&mut self, now: Instant) -> Vec<(TenantNumber, FaultShare)> {
        if self.timeout(now) != Some(Duration::ZERO) {
            return Vec::new();
        }
        (self.is_changed, self.not_before) = (false, now + SHARE_INTERVAL);
        self.changed_shares()
    }
}

#[cfg(test)]
mod tests;
