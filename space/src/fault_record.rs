//! The faults that a no-exception mapping answered with scratch pages.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The faults of one view since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct FaultRecord {
    count: AtomicU64,
    first: AtomicUsize,
}

impl FaultRecord {
    /// Counts a fault; keeps the address of the first one.
    pub(crate) fn note(&self, addr: usize) {
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.first.store(addr, Ordering::Release);
        }
    }

    /// The number of faults and the first address, which are forgotten.
    pub(crate) fn take(&self) -> Option<(u64, usize)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let first = self.first.load(Ordering::Acquire);
        match self.count.swap(0, Ordering::AcqRel) {
            0 => None,
            count => Some((count, first)),
        }
    }
}
