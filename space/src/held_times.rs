//! How long the exclusive sections of a space are held.

use std::sync::atomic::{AtomicU64, Ordering};
use wired::clock;

/// Buckets: four for each power of two nanoseconds.
const BUCKETS: usize = 64 * 4;

/// Times of one kind of section, in nanoseconds.
pub(crate) struct HeldTimes {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for HeldTimes {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

/// The bucket of a time: the power of two, and the two bits after its first.
fn bucket(nanos: u64) -> usize {
    let power = 63 - nanos.max(4).leading_zeros();
    let rest = (nanos.max(4) >> (power - 2)) & 3;
    power as usize * 4 + rest as usize
}

/// The least time above a bucket.
fn upper(bucket: usize) -> u64 {
    let (power, rest) = (bucket / 4, bucket as u64 % 4);
    (5 + rest) << power.saturating_sub(2)
}

impl HeldTimes {
    /// Counts a section that began at `begin`, a time of [`wired::clock`], and ends now.
    pub(crate) fn end(&self, begin: u64) {
        let nanos = clock::now().saturating_sub(begin);
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
        self.max.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(crate) fn summary(&self) -> SectionTimes {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .collect();
        let count: u64 = counts.iter().sum();
        let quantile = |share: f64| {
            let rank = (count as f64 * share).ceil() as u64;
            let mut passed = 0;
            let reached = counts.iter().position(|n| {
                passed += n;
                passed >= rank
            });
            reached.map_or(0, upper)
        };
        let max_ns = self.max.load(Ordering::Relaxed);
        SectionTimes {
            count,
            mean_ns: self
                .sum
                .load(Ordering::Relaxed)
                .checked_div(count)
                .unwrap_or(0),
            p99_ns: quantile(0.99).min(max_ns),
            p999_ns: quantile(0.999).min(max_ns),
            max_ns,
        }
    }
}

/// Times of the exclusive sections of one kind. Quantiles are upper bounds, a quarter too high at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionTimes {
    /// Sections.
    pub count: u64,
    /// The mean, in nanoseconds.
    pub mean_ns: u64,
    /// Of 99 in 100.
    pub p99_ns: u64,
    /// Of 999 in 1000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_the_times_below_its_upper_end() {
        for nanos in [4, 5, 7, 8, 15, 100, 1023, 1024, 50_000, 1 << 40] {
            let of = bucket(nanos);
            assert!(nanos < upper(of), "{nanos}");
            assert!(upper(of) as f64 <= nanos as f64 * 1.25 + 1.0, "{nanos}");
        }
    }

    #[test]
    fn the_summary_counts_each_section() {
        let times = HeldTimes::default();
        (0..1000).for_each(|_| times.end(clock::now()));
        let summary = times.summary();
        assert_eq!(summary.count, 1000);
        assert!(summary.mean_ns <= summary.max_ns && summary.p999_ns <= summary.max_ns);
    }
}
