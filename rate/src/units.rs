//! The paper's quantities (section 4.1), with their units.
//!
//! | paper | here |
//! |---|---|
//! | fault_unit | [`Nanos`] of processor time, measured: [`crate::unit::Units`] |
//! | task.pc | [`Capacity`] of a [`Reservation`] |
//! | task.fault_period, system.fault_period | [`Nanos`]; one for all: [`crate::limits::Setting`] |
//! | task.fault_count, system.fault_count | [`crate::account::Account`] |
//! | task.fault_limit, system.fault_limit | faults in a period: [`crate::roster::Roster`] |
//! | system.pc | [`crate::roster::Roster::pc`] |
//! | system.fault_pc | [`Capacity`], equation (1) |

use std::fmt;
use std::time::Duration;

/// Nanoseconds: of processor time, of a period, or of a clock ([`crate`] says which).
pub type Nanos = u64;

const WHOLE: u64 = 1_000_000_000;

/// Processor capacity, in billionths of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capacity(pub u64);

impl Capacity {
    /// None.
    pub const ZERO: Self = Self(0);

    /// `runtime` in every `period`, rounded up: who is promised it gets no less.
    ///
    /// # Panics
    /// For a period of zero, which no [`Reservation`] has.
    pub fn of(runtime: Nanos, period: Nanos) -> Self {
        let parts = (u128::from(runtime) * u128::from(WHOLE)).div_ceil(u128::from(period));
        Self(u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// Processor time in so much time, rounded down.
    pub fn within(self, time: Nanos) -> Nanos {
        let time = u128::from(self.0) * u128::from(time) / u128::from(WHOLE);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Both.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left without the other.
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

/// The part of the processors that real-time work and faults may use together, in
/// thousandths: the rest is the machine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

impl Default for Share {
    /// 0.95: what Linux lets real-time tasks have (`sched_rt_runtime_us` of its period).
    fn default() -> Self {
        Self(950)
    }
}

impl Share {
    /// From a number above 0 and up to 1.
    pub fn new(share: f64) -> Option<Self> {
        let thousandths = (share * 1000.0).round();
        (1.0..=1000.0)
            .contains(&thousandths)
            .then_some(Self(thousandths as u16))
    }

    /// That part of so many processors: the 1 of the equations.
    pub fn of_processors(self, processors: u32) -> Capacity {
        Capacity(u64::from(processors) * u64::from(self.0) * (WHOLE / 1000))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

/// Processor time that a program asks to have in every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    runtime: Duration,
    period: Duration,
}

/// What is wrong with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReservation {
    /// A period of zero.
    #[error("a period of zero has no processor time in it: give one of {MIN:?} to {MAX:?}", MIN = Reservation::SHORTEST, MAX = Reservation::LONGEST)]
    NoPeriod,
    /// No time.
    #[error("a runtime of zero reserves nothing: leave the reservation out")]
    NoRuntime,
    /// Less than a scheduler keeps.
    #[error("a runtime of {runtime:?} is too short to be kept: give at least {LEAST:?}, in a longer period if need be", LEAST = Reservation::LEAST)]
    TooShort {
        /// As asked.
        runtime: Duration,
    },
    /// More than there is.
    #[error(
        "a runtime of {runtime:?} is longer than its period of {period:?}: at most the period can be had"
    )]
    Overrun {
        /// As asked.
        runtime: Duration,
        /// As asked.
        period: Duration,
    },
    /// A period that no scheduler keeps.
    #[error("a period of {period:?} cannot be kept: give one of {MIN:?} to {MAX:?}", MIN = Reservation::SHORTEST, MAX = Reservation::LONGEST)]
    Period {
        /// As asked.
        period: Duration,
    },
}

impl Reservation {
    /// Shortest runtime: below it a program hardly gets further than its own switching in and
    /// out, and a tick of the kernel is longer.
    pub const LEAST: Duration = Duration::from_micros(100);
    /// Shortest period: below it switching is most of the work.
    pub const SHORTEST: Duration = Duration::from_millis(1);
    /// Longest period: SCHED_DEADLINE's own limit is 4 s.
    pub const LONGEST: Duration = Duration::from_secs(4);

    /// `runtime` in every `period`.
    ///
    /// # Errors
    /// [`NoReservation`] says what cannot be.
    pub fn new(runtime: Duration, period: Duration) -> Result<Self, NoReservation> {
        if period.is_zero() {
            return Err(NoReservation::NoPeriod);
        }
        if runtime.is_zero() {
            return Err(NoReservation::NoRuntime);
        }
        if runtime < Self::LEAST {
            return Err(NoReservation::TooShort { runtime });
        }
        if runtime > period {
            return Err(NoReservation::Overrun { runtime, period });
        }
        if !(Self::SHORTEST..=Self::LONGEST).contains(&period) {
            return Err(NoReservation::Period { period });
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
            self.runtime.as_nanos() as Nanos,
            self.period.as_nanos() as Nanos,
        )
    }
}
