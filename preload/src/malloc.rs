//! The C library's allocator, over mimalloc, whose memory is a stretch.
//!
//! The C library's own allocator grows the heap by internal calls, which cannot be interposed.
//! An allocator that the program brings is used in mimalloc's place.

mod large;
mod own;
mod program_allocator;
mod tuning;

use crate::{early_alloc, map, raw_syscall};
use libmimalloc_sys as mi;
use program_allocator::ProgramAllocator;
use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use wired::PAGE;

/// The allocator that blocks come from.
enum Source {
    /// The early pool, before the constructor.
    Early,
    Mimalloc,
    Program(&'static ProgramAllocator),
}

/// Which [`Source`], one byte, since every allocation reads it.
static SOURCE: AtomicU8 = AtomicU8::new(EARLY);
const EARLY: u8 = 0;
const MIMALLOC: u8 = 1;
const PROGRAM: u8 = 2;
/// The program brings an allocator, which has not been called yet.
const UNDECIDED: u8 = 3;

/// The allocator that the program brings, and the memory that is mimalloc's where that one is left out.
static PROGRAMS: OnceLock<(ProgramAllocator, Option<Range<usize>>)> = OnceLock::new();

fn source() -> Source {
    match SOURCE.load(Ordering::Relaxed) {
        EARLY => Source::Early,
        MIMALLOC => Source::Mimalloc,
        PROGRAM => (PROGRAMS.get()).map_or(Source::Mimalloc, |it| Source::Program(&it.0)),
        _ => decide(),
    }
}

/// Chooses between the program's allocator and mimalloc at the first allocation after the C library has started: an
/// allocator that is called before misses the options that the environment has for it.
#[cold]
fn decide() -> Source {
    // SAFETY: the C library's variable, which it sets when it starts; there is one thread.
    let has_started = unsafe { !libc::environ.is_null() };
    let Some((program, heap)) = PROGRAMS.get().filter(|_| has_started) else {
        return Source::Early;
    };
    // What it calls by name comes here. Its own blocks come from itself where it calls for them so.
    let sources = [EARLY, PROGRAM].into_iter();
    let mut answers = sources.map(|source| {
        SOURCE.store(source, Ordering::Relaxed);
        program.has_memory_of_its_own()
    });
    let decided = match answers.find_map(|answer| answer).unwrap_or(true) {
        true => {
            if let Some(heap) = heap {
                map::munmap(heap.start, heap.len());
            }
            PROGRAM
        }
        false => {
            // SAFETY: once, with one thread; the heap is as `init` got it.
            unsafe { init_mimalloc(heap.clone()) };
            MIMALLOC
        }
    };
    SOURCE.store(decided, Ordering::Release);
    source()
}

/// Milliseconds before freed memory is given back: long enough that a loop which frees and allocates does not discard
/// each time, and has no page to fault in again. It is given back by a later call.
const PURGE_DELAY: c_long = 100;

/// mimalloc's options by number (mimalloc.h, version 2.3).
mod option {
    use std::ffi::c_int;
    pub const ALLOW_LARGE_OS_PAGES: c_int = 6;
    pub const PURGE_DELAY: c_int = 15;
    pub const USE_NUMA_NODES: c_int = 16;
    pub const ARENA_PURGE_MULT: c_int = 24;
    pub const ALLOW_THP: c_int = 37;
}

unsafe extern "C" {
    fn mi_calloc(count: usize, size: usize) -> *mut c_void;
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_manage_os_memory(
        start: *mut c_void,
        size: usize,
        committed: bool,
        large: bool,
        zero: bool,
        numa_node: c_int,
    ) -> bool;
    fn mi_process_done();
    static mut _mi_process_is_initialized: bool;
}

/// Switches to mimalloc, whose first memory is `heap`, if any, or has the first allocation choose.
///
/// # Safety
/// Called once, by the constructor, while there is one thread, after memory that is mapped is paged; `heap` is the
/// caller's, zero, and not used otherwise.
pub unsafe fn init(heap: Option<Range<usize>>) {
    large::init();
    let source = match ProgramAllocator::find() {
        Some(program) => {
            let _ = PROGRAMS.set((program, heap));
            UNDECIDED
        }
        None => {
            // SAFETY: the caller's.
            unsafe { init_mimalloc(heap) };
            MIMALLOC
        }
    };
    SOURCE.store(source, Ordering::Release);
}

/// # Safety
/// As for [`init`].
unsafe fn init_mimalloc(heap: Option<Range<usize>>) {
    // SAFETY: mimalloc is not started; one thread.
    unsafe {
        // At exit mimalloc visits every free block to give all memory back, which would
        // page a large heap in for nothing. Its exit is done once: now, when there is
        // nothing to visit.
        _mi_process_is_initialized = true;
        mi_process_done();
        _mi_process_is_initialized = false;
        mi_option_set(option::ALLOW_LARGE_OS_PAGES, 0);
        mi_option_set(option::ALLOW_THP, 1);
        mi_option_set(option::USE_NUMA_NODES, 1);
        mi_option_set(option::PURGE_DELAY, PURGE_DELAY);
        // The delay holds for segments that are free as a whole, too.
        mi_option_set(option::ARENA_PURGE_MULT, 1);
        if let Some(heap) = heap {
            mi_manage_os_memory(heap.start as *mut c_void, heap.len(), true, false, true, -1);
        }
    }
}

/// Bytes to which every block is aligned, and of the smallest block: mimalloc aligns smaller ones to 8.
const MIN_ALIGN: usize = 16;

fn filled(ptr: *mut c_void) -> *mut c_void {
    if ptr.is_null() {
        raw_syscall::set_errno(libc::ENOMEM);
    }
    ptr
}

/// An aligned block of this library's; `align` is a power of two.
fn aligned(size: usize, align: usize) -> *mut c_void {
    match source() {
        Source::Early => early_alloc::allocate(size, align).cast(),
        _ if let Some(block) = large::allocate(size, align) => block,
        // SAFETY: the alignment is a power of two, as the callers checked.
        _ => unsafe { mi::mi_malloc_aligned(size.max(MIN_ALIGN), align.max(MIN_ALIGN)) },
    }
}

/// `malloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn malloc(size: usize) -> *mut c_void {
    match source() {
        // SAFETY: any size will do.
        Source::Program(program) => unsafe { (program.malloc)(size) },
        own => own::malloc(&own, size),
    }
}

