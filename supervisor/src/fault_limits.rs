//! The rate of a tree's faults: the requested rate, and the limits that result from it, on the
//! tree's stats page.
//!
//! RAPHA (Ko and Yoo), section 4. `200/10ms` is task.fault_limit and task.fault_period of each
//! thread; `200/10ms,tree=1000` also limits all together. `auto` is the limit of equation (4) beside
//! the reservations that are in force, for all threads of the tree together, and changes with
//! the reservations and with the measured cost of faults. The reservations are the tree's own here; the
//! limits of a tree under a daemon result from the daemon's.
//!
//! Rule: only the supervisor writes the limits; processes read them at each fault.

use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use protocol::FaultShare;
use rate::reservations::{ReservationTable, Task, TaskId};
use rate::shared_limits::is_near;
use rate::{
    Capacity, DEFAULT_PERIOD, FaultLimits, INITIAL_FAULT_UNIT, OverCommitted, Reservation, TimeNs,
    Utilization,
};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use wired::{Time, parse_time};

/// Shortest and longest period: below, most of the work is waking throttled threads; above, a
/// program looks dead while it waits.
const MIN_PERIOD: Duration = Duration::from_millis(1);
const MAX_PERIOD: Duration = Duration::from_secs(10);

/// The most faults in a period that are counted.
const MAX_FAULTS: u32 = rate::thread_counters::MAX_COUNT;

/// Limits of a tree, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRate {
    /// Fixed limits.
    Fixed {
        /// The most faults of each thread, in a period.
        task: u32,
        /// The most faults of all threads together.
        tree: Option<u32>,
        /// The period.
        period: Duration,
    },
    /// As many faults as the reservations leave room for.
    Auto {
        /// The period.
        period: Duration,
    },
}

/// Why a text is not a fault rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Not a rate.
    #[error(
        "`{0}` is not a fault rate: FAULTS/PERIOD[,tree=FAULTS], whole numbers and a period in ms or s, as in 200/10ms or 200/10ms,tree=1000, or auto[/PERIOD] alone"
    )]
    Form(String),
    /// A period out of range.
    #[error(
        "a period of {} cannot be kept: give one of {} to {}",
        Time(*.0), Time(MIN_PERIOD), Time(MAX_PERIOD)
    )]
    Period(Duration),
    /// No faults, or too many.
    #[error(
        "{0} faults in a period cannot be a limit: 1 to {MAX_FAULTS} can; a program that may not fault at all cannot run, \
         and one that needs no limit is run without --fault-rate"
    )]
    Faults(u64),
    /// Fewer faults for all threads than for each.
    #[error(
        "{tree} faults for all threads together are fewer than the {task} for each: give at least as many"
    )]
    Tree {
        /// The limit of each thread.
        task: u32,
        /// The limit of all threads.
        tree: u32,
    },
}

impl FromStr for FaultRate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError::Form(text.to_owned());
        let (rate, option) = match text.split_once(',') {
            None => (text, None),
            Some((rate, option)) => (rate, Some(option)),
        };
        let (faults, period) = match rate.split_once('/') {
            None => (rate, DEFAULT_PERIOD),
            Some((faults, period)) => (faults, parse_time(period).map_err(|_| wrong())?),
        };
        if !(MIN_PERIOD..=MAX_PERIOD).contains(&period) {
            return Err(RateError::Period(period));
        }
        if faults == "auto" {
            return match option {
                None => Ok(Self::Auto { period }),
                Some(_) => Err(wrong()),
            };
        }
        if !rate.contains('/') {
            return Err(wrong());
        }
        let count = |text: &str| -> Result<u32, RateError> {
            let faults: u64 = text.parse().map_err(|_| wrong())?;
            match u32::try_from(faults) {
                Ok(faults @ 1..=MAX_FAULTS) => Ok(faults),
                _ => Err(RateError::Faults(faults)),
            }
        };
        let task = count(faults)?;
        let tree = match option.map(|option| option.split_once('=')) {
            None => None,
            Some(Some(("tree", faults))) => Some(count(faults)?),
            Some(_) => return Err(wrong()),
        };
        match tree {
            Some(tree) if tree < task => Err(RateError::Tree { task, tree }),
            _ => Ok(Self::Fixed { task, tree, period }),
        }
    }
}

