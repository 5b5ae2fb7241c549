//! The counters of a tree's processes that have ended.

use link::stats_page::ProcessStats;
use wired::{Aggregation, Counter, Stage, StageHistogram};

/// The totals of processes that have ended.
#[derive(Default)]
pub(crate) struct FinishedTotals {
    counters: std::collections::HashMap<&'static str, u64>,
    stages: [StageHistogram; Stage::ALL.len()],
    /// Processes that joined, in all.
    pub processes: u64,
}

impl FinishedTotals {
    /// Adds the counters of a process that ends. Its levels end with it.
    pub fn keep(&mut self, block: ProcessStats<'_>) {
        let lasting = |counter: &&Counter| counter.aggregation() != Aggregation::Now;
        for counter in Counter::ALL.iter().filter(lasting) {
            let past = self.counters.entry(counter.key()).or_default();
            *past = aggregate(*counter, *past, block.get(*counter));
        }
        for stage in Stage::ALL {
            self.stages[stage as usize].add(block.stage(stage));
        }
    }

    /// A stage's samples of the past.
    pub fn stage(&self, stage: Stage) -> StageHistogram {
        self.stages[stage as usize]
    }

    /// A counter of the past and of the processes that run.
    pub fn with(&self, counter: Counter, now: impl Iterator<Item = u64>) -> u64 {
        let past = self.counters.get(counter.key()).copied().unwrap_or(0);
        now.fold(past, |so_far, now| aggregate(counter, so_far, now))
    }
}

fn aggregate(counter: Counter, so_far: u64, now: u64) -> u64 {
    match counter.aggregation() {
        // A block may be read in the middle of anything: no sum may overflow.
        Aggregation::Sum | Aggregation::Now => so_far.saturating_add(now),
        Aggregation::Max => so_far.max(now),
    }
}
