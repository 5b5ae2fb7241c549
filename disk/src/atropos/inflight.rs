//! Transactions that the disk has, and what they cost together.
//!
//! Rule: as modelled, not as corrected. If the correction counted here too, a wrong one would
//! change what is in flight, and so what the next one is taken from.

use super::TransactionDesc;
use crate::time::{Nanos, Time};

/// Names a transaction from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InFlightId(pub u32);

/// What has to be known of a transaction when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) client: u32,
    pub(super) job: TransactionDesc,
    pub(super) charge: Nanos,
    pub(super) slack: bool,
    pub(super) started: Time,
}

/// All that is in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightTable {
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    cost: Nanos,
    /// How many each client has, by its place, and how many clients have any.
    each: Vec<u32>,
    clients: usize,
}

impl InFlightTable {
    /// Whether more than one client has any.
    pub(super) fn of_several(&self) -> bool {
        self.clients > 1
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn cost(&self) -> Nanos {
        self.cost
    }

    pub(super) fn add(&mut self, flight: InFlight) -> InFlightId {
        self.cost += flight.job.cost;
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

    /// `None` if no such transaction is in flight.
    pub(super) fn take(&mut self, ticket: InFlightId) -> Option<InFlight> {
        let flight = self.slots.get_mut(ticket.0 as usize)?.take()?;
        self.free.push(ticket.0);
        self.cost = self.cost - flight.job.cost;
        let each = &mut self.each[flight.client as usize];
        *each -= 1;
        self.clients -= usize::from(*each == 0);
        Some(flight)
    }
}