impl fmt::Display for FaultRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { period } => write!(f, "auto/{}", Time(*period)),
            Self::Fixed { task, tree, period } => {
                write!(f, "{task}/{}", Time(*period))?;
                tree.map_or(Ok(()), |tree| write!(f, ",tree={tree}"))
            }
        }
    }
}

/// The limits of a tree, kept on its stats page.
pub struct TreeFaultLimits {
    rate: Option<FaultRate>,
    /// The tree's own reservation only, as task `own_task`; not used once there is a daemon's `share`.
    reservations: ReservationTable,
    own_task: TaskId,
    reservation: Option<Reservation>,
    /// The share that the daemon grants, where the tree has a contract: the daemon keeps the
    /// reservations then.
    share: Option<FaultShare>,
    /// The limits in force.
    in_force: FaultLimits,
}

impl TreeFaultLimits {
    /// The limits of a tree that requests a rate, a reservation, or both.
    ///
    /// # Errors
    /// [`OverCommitted`] where the reservation and the least of faults do not fit the processors,
    /// with equation (3)'s figures.
    pub fn admit(
        rate: Option<FaultRate>,
        reservation: Option<Reservation>,
        processors: u32,
    ) -> Result<Self, OverCommitted> {
        let period = match rate {
            Some(FaultRate::Auto { period } | FaultRate::Fixed { period, .. }) => period,
            None => DEFAULT_PERIOD,
        };
        let whole = Utilization::default().of_processors(processors);
        let mut reservations =
            ReservationTable::new(whole, period.as_nanos() as TimeNs, INITIAL_FAULT_UNIT);
        let pc = reservation.map_or(Capacity::ZERO, |reservation| reservation.pc());
        let own_task = reservations.admit(Task { pc, weight: 1 })?;
        Ok(Self {
            rate,
            reservations,
            own_task,
            reservation,
            share: None,
            in_force: FaultLimits::default(),
        })
    }

    /// The tree's reservation.
    pub fn reservation(&self) -> Option<Reservation> {
        self.reservation
    }

    /// Sets the share that the daemon grants from now on.
    pub fn set_share(&mut self, share: FaultShare) {
        self.share = Some(share);
    }

    /// The daemon's share as limits in periods of another length.
    fn share_in(&self, period: Duration) -> Option<FaultLimits> {
        let share = self.share?;
        let part = period.as_secs_f64() / share.period.as_secs_f64();
        let in_period = |limit: u32| match limit {
            0 => 0,
            limit => ((f64::from(limit) * part) as u32).max(1),
        };
        Some(FaultLimits {
            fault_period: period.as_nanos() as TimeNs,
            task_limit: 0,
            tree_limit: in_period(share.limit),
            system_limit: in_period(share.system),
        })
    }

    /// The limits that result from the measured cost of faults now.
    fn current_limits(&mut self, stats_page: &StatsPage) -> FaultLimits {
        let units = stats_page.limits().units();
        let period = self.share.map(|share| match self.rate {
            Some(FaultRate::Fixed { period, .. }) => period,
            _ => share.period,
        });
        if let Some(granted) = period.and_then(|period| self.share_in(period)) {
            units.set_initial(INITIAL_FAULT_UNIT);
            let Some(FaultRate::Fixed { task, tree, .. }) = self.rate else {
                return granted;
            };
            let lower = |requested: u32, granted: u32| match (requested, granted) {
                (0, other) | (other, 0) => other,
                (requested, granted) => requested.min(granted),
            };
            return FaultLimits {
                task_limit: task,
                tree_limit: lower(tree.unwrap_or(0), granted.tree_limit),
                ..granted
            };
        }
        match self.rate {
            None => FaultLimits::default(),
            Some(FaultRate::Fixed { task, tree, period }) => FaultLimits {
                fault_period: period.as_nanos() as TimeNs,
                task_limit: task,
                tree_limit: tree.unwrap_or(0),
                // The sum of the tasks' limits is unknown before the tasks are.
                system_limit: tree.unwrap_or(0),
            },
            Some(FaultRate::Auto { period }) => {
                units.set_initial(INITIAL_FAULT_UNIT);
                self.reservations.set_fault_unit(units.fault_unit());
                let system = u32::try_from(self.reservations.fault_limit()).unwrap_or(u32::MAX);
                FaultLimits {
                    fault_period: period.as_nanos() as TimeNs,
                    task_limit: 0,
                    // No limit where the faults are within the tree's own reservation.
                    tree_limit: self.reservations.limit_of(self.own_task).unwrap_or(0),
                    system_limit: system,
                }
            }
        }
    }

