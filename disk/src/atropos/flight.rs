//! Transactions that the disk has, and what they cost together.
//!
//! Rule: as modelled, not as corrected. If the correction counted here too, a wrong one would
//! change what is in flight, and so what the next one is taken from.

use super::Job;
use crate::time::{Nanos, Time};

/// Names a transaction from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

/// What has to be known of a transaction when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) client: u32,
    pub(super) job: Job,
    pub(super) charge: Nanos,
    pub(super) slack: bool,
    pub(super) started: Time,
}

/// All that is in flight.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
    cost: Nanos,
}

impl Flights {
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn cost(&self) -> Nanos {
        self.cost
    }

    pub(super) fn add(&mut self, flight: Flight) -> Ticket {
        self.cost += flight.job.cost;
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(flight);
        Ticket(at)
    }

    /// `None` if no such transaction is in flight.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Flight> {
        let flight = self.slots.get_mut(ticket.0 as usize)?.take()?;
        self.free.push(ticket.0);
        self.cost = self.cost - flight.job.cost;
        Some(flight)
    }
}
