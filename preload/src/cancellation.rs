//! Cancellation (`pthread_cancel`) inside this library.
//!
//! Many calls of the C library are cancellation points, `close` and `write` among them. Functions of the program that are
//! none make such calls here: a thread that was cancelled would be unwound out of them, with locks held.

use crate::pager_process;
use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it lives, the program's thread is not cancelled. A pager's thread, whose control block is this library's, never is.
pub struct CancellationDisabled(Option<c_int>);

impl CancellationDisabled {
    /// Disables it.
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: changes the calling thread's own state.
        let is_programs = !pager_process::is_pager()
            && unsafe { pthread_setcancelstate(DISABLE, &mut before) } == 0;
        Self(is_programs.then_some(before))
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: as above.
            unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
        }
    }
}