/// `calloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match source() {
        // SAFETY: any sizes will do.
        Source::Program(program) => unsafe { (program.calloc)(count, size) },
        own => own::calloc(&own, count, size),
    }
}

/// `free`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn free(ptr: *mut c_void) {
    if early_alloc::owns(ptr.cast()) {
        return;
    }
    // SAFETY: the caller's.
    unsafe {
        match source() {
            Source::Program(program) => (program.free)(ptr),
            _ => own::free(ptr),
        }
    }
}

/// `cfree`, which old programs still call.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn cfree(ptr: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { free(ptr) };
}

/// C23's `free_sized`, which the C library has from 2.43 on.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn free_sized(ptr: *mut c_void, _: usize) {
    // SAFETY: the caller's.
    unsafe { free(ptr) };
}

/// C23's `free_aligned_sized`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn free_aligned_sized(ptr: *mut c_void, _: usize, _: usize) {
    // SAFETY: the caller's.
    unsafe { free(ptr) };
}

/// `realloc`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    match source() {
        Source::Program(program) if ptr.is_null() || !early_alloc::owns(ptr.cast()) => {
            // SAFETY: the caller's.
            unsafe { (program.realloc)(ptr, size) }
        }
        // SAFETY: the caller's.
        source => unsafe { own::realloc(&source, ptr, size, malloc) },
    }
}

/// `reallocarray`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's.
        Some(all) => unsafe { realloc(ptr, all) },
        None => filled(null_mut()),
    }
}

/// `posix_memalign`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if let Source::Program(program) = source() {
        // SAFETY: the caller's.
        return unsafe { (program.posix_memalign)(to, align, size) };
    }
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let block = aligned(size, align);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's.
    unsafe { *to = block };
    0
}

/// `memalign`: an alignment that is not a power of two is raised to one, as by glibc.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if let Source::Program(program) = source() {
        // SAFETY: any sizes will do.
        return unsafe { (program.memalign)(align, size) };
    }
    own::memalign(align, size)
}

/// `aligned_alloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    match source() {
        // SAFETY: any sizes will do.
        Source::Program(program) => unsafe { (program.aligned_alloc)(align, size) },
        _ => memalign(align, size),
    }
}

/// `valloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE, size)
}

/// `pvalloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => memalign(PAGE, size),
        None => filled(null_mut()),
    }
}

/// `malloc_usable_size`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn malloc_usable_size(ptr: *const c_void) -> usize {
    // SAFETY: the caller's.
    unsafe {
        match source() {
            _ if early_alloc::owns(ptr.cast()) => early_alloc::size(ptr.cast()),
            Source::Program(program) => (program.malloc_usable_size)(ptr),
            _ => own::usable_size(ptr),
        }
    }
}

unsafe extern "C" {
    fn mi_usable_size(ptr: *const c_void) -> usize;
}
