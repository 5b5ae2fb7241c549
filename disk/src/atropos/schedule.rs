//! Chooses the next transaction.

use super::client::QueueState;
use super::inflight::InFlight;
use super::{Atropos, Decision, Dispatch};
use crate::time::{Nanos, Time};
use crate::trace::{Event, Trace};

/// The disk is held for a client that has nothing to submit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaxityHold {
    client: u32,
    from: Time,
    /// Time up to which the client is charged.
    charged: Time,
}

/// Transactions that may be in flight even of one client: what one busy client has outstanding.
const MIN_CROWD: usize = 16;

/// Beyond that, transactions in flight are at most so many times the queued ones.
const MAX_IN_FLIGHT_PER_QUEUED: usize = 2;

/// The runnable client with the earliest deadline.
enum EdfHead {
    Ready(u32),
    /// A client with nothing to submit and lax time left.
    Lax(u32),
    Nobody,
}

impl<T: Trace> Atropos<T> {
    /// Decides what happens now. The caller repeats the call until it starts nothing.
    pub fn next(&mut self, now: Time) -> Decision {
        self.charge_hold(now);
        if self.is_full() {
            self.release_hold_except(None);
            return self.full(now);
        }
        self.allocate_due(now);
        if let Some(at) = self.first_urgent() {
            self.release_hold_except(None);
            return self.start(now, at, false);
        }
        match self.first(now) {
            EdfHead::Ready(at) => {
                self.release_hold_except(None);
                let at = self.earliest_step(at);
                self.start(now, at, false)
            }
            EdfHead::Lax(at) => {
                self.release_hold_except(Some(at));
                self.hold_for(now, at)
            }
            EdfHead::Nobody => {
                self.release_hold_except(None);
                let clients = &self.clients;
                match self.slack.least(|at| clients[at as usize].tag) {
                    Some(at) => self.start(now, at, true),
                    None => self.wait_until(Time::NEVER),
                }
            }
        }
    }

    /// Charges the client that holds the disk, up to now or the end of its lax time.
    pub(super) fn charge_hold(&mut self, now: Time) {
        let Some(hold) = &mut self.hold else {
            return;
        };
        let client = &mut self.clients[hold.client as usize];
        let left = Nanos(client.remaining.max(0).unsigned_abs());
        let to = now.min(client.lax_deadline()).min(hold.charged + left);
        let time = to - hold.charged;
        hold.charged = hold.charged.max(to);
        client.charge(time);
        client.totals.lax += time;
        let stretch = hold.charged - hold.from;
        client.totals.longest_lax = client.totals.longest_lax.max(stretch);
        let at = hold.client;
        self.requeue(at);
    }

    /// Ends the hold unless client `but` has it.
    fn release_hold_except(&mut self, but: Option<u32>) {
        let Some(hold) = self.hold.filter(|hold| Some(hold.client) != but) else {
            return;
        };
        self.hold = None;
        if hold.from < hold.charged {
            self.trace.record(Event::Lax {
                from: hold.from,
                to: hold.charged,
                client: self.clients[hold.client as usize].number,
            });
        }
    }

    /// Ends the hold of client `at`.
    pub(super) fn release_hold(&mut self, at: u32) {
        if self.hold.is_some_and(|hold| hold.client == at) {
            self.release_hold_except(None);
        }
    }

    /// Returns true if the disk is held for the client since its last transaction completed.
    pub(super) fn is_held_throughout(&self, at: u32) -> bool {
        let idle_since = self.clients[at as usize].idle_since;
        self.hold
            .is_some_and(|hold| hold.client == at && hold.from <= idle_since)
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
            true => self.correction.saturated(now),
            false => self.correction.unsaturated(),
        }
        Decision::Full
    }

    /// The first client that comes from idleness, if it may still be served as urgent.
    fn first_urgent(&mut self) -> Option<u32> {
        while let Some(&at) = self.urgent.front() {
            let client = &self.clients[at as usize];
            if client.place == QueueState::Runnable && !client.jobs.is_empty() {
                return Some(at);
            }
            self.urgent.pop_front();
        }
        None
    }

    /// The earliest deadline among clients that can be served or held for.
    fn first(&mut self, now: Time) -> EdfHead {
        let mut place = 0;
        while let Some((_, at)) = self.runnable.get(place) {
            let client = &self.clients[at as usize];
            if client.has_nothing_outstanding() && client.lax_deadline() <= now {
                self.dequeue(at);
                self.clients[at as usize].present = false;
            } else if !client.is_able(&self.correction) {
                self.requeue(at);
            } else if !client.jobs.is_empty() {
                return EdfHead::Ready(at);
            } else if client.in_flight > 0 {
                place += 1;
            } else {
                return EdfHead::Lax(at);
            }
        }
        EdfHead::Nobody
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
            let client = &self.clients[at as usize];
            !client.jobs.is_empty() && client.is_able(&self.correction)
        };
        let due = |&at: &u32| self.clients[at as usize].step_due(self.bound);
        self.runnable
            .clients()
            .filter(ready)
            .min_by_key(due)
            .unwrap_or(first)
    }

    fn hold_for(&mut self, now: Time, at: u32) -> Decision {
        let client = &self.clients[at as usize];
        let left = Nanos(client.remaining.max(0).unsigned_abs());
        let mut until = client.lax_deadline().min(now + left);
        if client.deadline > now {
            until = until.min(client.deadline);
        }
        self.hold.get_or_insert(LaxityHold {
            client: at,
            from: now,
            charged: now,
        });
        self.wait_until(until)
    }

    /// Starts nothing before `until`, or before the next allocation.
    fn wait_until(&mut self, until: Time) -> Decision {
        self.correction.unsaturated();
        let due = self.waiting.get(0).map_or(Time::NEVER, |(due, _)| due);
        match until.min(due) {
            Time::NEVER => Decision::Idle,
            until => Decision::WaitUntil(until),
        }
    }

    fn start(&mut self, now: Time, at: u32, slack: bool) -> Decision {
        let client = &mut self.clients[at as usize];
        let Some(&job) = client.jobs.front() else {
            return Decision::Idle;
        };
        if self.in_flight.count() > 0 && self.in_flight.cost() + job.cost > self.bound {
            return self.full(now);
        }
        let charge = client.next_charge(&self.correction);
        client.jobs.pop_front();
        self.queued -= 1;
        client.in_flight += 1;
        client.last_charge = charge;
        match slack {
            true => {
                client.totals.slack += charge;
                let share = client.share();
                self.slack.account(&mut client.tag, share, charge);
            }
            false => client.charge(charge),
        }
        if client.jobs.is_empty() {
            // A transaction that shares the disk does not use all of it: its client could use more.
            client.present &= job.cost >= self.bound;
            self.share_slack(at);
        }
        if self.urgent.front() == Some(&at) {
            self.urgent.pop_front();
        }
        self.requeue(at);
        let ticket = self.in_flight.add(InFlight {
            client: at,
            job,
            charge,
            slack,
            started: now,
        });
        Decision::Dispatch(Dispatch {
            ticket,
            client: self.id(at),
            job,
            charge,
            slack,
        })
    }
}
