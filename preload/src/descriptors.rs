//! The one descriptor of ours in the program's table: the port, by which its children
//! come in.
//!
//! Everything else the pager holds is in a descriptor table of its own. A program that
//! closes all it does not know leaves the port open and is told that it was not.

use crate::link::guarded_fd;
use crate::raw::{self, Answer, error, give};
use std::ffi::c_int;

/// Ends a `close_range` over everything.
const LAST: u32 = u32::MAX;

fn ours(fd: c_int) -> bool {
    guarded_fd() == Some(fd)
}

/// `close`.
pub fn close(fd: c_int) -> Answer {
    match ours(fd) {
        true => error(libc::EBADF),
        // SAFETY: the program closes a descriptor of its own.
        false => unsafe { raw::call3(libc::SYS_close, fd as usize, 0, 0) },
    }
}

/// `dup2`.
pub fn dup2(from: c_int, to: c_int) -> Answer {
    match ours(to) {
        true => error(libc::EBADF),
        // SAFETY: the program replaces a descriptor of its own.
        false => unsafe { raw::call3(libc::SYS_dup2, from as usize, to as usize, 0) },
    }
}

/// `dup3`.
pub fn dup3(from: c_int, to: c_int, flags: c_int) -> Answer {
    match ours(to) {
        true => error(libc::EBADF),
        // SAFETY: as above.
        false => unsafe { raw::call3(libc::SYS_dup3, from as usize, to as usize, flags as usize) },
    }
}

/// `close_range`, around the port.
pub fn close_range(first: u32, last: u32, flags: c_int) -> Answer {
    // SAFETY: the program closes descriptors of its own.
    let range = |first: u32, last: u32| unsafe {
        raw::call3(
            libc::SYS_close_range,
            first as usize,
            last as usize,
            flags as usize,
        )
    };
    match guarded_fd().map(|fd| fd as u32) {
        Some(port) if first <= last && (first..=last).contains(&port) => {
            let mut answer = 0;
            if first < port {
                answer = range(first, port - 1);
            }
            if !raw::failed(answer) && port < last {
                answer = range(port + 1, last);
            }
            answer
        }
        _ => range(first, last),
    }
}

mod exports {
    use super::{LAST, c_int, error, give, ours};

    unsafe extern "C" {
        /// The C library's own `close`, by its other name: a cancellation point.
        fn __close(fd: c_int) -> c_int;
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn close(fd: c_int) -> c_int {
        match ours(fd) {
            true => give(error(libc::EBADF)) as c_int,
            // SAFETY: the program closes a descriptor of its own.
            false => unsafe { __close(fd) },
        }
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
        give(super::dup2(from, to)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        give(super::dup3(from, to, flags)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
        give(super::close_range(first, last, flags)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn closefrom(first: c_int) {
        super::close_range(first.max(0) as u32, LAST, 0);
    }
}
