//! What a client has done by itself, for what measures it in the same process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a client.
#[derive(Debug, Default)]
pub struct ClientProgress {
    copies: AtomicU64,
    stripes: AtomicU64,
    degraded_reads: AtomicU64,
    hedged_reads: AtomicU64,
}

impl ClientProgress {
    /// Copies made of objects with pages, and parts of stripes made again.
    pub fn copies_made(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// Stripes whose parities were written.
    pub fn stripes_made(&self) -> u64 {
        self.stripes.load(Ordering::Relaxed)
    }

    /// Reads of a stripe's part for which its other parts were asked.
    pub fn degraded_reads(&self) -> u64 {
        self.degraded_reads.load(Ordering::Relaxed)
    }

    /// Reads that went elsewhere, too, since their server was late.
    pub fn hedged_reads(&self) -> u64 {
        self.hedged_reads.load(Ordering::Relaxed)
    }

    pub(crate) fn count_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_degraded_read(&self) {
        self.degraded_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_hedged_read(&self) {
        self.hedged_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_stripe(&self) {
        self.stripes.fetch_add(1, Ordering::Relaxed);
    }
}
