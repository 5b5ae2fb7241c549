//! The pressure signal: a ledger's domains need more frames than its limit allows.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: frames are requested, and
//! granted at once where possible. Rule: pressure is signalled once, by a word and an eventfd,
//! and not again until it is acknowledged. Signalling is on the page path: no allocation, one
//! system call, no wait for a reply. Only the process that has the eventfd signals: a pager process
//! shares its program's memory, and not its descriptors, of which one with the same number may be
//! anything. A request by the program's own thread leaves the signal to the pager's next one.

use crate::layout::LedgerMemory;
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::process::getpid;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed, Ordering::SeqCst};

/// Frames below the limit at which pressure starts: a sixteenth of the total, at most 4 MiB. A
/// pager that keeps as many frames unused requests more before it evicts.
const LOW_WATER: u32 = 1024;

/// An eventfd for pressure; -1 where none was set.
pub(crate) struct PressureBell {
    fd: AtomicI32,
    /// The process whose descriptor it is.
    owner: AtomicI32,
}

const NONE: RawFd = -1;

impl Default for PressureBell {
    fn default() -> Self {
        Self {
            fd: AtomicI32::new(NONE),
            owner: AtomicI32::new(0),
        }
    }
}

impl PressureBell {
    fn ring(&self) {
        let fd = self.fd.load(SeqCst);
        if fd != NONE {
            // SAFETY: the descriptor is owned here, and its number stays open: a new
            // descriptor replaces the number without closing it.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Replaces the eventfd by one of the calling process; the former one stays open.
    pub(crate) fn set(&self, bell: OwnedFd) {
        self.owner.store(getpid().as_raw_pid(), SeqCst);
        self.fd.store(bell.into_raw_fd(), SeqCst);
    }

    /// Returns true if the calling thread may ring: no other process has an eventfd here.
    fn is_own(&self) -> bool {
        self.fd.load(SeqCst) == NONE || self.owner.load(SeqCst) == getpid().as_raw_pid()
    }

    /// Signals pressure if the limit is near; called after each request for a frame.
    pub(crate) fn signal_pressure(&self, memory: &LedgerMemory) {
        let (total, header) = (memory.total(), memory.header());
        let limit = header.limit.limit();
        if limit >= total {
            return;
        }
        let low = (total / 16).clamp(1, LOW_WATER);
        let felt = header.committed.load(Relaxed).saturating_add(low) >= limit;
        let may_signal = felt && header.pressure.load(Relaxed) == 0 && self.is_own();
        if may_signal && header.pressure.swap(1, SeqCst) == 0 {
            self.ring();
        }
    }
}

impl Drop for PressureBell {
    fn drop(&mut self) {
        let fd = self.fd.load(SeqCst);
        if fd != NONE {
            // SAFETY: owned here, and not used after this.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}
