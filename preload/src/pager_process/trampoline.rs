//! The trampoline: a clone between the program and its pager process, which exits once that serves.
//! So the pager process is not the program's child.

use super::threads::{self, ThreadRole};
use super::{BESIDE, GRANDCHILD, await_ready, fail, started};
use crate::raw_syscall::{SyscallResult, syscall3};
use std::cell::UnsafeCell;

/// Puts the program's subreaper flag aside while it lives: the pager process would become a
/// child that a subreaper waits for, whose end waits for the subreaper's.
pub struct SubreaperGuard(bool);

impl SubreaperGuard {
    /// Clears the flag.
    pub fn new() -> Self {
        let mut flag = 0i32;
        let at = std::ptr::from_mut(&mut flag) as usize;
        // SAFETY: a local word.
        unsafe {
            syscall3(
                libc::SYS_prctl,
                libc::PR_GET_CHILD_SUBREAPER as usize,
                at,
                0,
            )
        };
        if flag != 0 {
            set_subreaper(0);
        }
        Self(flag != 0)
    }
}

impl Drop for SubreaperGuard {
    fn drop(&mut self) {
        if self.0 {
            set_subreaper(1);
        }
    }
}

fn set_subreaper(flag: usize) {
    // SAFETY: a flag of this process.
    unsafe {
        syscall3(
            libc::SYS_prctl,
            libc::PR_SET_CHILD_SUBREAPER as usize,
            flag,
            0,
        )
    };
}

/// The trampoline's stack: it makes a few system calls, on the thread storage of the thread
/// that waits for it.
#[repr(C, align(16))]
struct TrampolineStack(UnsafeCell<[u8; 16 << 10]>);
// SAFETY: used by one trampoline at a time; its process waits for it.
unsafe impl Sync for TrampolineStack {}
static TRAMPOLINE_STACK: TrampolineStack = TrampolineStack(UnsafeCell::new([0; 16 << 10]));

/// Clones the trampoline.
pub fn clone() -> SyscallResult {
    let top = TRAMPOLINE_STACK.0.get() as usize + size_of::<TrampolineStack>();
    // The program's descriptors: the trampoline opens and closes none.
    let flags = BESIDE | libc::CLONE_FILES as usize;
    // SAFETY: a stack of its own; `trampoline` never returns.
    unsafe { threads::clone_onto(flags, top, 0, trampoline, 0) }
}

extern "C" fn trampoline(_: usize) -> ! {
    match started(threads::spawn(ThreadRole::Leader, BESIDE, GRANDCHILD)).and_then(await_ready) {
        Ok(()) => {}
        Err(why) => fail(why),
    }
    loop {
        // SAFETY: ends the trampoline.
        unsafe { syscall3(libc::SYS_exit, 0, 0, 0) };
    }
}
