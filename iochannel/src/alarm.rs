//! Whether a side sleeps, or is about to, and is to be rung.
//!
//! Who sleeps raises the alarm and then looks once more for work; who has put work there
//! looks at the alarm after. Both have a fence between the two, so that at least one of them
//! sees what the other did, and no wake-up is lost (`interleavings.rs` tries every order).

use crate::word::{AtomicU32, fence};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A sleeper's word.
#[derive(Debug, Default)]
#[cfg_attr(not(all(test, loom)), repr(transparent))]
pub(crate) struct Alarm(AtomicU32);

#[cfg(not(all(test, loom)))]
// SAFETY: an atomic, of which any value but 0 means the same.
unsafe impl wired::Plain for Alarm {}

impl Alarm {
    /// The sleeper's: from now on it is to be rung. It looks for work once more after this.
    pub fn raise(&self) {
        // An exchange, so that it comes after an answer to the last time, or meets it.
        self.0.swap(1, SeqCst);
        fence(SeqCst);
    }

    /// The sleeper's: it is awake, and needs no ringing.
    pub fn lower(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether the sleeper is to be rung: a guess, for who does not rely on it.
    #[cfg(not(all(test, loom)))]
    pub fn is_raised(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// The other side's, after it has put work there: whether to ring, once each time the
    /// alarm is raised.
    pub fn answer(&self) -> bool {
        fence(SeqCst);
        self.0.load(Relaxed) != 0 && self.0.swap(0, SeqCst) != 0
    }
}
