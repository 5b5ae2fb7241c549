//! Statistics of the disk and its clients.

use crate::atropos::{ClientState, ClientTotals};
use crate::time::Nanos;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Latencies are recorded to a hundredth, up to a minute.
const MAX_LATENCY: u64 = 60_000_000_000;

/// A client's totals since its admission, and its present state.
#[derive(Clone, Debug, Default)]
pub struct ClientStats {
    /// The scheduler's totals.
    pub totals: ClientTotals,
    /// Requests completed with an error: failed transactions and refused requests.
    pub failed: u64,
    /// Left of its slice in nanoseconds; negative: repaid from the next ones.
    pub remaining: i64,
    /// Requests in the window that are not started.
    pub queued: usize,
    /// Requests in flight on the device.
    pub in_flight: u32,
    /// Time from taking a request out of its channel to its completion, in nanoseconds. `None`
    /// before the first.
    pub latency: Option<Histogram<u64>>,
    /// Time from taking a request out of its channel to its start on the device, in nanoseconds.
    /// `None` before the first.
    pub wait: Option<Histogram<u64>>,
}

/// Statistics of the whole disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Transactions in flight on the device.
    pub in_flight: usize,
    /// Processor time of the thread.
    pub processor: Duration,
    /// Number of sleeps.
    pub sleeps: u64,
}

/// The thread's counters of a client, beside the scheduler's.
#[derive(Debug)]
pub(super) struct ClientCounters {
    latency: Option<Histogram<u64>>,
    wait: Option<Histogram<u64>>,
    failed: u64,
}

impl ClientCounters {
    pub(super) fn new() -> Self {
        Self {
            // The bounds are constants and valid; a failure would lose the histogram only.
            latency: Histogram::new_with_bounds(100, MAX_LATENCY, 2).ok(),
            wait: Histogram::new_with_bounds(100, MAX_LATENCY, 2).ok(),
            failed: 0,
        }
    }

    pub(super) fn on_start(&mut self, wait: Nanos) {
        if let Some(histogram) = &mut self.wait {
            histogram.saturating_record(wait.0);
        }
    }

    pub(super) fn on_completion(&mut self, latency: Nanos, failed: bool) {
        if let Some(histogram) = &mut self.latency {
            histogram.saturating_record(latency.0);
        }
        self.failed += u64::from(failed);
    }

    pub(super) fn with(&self, state: &ClientState) -> ClientStats {
        ClientStats {
            totals: state.totals,
            failed: self.failed,
            remaining: state.remaining,
            queued: state.queued,
            in_flight: state.in_flight,
            latency: self.latency.clone().filter(|latency| !latency.is_empty()),
            wait: self.wait.clone().filter(|wait| !wait.is_empty()),
        }
    }
}
