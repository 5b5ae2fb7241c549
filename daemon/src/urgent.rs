//! The processor weight of the daemon's threads.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7: what schedules the disk has
//! processor time of its own. On a busy machine a disk's thread that waits for a processor
//! after each transaction moves a page in the time of twenty, and charges its clients for the
//! wait. So the daemon's loop and the disk's thread have the most weight that an ordinary
//! thread can have, and a short slice, by which Linux, from 6.12 on, decides whether a thread that wakes
//! runs at once; threads of tenants have longer slices ([`wired::sched_class::PROGRAM_SLICE`]). The daemon's two threads sleep most of the
//! time, and the work that peers without a contract can cause them is bounded.
//!
//! Weight orders the threads of one session or control group only. Where threads wait for a
//! processor, [`crate::processor_time`] gives both real-time priority.
//!
//! Rule: threads that scrub, kill and close are ordinary ones; a daemon without CAP_SYS_NICE
//! has no weight to give.

use wired::sched_class::{SHORT_SLICE, set_slice, set_weight};

/// Gives the calling thread, and those that it starts, the most weight and a short slice.
pub(super) fn enter() {
    set(-20, 2 * SHORT_SLICE);
}

/// Gives the calling thread the weight and slice of an ordinary thread.
pub(super) fn leave() {
    set(0, 0);
}

fn set(nice: i32, slice: u64) {
    // Where the kernel refuses this, the thread stays as it was.
    let _ = set_weight(nice);
    let _ = set_slice(slice);
}