    /// Puts the current limits in force. Returns true if they have changed.
    pub fn apply(&mut self, stats_page: &StatsPage) -> bool {
        let limits = self.current_limits(stats_page);
        let is_unchanged = limits.fault_period == self.in_force.fault_period
            && limits.task_limit == self.in_force.task_limit
            && is_near(limits.tree_limit, self.in_force.tree_limit)
            && is_near(limits.system_limit, self.in_force.system_limit);
        if is_unchanged {
            return false;
        }
        self.in_force = limits;
        publish(stats_page, limits)
    }
}

/// Puts limits in force on a stats page, and wakes the threads that sleep by other limits.
fn publish(stats_page: &StatsPage, limits: FaultLimits) -> bool {
    let shared = stats_page.limits();
    let changed = shared.set(limits, wired::clock::now());
    if changed {
        wired::futex::wake_all(shared.generation());
    }
    changed
}

/// A process has ended: frees the bookings of its faults in later periods.
pub fn on_ended(stats_page: &StatsPage, slot: SlotIndex) {
    let (limits, now) = (stats_page.limits(), wired::clock::now());
    if stats_page.block(slot).throttled_until() > now && limits.end_bookings(now) {
        wired::futex::wake_all(limits.generation());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_as_it_is_printed() {
        for text in ["200/10ms", "200/10ms,tree=1000", "auto/10ms", "1/1ms"] {
            assert_eq!(text.parse::<FaultRate>().unwrap().to_string(), text);
        }
        assert_eq!(
            "auto".parse::<FaultRate>().unwrap(),
            FaultRate::Auto {
                period: DEFAULT_PERIOD
            }
        );
    }

    #[test]
    fn invalid_rates_are_refused_with_the_reason() {
        let error = |text: &str| text.parse::<FaultRate>().unwrap_err().to_string();
        assert!(error("200").contains("FAULTS/PERIOD"));
        assert!(
            error("200/0ms").contains("a period of 0ns cannot be kept: give one of 1ms to 10s")
        );
        assert!(error("0/10ms").contains("0 faults in a period"));
        assert!(error("2000000/10ms").contains("1 to 1048575"));
        assert!(error("200/10ms,tree=100").contains("fewer than the 200 for each"));
        assert!(error("200/10").contains("as in 200/10ms"));
        assert!(error("auto,tree=5").contains("auto[/PERIOD]"));
        assert!(error("fast/10ms").contains("is not a fault rate"));
    }

    #[test]
    fn limits_follow_the_cost_of_faults() {
        let (stats_page, _fd) = StatsPage::create(2).unwrap();
        let mut limits = TreeFaultLimits::admit("auto".parse().ok(), None, 2).unwrap();
        assert!(limits.apply(&stats_page));
        let units = stats_page.limits().units();
        let first = stats_page.limits().snapshot().limits;
        // 1.9 processors at 10 us a fault.
        assert_eq!(first.tree_limit, 1900);
        assert!(!limits.apply(&stats_page));
        for _ in 0..2000 {
            units.sample(rate::FaultClass::Compressed, 5_000);
        }
        assert!(limits.apply(&stats_page));
        let now = stats_page.limits().snapshot().limits;
        assert!((3700..=3800).contains(&now.tree_limit), "{now:?}");
        assert_eq!(now.system_limit, now.tree_limit);
    }

    #[test]
    fn a_tree_with_a_reservation_has_no_tree_limit() {
        let (stats_page, _fd) = StatsPage::create(2).unwrap();
        let ms = Duration::from_millis;
        let reserve = |runtime, period| Reservation::new(ms(runtime), ms(period)).ok();
        let mut limits = TreeFaultLimits::admit("auto".parse().ok(), reserve(5, 10), 1).unwrap();
        limits.apply(&stats_page);
        let setting = stats_page.limits().snapshot().limits;
        assert_eq!((setting.tree_limit, setting.system_limit), (0, 450));
        let refused = TreeFaultLimits::admit(None, reserve(10, 10), 1)
            .err()
            .unwrap();
        assert!(
            refused
                .to_string()
                .contains("cannot reserve 1.000 processors")
        );
    }
}
