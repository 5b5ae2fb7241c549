//! Filters of system calls that the program installs (seccomp).
//!
//! A filter may end the program at an operation of `futex` that most programs do not make: Chromium's sandbox allows those
//! of waiting and waking, and none of priority inheritance. So from a program's first filter on the library's
//! locks wait without it.

use crate::address_space;
use crate::raw_syscall::{SyscallResult, c_result, is_error, syscall6};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};
use wired::pi;

/// True if a filter was installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// `seccomp` and `prctl`, by their numbers.
pub fn call(number: c_long, args: [usize; 6]) -> SyscallResult {
    let installs = match number {
        libc::SYS_prctl => args[0] == libc::PR_SET_SECCOMP as usize,
        _ => args[0] <= libc::SECCOMP_SET_MODE_FILTER as usize,
    };
    if installs {
        pi::disable_inheritance();
        if address_space::is_active() {
            // The last that waited so has the lock, and releases it by such an operation.
            drop(address_space::lock());
        }
    }
    // SAFETY: the program asked for exactly this.
    let answer = unsafe { syscall6(number, args) };
    if installs && !is_error(answer) {
        INSTALLED.store(true, Ordering::SeqCst);
    } else if installs && !INSTALLED.load(Ordering::SeqCst) {
        // A program that only asks if it could.
        pi::enable_inheritance();
    }
    // Another thread may have undone it meanwhile.
    if installs && INSTALLED.load(Ordering::SeqCst) {
        pi::disable_inheritance();
    }
    answer
}

/// `prctl`, whose arguments are as many as the option has.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    c_result(call(
        libc::SYS_prctl,
        [option as usize & 0xffff_ffff, a, b, c, d, 0],
    )) as c_int
}
