//! Transactions in flight on the device, and their total cost.
//!
//! Rule: costs are modelled, not corrected. If the correction counted here too, a wrong one would
//! change what is in flight, and so the observations that the next correction is taken from.

use super::TransactionDesc;
use crate::time::{Nanos, Time};

/// Identifies a transaction from start to completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InFlightId(pub u32);

/// Data of a transaction for its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) client: u32,
    pub(super) job: TransactionDesc,
    pub(super) charge: Nanos,
    pub(super) slack: bool,
    pub(super) started: Time,
    /// When it is overdue.
    pub(super) due: Time,
    pub(super) is_overdue: bool,
    /// Cost in flight when it started, of what is overdue, too, and of itself.
    pub(super) queue: Nanos,
}

/// All transactions in flight. Those that are overdue are there, and do not count.
#[derive(Debug)]
pub(super) struct InFlightTable {
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    cost: Nanos,
    /// Cost of all, whether it counts or not.
    queue: Nanos,
    count: usize,
    /// None that counts is overdue before.
    due: Time,
    /// Transactions of each client, by index, and the number of clients with any.
    each: Vec<u32>,
    clients: usize,
}

impl Default for InFlightTable {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            cost: Nanos::ZERO,
            queue: Nanos::ZERO,
            count: 0,
            due: Time::NEVER,
            each: Vec::new(),
            clients: 0,
        }
    }
}

impl InFlightTable {
    /// Returns true if more than one client has transactions that count.
    pub(super) fn of_several(&self) -> bool {
        self.clients > 1
    }

    /// The transactions that count.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// All transactions.
    pub(super) fn all(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The cost that counts.
    pub(super) fn cost(&self) -> Nanos {
        self.cost
    }

    /// The cost of all transactions.
    pub(super) fn queue(&self) -> Nanos {
        self.queue
    }

    /// When to look for overdue transactions, at the latest.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    pub(super) fn add(&mut self, flight: InFlight) -> InFlightId {
        self.due = self.due.min(flight.due);
        self.cost += flight.job.cost;
        self.queue += flight.job.cost;
        self.count += 1;
        let client = flight.client as usize;
        if self.each.len() <= client {
            self.each.resize(client + 1, 0);
        }
        self.clients += usize::from(self.each[client] == 0);
        self.each[client] += 1;
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(flight);
        InFlightId(at)
    }

    /// Returns `None` if no such transaction is in flight.
    pub(super) fn take(&mut self, ticket: InFlightId) -> Option<InFlight> {
        let flight = self.slots.get_mut(ticket.0 as usize)?.take()?;
        self.free.push(ticket.0);
        self.queue = self.queue - flight.job.cost;
        if !flight.is_overdue {
            self.discount(flight.client, flight.job.cost);
        }
        Some(flight)
    }

    /// The next transaction that has become overdue, which counts no longer.
    pub(super) fn discount_overdue(&mut self, now: Time) -> Option<InFlight> {
        if now < self.due {
            return None;
        }
        let counting = self.slots.iter_mut().flatten();
        let first = counting
            .filter(|flight| !flight.is_overdue)
            .min_by_key(|flight| flight.due);
        self.due = first.as_ref().map_or(Time::NEVER, |flight| flight.due);
        let flight = first.filter(|flight| flight.due <= now)?;
        flight.is_overdue = true;
        let flight = *flight;
        self.discount(flight.client, flight.job.cost);
        Some(flight)
    }

    fn discount(&mut self, client: u32, cost: Nanos) {
        self.cost = self.cost - cost;
        self.count -= 1;
        let each = &mut self.each[client as usize];
        *each -= 1;
        self.clients -= usize::from(*each == 0);
    }
}
