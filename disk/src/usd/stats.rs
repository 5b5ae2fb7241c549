//! What clients had of a disk, for whoever counts.

use crate::atropos::{ClientState, Utilization};
use crate::time::Nanos;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Latencies are notifier apart by a hundredth, up to a minute.
const MOST: u64 = 60_000_000_000;

/// What a client had since it was admitted, and how it stands.
#[derive(Clone, Debug, Default)]
pub struct ClientStats {
    /// Charged to its slices: transactions and lax time.
    pub charged: Nanos,
    /// The part of `charged` in which the disk was kept for it.
    pub lax: Nanos,
    /// Transactions in slack time, charged to nobody.
    pub slack: Nanos,
    /// What the model says that all its transactions cost, uncorrected.
    pub modelled: Nanos,
    /// Transactions finished, failed ones too.
    pub transactions: u64,
    /// Requests answered with an error: failed transactions, and what was refused before it
    /// was one.
    pub failed: u64,
    /// Bytes asked for in them.
    pub bytes: u64,
    /// Allocations.
    pub periods: u64,
    /// The longest that the disk was ever kept for it at a stretch.
    pub longest_lax: Nanos,
    /// The deepest that it was ever in debt.
    pub deepest_debt: Nanos,
    /// Left of its slice in nanoseconds; negative: repaid from the next ones.
    pub remaining: i64,
    /// Requests that wait for their turn, of those taken from its channels.
    pub queued: usize,
    /// Requests that the device has.
    pub in_flight: u32,
    /// From when a request was taken out of its channel to when its answer was put there, in
    /// nanoseconds. None before the first.
    pub latency: Option<Histogram<u64>>,
    /// From when a request was taken out of its channel to when it was given to the device, in
    /// nanoseconds. None before the first.
    pub wait: Option<Histogram<u64>>,
}

/// How the disk as a whole does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskStats {
    /// What may be promised.
    pub capacity: Utilization,
    /// What is promised.
    pub reserved: Utilization,
    /// Elapsed by modelled busy time: above 1 the device is slower than its model.
    pub correction: f64,
    /// Transactions that the device has.
    pub in_flight: usize,
    /// What they cost.
    pub cost_in_flight: Nanos,
    /// Processor time of the thread.
    pub processor: Duration,
    /// How often it slept.
    pub sleeps: u64,
}

/// What the thread counts of a client, beside what the scheduler does.
#[derive(Debug)]
pub(super) struct ClientCounters {
    latency: Option<Histogram<u64>>,
    wait: Option<Histogram<u64>>,
    failed: u64,
}

impl ClientCounters {
    pub(super) fn new() -> Self {
        Self {
            // Bounds that are right once are right always; without it nothing else is lost.
            latency: Histogram::new_with_bounds(100, MOST, 2).ok(),
            wait: Histogram::new_with_bounds(100, MOST, 2).ok(),
            failed: 0,
        }
    }

    pub(super) fn waited(&mut self, wait: Nanos) {
        if let Some(histogram) = &mut self.wait {
            histogram.saturating_record(wait.0);
        }
    }

    pub(super) fn answered(&mut self, latency: Nanos, failed: bool) {
        if let Some(histogram) = &mut self.latency {
            histogram.saturating_record(latency.0);
        }
        self.failed += u64::from(failed);
    }

    pub(super) fn with(&self, view: &ClientState) -> ClientStats {
        let totals = view.totals;
        ClientStats {
            charged: totals.charged,
            lax: totals.lax,
            slack: totals.slack,
            modelled: totals.modelled,
            transactions: totals.transactions,
            failed: self.failed,
            bytes: totals.bytes,
            periods: totals.periods,
            longest_lax: totals.longest_lax,
            deepest_debt: totals.deepest_debt,
            remaining: view.remaining,
            queued: view.queued,
            in_flight: view.in_flight,
            latency: self.latency.clone().filter(|latency| !latency.is_empty()),
            wait: self.wait.clone().filter(|wait| !wait.is_empty()),
        }
    }
}
