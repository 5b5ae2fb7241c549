//! Deadlines that do not run while threads wait for a processor.
//!
//! Releasing frames takes processor time, and on a busy machine a runnable thread waits for it. So
//! a deadline is extended by the time in which threads of the machine so waited since it was set
//! (the kernel's pressure stall information). A tenant can make the machine busy itself, so the
//! extension is bounded.

use std::time::Duration;

/// How long threads waited for a processor since the allocator's start, and the most by which
/// that extends one deadline.
#[derive(Clone, Copy)]
pub(crate) struct Stall {
    pub total: Duration,
    pub most: Duration,
}

/// A point in time that moves with stalls.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// The time on a machine with idle processors.
    pub by: Duration,
    /// [`Stall::total`] when it was set.
    set: Duration,
}

impl Deadline {
    pub fn new(by: Duration, stall: Stall) -> Self {
        let set = stall.total;
        Self { by, set }
    }

    /// The time as extended so far.
    pub fn end(self, stall: Stall) -> Duration {
        self.by + stall.total.saturating_sub(self.set).min(stall.most)
    }
}
