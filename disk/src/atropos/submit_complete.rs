//! Transactions arrive and complete.

use super::client::{ClientId, QueueState};
use super::inflight::InFlightId;
use super::{Atropos, TransactionDesc};
use crate::time::{Nanos, Time};
use crate::trace::{Event, Trace};

impl<T: Trace> Atropos<T> {
    /// Queues a transaction of a client. Returns false if the client does not exist.
    pub fn submit(&mut self, now: Time, id: ClientId, job: TransactionDesc) -> bool {
        let Some(at) = self.find(id) else {
            return false;
        };
        self.charge_hold(now);
        let client = &self.clients[at as usize];
        // Work that arrives at the moment of a completion counts as no absence.
        if client.has_nothing_outstanding() && client.idle_since < now {
            // Its lax time may have run out without a call of `next`.
            let lapsed = client.place == QueueState::Runnable && client.lax_deadline() <= now;
            let present = self.was_present(at);
            self.clients[at as usize].present = present;
            self.release_hold(at);
            if lapsed {
                self.dequeue(at);
            }
        }
        let client = &mut self.clients[at as usize];
        client.jobs.push_back(job);
        self.queued += 1;
        match client.place {
            QueueState::Idle => self.wake(now, at),
            _ => self.requeue(at),
        }
        self.share_slack(at);
        true
    }

    /// Completes a transaction, failed or not, `elapsed` after it was handed to the device.
    pub fn complete(&mut self, now: Time, ticket: InFlightId, elapsed: Nanos) {
        let Some(flight) = self.in_flight.take(ticket) else {
            return;
        };
        self.charge_hold(now);
        // A transaction as large as the bound had the disk to itself.
        let alone = flight.job.cost >= self.bound;
        match alone {
            true if self.bound == Nanos::ZERO => self.correction.alone(elapsed, flight.job.cost),
            true => self.correction.unsaturated(),
            false => self.correction.shared(now, flight.started, flight.job.cost),
        }
        let charge = if alone { elapsed } else { flight.charge };
        let at = flight.client;
        let client = &mut self.clients[at as usize];
        client.in_flight -= 1;
        client.totals.transactions += 1;
        client.totals.modelled += flight.job.cost;
        client.totals.bytes += u64::from(flight.job.bytes);
        client.last_charge = charge;
        match flight.slack {
            true => client.totals.slack = client.totals.slack - flight.charge + charge,
            false => client.recharge(flight.charge, charge),
        }
        if client.has_nothing_outstanding() {
            client.idle_since = now;
        }
        self.trace.record(Event::Transaction {
            started: flight.started,
            elapsed,
            charge,
            client: client.number,
            op: flight.job.op,
            bytes: flight.job.bytes,
            slack: flight.slack,
        });
        match client.place {
            QueueState::Gone => self.bury(at),
            _ => self.requeue(at),
        }
    }
}
