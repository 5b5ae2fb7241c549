//! Transactions that are in flight for far longer than the device takes.
//!
//! Not in the paper. A transaction on a client's own file may wait for a lock of the file's inode, which that client
//! holds for as long as it likes; a device may lose one for half a minute. If such transactions counted
//! towards the bound, one client's would keep all others from the disk.
//!
//! Rules:
//! - An overdue transaction no longer counts towards the bound. A client that has as much overdue as the bound starts
//!   none until one completes. So a client has at most two bounds in flight, and never starts less than it would if
//!   they counted.
//! - A client that had one lately is suspect: its next ones are overdue much sooner. So one that lets go and
//!   begins again keeps the others from the disk once for [`PATIENCE`], and then for some bounds each time.

use super::Atropos;
use super::client::QueueState;
use crate::time::{Nanos, Time};
use crate::trace::Trace;

/// A transaction is overdue after so many times the bound, or its own cost if that is more: a device four times slower than
/// its model, beyond which it needs another calibration, completes all that is in flight in half of that.
const LATE_BOUNDS: u64 = 8;

/// It is not overdue before that: pauses of a device for its own upkeep are shorter.
const PATIENCE: Nanos = Nanos::millis(50);

/// As [`LATE_BOUNDS`], of a suspect client.
const SUSPECT_BOUNDS: u64 = 2;

/// How long a client stays suspect: waiting for [`PATIENCE`] so often costs the others half a percent.
const SUSPICION: Nanos = Nanos::seconds(10);

impl<T: Trace> Atropos<T> {
    /// When a transaction of client `at` that starts now is overdue.
    pub(super) fn overdue_at(&self, now: Time, at: u32, cost: Nanos) -> Time {
        let scale = self.bound.max(cost);
        let is_suspect = now < self.queues.clients[at].suspect_until;
        let patience = match is_suspect {
            true => Nanos(scale.0.saturating_mul(SUSPECT_BOUNDS)),
            false => Nanos(scale.0.saturating_mul(LATE_BOUNDS)).max(PATIENCE),
        };
        now + patience
    }

    /// Takes the overdue transactions out of what counts towards the bound.
    pub(super) fn discount_overdue(&mut self, now: Time) {
        while let Some((at, cost)) = self.in_flight.discount_overdue(now) {
            let client = &mut self.queues.clients[at];
            client.overdue += cost;
            client.suspect_until = now + SUSPICION;
            if client.is_blocked(self.bound) {
                self.queues.block(at);
            }
        }
    }

    /// An overdue transaction of client `at` has completed.
    pub(super) fn on_overdue_completed(&mut self, now: Time, at: u32, cost: Nanos) {
        let client = &mut self.queues.clients[at];
        client.overdue = client.overdue - cost;
        client.suspect_until = now + SUSPICION;
        if client.place == QueueState::Blocked && !client.is_blocked(self.bound) {
            self.queues.unblock(now, at);
        }
    }
}
