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
//!   that deadline, hence precedence, until it was, for up to a period. So what others' single
//!   transactions take from it comes back; what a disk that stands still for longer takes is
//!   lost, lest everybody's arrears starve whoever comes next.
//! - **Slack.** Time that no slice covers goes to those with `x`, to the one who had the least
//!   of it in proportion to its share (`slack.rs`).
//! - **Pace.** On a disk that does many transactions at once slices are used up in steps as large
//!   as the bound, each due when an even pace would have it done. Who is served until its slice
//!   is gone leaves the last one alone with what it has outstanding, which may be less than keeps
//!   the disk busy; and where more was promised than the disk does, all lose in proportion. In
//!   flight is at most twice what waits, from sixteen on, so that there is always a choice.
//!
//! The cost in flight is bounded: a request first in line waits for at most the bound, or for
//! one transaction that is larger. A transaction that has the disk to itself is charged what
//! it took. Those that share it are charged their modelled cost ([`crate::cost_model`]), corrected
//! by what is seen ([`CostCorrection`]). A bound of nothing is the paper's disk: one at a time.
//!
//! Rule: no clock, no I/O and, once the queues have their working size, no allocation. The
//! caller says what time it is, which never goes backwards. It calls [`Atropos::next`] until
//! that starts nothing, and again whenever something arrived or finished or the time came
//! that it named.
//!
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
//! let client = disk.admit(contract)?;
//! let job = TransactionDesc { op: Op::Read, bytes: 4096, cost: Nanos::millis(2), tag: 7 };
//! disk.submit(Time(0), client, job);
//! let Decision::Dispatch(start) = disk.next(Time(0)) else { panic!("it has a slice") };
//! assert_eq!(start.job.tag, 7);
//! disk.complete(Time(3_000_000), start.ticket, Nanos::millis(3));
//! assert_eq!(disk.client(client).expect("admitted").remaining, 22_000_000);
//! # Ok::<(), disk::atropos::AdmissionError>(())
//! ```

mod admission;
mod client;
mod contract;
mod correction;
mod inflight;
mod period;
mod queue;
mod schedule;
mod slack;
mod submit_complete;

pub use client::{ClientId, ClientState, ClientTotals};
pub use contract::{AdmissionError, DiskContract, Utilization};
pub use correction::CostCorrection;
pub use inflight::InFlightId;

use crate::cost_model::Op;
use crate::time::{Nanos, Time};
use crate::trace::Trace;
use client::Client;
use inflight::InFlightTable;
use queue::Queue;
use schedule::LaxityHold;
use slack::Slack;
use std::collections::VecDeque;

/// A transaction asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionDesc {
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
    /// Dispatch this, then ask again.
    Dispatch(Dispatch),
    /// As much as may be is in flight: ask again when something has finished.
    Full,
    /// Nothing before then, unless something arrives or finishes.
    WaitUntil(Time),
    /// Nothing until something arrives or finishes.
    Idle,
}

/// A transaction that is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Names it until it is finished.
    pub ticket: InFlightId,
    /// Whose it is.
    pub client: ClientId,
    /// What was asked for.
    pub job: TransactionDesc,
    /// What it is charged, until it has ended or for good.
    pub charge: Nanos,
    /// Whether it is done in slack time.
    pub slack: bool,
}

/// The scheduler of one disk. `T` is told what happens ([`crate::trace`]).
#[derive(Debug)]
pub struct Atropos<T> {
    capacity: Utilization,
    bound: Nanos,
    clients: Vec<Client>,
    /// Places in `clients` to be used again.
    unused: Vec<u32>,
    admitted: u32,
    /// Jobs that wait, of all clients.
    queued: usize,
    /// Time left, earliest deadline first.
    runnable: Queue,
    /// No time left, earliest next allocation first.
    waiting: Queue,
    /// Those whose first request after idleness goes next.
    urgent: VecDeque<u32>,
    slack: Slack,
    hold: Option<LaxityHold>,
    in_flight: InFlightTable,
    correction: CostCorrection,
    trace: T,
}

impl<T: Trace> Atropos<T> {
    /// A scheduler without clients, which promises at most `capacity` of the disk's time and
    /// has transactions in flight that cost at most `bound`, or one.
    pub fn new(capacity: Utilization, bound: Nanos, trace: T) -> Self {
        Self {
            capacity,
            bound,
            clients: Vec::new(),
            unused: Vec::new(),
            admitted: 0,
            queued: 0,
            runnable: Queue::default(),
            waiting: Queue::default(),
            urgent: VecDeque::new(),
            slack: Slack::default(),
            hold: None,
            in_flight: InFlightTable::default(),
            correction: CostCorrection::default(),
            trace,
        }
    }

    /// What may be promised in all.
    pub fn capacity(&self) -> Utilization {
        self.capacity
    }

    /// The cost that may be in flight.
    pub fn bound(&self) -> Nanos {
        self.bound
    }

    /// How the model is corrected at present.
    pub fn correction(&self) -> &CostCorrection {
        &self.correction
    }

    /// Transactions started and not finished.
    pub fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// What they cost.
    pub fn cost_in_flight(&self) -> Nanos {
        self.in_flight.cost()
    }

    /// The trace that it was given.
    pub fn trace(&self) -> &T {
        &self.trace
    }
}
