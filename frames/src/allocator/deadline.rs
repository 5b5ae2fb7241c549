//! Deadlines that do not run while threads wait for a processor.
//!
//! Giving frames back takes processor time, and on a busy machine a thread that is ready waits
//! for it. So a deadline is put off by the time in which threads of the machine so waited since
//! it was set (the kernel's pressure stall information). A tenant can make the machine busy
//! itself, so a deadline is put off by a bounded time in all.

use std::time::Duration;

/// How long threads waited for a processor since the allocator's start, and the most of it
/// that puts one deadline off.
#[derive(Clone, Copy)]
pub(crate) struct Stall {
    pub total: Duration,
    pub most: Duration,
}

/// A time by which something is to be done.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// When, on a machine with processors to spare.
    pub by: Duration,
    /// [`Stall::total`] when it was set.
    set: Duration,
}

impl Deadline {
    pub fn new(by: Duration, stall: Stall) -> Self {
        let set = stall.total;
        Self { by, set }
    }

    /// When it is over, as far as is known.
    pub fn end(self, stall: Stall) -> Duration {
        self.by + stall.total.saturating_sub(self.set).min(stall.most)
    }
}
