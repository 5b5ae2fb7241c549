//! The fault rates of all tenants: the resource manager of RAPHA (Ko and Yoo, section 4.1) for
//! a machine.
//!
//! Each tree reports its reservation of processor time, if any, when it joins, and receives
//! its number of faults in a period. When a reservation comes or goes, or the measured cost of
//! faults changes, the daemon sends new shares to all.
//!
//! Rule: the report of one tenant moves another's limit only little. The cost of a fault is the
//! median of the tenants' reports, each clamped to an eighth of the configured unit at least and
//! eight times it at most.

use crate::Daemon;
use crate::config::Faults;
use crate::tenant::TenantPhase;
use protocol::{DaemonEvent, FaultGrant, FaultShare, TenantNumber};
use rate::reservations::{ReservationTable, Task, TaskId};
use rate::shared_limits::is_near;
use rate::{Capacity, Nanos, Reservation, Utilization};
use std::collections::BTreeMap;
use std::time::Duration;

/// How far from the configured unit a report is believed.
const BELIEVED: Nanos = 8;

/// A tenant that is on the roster.
struct TenantRate {
    task: TaskId,
    /// As reported: runtime and period.
    reservation: Option<(Duration, Duration)>,
    /// The cost of its faults, as reported; the configured unit until then.
    unit: Nanos,
    /// The share last sent to it.
    told: Option<FaultShare>,
}

/// The tenants on the roster, with their shares.
pub(super) struct FaultRates {
    config: Faults,
    roster: ReservationTable,
    entries: BTreeMap<TenantNumber, TenantRate>,
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

impl FaultRates {
    /// An empty roster.
    pub(super) fn new(config: Faults) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let share = Utilization::new(config.share).unwrap_or_default();
        let whole = share.of_processors(processors);
        Self {
            roster: ReservationTable::new(whole, nanos(config.period.0), nanos(config.unit.0)),
            config,
            entries: BTreeMap::new(),
        }
    }

    /// New figures of the configuration: tenants on the roster stay.
    fn reconfigure(&mut self, config: Faults) {
        let mut new = Self::new(config);
        for (number, entry) in &self.entries {
            let Some(task) = self.roster.task(entry.task) else {
                continue;
            };
            let entry = TenantRate {
                task: new.roster.restore(task),
                reservation: entry.reservation,
                unit: entry.unit,
                told: None,
            };
            new.entries.insert(*number, entry);
        }
        *self = new;
        self.measure();
    }

    /// Puts a tenant on the roster, or refuses it. One that was there before is `known`, and
    /// is not refused: it holds its reservation already.
    fn admit(
        &mut self,
        number: TenantNumber,
        task: Task,
        reservation: Option<(Duration, Duration)>,
        known: bool,
    ) -> Result<(), String> {
        self.leave(number);
        let task = match known {
            true => self.roster.restore(task),
            false => self.roster.admit(task).map_err(|why| why.to_string())?,
        };
        let entry = TenantRate {
            task,
            reservation,
            unit: nanos(self.config.unit.0),
            told: None,
        };
        self.entries.insert(number, entry);
        self.measure();
        Ok(())
    }

    /// A tenant is gone. Whether it was there.
    fn leave(&mut self, number: TenantNumber) -> bool {
        let gone = self.entries.remove(&number);
        gone.is_some_and(|entry| self.roster.remove(entry.task))
    }

    fn report(&mut self, number: TenantNumber, unit: Nanos) {
        let configured = nanos(self.config.unit.0);
        if let Some(entry) = self.entries.get_mut(&number) {
            let least = (configured / BELIEVED).max(1);
            entry.unit = unit.clamp(least, configured.saturating_mul(BELIEVED));
        }
        self.measure();
    }

    fn measure(&mut self) {
        let mut units: Vec<_> = self.entries.values().map(|entry| entry.unit).collect();
        units.sort_unstable();
        if let Some(median) = units.get(units.len() / 2) {
            self.roster.set_fault_unit(*median);
        }
    }

    /// Processors to reserve, and those that are reserved.
    pub(super) fn processors(&self) -> (f64, f64) {
        let in_processors = |capacity: Capacity| capacity.within(1_000_000_000) as f64 / 1e9;
        (
            in_processors(self.roster.total()),
            in_processors(self.roster.pc()),
        )
    }

    /// Faults of all in a period, and the period.
    pub(super) fn all(&self) -> (u64, Duration) {
        (self.roster.fault_limit(), self.config.period.0)
    }

    /// The warning where less is to be shared out now than was promised.
    fn over(&self) -> Option<String> {
        let (reserved, whole) = (self.roster.pc(), self.roster.total());
        self.roster.is_overcommitted().then(|| {
            format!(
                "faults.share is {whole} now, and {reserved} are reserved: reservations stay, and every program's faults \
                 have their floor; nothing more is promised until programs with a reservation end"
            )
        })
    }

