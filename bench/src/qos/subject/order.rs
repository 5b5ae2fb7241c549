//! The orders of a subject.

use crate::prelude::*;

/// An order to a subject.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Writes every page; answers [`super::Done`].
    Fill,
    /// Reads pages at random, one after the other; answers [`super::Done`].
    Closed(Duration),
    /// Reads pages at random when they are due, so many a second; answers [`super::Latency`].
    Open {
        /// For so long.
        during: Duration,
        /// Accesses a second.
        rate: f64,
        /// Makes the times and the pages.
        seed: u64,
    },
    /// Reads pages at random by so many threads, at least one, until [`Order::Rest`].
    Roam(u64),
    /// Changes pages at random by so many threads, at least one, until [`Order::Rest`].
    Churn(u64),
    /// Ends either; answers [`super::Done`].
    Rest,
    /// Answers the number of revocations it received; also while it works.
    Revocations,
    /// Touches so many pages, answers how long that took ([`super::Done`]), and gives them and their
    /// frames up again before it does.
    Claim(u64),
}
