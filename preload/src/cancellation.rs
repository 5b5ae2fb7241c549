//! Cancellation (`pthread_cancel`) inside this library.
//!
//! Many calls of the C library are cancellation points, `close` and `write` among them. Functions of the program that are
//! none make such calls here: a thread that was cancelled would be unwound out of them, with locks held.

use crate::library_data::is_of_c_library;
use crate::pager_process;
use std::ffi::c_int;
use std::mem::transmute;
use std::sync::OnceLock;

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

type SetState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// The C library's `pthread_setcancelstate`. A sanitizer has one, too, which may not be called before it has started.
static SET_STATE: OnceLock<SetState> = OnceLock::new();

/// Finds the C library's function. In the constructor.
pub fn init() {
    // SAFETY: a C string; the loader's lookup changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_setcancelstate".as_ptr()) };
    if !found.is_null() && is_of_c_library(found.addr()) {
        // SAFETY: the C function of that name has this type.
        let _ = SET_STATE.set(unsafe { transmute::<*mut libc::c_void, SetState>(found) });
    }
}

/// While it lives, the program's thread is not cancelled. A pager's thread, whose control block is this library's, never is.
pub struct CancellationDisabled(Option<(SetState, c_int)>);

impl CancellationDisabled {
    /// Disables it.
    pub fn new() -> Self {
        let set = SET_STATE.get().filter(|_| !pager_process::is_pager());
        Self(set.map(|set| {
            let mut before = 0;
            // SAFETY: changes the calling thread's own state.
            unsafe { set(DISABLE, &mut before) };
            (*set, before)
        }))
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        if let Some((set, before)) = self.0 {
            // SAFETY: as above. Older C libraries want a place for the state before.
            unsafe { set(before, &mut { 0 }) };
        }
    }
}
