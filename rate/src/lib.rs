//! Rate-based fault handling: how many faults a task, and all of them, may have handled in
//! a period, so that a burst of faults takes no processor time that was reserved.
//!
//! *RAPHA: Rate-Based Page Fault Handling Mechanism in Virtual Memory System* (Ko and Yoo),
//! section 4. Section 4.1 (resource allocation) is [`quantities`], [`equations`], [`mod@unit`],
//! [`roster`] and [`admission`]; section 4.2 (page fault handling) is [`account`], [`tasks`],
//! [`limits`] and [`handler`].
//!
//! Rule: no clock and no waiting here. Time comes in as nanoseconds of any clock that goes
//! back by less than a fault takes, so that no thread meets a period again, and decisions come
//! out; so the code that a simulation runs is the code that a pager runs. What a fault passes is
//! lock-free, allocates nothing, and may lie in memory that processes share.

pub mod account;
pub mod admission;
pub mod equations;
pub mod handler;
pub mod limits;
pub mod quantities;
pub mod roster;
pub mod tasks;
pub mod unit;

pub use admission::Refused;
pub use handler::{Answer, Handler, Ticket};
pub use limits::{Limits, Setting};
pub use quantities::{Capacity, Nanos, Reservation, Share};
pub use roster::{Roster, TaskId};
pub use unit::{Class, Units};
