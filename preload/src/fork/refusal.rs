//! Forks that are refused though the kernel has made the child: it ends at once, and the program gets EAGAIN.

use super::thread_words::ThreadWords;
use crate::raw_syscall::{SyscallResult, error, is_error, reap};

/// Threads whose last fork was refused so. The word says nothing.
static REFUSED: ThreadWords = ThreadWords::new();

pub fn note_refused() {
    REFUSED.put(0);
}

pub fn take_refused() -> bool {
    REFUSED.take().is_some()
}

/// In the child of a fork.
pub fn forget_refusals() {
    REFUSED.clear();
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
