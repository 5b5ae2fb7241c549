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
//! - A transaction that its user can delay is overdue as soon as the user has had its patience (`users.rs`).

use super::Atropos;
use super::client::QueueState;
use super::inflight::InFlight;
use super::users::PROMPT_BOUNDS;
use crate::time::{Nanos, Time};
use crate::trace::Trace;

/// A transaction is overdue after so many times the bound, or its own cost if that is more: a device four times slower than
/// its model, beyond which it needs another calibration, completes all that is in flight in half of that.
const LATE_BOUNDS: u64 = 8;

/// It is not overdue before that: pauses of a device for its own upkeep are shorter.
const PATIENCE: Nanos = Nanos::millis(50);

impl<T: Trace> Atropos<T> {
    fn bounds(&self, count: u64, cost: Nanos) -> Nanos {
        Nanos(self.bound.max(cost).0.saturating_mul(count))
    }

    /// The longest that a transaction takes which nothing but the device delays.
    fn prompt(&self, cost: Nanos) -> Nanos {
        self.slowness.time_of(self.bounds(PROMPT_BOUNDS, cost))
    }

    /// When a transaction of client `at` that starts now is overdue.
    pub(super) fn overdue_at(&self, now: Time, at: u32, cost: Nanos) -> Time {
        let Some(user) = self.queues.clients[at].user else {
            return now + self.bounds(LATE_BOUNDS, cost).max(PATIENCE);
        };
        let late = self.bounds(LATE_BOUNDS, Nanos::ZERO).max(PATIENCE);
        let whole = late - self.bounds(PROMPT_BOUNDS, Nanos::ZERO);
        now + self.prompt(cost) + self.users.patience(now, user, whole)
    }

    /// Takes the overdue transactions out of what counts towards the bound.
    pub(super) fn discount_overdue(&mut self, now: Time) {
        while let Some(flight) = self.in_flight.discount_overdue(now) {
            self.note_lateness(now, &flight);
            // A device that does not work at this one is not saturated by it.
            self.queues.correction.unsaturated();
            let client = &mut self.queues.clients[flight.client];
            client.overdue += flight.job.cost;
            self.block_if_due(flight.client);
        }
    }

    /// Counts for how long a transaction that counted towards the bound was late, by its user.
    fn note_lateness(&mut self, now: Time, flight: &InFlight) {
        if let Some(user) = self.queues.clients[flight.client].user {
            let prompt = self.prompt(flight.job.cost);
            self.users.on_late(now, user, flight.started + prompt);
        }
    }

    /// A transaction has completed: counts what it delayed, and unblocks clients.
    pub(super) fn note_delay(&mut self, now: Time, elapsed: Nanos, flight: &InFlight) {
        let client = &mut self.queues.clients[flight.client];
        match flight.is_overdue {
            true => client.overdue = client.overdue - flight.job.cost,
            false => self.note_lateness(now, flight),
        }
        if let Some(user) = self.queues.clients[flight.client].user {
            self.users.on_complete(user);
        } else if !flight.is_overdue {
            self.slowness.observe(flight, elapsed, self.bound);
        }
        self.unblock(now);
    }

    fn is_blocked(&self, at: u32) -> bool {
        let client = &self.queues.clients[at];
        client.has_too_much_overdue(self.bound)
            || client.user.is_some_and(|user| self.users.is_full(user))
    }

    /// Keeps a client from starting transactions, if it has too many under way.
    pub(super) fn block_if_due(&mut self, at: u32) {
        let place = self.queues.clients[at].place;
        let may_start = !matches!(place, QueueState::Blocked | QueueState::Gone);
        if may_start && self.is_blocked(at) {
            self.queues.block(at);
            self.blocked.push(at);
        }
    }

    /// Client `at` has started a transaction: its user may have too many under way then.
    pub(super) fn block_user_if_due(&mut self, at: u32) {
        let Some(user) = self.queues.clients[at].user else {
            return;
        };
        self.users.on_start(user);
        if self.users.is_full(user) {
            for other in self.queues.clients.indices() {
                if self.queues.clients[other].user == Some(user) {
                    self.block_if_due(other);
                }
            }
        }
    }

    /// Lets the clients start transactions that have few enough under way again.
    fn unblock(&mut self, now: Time) {
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|&at| {
            let is_waiting = self.queues.clients[at].place == QueueState::Blocked;
            let stays = is_waiting && self.is_blocked(at);
            if is_waiting && !stays {
                self.queues.unblock(now, at);
            }
            stays
        });
        self.blocked = blocked;
    }
}
