//! The figures of a tree: those of processes that have ended and of those that run.

use link::stats_page::{Aggregation, Metric, ProcessStats};

/// The totals of processes that have ended.
#[derive(Default)]
pub(crate) struct FinishedTotals {
    figures: std::collections::HashMap<&'static str, u64>,
    /// Processes that joined, in all.
    pub processes: u64,
}

impl FinishedTotals {
    /// Adds the counts of a process that ends. Its levels end with it.
    pub fn keep(&mut self, block: ProcessStats<'_>) {
        for figure in Metric::ALL
            .iter()
            .filter(|figure| figure.fold() != Aggregation::Now)
        {
            let past = self.figures.entry(figure.key()).or_default();
            *past = fold(*figure, *past, block.get(*figure));
        }
    }

    /// A figure of the past and of the processes that run.
    pub fn with(&self, figure: Metric, now: impl Iterator<Item = u64>) -> u64 {
        let past = self.figures.get(figure.key()).copied().unwrap_or(0);
        now.fold(past, |so_far, now| fold(figure, so_far, now))
    }
}

fn fold(figure: Metric, so_far: u64, now: u64) -> u64 {
    match figure.fold() {
        // A block may be read in the middle of anything: no sum may overflow.
        Aggregation::Sum | Aggregation::Now => so_far.saturating_add(now),
        Aggregation::Max => so_far.max(now),
    }
}
