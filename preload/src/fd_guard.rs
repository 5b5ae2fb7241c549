//! The one descriptor of ours in the program's table: the port, by which its children
//! join the tree. And descriptors that the program receives by a message.
//!
//! The pager's other descriptors are in a table of its own. The port stays open when
//! the program closes all descriptors: `close` gets EBADF for it, `close_range` skips it.

use crate::address_space;
use crate::raw_syscall::{SyscallResult, c_result, error, is_error, syscall3};
use crate::supervisor::guarded_fd;
use std::ffi::{c_int, c_uint};

/// The last descriptor of a `close_range` over all.
const LAST: u32 = u32::MAX;

fn ours(fd: c_int) -> bool {
    guarded_fd() == Some(fd)
}

/// `close`.
pub fn close(fd: c_int) -> SyscallResult {
    match ours(fd) {
        true => error(libc::EBADF),
        // SAFETY: the program closes a descriptor of its own.
        false => unsafe { syscall3(libc::SYS_close, fd as usize, 0, 0) },
    }
}

/// `dup2`.
pub fn dup2(from: c_int, to: c_int) -> SyscallResult {
    match ours(to) {
        true => error(libc::EBADF),
        // SAFETY: the program replaces a descriptor of its own.
        false => unsafe { syscall3(libc::SYS_dup2, from as usize, to as usize, 0) },
    }
}

/// `dup3`.
pub fn dup3(from: c_int, to: c_int, flags: c_int) -> SyscallResult {
    match ours(to) {
        true => error(libc::EBADF),
        // SAFETY: as above.
        false => unsafe { syscall3(libc::SYS_dup3, from as usize, to as usize, flags as usize) },
    }
}

/// `close_range`, around the port.
pub fn close_range(first: u32, last: u32, flags: c_int) -> SyscallResult {
    // SAFETY: the program closes descriptors of its own.
    let range = |first: u32, last: u32| unsafe {
        syscall3(
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
            if !is_error(answer) && port < last {
                answer = range(port + 1, last);
            }
            answer
        }
        _ => range(first, last),
    }
}

crate::dlsym::next! {
    /// The C library's own `recvmsg`.
    fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize
}

crate::dlsym::next! {
    /// The C library's own `recvmmsg`.
    fn recvmmsg(
        socket: c_int,
        messages: *mut libc::mmsghdr,
        most: c_uint,
        flags: c_int,
        limit: *mut libc::timespec
    ) -> c_int
}

/// The system call `recvmsg`.
pub fn raw_recvmsg(socket: c_int, message: usize, flags: c_int) -> SyscallResult {
    // SAFETY: the program asked for exactly this.
    let answer = unsafe { syscall3(libc::SYS_recvmsg, socket as usize, message, flags as usize) };
    if !is_error(answer) {
        // SAFETY: the kernel has just filled it.
        unsafe { received(message as *const libc::msghdr) };
    }
    answer
}

/// Handles a received message. If one of its descriptors lets the kernel hold pages, one that a
/// process outside of the tree opened, the tree's pagers must be notified before the program uses
/// it.
///
/// # Safety
/// The kernel has filled the message.
unsafe fn received(message: *const libc::msghdr) {
    // SAFETY: the caller's; the macros keep within what the kernel filled.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(message);
        while let Some(head) = part.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(part).cast::<c_int>();
                let len = head.cmsg_len - libc::CMSG_LEN(0) as usize;
                let mut all = (0..len / size_of::<c_int>()).map(|n| fds.add(n).read_unaligned());
                if address_space::is_active() && all.any(host::direct_io::received_may_hold_pages) {
                    // It stops at the filter until every pager is notified; then it fails.
                    syscall3(libc::SYS_io_setup, 0, 0, 0);
                    return;
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

mod exports {
    use super::{LAST, c_int, c_result, c_uint, ours, received};
    use crate::address_space;

    /// `recvmsg`.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        // SAFETY: the caller's; the kernel filled the message.
        unsafe {
            let length = super::recvmsg(socket, message, flags);
            if length >= 0 {
                received(message);
            }
            length
        }
    }

    /// `recvmmsg`.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn recvmmsg(
        socket: c_int,
        messages: *mut libc::mmsghdr,
        most: c_uint,
        flags: c_int,
        limit: *mut libc::timespec,
    ) -> c_int {
        // SAFETY: as above.
        unsafe {
            let count = super::recvmmsg(socket, messages, most, flags, limit);
            for n in 0..count.max(0) as usize {
                received(&raw const (*messages.add(n)).msg_hdr);
            }
            count
        }
    }

    unsafe extern "C" {
        /// The C library's own `close`, by its other name: a cancellation point.
        fn __close(fd: c_int) -> c_int;
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn close(fd: c_int) -> c_int {
        // The library's own calls come here, too, from the pager's threads and before the program
        // runs: the C library's function may be the program's by then.
        if !address_space::is_active() || ours(fd) {
            return c_result(super::close(fd)) as c_int;
        }
        // SAFETY: the program closes a descriptor of its own.
        unsafe { __close(fd) }
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
        c_result(super::dup2(from, to)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        c_result(super::dup3(from, to, flags)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
        c_result(super::close_range(first, last, flags)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn closefrom(first: c_int) {
        super::close_range(first.max(0) as u32, LAST, 0);
    }
}
