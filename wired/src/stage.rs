//! Where the time of a fault goes: a histogram for each of its stages, always on.
//!
//! The histograms are words beside the counters, so that those of a process that was killed are not
//! lost and those of a tree add up. A sample costs an addition to a word and, mostly, a reading of the
//! clock.
//!
//! Units: samples in nanoseconds; two buckets for each power of two, from 1 us to 8 s. So a percentile is
//! at most half above the sample of its rank.

use crate::Counter;
use std::time::Duration;

/// A stage of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// A whole fault: from when a thread of the pager's has read it until its page is resident. The time
    /// before a handler thread runs is not measured, and time past a limit is in `throttled_us`.
    Fault,
    /// The wait for a frame, direct reclaim included.
    FrameWait,
    /// A read of the store's disk: from submission until a thread of the pager's sees that it is
    /// complete. Under the daemon `contract show` has its parts.
    Read,
    /// Placing a page that was read: its check, its copy, and waking the thread that faulted.
    Placement,
}

/// Buckets of a histogram.
pub const BUCKETS: usize = 48;

/// The first bucket's end, in nanoseconds.
const FIRST: u64 = 1000;

impl Stage {
    /// Every stage, in the order in which they are shown.
    pub const ALL: [Stage; 4] = [Self::Fault, Self::FrameWait, Self::Read, Self::Placement];

    /// The word after the histograms: the latest time at which a throttled fault of the domain was
    /// to retry, by [`crate::clock`].
    pub const THROTTLED_UNTIL: usize = Counter::WORDS + Self::ALL.len() * BUCKETS;

    /// Words of a domain: its counters, the words after these, the histograms, and
    /// [`Stage::THROTTLED_UNTIL`].
    pub const DOMAIN_WORDS: usize = Self::THROTTLED_UNTIL + 1;

    /// The stage's name in text and data.
    pub fn key(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::FrameWait => "frame_wait",
            Self::Read => "read",
            Self::Placement => "placement",
        }
    }

    /// What the stage is, in a few words.
    pub fn description(self) -> &'static str {
        match self {
            Self::Fault => "Of whole faults.",
            Self::FrameWait => "Of waits for a frame, direct reclaim included.",
            Self::Read => "Of reads of the store's disk.",
            Self::Placement => "Of placing pages that were read.",
        }
    }

    /// The word that a sample of `nanos` is counted in.
    pub fn word(self, nanos: u64) -> usize {
        self.words().start + bucket(nanos)
    }

    /// The range of the stage's words among those of a domain.
    pub fn words(self) -> std::ops::Range<usize> {
        let start = Counter::WORDS + self as usize * BUCKETS;
        start..start + BUCKETS
    }
}

/// The bucket of a time.
fn bucket(nanos: u64) -> usize {
    if nanos < FIRST {
        return 0;
    }
    let halves = nanos / (FIRST / 2);
    let log = halves.ilog2() as usize;
    let upper = (halves >> (log - 1)) as usize & 1;
    (1 + (log - 1) * 2 + upper).min(BUCKETS - 1)
}

/// Where a bucket ends, in nanoseconds.
fn end(bucket: usize) -> u64 {
    let half = FIRST / 2;
    match bucket % 2 {
        0 => (half * 2) << (bucket / 2),
        _ => (half * 3) << (bucket / 2),
    }
}

/// The samples of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageHistogram(pub [u64; BUCKETS]);

impl Default for StageHistogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl StageHistogram {
    /// Adds samples by their buckets' counts.
    pub fn add(&mut self, counts: impl Iterator<Item = u64>) {
        // Another process may have written any value: no sum may overflow.
        for (sum, count) in self.0.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count);
        }
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// A percentile: the time that `thousandths` of the samples took at most; `None` without samples.
    pub fn at_most(&self, thousandths: u64) -> Option<Duration> {
        let count = self.count();
        let rank = (u128::from(count) * u128::from(thousandths))
            .div_ceil(1000)
            .max(1);
        let mut seen = 0u128;
        let of_rank = self.0.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        });
        of_rank.map(|bucket| Duration::from_nanos(end(bucket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_ends_after_it() {
        assert_eq!([0, 1, 2, 3, 4].map(end), [1000, 1500, 2000, 3000, 4000]);
        assert_eq!(
            [0, 999, 1000, 1500, 2999, 3000].map(bucket),
            [0, 0, 1, 2, 3, 4]
        );
        assert!(end(BUCKETS - 1) > 8_000_000_000);
    }

    #[test]
    fn each_stage_has_words_of_its_own_after_the_counters() {
        let mut next = Counter::WORDS;
        for stage in Stage::ALL {
            assert_eq!(stage.words().start, next);
            next = stage.words().end;
            assert_eq!(stage.word(u64::MAX), next - 1);
        }
        assert_eq!(next, Stage::THROTTLED_UNTIL);
    }

    #[test]
    fn an_empty_histogram_has_no_percentile() {
        assert_eq!(StageHistogram::default().at_most(500), None);
    }

    proptest! {
        #[test]
        fn a_time_lies_in_its_bucket(nanos in 0u64..8_000_000_000) {
            let at = bucket(nanos);
            prop_assert!(nanos < end(at));
            prop_assert!(at == 0 || nanos >= end(at - 1));
        }

        #[test]
        fn a_percentile_is_at_most_half_above_the_sample_of_its_rank(
            mut samples in prop::collection::vec(1000u64..8_000_000_000, 1..200),
            thousandths in 1u64..=1000,
        ) {
            let mut histogram = StageHistogram::default();
            for sample in &samples {
                histogram.0[bucket(*sample)] += 1;
            }
            samples.sort_unstable();
            let rank = (samples.len() as u64 * thousandths).div_ceil(1000) as usize;
            let exact = samples[rank - 1];
            let shown = histogram.at_most(thousandths).unwrap().as_nanos() as u64;
            prop_assert!(exact < shown && shown <= exact + exact / 2);
        }
    }
}
