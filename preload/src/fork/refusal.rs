//! Forks that are refused though the kernel has made the child: it ends at once, and the program gets EAGAIN.

use crate::raw_syscall::{SyscallResult, error, is_error, reap, tid};
use std::sync::atomic::{AtomicI32, Ordering};

/// Threads whose last fork was refused so.
static REFUSED: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

pub fn note_refused() {
    let tid = tid();
    for place in &REFUSED {
        let put = place.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed);
        if put.is_ok() {
            return;
        }
    }
}

pub fn take_refused() -> bool {
    let tid = tid();
    REFUSED.iter().any(|place| {
        let taken = place.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    })
}

/// In the child of a fork, whose threads have other numbers.
pub fn forget_refusals() {
    for place in &REFUSED {
        place.store(0, Ordering::Release);
    }
}

/// The result for the program of a fork that returned `pid`.
pub fn check_refusal(pid: SyscallResult) -> SyscallResult {
    if pid == 0 || !take_refused() {
        return pid;
    }
    if !is_error(pid) {
        // It ends at once, by our own handler.
        reap(pid as i32, libc::__WALL);
    }
    error(libc::EAGAIN)
}
