//! What became of clients' requests to brokers.

use crate::report::Requests;
use hdrhistogram::Histogram;
use remote_policy::broker::Refusal;
use std::time::Duration;

/// Figures of a histogram: 0.1 %.
const FIGURES: u8 = 3;

/// Counts of a phase.
pub(crate) struct RequestStats {
    asked: u64,
    granted: u64,
    refused_pages: u64,
    refused_other: u64,
    resent: u64,
    delays_us: Histogram<u64>,
}

impl Default for RequestStats {
    fn default() -> Self {
        Self {
            asked: 0,
            granted: 0,
            refused_pages: 0,
            refused_other: 0,
            resent: 0,
            // Fails only for more figures than five.
            delays_us: Histogram::new(FIGURES).expect("three figures are allowed"),
        }
    }
}

impl RequestStats {
    pub fn on_asked(&mut self) {
        self.asked += 1;
    }

    pub fn on_resent(&mut self) {
        self.resent += 1;
    }

    pub fn on_granted(&mut self, delay: Duration) {
        self.granted += 1;
        // The histogram grows.
        let _ = self.delays_us.record(delay.as_micros() as u64);
    }

    pub fn on_refused(&mut self, why: Refusal) {
        match why {
            Refusal::Pages { .. } => self.refused_pages += 1,
            Refusal::Reallocation(_) | Refusal::Server(_) => self.refused_other += 1,
        }
    }

    /// The figures; `waiting` requests have no answer yet.
    pub fn report(&self, waiting: u64) -> Requests {
        let at = |percent| self.delays_us.value_at_percentile(percent);
        Requests {
            asked: self.asked,
            granted: self.granted,
            refused_no_room: self.refused_pages,
            refused_other: self.refused_other,
            sent_again: self.resent,
            waiting,
            p50_us: at(50.0),
            p99_us: at(99.0),
            max_us: self.delays_us.max(),
            over_second: self.delays_us.count_between(1_000_000, u64::MAX),
        }
    }
}
