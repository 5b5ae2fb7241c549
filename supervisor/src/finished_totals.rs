//! The counters of a tree's processes that have ended.

use link::stats_page::ProcessStats;
use wired::{Aggregation, Counter, Stage, StageHistogram};

/// The totals of processes that have ended.
#[derive(Default)]
pub(crate) struct FinishedTotals {
    counters: std::collections::HashMap<&'static str, u64>,
    stages: [StageHistogram; Stage::ALL.len()],
    /// The number of processes that joined.
    pub processes: u64,
}

impl FinishedTotals {
    /// Adds the counters of a process that ends. Its levels are not kept.
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

    /// The samples of a stage of ended processes.
    pub fn stage(&self, stage: Stage) -> StageHistogram {
        self.stages[stage as usize]
    }

    /// The total of a counter over ended processes and the values `now` of those that run.
    pub fn with(&self, counter: Counter, now: impl Iterator<Item = u64>) -> u64 {
        let past = self.counters.get(counter.key()).copied().unwrap_or(0);
        now.fold(past, |so_far, now| aggregate(counter, so_far, now))
    }
}

fn aggregate(counter: Counter, so_far: u64, now: u64) -> u64 {
    match counter.aggregation() {
        // A process may have written any value: no sum may overflow.
        Aggregation::Sum | Aggregation::Now => so_far.saturating_add(now),
        Aggregation::Max => so_far.max(now),
    }
}
