//! The figures of a pass over the memory.

use super::pass::Pass;
use serde::{Deserialize, Serialize};

/// Counters beside the time, so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountedPages {
    /// Accesses that had to wait for the store.
    pub misses: Option<u64>,
    /// Bytes this process had read from block devices.
    pub device_bytes: Option<u64>,
}

/// The figures of a pass.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Which pass.
    pub pass: Pass,
    /// Pages accessed, by all threads.
    pub pages: u64,
    /// From the first access to the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Median and 99th percentile of one access, in nanoseconds; of passes out of order.
    pub p50_ns: u64,
    /// See `p50_ns`.
    pub p99_ns: u64,
    /// Accesses that waited for the store, in arms that count them.
    pub misses: Option<u64>,
    /// Bytes read from block devices, where the kernel counts them.
    pub device_bytes: Option<u64>,
}

impl Figure {
    /// Nanoseconds a page accessed, all threads together.
    pub fn ns_per_page(&self) -> f64 {
        self.elapsed_ns as f64 / self.pages.max(1) as f64
    }

    /// Nanoseconds per page fetched from a block device, all threads together: the figure
    /// to compare with a bare device, which has nothing in memory. Pages found in memory
    /// and pages read but not accessed do not count.
    pub fn ns_per_fetched_page(&self) -> f64 {
        let fetched = self
            .device_bytes
            .map_or(self.pages, |bytes| bytes.div_ceil(4096).min(self.pages));
        self.elapsed_ns as f64 / fetched.max(1) as f64
    }

    /// The part of the accesses that found their page in memory.
    pub fn hit_rate(&self) -> Option<f64> {
        let misses = self.misses? as f64;
        Some((1.0 - misses / self.pages.max(1) as f64).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_read_and_not_accessed_is_no_merit() {
        let figure = Figure {
            pass: Pass::RandomRead,
            pages: 100,
            elapsed_ns: 8000,
            p50_ns: 0,
            p99_ns: 0,
            misses: Some(80),
            device_bytes: Some(80 * 4096),
        };
        assert_eq!(figure.ns_per_page(), 80.0);
        assert_eq!(figure.ns_per_fetched_page(), 100.0);
        let ahead = Figure {
            device_bytes: Some(800 * 4096),
            ..figure
        };
        assert_eq!(ahead.ns_per_fetched_page(), 80.0);
        assert!((figure.hit_rate().unwrap() - 0.2).abs() < 1e-9);
    }
}
