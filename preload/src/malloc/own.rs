//! Blocks of this library's own, whatever allocator the program brings, and the C library's own names for them.
//!
//! A program that counts its allocations defines `malloc` over `__libc_malloc`, and has the C library's `free` take the
//! blocks back. So both are this library's, and never the program's.

use super::large::{self, LargeBlock};
use super::{
    MIN_ALIGN, PAGE, Source, aligned, early_alloc, filled, mi, mi_calloc, mi_usable_size, source,
};
use crate::raw_syscall;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A block of this library's, whatever the program brings.
pub fn malloc(source: &Source, size: usize) -> *mut c_void {
    match source {
        Source::Early => early_alloc::allocate(size, 16).cast(),
        _ if let Some(block) = large::allocate(size, MIN_ALIGN) => block,
        // SAFETY: any size will do.
        _ => filled(unsafe { mi::mi_malloc(size.max(MIN_ALIGN)) }),
    }
}

/// # Safety
/// As in C; not of the early pool.
pub unsafe fn free(block: *mut c_void) {
    // SAFETY: the caller's.
    unsafe {
        match LargeBlock::at(block) {
            Some(large) => large.free(),
            None => mi::mi_free(block),
        }
    }
}

/// # Safety
/// As in C; not of the early pool.
pub unsafe fn usable_size(block: *const c_void) -> usize {
    // SAFETY: the caller's.
    unsafe {
        LargeBlock::at(block.cast_mut()).map_or_else(|| mi_usable_size(block), LargeBlock::size)
    }
}

pub fn calloc(source: &Source, count: usize, size: usize) -> *mut c_void {
    if let Source::Early = source {
        return early_alloc::allocate(count.saturating_mul(size), 16).cast();
    }
    let (count, size) = match count.checked_mul(size) {
        Some(bytes) if let Some(block) = large::allocate(bytes, MIN_ALIGN) => return block,
        Some(bytes @ ..MIN_ALIGN) => (1, bytes.max(MIN_ALIGN)),
        _ => (count, size),
    };
    // SAFETY: any sizes will do.
    filled(unsafe { mi_calloc(count, size) })
}

/// Another block for one of this library's. A block of the early pool moves to one of `further`.
///
/// # Safety
/// As in C.
pub unsafe fn realloc(
    source: &Source,
    ptr: *mut c_void,
    size: usize,
    further: extern "C" fn(usize) -> *mut c_void,
) -> *mut c_void {
    if ptr.is_null() {
        return malloc(source, size);
    }
    if !early_alloc::owns(ptr.cast()) {
        // SAFETY: the caller's.
        return unsafe { resize(source, ptr, size) };
    }
    // SAFETY: the early pool's block is that long.
    unsafe { move_to(further(size), ptr, early_alloc::size(ptr.cast()).min(size)) }
}

/// # Safety
/// As [`realloc`]; the block is of mimalloc or a large one.
unsafe fn resize(source: &Source, ptr: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's; each block is freed once its bytes are in another one.
    unsafe {
        if size == 0 {
            // As glibc does: mimalloc would give a new block.
            free(ptr);
            return null_mut();
        }
        let block = LargeBlock::at(ptr);
        let there = block.map_or_else(|| mi_usable_size(ptr), LargeBlock::size);
        let fresh = match block {
            Some(block) if size >= large::MIN_THRESHOLD / 2 => match block.resize(size) {
                Some(same) => return same,
                None => malloc(source, size),
            },
            Some(_) => malloc(source, size),
            None if size > there && (large::is_large(size) || large::is_step(there, size)) => {
                LargeBlock::map(size, MIN_ALIGN).unwrap_or_else(|| malloc(source, size))
            }
            None => return filled(mi::mi_realloc(ptr, size.max(MIN_ALIGN))),
        };
        let fresh = move_to(fresh, ptr, there.min(size));
        if !fresh.is_null() {
            free(ptr);
        }
        fresh
    }
}

/// Copies `len` bytes of a block to a fresh one, if there is one.
///
/// # Safety
/// Both blocks have `len` bytes.
unsafe fn move_to(fresh: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    if !fresh.is_null() {
        // SAFETY: the caller's; two blocks do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), fresh.cast(), len) };
    }
    fresh
}

pub fn memalign(align: usize, size: usize) -> *mut c_void {
    match align
        .checked_next_power_of_two()
        .filter(|align| *align <= usize::MAX / 2)
    {
        Some(align) => filled(aligned(size, align)),
        None => {
            raw_syscall::set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// `malloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
    malloc(&source(), size)
}

/// `calloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __libc_calloc(count: usize, size: usize) -> *mut c_void {
    calloc(&source(), count, size)
}

/// `free`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn __libc_free(ptr: *mut c_void) {
    if !early_alloc::owns(ptr.cast()) {
        // SAFETY: the caller's.
        unsafe { free(ptr) };
    }
}

/// `realloc`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn __libc_realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { realloc(&source(), ptr, size, __libc_malloc) }
}

/// `memalign`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __libc_memalign(align: usize, size: usize) -> *mut c_void {
    match source() {
        Source::Early => early_alloc::allocate(size, align.next_power_of_two()).cast(),
        _ => memalign(align, size),
    }
}

/// `valloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __libc_valloc(size: usize) -> *mut c_void {
    __libc_memalign(PAGE, size)
}

/// `pvalloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __libc_pvalloc(size: usize) -> *mut c_void {
    __libc_memalign(
        PAGE,
        size.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX),
    )
}
