//! Stacks that grow on demand and give pages back while they are idle (1, 3.4.2).
//!
//! A [`StackPool`] reserves addresses for many stacks, each with an inaccessible page below it. The
//! kernel gives a stack its pages when they are first used, as it does in the paper by auto-commit
//! faults: faults of stacks are never upcalls, which would need a stack themselves. A page below
//! the stack pointer is dead, so an idle stack needs its upper pages only.
//!
//! - A [`StackCoroutine`] waits by [`StackPool::suspend`], which notes its stack pointer;
//!   [`StackPool::sweep`] takes the pages below from all stacks that wait. A stack that code runs on
//!   does not wait: a signal handler or a destructor finds it whole.
//! - A thread of [`StackThread`] calls [`recycle`] before it waits for long.
//! - [`probe`] makes the stack grow before code that must not fault.
//! - An access to the page below a stack is an overflow: a line on standard error names the stack,
//!   and the signal goes on to the program's own handler, or ends it.

mod coroutine;
mod idle;
mod pool;
mod thread;

pub use coroutine::StackCoroutine;
pub use pool::{GrowableStack, StackPool};
pub use thread::{StackThread, StackThreadError};

use crate::error::SpaceError;
use rustix::io::Errno;
use wired::PAGE;

/// Bytes below the stack pointer that stay: the paper's 2 KiB. The frames between a noted stack
/// pointer and the switch to another stack lie there.
const MARGIN: usize = 2048;

/// The first byte that may be dead, of a stack whose pointer is `pointer`: pages wholly below can go.
fn dead_below(pointer: usize) -> usize {
    (pointer - MARGIN) & !(PAGE - 1)
}

/// The calling code's stack pointer.
#[inline(always)]
fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

/// Gives the `bytes` below the stack pointer their pages, so that code which uses no more of the
/// stack takes no fault.
///
/// # Errors
/// [`SpaceError::StackBytes`] where the stack has not so many bytes left: it would overflow.
/// [`SpaceError::Translation`] where a stack of a pool gets no memory; on any other stack that is
/// [`SpaceError::StackBytes`], too, and the main thread's has what it has grown by so far.
#[inline(never)]
pub fn probe(bytes: usize) -> Result<(), SpaceError> {
    let top = stack_pointer();
    let first = top.saturating_sub(bytes) & !(PAGE - 1);
    let end = top.next_multiple_of(PAGE);
    let too_far = SpaceError::StackBytes { bytes };
    match pool::limit_of(top) {
        Some(limit) if first < limit => Err(too_far),
        Some(_) => Ok(translation::populate(first, end - first, true)?),
        None => translation::populate(first, end - first, true).map_err(|_| too_far),
    }
}

/// Gives back the pages below the calling thread's stack pointer, on a stack of a pool. On any
/// other stack it does nothing.
#[inline(never)]
pub fn recycle() {
    let pointer = stack_pointer();
    if let Some(limit) = pool::limit_of(pointer) {
        let end = dead_below(pointer);
        if limit < end {
            // SAFETY: below the stack pointer and its margin nothing is alive.
            let _ = unsafe { give_back(limit, end - limit) };
        }
    }
}

/// Gives the pages of a range back, also those that `mlockall` keeps: a program that locks its memory
/// takes faults on a stack that is fresh or was swept.
///
/// # Safety
/// Nothing in the range is alive.
unsafe fn give_back(addr: usize, len: usize) -> Result<(), Errno> {
    // Linux 5.18; without it locked memory is EINVAL.
    let advice = libc::MADV_DONTNEED_LOCKED;
    // SAFETY: the caller's promise.
    let answer = unsafe { wired::syscall::madvise(addr, len, advice) };
    wired::syscall::checked(answer).map(|_| ())
}
