//! `wait` and its kin: a child whose end is reported has no memory any more.
//!
//! The kernel frees an image's memory before it reports the end to the parent. So a parent may write the file that the
//! child executed (no ETXTBSY), finds shared memory unmapped, and may unmount file systems. The pager process of a paged
//! program has that memory, too, and ends after the program; these functions wait for it.
//!
//! The table of programs names a child by its process number. A parent that makes bare system calls does not wait.

use crate::dlsym;
use crate::process_pager::await_end_of;
use crate::raw_syscall::{SyscallResult, syscall6};
use std::ffi::c_int;
use std::mem::transmute;
use std::ptr::null_mut;

type Wait4 = unsafe extern "C" fn(c_int, *mut c_int, c_int, *mut libc::rusage) -> c_int;
type WaitId = unsafe extern "C" fn(c_int, u32, *mut libc::siginfo_t, c_int) -> c_int;

dlsym::next_function!(WAIT4 = "wait4");
dlsym::next_function!(WAITID = "waitid");

/// `wait4`. A cancellation point, so a thread may be unwound from here: the "C" interface has no landing pad in the way,
/// "C-unwind" has one, which aborts.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn wait4(
    child: c_int,
    status: *mut c_int,
    options: c_int,
    usage: *mut libc::rusage,
) -> c_int {
    // SAFETY: the C library's function of that name has this type.
    let real: Wait4 = unsafe { transmute(WAIT4.find()) };
    // SAFETY: the caller's, and a word for what it does not ask for.
    reap(
        status,
        |status| unsafe { real(child, status, options, usage) } as isize,
    ) as c_int
}

/// `wait3`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> c_int {
    // SAFETY: the caller's.
    unsafe { wait4(-1, status, options, usage) }
}

/// `waitpid`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { wait4(child, status, options, null_mut()) }
}

/// `waitpid`, by its other name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn __waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { wait4(child, status, options, null_mut()) }
}

/// `wait`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn wait(status: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { wait4(-1, status, 0, null_mut()) }
}

/// `waitid`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn waitid(
    kind: c_int,
    id: u32,
    info: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    // SAFETY: the C library's function of that name has this type.
    let real: WaitId = unsafe { transmute(WAITID.find()) };
    // SAFETY: the caller's, and room for what it does not ask for.
    await_state(info, |info| unsafe { real(kind, id, info, options) }
        as isize) as c_int
}

/// `wait4` by its number.
pub fn raw_wait4(child: usize, status: usize, options: usize, usage: usize) -> SyscallResult {
    reap(status as *mut c_int, |status| {
        let args = [child, status as usize, options, usage, 0, 0];
        // SAFETY: the program asked for exactly this, and a word for what it does not ask for.
        unsafe { syscall6(libc::SYS_wait4, args) }
    })
}

/// `waitid` by its number.
pub fn raw_waitid(
    kind: usize,
    id: usize,
    info: usize,
    options: usize,
    usage: usize,
) -> SyscallResult {
    await_state(info as *mut libc::siginfo_t, |info| {
        let args = [kind, id, info as usize, options, usage, 0];
        // SAFETY: the program asked for exactly this, and room for what it does not ask for.
        unsafe { syscall6(libc::SYS_waitid, args) }
    })
}

/// Calls `wait4`, with a word of this frame for a status that is not asked for.
fn reap(status: *mut c_int, call: impl FnOnce(*mut c_int) -> isize) -> isize {
    let mut own = 0;
    let status = if status.is_null() {
        &raw mut own
    } else {
        status
    };
    let reaped = call(status);
    if reaped > 0 {
        // SAFETY: the kernel has just written it.
        on_reaped(reaped as c_int, unsafe { status.read() });
    }
    reaped
}

/// Calls `waitid` likewise.
fn await_state(
    info: *mut libc::siginfo_t,
    call: impl FnOnce(*mut libc::siginfo_t) -> isize,
) -> isize {
    // SAFETY: zeros are a value of it.
    let mut own: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let info = if info.is_null() { &raw mut own } else { info };
    let answer = call(info);
    if answer == 0 {
        // SAFETY: the kernel has just written it.
        unsafe { on_waited(info) };
    }
    answer
}

/// Waits for the pager of a child, if the child has ended and did not only stop or continue.
fn on_reaped(child: c_int, status: c_int) {
    if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
        await_end_of(child);
    }
}

/// The same for `waitid`, whose information is zeros where no child has changed.
///
/// # Safety
/// The kernel has written the information.
unsafe fn on_waited(info: *const libc::siginfo_t) {
    // SAFETY: the caller's.
    let (code, child) = unsafe { ((*info).si_code, (*info).si_pid()) };
    let has_ended = matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
    if child > 0 && has_ended {
        await_end_of(child);
    }
}
