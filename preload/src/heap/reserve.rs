//! Memory of the heaps where the kernel maps no more: a program that has used up its mappings (vm.max_map_count) still changes its
//! memory, and the table of its mappings grows.

use std::sync::atomic::{AtomicUsize, Ordering};
use wired::WiredMemory;

/// Bytes of the reserve: the table of some hundred thousand mappings.
const RESERVED: usize = 16 << 20;

/// Memory that is cut off in order, and never given back.
pub struct HeapReserve {
    start: AtomicUsize,
    used: AtomicUsize,
}

/// The one reserve of this process.
pub static RESERVE: HeapReserve = HeapReserve {
    start: AtomicUsize::new(0),
    used: AtomicUsize::new(0),
};

/// Maps the reserve. In the constructor.
pub fn init() {
    if let Ok(memory) = WiredMemory::private(RESERVED) {
        RESERVE
            .start
            .store(memory.leak().expose_provenance(), Ordering::Release);
    }
}

impl HeapReserve {
    /// Memory that was never used.
    pub fn take(&self, size: usize) -> Option<usize> {
        let start = self.start.load(Ordering::Acquire);
        let more = |used: usize| used.checked_add(size).filter(|used| *used <= RESERVED);
        let taken = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().filter(|_| start != 0).map(|used| start + used)
    }

    /// Returns true if a block is of the reserve.
    pub fn has(&self, block: *mut u8) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0 && (start..start + RESERVED).contains(&block.addr())
    }
}
