//! A client's transitions between runnable, waiting for its next allocation, idle, and held for.

use super::TransactionDesc;
use super::client::QueueState;
use super::client_table::ClientTable;
use super::correction::CostCorrection;
use super::queue::Queue;
use super::slack::Slack;
use crate::time::{Nanos, Time};
use crate::trace::{Trace, TraceEvent};
use std::collections::VecDeque;
use std::ops::Range;

/// The disk is held for a client that has nothing to submit.
#[derive(Clone, Debug)]
pub(super) struct LaxityHold {
    pub(super) client: u32,
    pub(super) from: Time,
    /// The part of the hold that is charged: it begins when another client could be served, and is empty while none
    /// could.
    pub(super) charged: Range<Time>,
}

impl LaxityHold {
    pub(super) fn new(client: u32, now: Time) -> Self {
        Self {
            client,
            from: now,
            charged: now..now,
        }
    }
}

/// The runnable client with the earliest deadline.
pub(super) enum EdfHead {
    Ready(u32),
    /// A client with nothing to submit and lax time left.
    Lax(u32),
    Empty,
}

/// The clients, in queues by what they wait for.
#[derive(Debug)]
pub(super) struct ClientQueues<T> {
    pub(super) clients: ClientTable,
    /// Clients with time left, earliest deadline first.
    pub(super) runnable: Queue,
    /// Clients without time left, earliest next allocation first.
    pub(super) waiting: Queue,
    /// Clients whose first request after idleness goes next.
    pub(super) urgent: VecDeque<u32>,
    pub(super) slack: Slack,
    pub(super) hold: Option<LaxityHold>,
    pub(super) correction: CostCorrection,
    pub(super) trace: T,
}

impl<T: Trace> ClientQueues<T> {
    pub(super) fn new(trace: T) -> Self {
        Self {
            clients: ClientTable::default(),
            runnable: Queue::default(),
            waiting: Queue::default(),
            urgent: VecDeque::new(),
            slack: Slack::default(),
            hold: None,
            correction: CostCorrection::default(),
            trace,
        }
    }

    /// Allocates a slice to the waiting clients whose next period has begun.
    pub(super) fn allocate_due(&mut self, now: Time) {
        while let Some((_, at)) = self.waiting.get(0).filter(|&(due, _)| due <= now) {
            self.allocate(now, at);
        }
        let mut first = 0;
        while let Some((_, at)) = self.runnable.get(first).filter(|&(due, _)| due <= now) {
            match self.is_late(now, at) {
                true => first += 1,
                false => self.allocate(now, at),
            }
        }
    }

    /// Returns true if the client was not served by its deadline though it always could have been.
    /// It then keeps that deadline for a while, and so precedes all that are on time.
    fn is_late(&self, now: Time, at: u32) -> bool {
        let client = &self.clients[at];
        let patience = client.deadline + client.contract.period;
        self.was_present(at) && client.is_able(&self.correction) && now < patience
    }

    /// Returns true if the client could be served at all times since its allocation: it had work,
    /// or the disk to itself, for a transaction or for lax time.
    pub(super) fn was_present(&self, at: u32) -> bool {
        let client = &self.clients[at];
        client.present && (!client.has_nothing_outstanding() || self.is_held_throughout(at))
    }

    fn allocate(&mut self, now: Time, at: u32) {
        self.dequeue(at);
        let client = &mut self.clients[at];
        client.allocate(now, &self.correction);
        let lapsed = client.has_nothing_outstanding()
            && client.lax_deadline() <= now
            && client.remaining > 0;
        let without = client.contract.slice.0 == 0;
        self.allocated(now, at);
        // Its contract may be another one.
        self.share_slack(at);
        match lapsed || without {
            true => self.clients[at].present = false,
            false => self.enqueue(at),
        }
    }

    fn allocated(&mut self, now: Time, at: u32) {
        let client = &self.clients[at];
        self.trace.record(TraceEvent::Allocation {
            at: now,
            client: client.number,
            remaining: client.remaining,
            deadline: client.deadline,
        });
    }

    /// Wakes an idle client that has work: it continues its period or starts one.
    pub(super) fn wake(&mut self, now: Time, at: u32) {
        let client = &mut self.clients[at];
        if client.contract.slice.0 == 0 {
            // It has no periods, whose end would apply a change.
            client.apply_change(now);
            if client.contract.slice.0 == 0 {
                return;
            }
        }
        let charge = client.next_charge(&self.correction).signed();
        // Its share of the time up to its deadline cannot make other clients late.
        let fair = client.share().in_period(client.deadline - now).signed();
        let over = client.deadline <= now;
        if over || (client.remaining > fair && fair < charge) {
            client.start_period(now);
            self.allocated(now, at);
        } else {
            client.remaining = client.remaining.min(fair);
        }
        let client = &mut self.clients[at];
        let rested = client
            .preferred
            .is_none_or(|then| then + client.contract.period <= now);
        let fits = |job: &TransactionDesc| job.cost.signed() <= client.remaining;
        if rested && client.jobs.front().is_some_and(fits) {
            client.preferred = Some(now);
            self.urgent.push_back(at);
        }
        self.enqueue(at);
    }

    /// Inserts a client into the queue that fits its state.
    fn enqueue(&mut self, at: u32) {
        let client = &mut self.clients[at];
        let able = client.is_able(&self.correction);
        let (queue, place) = match able {
            true => (&mut self.runnable, QueueState::Runnable),
            false => (&mut self.waiting, QueueState::Waiting),
        };
        queue.insert(client.deadline, at);
        client.place = place;
    }

