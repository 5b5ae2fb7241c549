//! What a client was promised of a disk's time, and why a promise is refused.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7: (p, s, x, l). Rule: the
//! sum of s/p over all clients is at most the capacity, so that every promise can be kept
//! whatever all of them do.

use crate::time::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;

/// (p, s, x, l): what a client may do in every period, and how long it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskContract {
    /// p: how often it is given its slice.
    pub period: Nanos,
    /// s: the disk's time it is sure of in each period. Nothing, for a client that lives on
    /// slack alone.
    pub slice: Nanos,
    /// x: whether it may have time that nobody else wants as well.
    pub extra: bool,
    /// l: how long the disk is kept for it when it has nothing to submit. That time is
    /// charged to it.
    pub laxity: Nanos,
}

/// A part of a disk's time, in billionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Utilization(u64);

/// Why a contract was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// More than there is would be promised.
    #[error(
        "{contract} is {asked} of the disk's time, but {reserved} of at most {capacity} is already \
         promised to {clients} clients: ask for at most {} in that period, or let a client end or \
         give up some of its own first",
        (*capacity - *reserved).in_period(contract.period)
    )]
    Capacity {
        /// The contract refused.
        contract: DiskContract,
        /// Its share.
        asked: Utilization,
        /// Promised to others.
        reserved: Utilization,
        /// What may be promised in all.
        capacity: Utilization,
        /// Those it is promised to.
        clients: usize,
    },
    /// It contradicts itself.
    #[error("{contract} cannot be kept: {why}")]
    Contract {
        /// The contract refused.
        contract: DiskContract,
        /// What is wrong with it, and what would do.
        why: &'static str,
    },
    /// There is no such client, or not any more.
    #[error("no client of that number holds a contract with this disk: admit one first")]
    Gone,
}

impl DiskContract {
    /// The share of the disk's time that this promises.
    pub fn share(&self) -> Utilization {
        Utilization::of(self.slice, self.period)
    }

    /// Whether it can be kept at all, by anybody.
    pub fn check(&self) -> Result<(), AdmissionError> {
        let why = if self.period == Nanos::ZERO {
            "a period is longer than nothing"
        } else if self.slice > self.period {
            "a slice is at most its period"
        } else if self.slice == Nanos::ZERO && !self.extra {
            "without a slice and without slack it would never be served: give it either"
        } else if self.laxity > self.period {
            "a laxity is at most the period"
        } else {
            return Ok(());
        };
        Err(AdmissionError::Contract {
            contract: *self,
            why,
        })
    }
}

impl fmt::Display for DiskContract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.slice, self.period)?;
        if self.extra {
            f.write_str(",extra")?;
        }
        match self.laxity {
            Nanos::ZERO => Ok(()),
            laxity => write!(f, ",laxity={laxity}"),
        }
    }
}

impl Utilization {
    /// All of it.
    pub const WHOLE: Self = Self(1_000_000_000);

    /// That much time of every period.
    pub fn of(slice: Nanos, period: Nanos) -> Self {
        let parts = u128::from(slice.0) * u128::from(Self::WHOLE.0) / u128::from(period.0.max(1));
        Self(u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// That many hundredths.
    pub const fn percent(count: u64) -> Self {
        Self(count.saturating_mul(Self::WHOLE.0 / 100))
    }

    /// What it comes to in a time as long as that.
    pub fn in_period(self, period: Nanos) -> Nanos {
        let time = u128::from(period.0) * u128::from(self.0) / u128::from(Self::WHOLE.0);
        Nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// In billionths.
    pub(super) fn parts(self) -> u64 {
        self.0
    }
}

impl std::ops::Add for Utilization {
    type Output = Self;
    fn add(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }
}

/// What is left of it, at least nothing.
impl std::ops::Sub for Utilization {
    type Output = Self;
    fn sub(self, less: Self) -> Self {
        Self(self.0.saturating_sub(less.0))
    }
}

impl From<Utilization> for f64 {
    fn from(share: Utilization) -> Self {
        share.0 as f64 / Utilization::WHOLE.0 as f64
    }
}

impl TryFrom<f64> for Utilization {
    type Error = String;
    fn try_from(fraction: f64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(format!(
                "{fraction} is not a share of a disk: say 0.9 for nine tenths of it"
            ));
        }
        Ok(Self((fraction * Self::WHOLE.0 as f64).round() as u64))
    }
}

impl fmt::Display for Utilization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", self.0 as f64 / 1e7)
    }
}
