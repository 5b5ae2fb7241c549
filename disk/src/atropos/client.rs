//! One client's account: remaining time and totals.

use super::TransactionDesc;
use super::contract::{DiskContract, Utilization};
use super::correction::CostCorrection;
use super::slack::VirtualTime;
use crate::time::{Nanos, Time};
use std::collections::VecDeque;

/// Identifies a client, also after its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(super) at: u32,
    pub(super) number: u32,
}

impl ClientId {
    /// Number of the client, counted from the first admitted; traces use it.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// The queue that holds a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueState {
    /// In no queue: no work, or no slice.
    Idle,
    /// In `runnable`: time left, and work or lax time left.
    Runnable,
    /// In `waiting`, for its next allocation.
    Waiting,
    /// In no queue: it has too much overdue.
    Blocked,
    /// Removed, with transactions in flight; its index is free after the last completes.
    Gone,
}

/// Totals of a client since its admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
    /// Charged to its slices: transactions and lax time.
    pub charged: Nanos,
    /// The part of `charged` for which the disk was held idle.
    pub lax: Nanos,
    /// Transactions in slack time, charged to no slice.
    pub slack: Nanos,
    /// Modelled cost of all its completed transactions, uncorrected.
    pub modelled: Nanos,
    /// Completed transactions.
    pub transactions: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Allocations.
    pub periods: u64,
    /// The longest time of that at once.
    pub longest_lax: Nanos,
    /// Its largest debt.
    pub deepest_debt: Nanos,
}

/// A client's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// The contract in force.
    pub contract: DiskContract,
    /// The contract from the next period on.
    pub next_contract: Option<DiskContract>,
    /// Left of its slice in nanoseconds; negative: repaid from the next ones.
    pub remaining: i64,
    /// End of its period; in the past if it is idle.
    pub deadline: Time,
    /// True if it is idle.
    pub idle: bool,
    /// Transactions submitted and not started.
    pub queued: usize,
    /// Transactions started and not completed.
    pub in_flight: u32,
    /// Totals since admission.
    pub totals: ClientTotals,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: u32,
    pub(super) contract: DiskContract,
    pub(super) next_contract: Option<DiskContract>,
    /// When the share of `next_contract` is free.
    pub(super) next_from: Time,
    pub(super) place: QueueState,
    pub(super) remaining: i64,
    pub(super) deadline: Time,
    pub(super) jobs: VecDeque<TransactionDesc>,
    pub(super) in_flight: u32,
    /// Cost of those of them that are overdue.
    pub(super) overdue: Nanos,
    /// The user that can delay its transactions, if there is one.
    pub(super) user: Option<u32>,
    /// Time since when none of its transactions is queued or in flight.
    pub(super) idle_since: Time,
    /// True if its last request came within its laxity, as the next one may then.
    pub(super) is_prompt: bool,
    /// Charge of its last transaction: the best guess for its next.
    pub(super) last_charge: Nanos,
    /// True if it could have been served at all times since its allocation.
    pub(super) present: bool,
    /// Time of its last urgent request.
    pub(super) preferred: Option<Time>,
    pub(super) tag: VirtualTime,
    pub(super) totals: ClientTotals,
}

/// Initial capacity of a client's queue.
const QUEUE_CAPACITY: usize = 64;

impl Client {
    /// An idle client, whose first period begins at `begins` or later.
    pub(super) fn new(number: u32, contract: DiskContract, begins: Time) -> Self {
        Self {
            number,
            contract,
            next_contract: None,
            next_from: begins,
            place: QueueState::Idle,
            remaining: 0,
            deadline: begins,
            jobs: VecDeque::with_capacity(QUEUE_CAPACITY),
            in_flight: 0,
            overdue: Nanos::ZERO,
            user: None,
            idle_since: Time(0),
            is_prompt: true,
            last_charge: Nanos::ZERO,
            present: false,
            preferred: None,
            tag: VirtualTime::default(),
            totals: ClientTotals::default(),
        }
    }

