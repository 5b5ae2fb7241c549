//! A client's contract for disk time, and why admission refuses one.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7: (p, s, x, l). Rule: the sum of
//! s/p over all clients is at most the capacity, so that every contract can be kept whatever the
//! clients do.

use crate::time::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;

/// (p, s, x, l): a client's disk time in every period, and how long the disk is held for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskContract {
    /// p: the period.
    pub period: Nanos,
    /// s: guaranteed disk time in each period; zero for a client that lives on slack alone.
    pub slice: Nanos,
    /// x: true if it may use slack time, too.
    pub extra: bool,
    /// l: how long the disk is held for it when it has nothing to submit. It is charged for that
    /// time.
    pub laxity: Nanos,
}

/// A fraction of a disk's time, in billionths.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "f64", into = "f64")]
pub struct Utilization(u64);

/// Why a contract was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The sum of shares would exceed the capacity.
    #[error(
        "{contract} is {asked} of the disk's time, but {reserved} of at most {capacity} is already \
         promised to {clients} clients: ask for at most {} in that period, or let a client end or \
         give up some of its own first",
        (*capacity - *reserved).in_period(contract.period)
    )]
    Capacity {
        /// The refused contract.
        contract: DiskContract,
        /// Its share.
        asked: Utilization,
        /// Share of the other clients.
        reserved: Utilization,
        /// The largest sum of shares.
        capacity: Utilization,
        /// Number of the other clients.
        clients: usize,
    },
    /// The contract contradicts itself.
    #[error("{contract} cannot be kept: {why}")]
    Contract {
        /// The refused contract.
        contract: DiskContract,
        /// The contradiction and a valid alternative.
        why: &'static str,
    },
    /// The client does not exist.
    #[error("no such client of this disk: admit it first")]
    Gone,
}

impl DiskContract {
    /// A slice in each period, without slack time or laxity.
    pub const fn new(slice: Nanos, period: Nanos) -> Self {
        Self {
            period,
            slice,
            extra: false,
            laxity: Nanos::ZERO,
        }
    }

    /// The same, and slack time.
    pub const fn with_slack(self) -> Self {
        Self {
            extra: true,
            ..self
        }
    }

    /// The share of the disk's time that the contract promises.
    pub fn share(&self) -> Utilization {
        Utilization::of(self.slice, self.period)
    }

    /// Returns an error if the contract could not be kept even on an idle disk.
    pub fn check(&self) -> Result<(), AdmissionError> {
        let why = if self.period == Nanos::ZERO {
            "the period must be longer than 0"
        } else if self.slice > self.period {
            "the slice must be at most the period"
        } else if self.slice == Nanos::ZERO && !self.extra {
            "without a slice and without slack time it is never served: set one of them"
        } else if self.laxity > self.period {
            "the laxity must be at most the period"
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
    /// The whole disk.
    pub const WHOLE: Self = Self(1_000_000_000);

    /// `slice` out of every `period`.
    pub fn of(slice: Nanos, period: Nanos) -> Self {
        let parts = u128::from(slice.0) * u128::from(Self::WHOLE.0) / u128::from(period.0.max(1));
        Self(u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// `count` hundredths.
    pub const fn percent(count: u64) -> Self {
        Self(count.saturating_mul(Self::WHOLE.0 / 100))
    }

    /// The time that the fraction is of `period`.
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

/// Saturates at zero.
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
                "{fraction} is not a share of a disk: expected 0.9 for nine tenths of it"
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
