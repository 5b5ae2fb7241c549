//! The C library's memory functions, as the program calls them.
//!
//! Each function is its system call, emulated in [`crate::map`],
//! [`crate::advise`] and [`crate::brk`], with the result given the C way.

use crate::raw::give;
use crate::{advise, brk, map};
use std::ffi::{c_int, c_void};

/// `mmap`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mmap(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    give(map::mmap(addr, len, prot, flags, fd, offset))
}

/// `mmap64`, the same on 64-bit machines.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mmap64(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    give(map::mmap(addr, len, prot, flags, fd, offset))
}

/// `munmap`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn munmap(addr: usize, len: usize) -> c_int {
    give(map::munmap(addr, len)) as c_int
}

/// `mremap`. Its fifth argument is read only where the flags say there is one.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> isize {
    give(map::mremap(old, old_len, new_len, flags, new))
}

/// `mprotect`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mprotect(addr: usize, len: usize, prot: c_int) -> c_int {
    give(map::mprotect(addr, len, prot, -1)) as c_int
}

/// `pkey_mprotect`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn pkey_mprotect(addr: usize, len: usize, prot: c_int, key: c_int) -> c_int {
    give(map::mprotect(addr, len, prot, key)) as c_int
}

/// `madvise`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    give(advise::madvise(addr, len, advice)) as c_int
}

/// `posix_madvise`: returns the error number, and POSIX's DONTNEED keeps the contents.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn posix_madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    match advice {
        libc::POSIX_MADV_DONTNEED => 0,
        _ => -advise::madvise(addr, len, advice) as c_int,
    }
}

/// `mlock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mlock(addr: usize, len: usize) -> c_int {
    give(advise::mlock(addr, len, false)) as c_int
}

/// `mlock2`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mlock2(addr: usize, len: usize, flags: c_int) -> c_int {
    match flags {
        0 | 1 => give(advise::mlock(addr, len, flags == 1)) as c_int,
        _ => give(crate::raw::error(libc::EINVAL)) as c_int,
    }
}

/// `munlock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn munlock(addr: usize, len: usize) -> c_int {
    give(advise::munlock(addr, len)) as c_int
}

/// `mlockall`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mlockall(flags: c_int) -> c_int {
    give(advise::mlockall(flags)) as c_int
}

/// `mincore`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mincore(addr: usize, len: usize, to: usize) -> c_int {
    give(advise::mincore(addr, len, to)) as c_int
}

/// `process_madvise`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn process_madvise(
    process: c_int,
    parts: usize,
    count: usize,
    advice: c_int,
    flags: u32,
) -> isize {
    give(advise::process_madvise(
        process, parts, count, advice, flags,
    ))
}

crate::next::next! {
    /// The C library's own `msync`: a cancellation point.
    fn msync(addr: usize, len: usize, flags: c_int) -> c_int
}

mod syncing {
    use super::{advise, c_int, give};

    /// `msync`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn msync(addr: usize, len: usize, flags: c_int) -> c_int {
        match advise::msync(addr, len, flags) {
            Some(answer) => give(answer) as c_int,
            // SAFETY: the program asked for exactly this.
            None => unsafe { super::msync(addr, len, flags) },
        }
    }
}

/// `munlockall`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn munlockall() -> c_int {
    give(advise::munlockall()) as c_int
}

/// The C library's `brk`: 0, or ENOMEM.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn brk(to: usize) -> c_int {
    match brk::brk(to) as usize >= to {
        true => 0,
        false => give(crate::raw::error(libc::ENOMEM)) as c_int,
    }
}

/// `sbrk`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn sbrk(by: isize) -> *mut c_void {
    give(brk::sbrk(by)) as *mut c_void
}