    /// Returns true if none of its transactions is queued or in flight.
    pub(super) fn has_nothing_outstanding(&self) -> bool {
        self.jobs.is_empty() && self.in_flight == 0
    }

    /// Returns true if it has as much overdue as the bound.
    pub(super) fn has_too_much_overdue(&self, bound: Nanos) -> bool {
        self.overdue > Nanos::ZERO && self.overdue >= bound
    }

    /// End of its lax time. It has none while it is slower than its laxity.
    pub(super) fn lax_deadline(&self) -> Time {
        match self.is_prompt {
            true => self.idle_since + self.contract.laxity,
            false => self.idle_since,
        }
    }

    pub(super) fn share(&self) -> Utilization {
        self.contract.share()
    }

    /// Charge of its next transaction: modelled if one is queued, else that of its last.
    pub(super) fn next_charge(&self, correction: &CostCorrection) -> Nanos {
        match self.jobs.front() {
            Some(job) => correction.of(job.cost),
            None => self.last_charge,
        }
    }

    /// The time that a transaction needs to start: half of its charge. A smaller rest counts in the
    /// next period, so that overruns and underruns balance.
    fn reasonable(&self, correction: &CostCorrection) -> i64 {
        let whole = self.next_charge(correction).min(self.contract.slice);
        (whole.signed() / 2).max(1)
    }

    /// Returns true if it has time for a transaction.
    pub(super) fn is_able(&self, correction: &CostCorrection) -> bool {
        self.remaining >= self.reasonable(correction)
    }

    /// When an even pace, which ends with the period, completes the present step of its slice;
    /// steps are as large as `step`.
    pub(super) fn step_due(&self, step: Nanos) -> Time {
        let step = step.0.max(1);
        let left = self.remaining.max(0).unsigned_abs();
        let after = left.saturating_sub(1) / step * step;
        let DiskContract { period, slice, .. } = self.contract;
        // Float precision suffices: this orders clients and charges none.
        let time = after as f64 * (period.0 as f64 / slice.0.max(1) as f64);
        Time(self.deadline.0.saturating_sub(time as u64))
    }

    /// Starts the next period. A client with work skips all missed periods but the last.
    pub(super) fn allocate(&mut self, now: Time, correction: &CostCorrection) {
        // A rest too small for a transaction carries over; idle time does not.
        let left = self.remaining.min(self.reasonable(correction));
        self.apply_change(now);
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

    /// Starts a period now, even if the last one has not ended. A debt, which only a client that was blocked has here, is repaid
    /// from it and from the periods that it missed.
    pub(super) fn start_period(&mut self, now: Time) {
        self.apply_change(now);
        let DiskContract { period, slice, .. } = self.contract;
        let missed = (now - self.deadline).0 / period.0;
        let slices = i64::try_from(slice.0.saturating_mul(1 + missed)).unwrap_or(i64::MAX);
        let debt = self.remaining.min(0);
        self.remaining = debt.saturating_add(slices).min(slice.signed());
        self.deadline = now + period;
        self.began();
    }

    /// Applies a changed contract, where its share is free.
    pub(super) fn apply_change(&mut self, now: Time) {
        if self.next_from <= now
            && let Some(contract) = self.next_contract.take()
        {
            self.contract = contract;
        }
    }

    /// When the time that it used of its slice would have come at an even pace.
    pub(super) fn even_at(&self) -> Time {
        let DiskContract { period, slice, .. } = self.contract;
        let ahead = i128::from(self.remaining) * i128::from(period.0) / i128::from(slice.0.max(1));
        let at = i128::from(self.deadline.0) - ahead;
        Time(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }

    fn began(&mut self) {
        self.present = !self.jobs.is_empty();
        self.totals.periods += 1;
    }

    /// Charges time to its slice.
    pub(super) fn charge(&mut self, time: Nanos) {
        self.remaining = self.remaining.saturating_sub(time.signed());
        self.totals.charged += time;
        let debt = Nanos(self.remaining.min(0).unsigned_abs());
        self.totals.deepest_debt = self.totals.deepest_debt.max(debt);
    }

    /// Replaces a transaction's charge.
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
