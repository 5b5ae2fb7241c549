//! Allocations made before the library has started: a pool whose blocks are never freed.
//!
//! The dynamic loader switches to the program's `malloc` before any constructor runs.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use wired::{PAGE, WiredMemory};

/// Bytes of the pool. What the loader and early constructors allocate is some tens of
/// kilobytes; untouched pages cost nothing.
const POOL: usize = 4 << 20;

/// Bytes of a block's header, which holds its size.
const HEADER: usize = 16;

static START: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

fn pool() -> Option<usize> {
    let start = START.load(Ordering::Acquire);
    if start != 0 {
        return Some(start);
    }
    let fresh = WiredMemory::private(POOL).ok()?;
    let address = fresh.as_ptr() as usize;
    match START.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            fresh.leak();
            Some(address)
        }
        Err(other) => Some(other),
    }
}

/// A block of `size` bytes, all zero; null when the pool is used up.
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    let align = align.max(HEADER);
    let Some(start) = pool() else {
        return std::ptr::null_mut();
    };
    let mut used = USED.load(Ordering::Relaxed);
    loop {
        let Some(block) = (start + used + HEADER).checked_next_multiple_of(align) else {
            return std::ptr::null_mut();
        };
        let Some(end) = block.checked_add(size).filter(|end| *end <= start + POOL) else {
            return std::ptr::null_mut();
        };
        match USED.compare_exchange_weak(used, end - start, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                let ptr = block as *mut u8;
                // SAFETY: the header lies inside the pool, in front of a block that is ours alone.
                unsafe { ptr.sub(8).cast::<usize>().write_unaligned(size) };
                return ptr;
            }
            Err(now) => used = now,
        }
    }
}

/// Returns true if a block is of this pool.
pub fn owns(ptr: *const u8) -> bool {
    let start = START.load(Ordering::Relaxed);
    start != 0 && (ptr as usize).wrapping_sub(start) < POOL
}

/// The pool's addresses.
pub fn span() -> Range<usize> {
    let start = START.load(Ordering::Relaxed);
    start..start + if start == 0 { 0 } else { POOL }
}

/// The size requested for a block.
///
/// # Safety
/// The block came from [`allocate`].
pub unsafe fn size(ptr: *const u8) -> usize {
    // SAFETY: every block has its size in front.
    unsafe { ptr.sub(8).cast::<usize>().read_unaligned() }
}

const _: () = assert!(POOL.is_multiple_of(PAGE));
