//! `system`, `popen` and `wordexp`: the C library starts the shell by internal calls, with the environment of the process
//! as it is. So our variables return to the environment of a program that removed them.

use super::environment::restore_environment;
use std::ffi::{c_char, c_int, c_void};

/// Defines functions that call the C library's own after they have restored the environment.
macro_rules! with_environment {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name($($arg: $ty),*) -> $ret {
            crate::dlsym::next! {
                /// The C library's own function.
                fn $name($($arg: $ty),*) -> $ret
            }
            restore_environment();
            // SAFETY: the program's own call.
            unsafe { $name($($arg),*) }
        }
    )*};
}
with_environment! {
    system(command: *const c_char) -> c_int
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void
    wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int
}
