//! The rate of a tree's faults: the requested rate, and the limits that result from it, on the
//! tree's stats page.
//!
//! RAPHA (Ko and Yoo), section 4. `200/10ms` is task.fault_limit and task.fault_period of each
//! thread, `200/10ms,tree=1000` of all together, too. `auto` is what equation (4) leaves beside
//! the reservations that are in force, for all threads of the tree together, and changes with
//! them and with what faults are measured to cost. Those are the tree's own here; a tree under a
//! daemon is subject to the daemon's.
//!
//! Rule: the limits are written by the supervisor alone; processes read them at each fault.

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
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(10);

/// The most faults in a period that are counted.
const MOST: u32 = rate::thread_counters::MAX_COUNT;

/// Limits of a tree, as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRate {
    /// As given.
    Given {
        /// Of each thread, in a period.
        task: u32,
        /// Of all together.
        tree: Option<u32>,
        /// The period.
        period: Duration,
    },
    /// What is left beside reservations.
    Auto {
        /// The period.
        period: Duration,
    },
}

/// Why a text is no fault rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Not a rate.
    #[error(
        "`{0}` is not a fault rate: FAULTS/PERIOD[,tree=FAULTS], whole numbers and a period in ms or s, as in 200/10ms or 200/10ms,tree=1000, or auto[/PERIOD] alone"
    )]
    Form(String),
    /// A period that cannot be.
    #[error(
        "a period of {} cannot be kept: give one of {} to {}",
        Time(*.0), Time(SHORTEST), Time(LONGEST)
    )]
    Period(Duration),
    /// No faults, or too many.
    #[error(
        "{0} faults in a period cannot be a limit: 1 to {MOST} can; a program that may not fault at all cannot run, \
         and one that needs no limit is run without --fault-rate"
    )]
    Faults(u64),
    /// Less for all than for each.
    #[error(
        "{tree} faults for all threads together are fewer than the {task} for each: give at least as many"
    )]
    Tree {
        /// Of each.
        task: u32,
        /// Of all.
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
        if !(SHORTEST..=LONGEST).contains(&period) {
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
                Ok(faults @ 1..=MOST) => Ok(faults),
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
            _ => Ok(Self::Given { task, tree, period }),
        }
    }
}

impl fmt::Display for FaultRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { period } => write!(f, "auto/{}", Time(*period)),
            Self::Given { task, tree, period } => {
                write!(f, "{task}/{}", Time(*period))?;
                tree.map_or(Ok(()), |tree| write!(f, ",tree={tree}"))
            }
        }
    }
}

/// The limits of a tree, kept on its stats page.
pub struct TreeFaultLimits {
    rate: Option<FaultRate>,
    /// The tree's own reservation alone, as `me`; not used where `given` is there.
    reservations: ReservationTable,
    me: TaskId,
    reservation: Option<Reservation>,
    /// What the daemon allows, where the tree has a contract with one: the daemon keeps the
    /// reservations then.
    given: Option<FaultShare>,
    /// What is in force.
    last: FaultLimits,
}

