//! An allocator that fails at random, in a process that asks for it: its allocations abort it, as any of Rust's that fail.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static FAILING: FailingAllocator = FailingAllocator(AtomicU64::new(0));

/// The system's allocator; with a state other than 0, one that fails.
struct FailingAllocator(AtomicU64);

/// One allocation in so many fails.
const ONE_IN: u64 = 128;

/// Has allocations of this process fail at random from here on.
pub fn begin() {
    let seed = u64::from(std::process::id()) << 1 | 1;
    FAILING.0.store(seed, Ordering::Relaxed);
}

impl FailingAllocator {
    fn fails(&self) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        if state == 0 {
            return false;
        }
        // Marsaglia's xorshift: never 0 again. Two threads may draw the same number, which does no harm.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.store(state, Ordering::Relaxed);
        (state >> 32).is_multiple_of(ONE_IN)
    }
}

// SAFETY: the system's allocator, or a null pointer, which says that there is no memory.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}
