//! A client's transitions between runnable, waiting for its next allocation, and idle.

use super::client::QueueState;
use super::slack::Slack;
use super::{Atropos, TransactionDesc};
use crate::time::Time;
use crate::trace::{Event, Trace};

impl<T: Trace> Atropos<T> {
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
        let client = &self.clients[at as usize];
        let patience = client.deadline + client.contract.period;
        self.was_present(at) && client.is_able(&self.correction) && now < patience
    }

    /// Returns true if the client could be served at all times since its allocation: it had work,
    /// or the disk to itself, for a transaction or for lax time.
    pub(super) fn was_present(&self, at: u32) -> bool {
        let client = &self.clients[at as usize];
        client.present && (!client.has_nothing_outstanding() || self.is_held_throughout(at))
    }

    fn allocate(&mut self, now: Time, at: u32) {
        self.dequeue(at);
        let client = &mut self.clients[at as usize];
        client.allocate(now, &self.correction);
        let lapsed = client.has_nothing_outstanding()
            && client.lax_deadline() <= now
            && client.remaining > 0;
        let (without, extra) = (client.contract.slice.0 == 0, client.contract.extra);
        self.allocated(now, at);
        if extra {
            self.share_slack(at);
        }
        match lapsed || without {
            true => self.clients[at as usize].present = false,
            false => self.enqueue(at),
        }
    }

    fn allocated(&mut self, now: Time, at: u32) {
        let client = &self.clients[at as usize];
        self.trace.record(Event::Allocation {
            at: now,
            client: client.number,
            remaining: client.remaining,
            deadline: client.deadline,
        });
    }

    /// Wakes an idle client that has work: it continues its period or starts one.
    pub(super) fn wake(&mut self, now: Time, at: u32) {
        let client = &mut self.clients[at as usize];
        if client.contract.slice.0 == 0 {
            return;
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
        let client = &mut self.clients[at as usize];
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
    pub(super) fn enqueue(&mut self, at: u32) {
        let client = &mut self.clients[at as usize];
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
        let client = &mut self.clients[at as usize];
        match client.place {
            QueueState::Runnable => self.runnable.remove(client.deadline, at),
            QueueState::Waiting => self.waiting.remove(client.deadline, at),
            QueueState::Idle | QueueState::Gone => return,
        }
        client.place = QueueState::Idle;
    }

    /// Moves a client to the other queue if its remaining time requires it.
    pub(super) fn requeue(&mut self, at: u32) {
        let client = &self.clients[at as usize];
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

    /// Keeps a client in the slack list as long as it has x and work, and only then.
    pub(super) fn share_slack(&mut self, at: u32) {
        let client = &mut self.clients[at as usize];
        if client.contract.extra && !client.jobs.is_empty() && client.place != QueueState::Gone {
            self.slack.join(at, &mut client.tag);
        } else if let Some((moved, place)) = self.slack.leave(&mut client.tag) {
            Slack::moved(&mut self.clients[moved as usize].tag, place);
        }
    }
}
