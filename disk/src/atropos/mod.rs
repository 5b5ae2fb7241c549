//! Atropos: decides which client uses the disk next, for transactions instead of processor time.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7. A client receives `s` of the
//! disk's time in every period `p`. Among the clients with time left and work to do, the one whose
//! period ends first goes next, so that one client's transactions follow each other; a client that
//! has used its slice waits for its next period. Where the paper leaves room:
//!
//! - **Roll-over.** A transaction may start if the time left covers at least half of it (or half a
//!   slice, if it is larger than a slice). So a client ends a period within half a transaction of
//!   zero, on either side, and the rest counts in its next period: on average it has exactly its
//!   slice, and never more than its slice and one transaction.
//! - **Laxity.** A client that is first in line and has nothing to submit holds the disk for at
//!   most `l` from its last completion, and is charged for it while another client could be served:
//!   else the time is free. Then it is idle. One whose last request came later than `l` is idle at
//!   once: it would spend its slice on holds that end before its requests come.
//! - **Idleness.** An idle client has no periods and costs nothing. Work that arrives after the old
//!   period starts a new one; work that arrives within it finds no more of the old slice than the
//!   client's share of the time up to its deadline, or a new period if even that is too little.
//!   Neither ever exceeds its share, so that going idle gains nothing.
//! - **Urgency.** The first request after idleness goes before all others, once a period and if it
//!   fits the slice. It is charged as any other, so other clients lose its time from one period to
//!   the next at most, never their share.
//! - **Lateness.** A client that always had work and was not served by its deadline keeps that
//!   deadline, hence precedence, until it is served, for up to a period. So a client recovers what
//!   other clients' single transactions take from it; time lost to a disk that stalls for longer is
//!   forgiven, so that accumulated debt cannot starve a newly admitted client.
//! - **Slack.** Time that no slice covers goes to the clients with `x`, first to the one that had
//!   the least of it in proportion to its share (`slack.rs`).
//! - **Pace.** On a disk that does many transactions at once slices are used up in steps as large
//!   as the bound, each due when an even pace would complete it. If one client were served until
//!   its slice is gone, the last client would be left alone with its outstanding requests, which
//!   may be too few to keep the disk busy; and where more was promised than the disk does, all
//!   clients lose in proportion. At most twice as many transactions are in flight as are queued,
//!   from sixteen on, so that the scheduler always has a choice.
//! - **Ended contracts.** What a contract used ahead of its share, before it ended, counts for the next one (`ended.rs`).
//! - **Overdue transactions.** What the device does not complete in many times the bound does not count towards it
//!   any longer, and bounds its own client (`overdue.rs`), and its user (`users.rs`).
//!
//! The cost in flight is bounded: a request first in line waits for at most the bound, or for one
//! transaction that is larger. A transaction that has the disk to itself is charged its elapsed
//! time, but no more than a slice, or the most that its cost may be corrected to, so that a stall of
//! the device is not repaid for periods on end. Transactions that share the disk are charged their
//! modelled cost ([`crate::cost_model`]), corrected by observation ([`CostCorrection`]). A bound of
//! zero is the paper's disk: one at a time.
//!
//! Rule: no clock, no I/O and, once the queues have their working size, no allocation. The caller
//! passes the time, which never goes backwards. It calls [`Atropos::next`] until that starts
//! nothing, and again after each arrival, each completion and at the time that `next` returned.
//! ```
//! use disk::atropos::{Atropos, DiskContract, Decision, TransactionDesc, Utilization};
//! use disk::{cost_model::Op, time::{Nanos, Time}};
//!
//! let mut disk = Atropos::new(Utilization::percent(90), Nanos::ZERO, ());
//! let contract = DiskContract {
//!     period: Nanos::millis(250),
//!     slice: Nanos::millis(25),
//!     extra: false,
//!     laxity: Nanos::millis(10),
//! };
//! let client = disk.admit(Time(0), contract)?;
//! let job = TransactionDesc { op: Op::Read, bytes: 4096, cost: Nanos::millis(2), tag: 7 };
//! disk.submit(Time(0), client, job);
//! let Decision::Dispatch(start) = disk.next(Time(0)) else { panic!("it has a slice") };
//! assert_eq!(start.job.tag, 7);
//! disk.complete(Time(3_000_000), start.ticket, Nanos::millis(3));
//! assert_eq!(disk.client(client).expect("admitted").remaining, 22_000_000);
//! # Ok::<(), disk::atropos::AdmissionError>(())
//! ```

mod client;
mod client_queues;
mod client_table;
mod contract;
mod correction;
mod ended;
mod inflight;
mod overdue;
mod queue;
mod schedule;
mod slack;
mod slowness;
mod users;

pub use client::{ClientId, ClientState, ClientTotals};
pub use contract::{AdmissionError, DiskContract, Utilization};
pub use correction::CostCorrection;
pub use inflight::InFlightId;
pub use users::WORKERS;

