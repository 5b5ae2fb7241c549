//! The paper's quantities (section 4.1), with their units.
//!
//! | paper | here |
//! |---|---|
//! | fault_unit | [`TimeNs`] of processor time, measured: [`crate::fault_unit::FaultUnits`] |
//! | task.pc | [`Capacity`] of a [`Reservation`] |
//! | task.fault_period, system.fault_period | [`TimeNs`]; one for all: [`crate::shared_limits::FaultLimits`] |
//! | task.fault_count, system.fault_count | [`crate::window_counter::WindowCounter`] |
//! | task.fault_limit, system.fault_limit | faults in a period: [`crate::reservations::ReservationTable`] |
//! | system.pc | [`crate::reservations::ReservationTable::pc`] |
//! | system.fault_pc | [`Capacity`], equation (1) |

use std::fmt;
use std::time::Duration;

/// Nanoseconds: of processor time, of a period, or of a clock ([`crate`] names which). A plain
/// number, since it goes into atomic words; a length of the disk's time is a type of its own.
pub type TimeNs = u64;

/// The default period: a third of a frame's time at 30 frames a second, so that
/// a burst takes little of one frame.
pub const DEFAULT_PERIOD: Duration = Duration::from_millis(10);

/// The assumed cost of a fault before any was measured: the time of one handler thread for a
/// fault and its part of an eviction, rounded up.
pub const INITIAL_FAULT_UNIT: TimeNs = 10_000;

const WHOLE: u64 = 1_000_000_000;

/// Processor capacity, in billionths of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capacity(pub u64);

impl Capacity {
    /// No capacity.
    pub const ZERO: Self = Self(0);

    /// `runtime` in every `period`, rounded up: a reservation gets no less than was requested.
    ///
    /// # Panics
    /// For a period of zero, which no [`Reservation`] has.
    pub fn of(runtime: TimeNs, period: TimeNs) -> Self {
        let parts = (u128::from(runtime) * u128::from(WHOLE)).div_ceil(u128::from(period));
        Self(u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// Processor time in a length of time, rounded down.
    pub fn within(self, time: TimeNs) -> TimeNs {
        let time = u128::from(self.0) * u128::from(time) / u128::from(WHOLE);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The sum.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Capacity {
    /// In processors, to a thousandth: `0.100 processors`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} processors", self.0 as f64 / WHOLE as f64)
    }
}

/// The part of the processors that real-time work and faults may use together, in thousandths;
/// the machine keeps the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization(u16);

impl Default for Utilization {
    /// 0.95: Linux's own bound for real-time tasks (`sched_rt_runtime_us` of its period).
    fn default() -> Self {
        Self(950)
    }
}

impl Utilization {
    /// From a number above 0 and up to 1; `None` for any other.
    pub fn new(share: f64) -> Option<Self> {
        let thousandths = (share * 1000.0).round();
        (1.0..=1000.0)
            .contains(&thousandths)
            .then_some(Self(thousandths as u16))
    }

    /// This part of `processors`: the 1 of the equations.
    pub fn of_processors(self, processors: u32) -> Capacity {
        Capacity(u64::from(processors) * u64::from(self.0) * (WHOLE / 1000))
    }
}

impl fmt::Display for Utilization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

/// The processor time that a program reserves in every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    runtime: Duration,
    period: Duration,
}

/// Why a reservation is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReservation {
    /// A period of zero.
    #[error("invalid period: zero; expected {MIN:?} to {MAX:?}", MIN = Reservation::MIN_PERIOD, MAX = Reservation::MAX_PERIOD)]
    NoPeriod,
    /// A runtime of zero.
    #[error("invalid runtime: zero, which reserves nothing; leave the reservation out")]
    NoRuntime,
    /// A runtime shorter than a scheduler can guarantee.
    #[error("invalid runtime: {runtime:?} is too short for a scheduler; expected at least {MIN:?}, in a longer period if need be", MIN = Reservation::MIN_RUNTIME)]
    TooShort {
        /// As requested.
        runtime: Duration,
    },
    /// A runtime longer than its period.
    #[error(
        "invalid runtime: {runtime:?} is longer than its period of {period:?}; expected at most the period"
    )]
    Overrun {
        /// As requested.
        runtime: Duration,
        /// As requested.
        period: Duration,
    },
    /// A period that no scheduler can guarantee.
    #[error("invalid period: {period:?}; expected {MIN:?} to {MAX:?}", MIN = Reservation::MIN_PERIOD, MAX = Reservation::MAX_PERIOD)]
    Period {
        /// As requested.
        period: Duration,
    },
}

impl Reservation {
    /// Shortest runtime: a program would spend most of a shorter one on being switched in and out, and
    /// a tick of the kernel is longer.
    pub const MIN_RUNTIME: Duration = Duration::from_micros(100);
    /// Shortest period: below it switching is most of the work.
    pub const MIN_PERIOD: Duration = Duration::from_millis(1);
    /// Longest period: SCHED_DEADLINE's own limit is 4 s.
    pub const MAX_PERIOD: Duration = Duration::from_secs(4);

    /// A reservation of `runtime` in every `period`.
    ///
    /// # Errors
    /// [`InvalidReservation`] names what is out of range.
    pub fn new(runtime: Duration, period: Duration) -> Result<Self, InvalidReservation> {
        if period.is_zero() {
            return Err(InvalidReservation::NoPeriod);
        }
        if runtime.is_zero() {
            return Err(InvalidReservation::NoRuntime);
        }
        if runtime < Self::MIN_RUNTIME {
            return Err(InvalidReservation::TooShort { runtime });
        }
        if runtime > period {
            return Err(InvalidReservation::Overrun { runtime, period });
        }
        if !(Self::MIN_PERIOD..=Self::MAX_PERIOD).contains(&period) {
            return Err(InvalidReservation::Period { period });
        }
        Ok(Self { runtime, period })
    }

    /// Processor time in a period.
    pub fn runtime(&self) -> Duration {
        self.runtime
    }

    /// The period.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// task.pc.
    pub fn pc(&self) -> Capacity {
        Capacity::of(
            self.runtime.as_nanos() as TimeNs,
            self.period.as_nanos() as TimeNs,
        )
    }
}
