//! How long requests took, in buckets.

use std::time::Duration;

/// Buckets of each doubling: a bucket is at most a fifth wider than the time that it stands for.
const PARTS: u32 = 4;
/// Buckets up to 2^40 ns, a quarter of an hour.
const BUCKETS: usize = (40 * PARTS) as usize;

/// Times of requests.
#[derive(Clone, Debug)]
pub(crate) struct ServiceTimes([u64; BUCKETS]);

impl Default for ServiceTimes {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl ServiceTimes {
    /// Counts a request.
    pub fn add(&mut self, time: Duration) {
        let nanos = (time.as_nanos() as u64).max(PARTS.into());
        let octave = nanos.ilog2();
        let part = (nanos >> (octave - PARTS.ilog2())) as u32 & (PARTS - 1);
        let bucket = ((octave * PARTS + part) as usize).min(BUCKETS - 1);
        self.0[bucket] += 1;
    }

    /// The time that so many hundredths of the requests took at most; zero without requests.
    pub fn at_most(&self, hundredths: u64) -> Duration {
        let all: u64 = self.0.iter().sum();
        let rank = (all * hundredths).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= rank && all > 0 {
                let (octave, part) = (bucket as u32 / PARTS, bucket as u64 % u64::from(PARTS));
                let width = (1u64 << octave) / u64::from(PARTS);
                return Duration::from_nanos((1 << octave) + (part + 1) * width);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_at_most_a_bucket_above_the_times() {
        let mut times = ServiceTimes::default();
        assert_eq!(times.at_most(50), Duration::ZERO);
        (0..99).for_each(|_| times.add(Duration::from_micros(10)));
        times.add(Duration::from_millis(3));
        let (median, most) = (times.at_most(50), times.at_most(100));
        assert!((10_000..=12_500).contains(&median.as_nanos()), "{median:?}");
        assert!(
            (3_000_000..=3_750_000).contains(&most.as_nanos()),
            "{most:?}"
        );
        times.add(Duration::MAX);
    }
}
