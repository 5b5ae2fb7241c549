//! The flag of a side that sleeps, or is about to, and has to be rung.
//!
//! The consumer sets the flag, checks its queue again, then sleeps; the producer checks the flag
//! after it has published work. Both have a fence in between, so that at least one of them sees
//! the other's write, and no wake-up is lost (`interleavings.rs` tries every order). io_uring has
//! the same as `IORING_SQ_NEED_WAKEUP`.

use crate::atomics::{AtomicU32, fence};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// One side's flag.
#[derive(Debug, Default)]
#[cfg_attr(not(all(test, loom)), repr(transparent))]
pub(crate) struct WakeFlag(AtomicU32);

#[cfg(not(all(test, loom)))]
// SAFETY: an atomic, of which any value but 0 means the same.
unsafe impl wired::Plain for WakeFlag {}

impl WakeFlag {
    /// Sleeper: requests to be rung from now on. It checks for work once more after this.
    pub fn set(&self) {
        // An exchange, so that it is ordered after the last take, or is seen by it.
        self.0.swap(1, SeqCst);
        fence(SeqCst);
    }

    /// Sleeper: it is awake and needs no ring.
    pub fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// Returns true if the sleeper has to be rung: a hint, for callers that do not rely on it.
    #[cfg(not(all(test, loom)))]
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Producer, after publishing work: clears the flag. Returns true if it was set, that is, once
    /// for each time the sleeper set it: then the caller rings.
    pub fn take(&self) -> bool {
        fence(SeqCst);
        self.0.load(Relaxed) != 0 && self.0.swap(0, SeqCst) != 0
    }
}
