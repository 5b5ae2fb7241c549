//! Saying that a ledger's limit is felt, so that its owner may raise it.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: frames are asked for, and
//! granted at once where they can be. Rule: whoever feels the limit says so once, by a word
//! and a bell, and nobody says it again before he was heard. It happens on the page path: no
//! allocation, one system call, and nobody waits for an answer.

use crate::ledger::Ledger;
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Frames still to be had below which the limit is felt: a sixteenth of the most there can
/// be, at most 4 MiB. A pager that keeps as many unused asks before it evicts.
const LOW_WATER: u32 = 1024;

/// This process's eventfd to ring; -1 when none was given.
pub(crate) struct PressureBell(AtomicI32);

const NONE: RawFd = -1;

impl Default for PressureBell {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

impl PressureBell {
    fn ring(&self) {
        let fd = self.0.load(SeqCst);
        if fd != NONE {
            // SAFETY: the descriptor is owned here, and its number never closed meanwhile:
            // another one is put in its place.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    fn set(&self, bell: OwnedFd) {
        self.0.store(bell.into_raw_fd(), SeqCst);
    }
}

impl Drop for PressureBell {
    fn drop(&mut self) {
        let fd = self.0.load(SeqCst);
        if fd != NONE {
            // SAFETY: owned here, and this is its end.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Ledger {
    /// The word that says that the limit is felt: not 0 from then on until the limit is
    /// raised, or [`crate::LimitControl::acknowledge_pressure`] was called.
    pub fn pressure(&self) -> &AtomicU32 {
        &self.memory.header().pressure
    }

    /// The eventfd that this process rings when it is the first to feel the limit. One that
    /// was given before is left open, for another thread may be ringing it, and in a fork's
    /// child its number is another descriptor's. It must not be closed behind the ledger's
    /// back, and should not block: 8 bytes are written to it on the page path.
    pub fn set_bell(&self, bell: OwnedFd) {
        self.bell.set(bell);
    }

    /// To be called after a frame was asked for.
    pub(crate) fn signal_pressure(&self) {
        let (total, header) = (self.total(), self.memory.header());
        let limit = header.limit.limit();
        if limit >= total {
            return;
        }
        let low = (total / 16).clamp(1, LOW_WATER);
        let felt = header.committed.load(Relaxed).saturating_add(low) >= limit;
        if felt && header.pressure.load(Relaxed) == 0 && header.pressure.swap(1, SeqCst) == 0 {
            self.bell.ring();
        }
    }
}
