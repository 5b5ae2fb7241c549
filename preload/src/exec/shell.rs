//! `system`, `popen`, `pclose` and `wordexp`. The C library starts the shell, and waits for it, by internal calls that this
//! library does not see. So our variables are put back into the environment before the shell starts, and `system`,
//! `pclose` and `wordexp` wait for pagers as [`wait`](crate::wait) does. Cancellation may unwind a thread from them.

use super::environment::restore_environment;
use crate::dlsym;
use crate::process_pager::await_ends;
use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;

/// Defines functions that call the C library's own between two other calls.
macro_rules! around {
    ($($before:ident, $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $after:ident;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name($($arg: $ty),*) -> $ret {
            type Real = unsafe extern "C" fn($($ty),*) -> $ret;
            dlsym::next_function!(NEXT = stringify!($name));
            // SAFETY: the C library's function of that name has this type.
            let real: Real = unsafe { transmute(NEXT.find()) };
            $before();
            // SAFETY: the program's own call.
            let answer = unsafe { real($($arg),*) };
            $after();
            answer
        }
    )*};
}
around! {
    restore_environment, system(command: *const c_char) -> c_int, await_ends;
    restore_environment, popen(command: *const c_char, mode: *const c_char) -> *mut c_void, nothing;
    nothing, pclose(stream: *mut c_void) -> c_int, await_ends;
    restore_environment, wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int, await_ends;
}

fn nothing() {}
