//! What a figure must be, and whether it is.

use crate::statistics::Estimate;
use std::fmt;

/// What a value must be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// Anything: a figure to know, of which nothing was promised.
    #[default]
    Open,
}

impl Bound {
    /// Returns true if a value is as it must be.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Open => true,
        }
    }

    /// In words: whether an estimate is as it must be, and whether its interval leaves doubt.
    pub fn verdict(self, estimate: Estimate) -> &'static str {
        let doubtful = self.holds(estimate.low) != self.holds(estimate.high);
        match (self, self.holds(estimate.median), doubtful) {
            (Self::Open, ..) => "",
            (_, true, false) => "met",
            (_, true, true) => "met, in doubt",
            (_, false, false) => "MISSED",
            (_, false, true) => "missed, in doubt",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::Open => Ok(()),
        }
    }
}
