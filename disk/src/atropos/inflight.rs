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
}

/// All transactions in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightTable {
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    cost: Nanos,
    /// Transactions of each client, by index, and the number of clients with any.
    each: Vec<u32>,
    clients: usize,
}

impl InFlightTable {
    /// Returns true if more than one client has transactions in flight.
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

    /// Returns `None` if no such transaction is in flight.
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
