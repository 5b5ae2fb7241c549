//! `futex` by its number, on words that are paged out.
//!
//! Operations that change the word themselves (priority inheritance, WAKE_OP) do not bring in a page
//! that a userfaultfd serves: the kernel fails them with EFAULT. So a call that fails has its pages
//! brought in, and is repeated. The C library uses a word right before it makes such a call.

use crate::raw_syscall::{SyscallResult, error, is_error, syscall3, syscall6};
use wired::PAGE;

/// Attempts: a page may leave again before the call is repeated.
const ATTEMPTS: usize = 64;

/// `futex`, with its six arguments.
pub fn futex(args: [usize; 6]) -> SyscallResult {
    let [word, operation, _, _, other, _] = args;
    // SAFETY: the program asked for exactly this.
    let call = || unsafe { syscall6(libc::SYS_futex, args) };
    let mut answer = call();
    let has_other = matches!(
        operation as i32 & libc::FUTEX_CMD_MASK,
        libc::FUTEX_WAKE_OP | libc::FUTEX_CMP_REQUEUE_PI | libc::FUTEX_WAIT_REQUEUE_PI
    );
    for _ in 0..ATTEMPTS {
        if answer != error(libc::EFAULT) || !bring_in(word) || has_other && !bring_in(other) {
            break;
        }
        answer = call();
    }
    answer
}

/// Brings the page of a word in, to be written. Returns false if that cannot be.
fn bring_in(word: usize) -> bool {
    let page = word & !(PAGE - 1);
    // SAFETY: changes no contents.
    let answer = unsafe {
        syscall3(
            libc::SYS_madvise,
            page,
            PAGE,
            libc::MADV_POPULATE_WRITE as usize,
        )
    };
    !is_error(answer)
}
