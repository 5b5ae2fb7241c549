//! Chooses the next transaction.

use super::client_queues::{EdfHead, LaxityHold};
use super::inflight::InFlight;
use super::{Atropos, Decision, Dispatch};
use crate::time::{Nanos, Time};
use crate::trace::Trace;

/// Transactions that may be in flight even of one client: what one busy client has outstanding.
const MIN_CROWD: usize = 16;

/// Beyond that, transactions in flight are at most so many times the queued ones.
const MAX_IN_FLIGHT_PER_QUEUED: usize = 2;

impl<T: Trace> Atropos<T> {
    /// Decides what happens now. The caller repeats the call until it starts nothing.
    pub fn next(&mut self, now: Time) -> Decision {
        self.charge_laxity(now);
        self.discount_overdue(now);
        if self.is_full() {
            self.queues.release_hold_except(None);
            return self.full(now);
        }
        self.queues.allocate_due(now);
        if let Some(at) = self.queues.first_urgent() {
            self.queues.release_hold_except(None);
            return self.start(now, at, false);
        }
        match self.queues.first(now) {
            EdfHead::Ready(at) => {
                self.queues.release_hold_except(None);
                let at = self.earliest_step(at);
                self.start(now, at, false)
            }
            EdfHead::Lax(at) => {
                self.queues.release_hold_except(Some(at));
                self.hold_for(now, at)
            }
            EdfHead::Empty => {
                self.queues.release_hold_except(None);
                let clients = &self.queues.clients;
                match self.queues.slack.least(|at| clients[at].tag) {
                    Some(at) => self.start(now, at, true),
                    None => self.wait_until(now, Time::NEVER),
                }
            }
        }
    }

    fn is_full(&self) -> bool {
        let bound = self.in_flight.count() > 0 && self.in_flight.cost() >= self.bound;
        bound || self.is_crowded()
    }

    /// Returns true if so much of the submitted work is in flight that nothing is left to choose
    /// from: completions would then decide the order, and clients' shares would be as many requests
    /// as each has outstanding.
    fn is_crowded(&self) -> bool {
        let (flying, asking) = (self.in_flight.count(), self.in_flight.of_several());
        flying >= MIN_CROWD && asking && flying >= MAX_IN_FLIGHT_PER_QUEUED * self.queued
    }

    fn full(&mut self, now: Time) -> Decision {
        // With little in flight before something large the device is not as busy as the bound
        // allows.
        match self.in_flight.cost().0 >= self.bound.0 / 2 || self.is_crowded() {
            true => self.queues.correction.saturated(now),
            false => self.queues.correction.unsaturated(),
        }
        Decision::Full(self.in_flight.due())
    }

    /// The client to serve, where `first` has the earliest deadline: `first` itself on a disk that
    /// does one transaction at a time.
    ///
    /// A disk that does many at once is only kept busy by several clients. If the first client were
    /// served until its slice is gone, the last would be left alone with its outstanding requests.
    /// So slices are used up in steps, as large as what may be in flight, each due when an even
    /// pace would complete it.
    fn earliest_step(&self, first: u32) -> u32 {
        if self.bound == Nanos::ZERO {
            return first;
        }
        let ready = |&at: &u32| {
            let client = &self.queues.clients[at];
            !client.jobs.is_empty() && client.is_able(&self.queues.correction)
        };
        let due = |&at: &u32| self.queues.clients[at].step_due(self.bound);
        self.queues
            .runnable
            .clients()
            .filter(ready)
            .min_by_key(due)
            .unwrap_or(first)
    }

    fn hold_for(&mut self, now: Time, at: u32) -> Decision {
        let client = &self.queues.clients[at];
        let mut until = client.lax_deadline();
        if self.is_charged(at) {
            until = until.min(now + Nanos(client.remaining.max(0).unsigned_abs()));
        }
        if client.deadline > now {
            until = until.min(client.deadline);
        }
        let hold = &mut self.queues.hold;
        hold.get_or_insert_with(|| LaxityHold::new(at, now));
        self.wait_until(now, until)
    }

    /// Starts nothing before `until`, or before the next allocation.
    fn wait_until(&mut self, now: Time, until: Time) -> Decision {
        match self.in_flight.count() {
            0 => self.queues.correction.idle(now),
            _ => self.queues.correction.unsaturated(),
        }
        let due = self
            .queues
            .waiting
            .get(0)
            .map_or(Time::NEVER, |(due, _)| due);
        match until.min(due) {
            Time::NEVER => Decision::Idle,
            until => Decision::WaitUntil(until),
        }
    }

    fn start(&mut self, now: Time, at: u32, slack: bool) -> Decision {
        let client = &self.queues.clients[at];
        let Some(&job) = client.jobs.front() else {
            return Decision::Idle;
        };
        if self.in_flight.count() > 0 && self.in_flight.cost() + job.cost > self.bound {
            return self.full(now);
        }
        let due = self.overdue_at(now, at, job.cost);
        let client = &mut self.queues.clients[at];
        let charge = client.next_charge(&self.queues.correction);
        client.jobs.pop_front();
        self.queued -= 1;
        client.in_flight += 1;
        client.last_charge = charge;
        match slack {
            true => {
                client.totals.slack += charge;
                let contract = client.contract;
                self.queues.slack.account(&mut client.tag, contract, charge);
            }
            false => client.charge(charge),
        }
        if client.jobs.is_empty() {
            // A transaction that shares the disk does not use all of it: its client could use more.
            client.present &= job.cost >= self.bound;
            self.queues.share_slack(at);
        }
        if self.queues.urgent.front() == Some(&at) {
            self.queues.urgent.pop_front();
        }
        self.queues.requeue(at);
        self.block_user_if_due(at);
        let ticket = self.in_flight.add(InFlight {
            client: at,
            job,
            charge,
            slack,
            started: now,
            due,
            is_overdue: false,
            queue: self.in_flight.queue() + job.cost,
        });
        Decision::Dispatch(Dispatch {
            ticket,
            client: self.queues.clients.id(at),
            job,
            charge,
            slack,
        })
    }
}
