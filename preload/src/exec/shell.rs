//! `system`, `popen` and `wordexp`: the C library starts the shell by internal calls, with the environment of the process
//! as it is. So our variables return to the environment of a program that removed them. And it waits for the shell by
//! internal calls, so `system` and `pclose` end as [`wait`](crate::wait) does.

use super::environment::restore_environment;
use crate::process_pager::await_ends;
use std::ffi::{c_char, c_int, c_void};

/// Defines functions that call the C library's own between two other calls.
macro_rules! around {
    ($($before:ident, $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $after:ident;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name($($arg: $ty),*) -> $ret {
            crate::dlsym::next! {
                /// The C library's own function.
                fn $name($($arg: $ty),*) -> $ret
            }
            $before();
            // SAFETY: the program's own call.
            let answer = unsafe { $name($($arg),*) };
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
