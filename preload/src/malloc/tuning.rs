//! The calls that tune glibc's allocator, or report on it.

use super::{Source, large, source};
use std::ffi::c_int;

unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// `malloc_trim`: gives free memory back. Returns 1 once mimalloc runs.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn malloc_trim(pad: usize) -> c_int {
    // SAFETY: may be called at any time.
    unsafe {
        match source() {
            Source::Early => return 0,
            Source::Mimalloc => mi_collect(true),
            Source::Program(program) => return (program.malloc_trim)(pad),
        }
    }
    1
}

/// `mallopt`: says which blocks are mappings. glibc's other parameters are for glibc's allocator, and have no effect.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mallopt(option: c_int, value: c_int) -> c_int {
    match source() {
        // SAFETY: the program's own call.
        Source::Program(program) => unsafe { (program.mallopt)(option, value) },
        _ => {
            match (option, usize::try_from(value)) {
                (libc::M_MMAP_THRESHOLD, Ok(size)) => large::set_threshold(size),
                (libc::M_MMAP_MAX, Ok(0)) => large::set_threshold(usize::MAX),
                _ => {}
            }
            1
        }
    }
}

/// `mallinfo2`: all zero of mimalloc, since glibc's allocator is not in use.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mallinfo2() -> libc::mallinfo2 {
    // SAFETY: a structure of integers; the program's own call.
    unsafe {
        match source() {
            Source::Program(program) => (program.mallinfo2)(),
            _ => std::mem::zeroed(),
        }
    }
}

/// `mallinfo`, the same in smaller numbers.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn mallinfo() -> libc::mallinfo {
    // SAFETY: a structure of integers; the program's own call.
    unsafe {
        match source() {
            Source::Program(program) => (program.mallinfo)(),
            _ => std::mem::zeroed(),
        }
    }
}

/// `malloc_stats`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn malloc_stats() {
    if let Source::Program(program) = source() {
        // SAFETY: the program's own call.
        unsafe { (program.malloc_stats)() };
    }
}
