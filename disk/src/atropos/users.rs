//! The users whose clients read files of their own.
//!
//! Not in the paper. A transaction on such a file waits for the lock of the file's inode, which its user holds for as
//! long as it likes, and the user ends contracts and makes others. So what its transactions may cost others is
//! counted by user, and outlives its clients.
//!
//! Rules:
//! - *Patience.* A transaction counts towards the bound as long as the device itself may take ([`PROMPT_BOUNDS`]). Beyond that a
//!   user's transactions keep others from the disk for `overdue.rs`'s patience, which comes back at one part in
//!   [`TOLERANCE`] of the time. A user whose patience is used up loses nothing where the device is slow: what is overdue
//!   bounds its own client alone.
//! - *Workers.* A transaction that waits takes a kernel thread, of [`WORKERS`]. A user takes at most one in [`SHARE`] of
//!   those that are free, so that the next user finds some.

use crate::time::{Nanos, Time};
use std::collections::BTreeMap;

/// A transaction is late after so many times the bound, or its own cost if that is more: a full queue takes one. So a user
/// that holds its file for just as long keeps others from the disk for twice the time that it is charged.
pub(super) const PROMPT_BOUNDS: u64 = 2;

/// Half a percent of the time: a device pauses less for its own upkeep.
const TOLERANCE: u64 = 200;

/// Kernel threads that may wait in transactions on the scheduler's behalf.
pub const WORKERS: u32 = 1024;

/// Of those, what the transactions of users may take. Swap finds the rest.
const USERS_WORKERS: usize = WORKERS as usize / 4 * 3;

/// A user alone has a fifth: more than the two bounds that one of its clients may have in flight.
const SHARE: usize = 4;

/// One user's clients, and what their transactions cost others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct User {
    clients: u32,
    in_flight: usize,
    /// For how long its transactions were late, less what was given back since.
    late: Nanos,
    /// The time up to which that is counted.
    counted: Time,
}

/// The users that have clients, transactions or late time.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_number: BTreeMap<u32, User>,
    in_flight: usize,
}

impl User {
    /// Its late time at present.
    fn late(&self, now: Time) -> Nanos {
        self.late - Nanos((now - self.counted).0 / TOLERANCE)
    }
}

impl Users {
    /// Adds a client of a user's, and drops users that nothing is left of.
    pub(super) fn enter(&mut self, now: Time, number: u32) {
        let is_there =
            |user: &User| user.clients > 0 || user.in_flight > 0 || user.late(now) > Nanos::ZERO;
        self.by_number.retain(|_, user| is_there(user));
        self.by_number.entry(number).or_default().clients += 1;
    }

    /// Removes a client of a user's.
    pub(super) fn leave(&mut self, number: u32) {
        self.user(number).clients -= 1;
    }

    fn user(&mut self, number: u32) -> &mut User {
        self.by_number.entry(number).or_default()
    }

    /// How much longer than prompt a transaction of the user's may take, of `whole` at most.
    pub(super) fn patience(&self, now: Time, number: u32, whole: Nanos) -> Nanos {
        let user = self.by_number.get(&number);
        whole - user.map_or(Nanos::ZERO, |user| user.late(now))
    }

    pub(super) fn on_start(&mut self, number: u32) {
        self.user(number).in_flight += 1;
        self.in_flight += 1;
    }

    pub(super) fn on_complete(&mut self, number: u32) {
        self.user(number).in_flight -= 1;
        self.in_flight -= 1;
    }

    /// Counts that a transaction of the user's was late from `from` on, and counted towards the bound until `now`. Time in
    /// which several are late counts once.
    pub(super) fn on_late(&mut self, now: Time, number: u32, from: Time) {
        let user = self.user(number);
        if from < now {
            let late = now - from.max(user.counted);
            user.late = user.late(now) + late;
            user.counted = now;
        }
    }

    /// Returns true if the user has as many transactions in flight as it may have.
    pub(super) fn is_full(&self, number: u32) -> bool {
        let own = self.by_number.get(&number).map_or(0, |user| user.in_flight);
        own > 0 && own * SHARE >= USERS_WORKERS.saturating_sub(self.in_flight)
    }
}
