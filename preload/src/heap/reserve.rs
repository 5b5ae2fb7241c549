//! Memory of the heaps where the kernel maps no more: the table of the program's mappings grows when the program has used up all
//! that it may have (vm.max_map_count), and goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use wired::WiredMemory;

/// Bytes of it.
const RESERVED: usize = 16 << 20;

/// The reserve.
pub struct HeapReserve {
    start: AtomicUsize,
    used: AtomicUsize,
}

/// The process's.
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
