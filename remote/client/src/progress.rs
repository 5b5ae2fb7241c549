//! What a client has done by itself, for what measures it in the same process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a client.
#[derive(Debug, Default)]
pub struct ClientProgress {
    copies: AtomicU64,
    stripes: AtomicU64,
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

    pub(crate) fn count_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_stripe(&self) {
        self.stripes.fetch_add(1, Ordering::Relaxed);
    }
}
