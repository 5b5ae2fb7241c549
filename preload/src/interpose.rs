//! The C library's memory functions, as the program calls them.
//!
//! Each function is its system call, emulated in [`crate::map`],
//! [`crate::madvise`] and [`crate::brk`], with the result given the C way.

use crate::raw_syscall::{c_result, error};
use crate::{brk, madvise, map, mlock, mremap, mseal, remap_file_pages, sysv_shm};
use std::ffi::{c_int, c_void};

/// Defines `mmap`, which has a second name on 64-bit machines.
macro_rules! mmap {
    ($($name:ident)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            addr: usize,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> isize {
            c_result(map::mmap(addr, len, prot, flags, fd, offset))
        }
    )*};
}
mmap!(mmap mmap64);

/// `munmap`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn munmap(addr: usize, len: usize) -> c_int {
    c_result(map::munmap(addr, len)) as c_int
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
    c_result(mremap::mremap(old, old_len, new_len, flags, new))
}

/// `mprotect`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mprotect(addr: usize, len: usize, prot: c_int) -> c_int {
    c_result(map::mprotect(addr, len, prot, -1)) as c_int
}

/// `mseal`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mseal(addr: usize, len: usize, flags: usize) -> c_int {
    c_result(mseal::mseal(addr, len, flags)) as c_int
}

/// `shmat`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn shmat(id: c_int, addr: usize, flags: c_int) -> isize {
    c_result(sysv_shm::shmat(id, addr, flags))
}

/// `shmdt`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn shmdt(addr: usize) -> c_int {
    c_result(sysv_shm::shmdt(addr)) as c_int
}

/// `pkey_mprotect`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn pkey_mprotect(addr: usize, len: usize, prot: c_int, key: c_int) -> c_int {
    c_result(map::mprotect(addr, len, prot, key)) as c_int
}

/// `madvise`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    c_result(madvise::madvise(addr, len, advice)) as c_int
}

/// `posix_madvise`: returns the error number, and POSIX's DONTNEED keeps the contents.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn posix_madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    match advice {
        libc::POSIX_MADV_DONTNEED => 0,
        _ => -madvise::madvise(addr, len, advice) as c_int,
    }
}

/// `mlock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mlock(addr: usize, len: usize) -> c_int {
    c_result(mlock::mlock(addr, len, false)) as c_int
}

/// `mlock2`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mlock2(addr: usize, len: usize, flags: c_int) -> c_int {
    match flags {
        0 | 1 => c_result(mlock::mlock(addr, len, flags == 1)) as c_int,
        _ => c_result(error(libc::EINVAL)) as c_int,
    }
}

/// `munlock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn munlock(addr: usize, len: usize) -> c_int {
    c_result(mlock::munlock(addr, len)) as c_int
}

/// `mlockall`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mlockall(flags: c_int) -> c_int {
    c_result(mlock::mlockall(flags)) as c_int
}

/// `remap_file_pages`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn remap_file_pages(
    start: usize,
    len: usize,
    prot: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    let answer = remap_file_pages::remap_file_pages(start, len, prot, page, flags);
    c_result(answer) as c_int
}

/// `mincore`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mincore(addr: usize, len: usize, to: usize) -> c_int {
    c_result(madvise::mincore(addr, len, to)) as c_int
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
    c_result(madvise::process_madvise(
        process, parts, count, advice, flags,
    ))
}

crate::dlsym::next! {
    /// The C library's own `msync`: a cancellation point.
    fn msync(addr: usize, len: usize, flags: c_int) -> c_int
}

mod syncing {
    use super::{c_int, c_result, madvise};

    /// `msync`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn msync(addr: usize, len: usize, flags: c_int) -> c_int {
        match madvise::msync(addr, len, flags) {
            Some(answer) => c_result(answer) as c_int,
            // SAFETY: the program asked for exactly this.
            None => unsafe { super::msync(addr, len, flags) },
        }
    }
}

/// `munlockall`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn munlockall() -> c_int {
    c_result(mlock::munlockall()) as c_int
}

/// The C library's `brk`: 0, or ENOMEM.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn brk(to: usize) -> c_int {
    match brk::brk(to) as usize >= to {
        true => 0,
        false => c_result(error(libc::ENOMEM)) as c_int,
    }
}

/// `sbrk`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn sbrk(by: isize) -> *mut c_void {
    c_result(brk::sbrk(by)) as *mut c_void
}
