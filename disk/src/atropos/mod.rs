//! Who may use the disk next: Atropos, for transactions instead of processor time.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7. A client is given `s` of
//! the disk's time in every period `p`. Of those with time left and work to do the one whose
//! period ends first goes next, so that one client's transactions follow each other; one that
//! has used its slice waits for its next period. What the paper leaves open is decided so:
//!
//! - **Roll-over.** A transaction may start if the time left covers at least half of it (or
//!   half a slice, if it is larger than a slice). So what a client has at the end of a period
//!   is within half a transaction of nothing, on either side, and counts in its next period
//!   on either side: on average it has exactly its slice, and never more than it and one
//!   transaction.
//! - **Laxity.** A client that is first in line and has nothing to submit keeps the disk for
//!   at most `l` from when it had its last answer, and is charged for it. Then it is idle.
//! - **Idleness.** Who is idle has no periods and costs nothing. Work that comes after the old
//!   period starts a new one; work that comes within it finds no more of the old slice than
//!   the client's share of the time up to its deadline, or a new period if even that is too
//!   little. Neither ever comes to more than its share, so that nobody gains by going idle.
//! - **Urgency.** The first request after idleness goes before everybody else's, once a
//!   period and if it fits the slice. It is charged as any other, so others lose its time from
//!   one period to the next at most, never their share.
//! - **Lateness.** A client that always had work and was not served by its deadline keeps
//!   that deadline, hence precedence, until it was, for up to a period.
//! - **Slack.** Time that no slice covers goes to those with `x`, to the one who had the least
//!   of it in proportion to its share (`slack.rs`).
//!
//! A disk that serves several requests at once is charged for by modelled cost when a
//! transaction starts ([`Charging::Modelled`], [`crate::model`]), corrected by what is seen
//! ([`Correction`]). The cost in flight is bounded, so that a request first in line waits for
//! at most the bound, or one transaction that is larger. One transaction at a time
//! ([`Charging::Elapsed`]) is the paper's disk, and is charged what it took.
//!
//! Rule: no clock, no I/O and, once the queues have their working size, no allocation. The
//! caller says what time it is, which never goes backwards. It calls [`Atropos::next`] until
//! that starts nothing, and again whenever something arrived or finished or the time came
//! that it named.
//!
//! ```
//! use disk::atropos::{Atropos, Charging, Contract, Decision, Job, Share};
//! use disk::{model::Op, time::{Nanos, Time}};
//!
//! let mut disk = Atropos::new(Share::percent(90), Charging::Elapsed, ());
//! let contract = Contract {
//!     period: Nanos::millis(250),
//!     slice: Nanos::millis(25),
//!     extra: false,
//!     laxity: Nanos::millis(10),
//! };
//! let client = disk.admit(contract)?;
//! let job = Job { op: Op::Read, bytes: 4096, cost: Nanos::millis(2), tag: 7 };
//! disk.arrive(Time(0), client, job);
//! let Decision::Start(start) = disk.next(Time(0)) else { panic!("it has a slice") };
//! assert_eq!(start.job.tag, 7);
//! disk.finish(Time(3_000_000), start.ticket, Nanos::millis(3));
//! assert_eq!(disk.client(client).expect("admitted").remaining, 22_000_000);
//! # Ok::<(), disk::atropos::Refusal>(())
//! ```

mod client;
mod contract;
mod correction;
mod flight;
mod members;
mod period;
mod queue;
mod schedule;
mod slack;
mod transactions;

pub use client::{ClientId, Totals, View};
pub use contract::{Contract, Refusal, Share};
pub use correction::Correction;
pub use flight::Ticket;

use crate::model::Op;
use crate::time::{Nanos, Time};
use crate::trace::Trace;
use client::Client;
use flight::Flights;
use queue::Queue;
use schedule::Hold;
use slack::Slack;
use std::collections::VecDeque;

/// What a transaction is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charging {
    /// The time it took. One is in flight at a time, for else that time is shared.
    Elapsed,
    /// Its corrected modelled cost, from when it starts.
    Modelled {
        /// Cost that may be in flight. One transaction always may.
        bound: Nanos,
    },
}

/// A transaction asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// What is to be done.
    pub op: Op,
    /// How much is moved.
    pub bytes: u32,
    /// What the model says it costs.
    pub cost: Nanos,
    /// The caller's own.
    pub tag: u64,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start this, then ask again.
    Start(Start),
    /// As much as may be is in flight: ask again when something has finished.
    Full,
    /// Nothing before then, unless something arrives or finishes.
    WaitUntil(Time),
    /// Nothing until something arrives or finishes.
    Idle,
}

/// A transaction that is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Names it until it is finished.
    pub ticket: Ticket,
    /// Whose it is.
    pub client: ClientId,
    /// What was asked for.
    pub job: Job,
    /// What it is charged, for now or for good.
    pub charge: Nanos,
    /// Whether it is done in slack time.
    pub slack: bool,
}

/// The scheduler of one disk. `T` is told what happens ([`crate::trace`]).
#[derive(Debug)]
pub struct Atropos<T> {
    capacity: Share,
    charging: Charging,
    clients: Vec<Client>,
    /// Places in `clients` to be used again.
    unused: Vec<u32>,
    admitted: u32,
    /// Time left, earliest deadline first.
    runnable: Queue,
    /// No time left, earliest next allocation first.
    waiting: Queue,
    /// Those whose first request after idleness goes next.
    urgent: VecDeque<u32>,
    slack: Slack,
    hold: Option<Hold>,
    flights: Flights,
    correction: Correction,
    trace: T,
}

impl<T: Trace> Atropos<T> {
    /// A scheduler without clients, which promises at most `capacity` of the disk's time.
    pub fn new(capacity: Share, charging: Charging, trace: T) -> Self {
        Self {
            capacity,
            charging,
            clients: Vec::new(),
            unused: Vec::new(),
            admitted: 0,
            runnable: Queue::default(),
            waiting: Queue::default(),
            urgent: VecDeque::new(),
            slack: Slack::default(),
            hold: None,
            flights: Flights::default(),
            correction: Correction::default(),
            trace,
        }
    }

    /// What may be promised in all.
    pub fn capacity(&self) -> Share {
        self.capacity
    }

    /// How the model is corrected at present.
    pub fn correction(&self) -> &Correction {
        &self.correction
    }

    /// Transactions started and not finished.
    pub fn in_flight(&self) -> usize {
        self.flights.count()
    }

    /// What they cost.
    pub fn cost_in_flight(&self) -> Nanos {
        self.flights.cost()
    }

    /// The trace that it was given.
    pub fn trace(&self) -> &T {
        &self.trace
    }
}
