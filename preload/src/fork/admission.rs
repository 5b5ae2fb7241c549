//! The child of a fork is admitted before the C library's function is called, and before any lock is taken: a domain
//! may be waited for, and a fork that is refused ends there, without a child.
//!
//! A fork that this library sees in its handlers only, as the C library's own calls, has its child admitted there.

use super::birth::{OuterChild, await_birth};
use super::thread_words::ThreadWords;
use crate::process_pager::{admit_child, dismiss_child};
use crate::raw_syscall::{SyscallResult, error};
use crate::{address_space, diagnostics, raw_syscall};
use frames::DomainId;
use selfpage::embedding::ForkError;

/// Children that are admitted, for the threads that are to fork them.
static ADMITTED: ThreadWords = ThreadWords::new();

/// Takes the child that the calling thread has had admitted; None where the fork is not by a call of this library's.
pub fn take() -> Option<DomainId> {
    ADMITTED.take().map(DomainId::from_raw)
}

/// Keeps an admitted child for the calling thread. Where more threads fork than there are places, the child is dismissed.
fn put(child: DomainId) {
    if !ADMITTED.put(child.raw()) {
        dismiss_child(child);
    }
}

/// The calling thread's child; None in plain mode.
fn take_or_admit() -> Result<Option<DomainId>, ForkError> {
    take().map_or_else(admit_child, |child| Ok(Some(child)))
}

/// In the child of a fork: what is admitted is its parent's.
pub fn forget_all() {
    ADMITTED.clear();
}

/// Has `clone` make a child that is admitted, or returns EAGAIN where the contract has no room for another process.
pub fn clone_admitted(clone: impl FnOnce() -> SyscallResult) -> SyscallResult {
    if !address_space::is_active() {
        return clone();
    }
    let errno = raw_syscall::errno();
    match take_or_admit() {
        Ok(child) => child.into_iter().for_each(put),
        Err(why) => {
            diagnostics::log(format_args!("fork refused: {why}"));
            return error(libc::EAGAIN);
        }
    }
    let _outer = OuterChild::take();
    raw_syscall::set_errno(errno);
    let pid = clone();
    if pid == 0 {
        return 0;
    }
    // No gate was closed for it.
    take().into_iter().for_each(dismiss_child);
    await_birth(pid)
}