impl TreeFaultLimits {
    /// Of a tree that asks for a rate, a reservation, or both.
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
            Some(FaultRate::Auto { period } | FaultRate::Given { period, .. }) => period,
            None => DEFAULT_PERIOD,
        };
        let whole = Utilization::default().of_processors(processors);
        let mut reservations =
            ReservationTable::new(whole, period.as_nanos() as TimeNs, INITIAL_FAULT_UNIT);
        let pc = reservation.map_or(Capacity::ZERO, |reservation| reservation.pc());
        let me = reservations.admit(Task { pc, weight: 1 })?;
        Ok(Self {
            rate,
            reservations,
            me,
            reservation,
            given: None,
            last: FaultLimits::default(),
        })
    }

    /// What the tree has reserved.
    pub fn reservation(&self) -> Option<Reservation> {
        self.reservation
    }

    /// What the daemon allows from now on.
    pub fn give(&mut self, share: FaultShare) {
        self.given = Some(share);
    }

    /// What the daemon allows, in periods of another length.
    fn given_in(&self, period: Duration) -> Option<FaultLimits> {
        let share = self.given?;
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

    /// What faults of the tree cost now, and what that makes of the limits.
    fn setting(&mut self, stats_page: &StatsPage) -> FaultLimits {
        let units = stats_page.limits().units();
        let given = self.given.map(|share| match self.rate {
            Some(FaultRate::Given { period, .. }) => period,
            _ => share.period,
        });
        if let Some(given) = given.and_then(|period| self.given_in(period)) {
            units.set_initial(INITIAL_FAULT_UNIT);
            let Some(FaultRate::Given { task, tree, .. }) = self.rate else {
                return given;
            };
            let least = |asked: u32, given: u32| match (asked, given) {
                (0, other) | (other, 0) => other,
                (asked, given) => asked.min(given),
            };
            return FaultLimits {
                task_limit: task,
                tree_limit: least(tree.unwrap_or(0), given.tree_limit),
                ..given
            };
        }
        match self.rate {
            None => FaultLimits::default(),
            Some(FaultRate::Given { task, tree, period }) => FaultLimits {
                fault_period: period.as_nanos() as TimeNs,
                task_limit: task,
                tree_limit: tree.unwrap_or(0),
                // The sum of the tasks' limits is no number before the tasks are known.
                system_limit: tree.unwrap_or(0),
            },
            Some(FaultRate::Auto { period }) => {
                units.set_initial(INITIAL_FAULT_UNIT);
                self.reservations.set_fault_unit(units.fault_unit());
                let system = u32::try_from(self.reservations.fault_limit()).unwrap_or(u32::MAX);
                FaultLimits {
                    fault_period: period.as_nanos() as TimeNs,
                    task_limit: 0,
                    // None where the faults are within the tree's own reservation.
                    tree_limit: self.reservations.limit_of(self.me).unwrap_or(0),
                    system_limit: system,
                }
            }
        }
    }

    /// Puts the limits in force that are right by now. Whether they are others.
    pub fn apply(&mut self, stats_page: &StatsPage) -> bool {
        let setting = self.setting(stats_page);
        let no_news = setting.fault_period == self.last.fault_period
            && setting.task_limit == self.last.task_limit
            && is_near(setting.tree_limit, self.last.tree_limit)
            && is_near(setting.system_limit, self.last.system_limit);
        if no_news {
            return false;
        }
        self.last = setting;
        put(stats_page, setting)
    }
}

/// Puts limits in force on a stats page, and wakes the threads throttled by others.
pub fn put(stats_page: &StatsPage, setting: FaultLimits) -> bool {
    let limits = stats_page.limits();
    let changed = limits.set(setting, wired::clock::now());
    if changed {
        wired::futex::wake_all(limits.generation());
    }
    changed
}

/// A process has ended. Places of its faults in later periods are for the others again.
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
    fn a_rate_that_cannot_be_is_refused_with_the_reason() {
        let said = |text: &str| text.parse::<FaultRate>().unwrap_err().to_string();
        assert!(said("200").contains("FAULTS/PERIOD"));
        assert!(said("200/0ms").contains("a period of 0ns cannot be kept: give one of 1ms to 10s"));
        assert!(said("0/10ms").contains("0 faults in a period"));
        assert!(said("2000000/10ms").contains("1 to 1048575"));
        assert!(said("200/10ms,tree=100").contains("fewer than the 200 for each"));
        assert!(said("200/10").contains("as in 200/10ms"));
        assert!(said("auto,tree=5").contains("auto[/PERIOD]"));
        assert!(said("fast/10ms").contains("is not a fault rate"));
    }

    #[test]
    fn limits_follow_what_faults_cost() {
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
    fn a_reservation_of_the_tree_keeps_it_from_being_limited_by_the_others() {
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
