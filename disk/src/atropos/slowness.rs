//! How many times longer than modelled a full queue takes.
//!
//! Not [`CostCorrection`](super::CostCorrection): its observation includes transactions that users delay
//! (`users.rs`), and would show such a user a device as slow as the user likes.
//!
//! Rule: only transactions that the device alone delays count, and of those only such as found the queue half full or
//! more: one that has the device to itself takes longer than its share of it. What users hold makes the queue longer
//! and the transaction no slower, so that no user can have the device look slower than it is.

use super::inflight::InFlight;
use crate::time::Nanos;

/// Weight of a transaction.
const SMOOTH: f64 = 1.0 / 16.0;

/// A device further from its model needs another calibration.
const MOST: f64 = 4.0;

/// Elapsed by modelled time of a queue, from 1 to [`MOST`].
#[derive(Debug)]
pub(super) struct Slowness(f64);

impl Default for Slowness {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Slowness {
    /// A transaction that the device alone delays took `elapsed`.
    pub(super) fn observe(&mut self, flight: &InFlight, elapsed: Nanos, bound: Nanos) {
        if flight.queue.0 >= bound.0 / 2 {
            let seen = elapsed.0 as f64 / flight.queue.0.max(1) as f64;
            self.0 += (seen.clamp(1.0, MOST) - self.0) * SMOOTH;
        }
    }

    /// The time that `queue` takes.
    pub(super) fn time_of(&self, queue: Nanos) -> Nanos {
        Nanos((queue.0 as f64 * self.0) as u64)
    }
}
