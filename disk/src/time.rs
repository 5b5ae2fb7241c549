//! Time as the scheduler has it: given to every call, never asked for.
//!
//! Rule: nothing in this crate's policies reads a clock, so that they run on a virtual one in
//! tests and on the disk thread's in production.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A length of time in nanoseconds.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// A point in time: nanoseconds since the scheduler's own beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// That many microseconds.
    pub const fn micros(count: u64) -> Self {
        Self(count.saturating_mul(1_000))
    }

    /// That many milliseconds.
    pub const fn millis(count: u64) -> Self {
        Self(count.saturating_mul(1_000_000))
    }

    /// That many seconds.
    pub const fn seconds(count: u64) -> Self {
        Self(count.saturating_mul(1_000_000_000))
    }

    /// For sums that may go below zero.
    pub(crate) fn signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl Time {
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As it can be parsed again.
        wired::Time(Duration::from_nanos(self.0)).fmt(f)
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, more: Self) {
        *self = *self + more;
    }
}

/// What is left of it, at least nothing.
impl Sub for Nanos {
    type Output = Self;
    fn sub(self, less: Self) -> Self {
        Self(self.0.saturating_sub(less.0))
    }
}

impl Add<Nanos> for Time {
    type Output = Self;
    fn add(self, later: Nanos) -> Self {
        Self(self.0.saturating_add(later.0))
    }
}

/// How long after the other it is; nothing if it is before.
impl Sub for Time {
    type Output = Nanos;
    fn sub(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}
