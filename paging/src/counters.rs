//! The words of a domain's counters, in memory that outlives it. `wired::Counter` has the list and
//! the meanings.
//!
//! The words may lie in memory shared with a supervisor, so that the figures of a
//! process that was killed are not lost.

use std::sync::atomic::{AtomicU64, Ordering};
pub use wired::Counter;
use wired::{Stage, StageHistogram};

/// The figures' words.
#[derive(Clone, Copy)]
pub struct Counters(&'static [AtomicU64]);

impl Counters {
    /// Counters and histograms in `words`: [`Stage::DOMAIN_WORDS`] or more.
    pub fn new(words: &'static [AtomicU64]) -> Self {
        assert!(
            words.len() >= Stage::DOMAIN_WORDS,
            "a word for each counter and bucket"
        );
        Self(words)
    }

    /// Adds to a figure.
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        self.0[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Takes from a figure of what is there now.
    pub(crate) fn sub(&self, counter: Counter, by: u64) {
        self.0[counter as usize].fetch_sub(by, Ordering::Relaxed);
    }

    /// Adds the microseconds since `begin`, a time of [`wired::clock`].
    pub(crate) fn add_since(&self, counter: Counter, begin: u64) {
        let waited = wired::clock::now().saturating_sub(begin);
        self.add(counter, waited / 1000);
    }

    /// Counts a stage that began at `begin`, a time of [`wired::clock`], and ends now. Returns the
    /// time that it ends.
    pub(crate) fn end_stage(&self, stage: Stage, begin: u64) -> u64 {
        let now = wired::clock::now();
        self.0[stage.word(now.saturating_sub(begin))].fetch_add(1, Ordering::Relaxed);
        now
    }

    /// Counts a fault that began at `began` and ends now.
    pub(crate) fn end_fault(&self, began: u64) {
        let time = self.end_stage(Stage::Fault, began).saturating_sub(began);
        // Rounded: many faults take less than two microseconds, and a sum must not lose half of each.
        self.add(Counter::FaultTimeUs, time.saturating_add(500) / 1000);
    }

    /// The samples of a stage so far.
    pub fn stage(&self, stage: Stage) -> StageHistogram {
        let mut histogram = StageHistogram::default();
        let words = self.0[stage.words()].iter();
        histogram.add(words.map(|word| word.load(Ordering::Relaxed)));
        histogram
    }

    /// Notes when a throttled fault retries: a place of the tree's limit may be its own until then.
    pub(crate) fn note_throttled_until(&self, until: u64) {
        self.0[Stage::THROTTLED_UNTIL].fetch_max(until, Ordering::Relaxed);
    }

    /// Sets a figure of what is there now.
    pub(crate) fn set(&self, counter: Counter, to: u64) {
        self.0[counter as usize].store(to, Ordering::Relaxed);
    }

    /// Raises a figure of the most that was.
    pub(crate) fn raise(&self, counter: Counter, to: u64) {
        self.0[counter as usize].fetch_max(to, Ordering::Relaxed);
    }

    /// Reads a figure.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = Counter::of_domain().map(|counter| (counter.key(), self.get(counter)));
        f.debug_map().entries(figures).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_add_up_and_are_shown_by_their_names() {
        let words: Vec<_> = (0..Stage::DOMAIN_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        let counters = Counters::new(Box::leak(words.into_boxed_slice()));
        counters.add(Counter::Faults, 7);
        for time in [1_600, 1_000_000] {
            counters.end_fault(wired::clock::now() - time);
        }
        assert_eq!(counters.stage(Stage::Fault).count(), 2);
        assert!(counters.get(Counter::FaultTimeUs) >= 1002);
        let shown = format!("{counters:?}");
        assert!(
            shown.starts_with("{\"faults\": 7, \"zero_filled\": 0,"),
            "{shown}"
        );
    }
}