    /// Removes a client from its queue; it is idle then.
    pub(super) fn dequeue(&mut self, at: u32) {
        let client = &mut self.clients[at];
        match client.place {
            QueueState::Runnable => self.runnable.remove(client.deadline, at),
            QueueState::Waiting => self.waiting.remove(client.deadline, at),
            QueueState::Idle | QueueState::Blocked | QueueState::Gone => return,
        }
        client.place = QueueState::Idle;
    }

    /// Moves a client to the other queue if its remaining time requires it.
    pub(super) fn requeue(&mut self, at: u32) {
        let client = &self.clients[at];
        let belongs = match client.is_able(&self.correction) {
            true => QueueState::Runnable,
            false => QueueState::Waiting,
        };
        let queued = matches!(client.place, QueueState::Runnable | QueueState::Waiting);
        if queued && client.place != belongs {
            self.dequeue(at);
            self.enqueue(at);
        }
    }

    /// Keeps a client from starting transactions.
    pub(super) fn block(&mut self, at: u32) {
        if self.clients[at].place == QueueState::Gone {
            return;
        }
        self.dequeue(at);
        self.clients[at].place = QueueState::Blocked;
        self.share_slack(at);
    }

    /// Reverses [`ClientQueues::block`].
    pub(super) fn unblock(&mut self, now: Time, at: u32) {
        let client = &mut self.clients[at];
        client.place = QueueState::Idle;
        if !client.jobs.is_empty() {
            self.wake(now, at);
        }
        self.share_slack(at);
    }

    /// Keeps a client in the slack list as long as it has x and work, and only then.
    pub(super) fn share_slack(&mut self, at: u32) {
        let client = &mut self.clients[at];
        let is_served = !matches!(client.place, QueueState::Blocked | QueueState::Gone);
        if client.contract.extra && !client.jobs.is_empty() && is_served {
            self.slack.join(at, &mut client.tag);
        } else if let Some((moved, place)) = self.slack.leave(&mut client.tag) {
            Slack::moved(&mut self.clients[moved].tag, place);
        }
    }

    /// Charges laxity: the idle time for which the disk is held for a client, up to now or the end
    /// of its laxity. The time is free unless `is_charged`.
    pub(super) fn charge_laxity(&mut self, now: Time, is_charged: bool) {
        if !is_charged {
            return self.end_charge(now);
        }
        let Some(hold) = &mut self.hold else {
            return;
        };
        let client = &mut self.clients[hold.client];
        let left = Nanos(client.remaining.max(0).unsigned_abs());
        let to = now.min(client.lax_deadline()).min(hold.charged.end + left);
        let time = to - hold.charged.end;
        hold.charged.end = hold.charged.end.max(to);
        client.charge(time);
        client.totals.lax += time;
        let held = hold.charged.end - hold.charged.start;
        client.totals.longest_lax = client.totals.longest_lax.max(held);
        let at = hold.client;
        self.requeue(at);
    }

    /// Returns true if a client other than the `holder` could be served now.
    pub(super) fn is_other_ready(&self, holder: u32) -> bool {
        let is_ready = |at: u32| {
            let client = &self.clients[at];
            at != holder && !client.jobs.is_empty() && client.is_able(&self.correction)
        };
        !self.slack.is_empty() || self.runnable.clients().any(is_ready)
    }

    /// Ends the hold unless client `but` has it.
    pub(super) fn release_hold_except(&mut self, but: Option<u32>) {
        if self.hold.as_ref().is_some_and(|it| Some(it.client) != but) {
            self.end_charge(Time(0));
            self.hold = None;
        }
    }

    /// Records the time for which laxity was charged. More is charged from `now` on.
    fn end_charge(&mut self, now: Time) {
        let Some(hold) = &mut self.hold else {
            return;
        };
        let Range { start, end } = std::mem::replace(&mut hold.charged, now..now);
        if start < end {
            self.trace.record(TraceEvent::Lax {
                from: start,
                to: end,
                client: self.clients[hold.client].number,
            });
        }
    }

    /// Ends the hold of client `at`.
    pub(super) fn release_hold(&mut self, at: u32) {
        if self.hold.as_ref().is_some_and(|hold| hold.client == at) {
            self.release_hold_except(None);
        }
    }

    /// Returns true if the disk is held for the client since its last transaction completed.
    fn is_held_throughout(&self, at: u32) -> bool {
        let idle_since = self.clients[at].idle_since;
        let hold = self.hold.as_ref();
        hold.is_some_and(|hold| hold.client == at && hold.from <= idle_since)
    }

    /// The first client that comes from idleness, if it may still be served as urgent.
    pub(super) fn first_urgent(&mut self) -> Option<u32> {
        while let Some(&at) = self.urgent.front() {
            let client = &self.clients[at];
            if client.place == QueueState::Runnable && !client.jobs.is_empty() {
                return Some(at);
            }
            self.urgent.pop_front();
        }
        None
    }

    /// The earliest deadline among clients that can be served or held for.
    pub(super) fn first(&mut self, now: Time) -> EdfHead {
        let mut place = 0;
        while let Some((_, at)) = self.runnable.get(place) {
            let client = &self.clients[at];
            if client.has_nothing_outstanding() && client.lax_deadline() <= now {
                self.dequeue(at);
                self.clients[at].present = false;
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
        EdfHead::Empty
    }
}