use crate::cost_model::Op;
use crate::time::{Nanos, Time};
use crate::trace::{Trace, TraceEvent};
use client::QueueState;
use client_queues::ClientQueues;
use inflight::InFlightTable;
use slowness::Slowness;
use users::Users;

/// A transaction that a client submits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionDesc {
    /// The operation.
    pub op: Op,
    /// Bytes to move.
    pub bytes: u32,
    /// Modelled cost.
    pub cost: Nanos,
    /// The caller's own value.
    pub tag: u64,
}

/// The scheduler's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start this transaction, then call again.
    Dispatch(Dispatch),
    /// The bound is reached: call again after a completion, or at this time.
    Full(Time),
    /// Start nothing before this time, unless a transaction arrives or completes.
    WaitUntil(Time),
    /// Start nothing until a transaction arrives or completes.
    Idle,
}

/// A transaction to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Identifies the transaction until it completes.
    pub ticket: InFlightId,
    /// The client.
    pub client: ClientId,
    /// The transaction.
    pub job: TransactionDesc,
    /// Its charge: provisional if it has the disk to itself, else final.
    pub charge: Nanos,
    /// True if it runs in slack time.
    pub slack: bool,
}

/// The scheduler of one disk. `T` records its events ([`crate::trace`]).
#[derive(Debug)]
pub struct Atropos<T> {
    capacity: Utilization,
    bound: Nanos,
    /// Queued transactions of all clients.
    queued: usize,
    queues: ClientQueues<T>,
    in_flight: InFlightTable,
    users: Users,
    slowness: Slowness,
    /// Clients that start nothing for now.
    blocked: Vec<u32>,
}

impl<T: Trace> Atropos<T> {
    /// A scheduler without clients that promises at most `capacity` of the disk's time and keeps
    /// transactions of at most `bound` cost in flight, or one.
    pub fn new(capacity: Utilization, bound: Nanos, trace: T) -> Self {
        Self {
            capacity,
            bound,
            queued: 0,
            queues: ClientQueues::new(trace),
            in_flight: InFlightTable::default(),
            users: Users::default(),
            slowness: Slowness::default(),
            blocked: Vec::new(),
        }
    }

    /// The largest sum of shares.
    pub fn capacity(&self) -> Utilization {
        self.capacity
    }

    /// The largest cost in flight.
    pub fn bound(&self) -> Nanos {
        self.bound
    }

    /// The present correction of the cost model.
    pub fn correction(&self) -> &CostCorrection {
        &self.queues.correction
    }