    /// What a tenant that is on the roster has.
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
            limit: self.roster.limit_of(task).unwrap_or(0),
            system: u32::try_from(self.roster.fault_limit()).unwrap_or(u32::MAX),
        }
    }

    /// The shares that have changed and were not sent yet.
    fn news(&mut self) -> Vec<(TenantNumber, FaultShare)> {
        let mut news = Vec::new();
        let shares: Vec<_> = (self.entries.iter())
            .map(|(number, entry)| (*number, self.share_of(entry.task)))
            .collect();
        for (number, share) in shares {
            let Some(entry) = self.entries.get_mut(&number) else {
                continue;
            };
            let same = entry.told.is_some_and(|told| {
                told.period == share.period
                    && is_near(share.limit, told.limit)
                    && is_near(share.system, told.system)
            });
            if !same {
                entry.told = Some(share);
                news.push((number, share));
            }
        }
        news
    }
}

impl Daemon {
    /// A tenant reports its reservation and requests its share of the faults.
    pub(super) fn faults(
        &mut self,
        token: u64,
        number: TenantNumber,
        reservation: Option<(Duration, Duration)>,
        known: bool,
    ) {
        let reserved = reservation.map(|(runtime, period)| Reservation::new(runtime, period));
        let pc = match reserved.transpose() {
            Ok(reservation) => reservation.map_or(Capacity::ZERO, |reservation| reservation.pc()),
            Err(why) => return self.refuse(token, why),
        };
        let weight = self.fault_weight(token);
        // Only a tenant that survives a restart of the daemon is known.
        let known = known && self.tenants.get(&number).is_some_and(|t| t.rejoined);
        match self
            .fault_rates
            .admit(number, Task { pc, weight }, reservation, known)
        {
            Err(why) => self.refuse(token, why),
            Ok(()) => self.tell_fault_shares(),
        }
    }

    /// A tenant reports the cost of its faults.
    pub(super) fn fault_unit(&mut self, number: TenantNumber, unit: Nanos) {
        self.fault_rates.report(number, unit);
    }

    /// A tenant has ended: the others get its part.
    pub(super) fn leave_fault_rates(&mut self, number: TenantNumber) {
        if self.fault_rates.leave(number) {
            self.tell_fault_shares();
        }
    }

    /// The configuration was read again.
    pub(super) fn reconfigure_faults(&mut self, config: Faults) {
        if self.fault_rates.config != config {
            self.fault_rates.reconfigure(config);
            self.tell_fault_shares();
            if let Some(over) = self.fault_rates.over() {
                tracing::warn!("{over}");
            }
        }
    }

    /// Sends its share to every tenant whose share has changed.
    pub(super) fn tell_fault_shares(&mut self) {
        for (number, share) in self.fault_rates.news() {
            let there = self.tenants.get(&number);
            if there.is_some_and(|tenancy| tenancy.phase != TenantPhase::Ending) {
                self.say(number, &DaemonEvent::Faults(share));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pc: u64, weight: u32) -> Task {
        Task {
            pc: Capacity(pc),
            weight,
        }
    }

    #[test]
    fn a_reservation_that_comes_is_told_to_all_and_so_is_its_end() {
        let mut rates = FaultRates::new(Faults::default());
        rates.admit(1, task(0, 1), None, false).unwrap();
        rates.admit(2, task(0, 3), None, false).unwrap();
        let first = rates.news();
        assert_eq!(first.len(), 2);
        assert!(rates.news().is_empty());
        let limit = |news: &[(TenantNumber, FaultShare)], of| {
            news.iter()
                .find(|(number, _)| *number == of)
                .unwrap()
                .1
                .limit
        };
        assert!(limit(&first, 2) > 2 * limit(&first, 1));
        rates.admit(3, task(500_000_000, 1), None, false).unwrap();
        let beside = rates.news();
        assert!(limit(&beside, 1) < limit(&first, 1));
        assert_eq!(
            limit(&beside, 3),
            0,
            "its faults are within its reservation"
        );
        assert!(rates.leave(3));
        assert_eq!(limit(&rates.news(), 1), limit(&first, 1));
    }

    #[test]
    fn one_tenant_that_lies_moves_nobody() {
        let mut rates = FaultRates::new(Faults::default());
        (1..=3).for_each(|number| rates.admit(number, task(0, 1), None, false).unwrap());
        let before: Vec<_> = rates.news();
        rates.report(2, 1);
        assert!(rates.news().is_empty());
        rates.report(2, u64::MAX);
        assert!(rates.news().is_empty());
        (1..=3).for_each(|number| rates.report(number, nanos(Faults::default().unit.0) / 2));
        let after = rates.news();
        assert!(after[0].1.limit > before[0].1.limit * 3 / 2);
    }

    #[test]
    fn over_capacity_is_refused_with_the_figures_and_who_was_there_stays() {
        let mut rates = FaultRates::new(Faults::default());
        let whole = rates.roster.total().0;
        rates.admit(1, task(whole / 2, 1), None, false).unwrap();
        let why = rates.admit(2, task(whole / 2, 1), None, false).unwrap_err();
        assert!(why.contains("can be reserved"), "{why}");
        // One that was there before is not refused, though nothing is left for floors.
        rates.admit(2, task(whole / 2, 1), None, true).unwrap();
        assert!(!rates.roster.is_overcommitted());
        rates.admit(3, task(0, 1), None, true).unwrap();
        assert!(rates.roster.is_overcommitted());
    }
}
