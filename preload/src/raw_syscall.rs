//! What interposed functions make their calls with: raw system calls, and `errno`.
//!
//! An interposed function must give exactly what the kernel gives, for any argument,
//! also for those no typed wrapper lets through. So those calls are made here, and
//! `errno` is set as the C library would.

use std::ffi::{c_int, c_long};

pub use wired::syscall::{SyscallResult, is_error, syscall6};

/// [`syscall6`] with three arguments.
///
/// # Safety
/// As the call itself.
pub unsafe fn syscall3(number: c_long, a: usize, b: usize, c: usize) -> SyscallResult {
    // SAFETY: the caller's.
    unsafe { syscall6(number, [a, b, c, 0, 0, 0]) }
}

/// The result for `errno`.
pub const fn error(errno: c_int) -> SyscallResult {
    -(errno as isize)
}

/// The result as a C function returns it: -1 and `errno`, or the value.
pub fn c_result(answer: SyscallResult) -> isize {
    if is_error(answer) {
        set_errno(-answer as c_int);
        -1
    } else {
        answer
    }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: the C library returns the thread's own location.
    unsafe { *libc::__errno_location() = value };
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// While it lives no signal handler runs on this thread: a handler that calls `mmap` or
/// allocates must not enter the same code again.
pub struct SignalsBlocked(u64);

impl SignalsBlocked {
    /// Blocks every signal, the C library's own included.
    pub fn new() -> Self {
        Self(set_mask(!0))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Replaces the thread's signal mask and returns the one before.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both words live through the call; 8 is the kernel's size of a mask.
    unsafe {
        syscall6(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                std::ptr::from_ref(&mask) as usize,
                std::ptr::from_mut(&mut before) as usize,
                8,
                0,
                0,
            ],
        )
    };
    before
}

/// Returns true if `len` bytes, at least a word and at most a page, are readable.
pub fn is_readable(addr: usize, len: usize) -> bool {
    /// No such way to change a mask: the kernel reads the mask and refuses.
    const HOW: usize = usize::MAX;
    const WORD: usize = size_of::<u64>();
    let readable = |at: usize| {
        // SAFETY: the kernel reads eight bytes, and changes nothing.
        let answer = unsafe { syscall6(libc::SYS_rt_sigprocmask, [HOW, at, 0, WORD, 0, 0]) };
        at != 0 && answer != error(libc::EFAULT)
    };
    readable(addr) && readable(addr.wrapping_add(len - WORD))
}

/// Reaps a child of the calling process. Returns true if it has ended.
pub fn reap(child: i32, flags: i32) -> bool {
    let mut status = 0;
    let at = std::ptr::from_mut(&mut status) as usize;
    loop {
        let args = [child as usize, at, flags as usize, 0, 0, 0];
        // SAFETY: a child of this process and a local word.
        let answer = unsafe { syscall6(libc::SYS_wait4, args) };
        if answer != error(libc::EINTR) {
            return answer != 0;
        }
    }
}

/// Returns true if a child has ended, or was reaped by another thread.
pub fn has_ended(child: i32) -> bool {
    match report_end(child, libc::WNOHANG) {
        // SAFETY: the number of a report on a child; 0 where there is none.
        Ok(end) => (unsafe { end.si_pid() }) != 0,
        Err(errno) => errno == libc::ECHILD,
    }
}

/// Waits for the end of a child, which stays to be reaped. Returns true if a signal has ended it.
pub fn is_killed(child: i32) -> bool {
    report_end(child, 0).is_ok_and(|end| matches!(end.si_code, libc::CLD_KILLED | libc::CLD_DUMPED))
}

/// How a child has ended, which stays to be reaped; or the error.
fn report_end(child: i32, flags: i32) -> Result<libc::siginfo_t, i32> {
    // SAFETY: a structure that the kernel fills, all zero before.
    let mut end: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = flags | libc::WEXITED | libc::WNOWAIT | libc::__WALL;
    let at = std::ptr::from_mut(&mut end) as usize;
    let (kind, child) = (libc::P_PID as usize, child as usize);
    loop {
        // SAFETY: reports on a child.
        let answer =
            unsafe { syscall6(libc::SYS_waitid, [kind, child, at, options as usize, 0, 0]) };
        match answer {
            0 => return Ok(end),
            answer if answer == error(libc::EINTR) => {}
            answer => return Err(-answer as i32),
        }
    }
}

/// The calling thread's number. Not cached: right in the child of a fork, too.
pub fn tid() -> i32 {
    // SAFETY: takes nothing, changes nothing.
    unsafe { syscall3(libc::SYS_gettid, 0, 0, 0) as i32 }
}

/// The process's number.
pub fn pid() -> i32 {
    // SAFETY: takes nothing, changes nothing.
    unsafe { syscall3(libc::SYS_getpid, 0, 0, 0) as i32 }
}

/// The parent's number; 0 where the parent is in another PID namespace.
pub fn parent() -> i32 {
    // SAFETY: takes nothing, changes nothing.
    unsafe { syscall3(libc::SYS_getppid, 0, 0, 0) as i32 }
}

/// Ends the process at once, by a signal that it cannot catch.
pub fn kill_self() -> ! {
    loop {
        // SAFETY: signals only this process.
        unsafe { syscall3(libc::SYS_kill, pid() as usize, libc::SIGKILL as usize, 0) };
    }
}