    /// Transactions in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.all()
    }

    /// Modelled cost in flight, of what is not overdue.
    pub fn cost_in_flight(&self) -> Nanos {
        self.in_flight.cost()
    }

    /// The trace.
    pub fn trace(&self) -> &T {
        &self.queues.trace
    }

    /// Admits a contract. The client is idle until its first transaction arrives. Its first period begins once the time
    /// that it needs is not taken by contracts that have ended (`ended.rs`).
    pub fn admit(&mut self, now: Time, contract: DiskContract) -> Result<ClientId, AdmissionError> {
        contract.check()?;
        let clients = &mut self.queues.clients;
        let begins = clients.room_for(now, contract, None, self.capacity)?;
        Ok(clients.insert(contract, begins))
    }

    /// Admits a contract of a user that can delay the client's transactions at will (`users.rs`).
    pub fn admit_for(
        &mut self,
        now: Time,
        user: u32,
        contract: DiskContract,
    ) -> Result<ClientId, AdmissionError> {
        let id = self.admit(now, contract)?;
        self.queues.clients[id.at].user = Some(user);
        self.users.enter(now, user);
        self.block_if_due(id.at);
        Ok(id)
    }

    /// Replaces a client's contract from its next period on. Until then the greater of the two
    /// counts as reserved. The present period ends as it would have: a client that had it cut short would
    /// spend the slice of a long one in it.
    pub fn change(
        &mut self,
        now: Time,
        id: ClientId,
        contract: DiskContract,
    ) -> Result<(), AdmissionError> {
        contract.check()?;
        let at = self.queues.clients.find(id).ok_or(AdmissionError::Gone)?;
        let clients = &mut self.queues.clients;
        let begins = clients.room_for(now, contract, Some(at), self.capacity)?;
        let client = &mut clients[at];
        client.next_contract = Some(contract);
        client.next_from = begins;
        if client.place == QueueState::Idle
            && (client.deadline <= now || client.contract.slice.0 == 0)
        {
            client.contract = contract;
            client.next_contract = None;
            (client.deadline, client.remaining) = (begins, client.remaining.min(0));
            // A client that lived on slack alone may have work for its first slice.
            if !client.jobs.is_empty() {
                self.queues.wake(now, at);
            }
        }
        self.queues.share_slack(at);
        Ok(())
    }

    /// Ends a contract and returns the transactions that were not started. Transactions in flight
    /// complete as usual, but are charged to no client. The contract's share can be promised again
    /// at once, and is given again when what it used is due (`ended.rs`).
    pub fn remove(&mut self, now: Time, id: ClientId) -> Vec<TransactionDesc> {
        let Some(at) = self.queues.clients.find(id) else {
            return Vec::new();
        };
        self.charge_laxity(now);
        self.queues.release_hold(at);
        self.queues.dequeue(at);
        self.queues.urgent.retain(|&other| other != at);
        self.queues.clients.end(now, at);
        let client = &mut self.queues.clients[at];
        if let Some(user) = client.user {
            self.users.leave(user);
        }
        let jobs: Vec<_> = client.jobs.drain(..).collect();
        self.queued -= jobs.len();
        self.queues.share_slack(at);
        self.queues.clients.free_index(at);
        jobs
    }

    /// A client's present state, if it exists.
    pub fn client(&self, id: ClientId) -> Option<ClientState> {
        self.queues
            .clients
            .find(id)
            .map(|at| self.queues.clients[at].state())
    }

    /// Returns true if the disk is held at the holder's cost: another client could be served. On the paper's disk
    /// one that waits for its next slice counts, too: section 7.2 has shares of progress that rest on it.
    fn is_charged(&self, holder: u32) -> bool {
        let has_queued = self.bound == Nanos::ZERO && self.queued > 0;
        has_queued || self.queues.is_other_ready(holder)
    }

    fn charge_laxity(&mut self, now: Time) {
        let hold = self.queues.hold.as_ref();
        let is_charged = hold.is_some_and(|hold| self.is_charged(hold.client));
        self.queues.charge_laxity(now, is_charged);
    }

    /// The sum of all clients' shares.
    pub fn reserved(&self) -> Utilization {
        self.queues.clients.reserved_but(None)
    }

    /// Queues a transaction of a client. Returns false if the client does not exist.
    pub fn submit(&mut self, now: Time, id: ClientId, job: TransactionDesc) -> bool {
        let Some(at) = self.queues.clients.find(id) else {
            return false;
        };
        self.charge_laxity(now);
        let client = &self.queues.clients[at];
        // Work that arrives at the moment of a completion counts as no absence.
        if client.has_nothing_outstanding() && client.idle_since < now {
            // Its lax time may have run out without a call of `next`.
            let lapsed = client.place == QueueState::Runnable && client.lax_deadline() <= now;
            let is_prompt = now - client.idle_since < client.contract.laxity;
            let present = self.queues.was_present(at);
            self.queues.clients[at].present = present;
            self.queues.clients[at].is_prompt = is_prompt;
            self.queues.release_hold(at);
            if lapsed {
                self.queues.dequeue(at);
            }
        }
        let client = &mut self.queues.clients[at];
        client.jobs.push_back(job);
        self.queued += 1;
        match client.place {
            QueueState::Idle => self.queues.wake(now, at),
            _ => self.queues.requeue(at),
        }
        self.queues.share_slack(at);
        true
    }

    /// Completes a transaction, failed or not, `elapsed` after it was handed to the device.
    pub fn complete(&mut self, now: Time, ticket: InFlightId, elapsed: Nanos) {
        self.end(now, ticket, Some(elapsed));
    }

    /// Ends a transaction that was not carried out, since what had submitted it is gone: its client is not charged.
    pub fn cancel(&mut self, now: Time, ticket: InFlightId) {
        self.end(now, ticket, None);
    }

    fn end(&mut self, now: Time, ticket: InFlightId, elapsed: Option<Nanos>) {
        let Some(flight) = self.in_flight.take(ticket) else {
            return;
        };
        self.charge_laxity(now);
        // A transaction as large as the bound had the disk to itself.
        let alone = flight.job.cost >= self.bound;
        match elapsed {
            Some(elapsed) if alone && self.bound == Nanos::ZERO => {
                self.queues.correction.alone(elapsed, flight.job.cost)
            }
            Some(_) if !alone => {
                self.queues
                    .correction
                    .shared(now, flight.started, flight.job.cost)
            }
            _ => self.queues.correction.unsaturated(),
        }
        let at = flight.client;
        let client = &mut self.queues.clients[at];
        let most = CostCorrection::most(flight.job.cost).max(client.contract.slice);
        let charge = match elapsed {
            None => Nanos::ZERO,
            Some(elapsed) if alone => elapsed.min(most),
            Some(_) => flight.charge,
        };
        let elapsed = elapsed.unwrap_or_default();
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
        self.queues.trace.record(TraceEvent::Transaction {
            started: flight.started,
            elapsed,
            charge,
            client: client.number,
            op: flight.job.op,
            bytes: flight.job.bytes,
            slack: flight.slack,
        });
        self.note_delay(now, elapsed, &flight);
        match self.queues.clients[at].place {
            QueueState::Gone => self.queues.clients.free_index(at),
            _ => self.queues.requeue(at),
        }
    }
}
