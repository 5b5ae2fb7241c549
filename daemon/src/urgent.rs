//! The daemon comes first for a processor.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.7: what schedules the disk has
//! processor time of its own. On a busy machine a disk's thread that waits for a processor
//! after each transaction moves a page in the time of twenty, and charges its clients for the
//! wait. So the daemon's loop and the disk's thread have the most weight that an ordinary
//! thread can have, and a short slice, which from Linux 6.12 on is what a thread that wakes
//! goes by; threads of tenants have longer ones ([`wired::sched_class::PROGRAM_SLICE`]). They sleep most of the
//! time, and what peers without a contract can have them do is bounded.
//!
//! Weight orders the threads of one session or control group only. Where threads wait for a
//! processor, [`crate::processor_time`] gives both real-time priority.
//!
//! Rule: threads that scrub, kill and close are ordinary ones; a daemon without CAP_SYS_NICE
//! does without.

use wired::sched_class::{SHORT_SLICE, set_slice, set_weight};

/// Has the calling thread, and those it starts, come first.
pub(super) fn enter() {
    set(-20, 2 * SHORT_SLICE);
}

/// Has the calling thread be as any other.
pub(super) fn leave() {
    set(0, 0);
}

fn set(nice: i32, slice: u64) {
    // A kernel that refuses leaves the thread as it was.
    let _ = set_weight(nice);
    let _ = set_slice(slice);
}
