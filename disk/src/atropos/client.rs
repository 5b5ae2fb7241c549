//! One client's account: what it has left, and what it had.

use super::TransactionDesc;
use super::contract::{DiskContract, Utilization};
use super::correction::CostCorrection;
use super::slack::VirtualTime;
use crate::time::{Nanos, Time};
use std::collections::VecDeque;

/// Names a client, also after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(super) at: u32,
    pub(super) number: u32,
}

impl ClientId {
    /// Counts the clients ever admitted; traces name them by it.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueState {
    /// In no queue: it has nothing to do, or no slice.
    Idle,
    /// In `runnable`: time left, and work or lax time left.
    Runnable,
    /// In `waiting`, for its next allocation.
    Waiting,
    /// Removed, with transactions in flight; then its place is used again.
    Gone,
}

/// What a client had since it was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
    /// Charged to its slices: transactions and lax time.
    pub charged: Nanos,
    /// The part of `charged` in which the disk was kept for it.
    pub lax: Nanos,
    /// Transactions in slack time, charged to nobody.
    pub slack: Nanos,
    /// What the model says that all its finished transactions cost, uncorrected.
    pub modelled: Nanos,
    /// Transactions finished.
    pub transactions: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Allocations.
    pub periods: u64,
    /// The longest that the disk was ever kept for it at a stretch.
    pub longest_lax: Nanos,
    /// The deepest that it was ever in debt.
    pub deepest_debt: Nanos,
}

/// A client as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// What holds at present.
    pub contract: DiskContract,
    /// What will hold from its next period on.
    pub next_contract: Option<DiskContract>,
    /// Left of its slice in nanoseconds; negative: repaid from the next ones.
    pub remaining: i64,
    /// End of its period, over already if it is idle.
    pub deadline: Time,
    /// Whether it is idle.
    pub idle: bool,
    /// Transactions asked for and not started.
    pub queued: usize,
    /// Transactions started and not finished.
    pub in_flight: u32,
    /// What it had.
    pub totals: ClientTotals,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: u32,
    pub(super) contract: DiskContract,
    pub(super) next_contract: Option<DiskContract>,
    pub(super) place: QueueState,
    pub(super) remaining: i64,
    pub(super) deadline: Time,
    pub(super) jobs: VecDeque<TransactionDesc>,
    pub(super) in_flight: u32,
    /// Since when nothing of it is outstanding, if nothing is.
    pub(super) idle_since: Time,
    /// What its last transaction was charged: the best guess for its next.
    pub(super) last_charge: Nanos,
    /// Whether it could have been served at all times since its allocation.
    pub(super) present: bool,
    /// When it last went before others.
    pub(super) preferred: Option<Time>,
    pub(super) tag: VirtualTime,
    pub(super) totals: ClientTotals,
}

/// Jobs that a client's queue takes before it has to grow.
const QUEUE_CAPACITY: usize = 64;

impl Client {
    pub(super) fn new(number: u32, contract: DiskContract) -> Self {
        Self {
            number,
            contract,
            next_contract: None,
            place: QueueState::Idle,
            remaining: 0,
            deadline: Time(0),
            jobs: VecDeque::with_capacity(QUEUE_CAPACITY),
            in_flight: 0,
            idle_since: Time(0),
            last_charge: Nanos::ZERO,
            present: false,
            preferred: None,
            tag: VirtualTime::default(),
            totals: ClientTotals::default(),
        }
    }

    /// Nothing of it is queued or in flight.
    pub(super) fn has_nothing_outstanding(&self) -> bool {
        self.jobs.is_empty() && self.in_flight == 0
    }

    /// Until when it is waited for.
    pub(super) fn lax_deadline(&self) -> Time {
        self.idle_since + self.contract.laxity
    }

    pub(super) fn share(&self) -> Utilization {
        self.contract.share()
    }

    /// What its next transaction will be charged, if it is like its last when not known.
    pub(super) fn next_charge(&self, correction: &CostCorrection) -> Nanos {
        match self.jobs.front() {
            Some(job) => correction.of(job.cost),
            None => self.last_charge,
        }
    }

    /// A reasonable amount of time for a transaction: half of what it will take. Less is left
    /// for the next period, in which it counts, so that periods are over and under by the same.
    fn reasonable(&self, correction: &CostCorrection) -> i64 {
        let whole = self.next_charge(correction).min(self.contract.slice);
        (whole.signed() / 2).max(1)
    }

    /// Whether it has time for a transaction.
    pub(super) fn is_able(&self, correction: &CostCorrection) -> bool {
        self.remaining >= self.reasonable(correction)
    }

    /// When it would be done with the part of its slice that it is at, as large as `step`, at a
    /// pace that ends with its period.
    pub(super) fn step_due(&self, step: Nanos) -> Time {
        let step = step.0.max(1);
        let left = self.remaining.max(0).unsigned_abs();
        let after = left.saturating_sub(1) / step * step;
        let DiskContract { period, slice, .. } = self.contract;
        // As near as a float is: an order of clients, not an account.
        let time = after as f64 * (period.0 as f64 / slice.0.max(1) as f64);
        Time(self.deadline.0.saturating_sub(time as u64))
    }

    /// Starts its next period. Periods that went by are passed over, for who has work all but
    /// the last of them.
    pub(super) fn allocate(&mut self, now: Time, correction: &CostCorrection) {
        // What it had no reasonable use for counts on; what it did not want does not.
        let left = self.remaining.min(self.reasonable(correction));
        if let Some(contract) = self.next_contract.take() {
            self.contract = contract;
        }
        let DiskContract { period, slice, .. } = self.contract;
        let late = (now - self.deadline).0 / period.0;
        let begun = match self.jobs.is_empty() {
            true => 1 + late,
            false => late.max(1),
        };
        let repaid = i64::try_from(slice.0.saturating_mul(begun)).unwrap_or(i64::MAX);
        let most = slice.signed() + left.max(0);
        self.remaining = left.saturating_add(repaid).min(most);
        self.deadline = self.deadline + Nanos(period.0.saturating_mul(begun));
        self.began();
    }

    /// Starts a period now, whenever the last one ends.
    pub(super) fn start_period(&mut self, now: Time) {
        if let Some(contract) = self.next_contract.take() {
            self.contract = contract;
        }
        self.remaining = self.contract.slice.signed();
        self.deadline = now + self.contract.period;
        self.began();
    }

    fn began(&mut self) {
        self.present = !self.jobs.is_empty();
        self.totals.periods += 1;
    }

    /// Takes time from its slice.
    pub(super) fn charge(&mut self, time: Nanos) {
        self.remaining = self.remaining.saturating_sub(time.signed());
        self.totals.charged += time;
        let debt = Nanos(self.remaining.min(0).unsigned_abs());
        self.totals.deepest_debt = self.totals.deepest_debt.max(debt);
    }

    /// Replaces what a transaction was charged.
    pub(super) fn recharge(&mut self, charged: Nanos, time: Nanos) {
        self.remaining = self.remaining.saturating_add(charged.signed());
        self.totals.charged = self.totals.charged - charged;
        self.charge(time);
    }

    pub(super) fn state(&self) -> ClientState {
        ClientState {
            contract: self.contract,
            next_contract: self.next_contract,
            remaining: self.remaining,
            deadline: self.deadline,
            idle: self.place == QueueState::Idle,
            queued: self.jobs.len(),
            in_flight: self.in_flight,
            totals: self.totals,
        }
    }
}
