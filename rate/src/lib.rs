//! Rate-based fault handling: how many faults a task, and all tasks together, may have handled in
//! a period, so that a burst of faults takes no processor time that was reserved.
//!
//! *RAPHA: Rate-Based Page Fault Handling Mechanism in Virtual Memory System* (Ko and Yoo),
//! section 4. Section 4.1 (resource allocation) is [`units`], [`equations`], [`fault_unit`] and
//! [`reservations`]; section 4.2 (page fault handling) is [`window_counter`], [`thread_counters`],
//! [`shared_limits`], [`bookings`] and [`limiter`].
//!
//! Rule: this crate reads no clock and never waits. It takes the time as nanoseconds of any clock
//! that goes back by less than a fault takes, so that no thread sees a period twice, and returns
//! decisions; so a simulation runs the code that a pager runs. The code that runs in a fault is
//! lock-free, allocates nothing, and may use memory that processes share.

pub mod bookings;
pub mod equations;
pub mod fault_unit;
pub mod limiter;
pub mod reservations;
pub mod shared_limits;
pub mod thread_counters;
pub mod units;
pub mod window_counter;

pub use bookings::Bookings;
pub use fault_unit::{FaultClass, FaultUnits};
pub use limiter::{ChargeToken, Decision, Limiter};
pub use reservations::{OverCommitted, ReservationTable, TaskId};
pub use shared_limits::{FaultLimits, SharedLimits};
pub use units::{Capacity, DEFAULT_PERIOD, INITIAL_FAULT_UNIT, Reservation, TimeNs, Utilization};
