//! The paper's watch thread: it "wakes up every 5 seconds and logs the number of bytes
//! processed" (section 7.2.1).

use crate::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A report of the watch thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Nanoseconds since the start order.
    pub ns: u64,
    /// Bytes it has processed since.
    pub bytes: u64,
}

/// How long an application runs, and how often the watch thread reports.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReportedRun {
    /// Seconds to go on.
    pub seconds: f64,
    /// Seconds between two reports of the watch thread.
    pub every: f64,
}

/// An application's count, and when it is to end.
pub struct ProgressCounter {
    began: Instant,
    end: Duration,
    bytes: AtomicU64,
    over: AtomicBool,
}

impl ProgressCounter {
    /// Counts more. False when the application is to end.
    pub fn processed(&self, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.began.elapsed() < self.end
    }
}

impl ReportedRun {
    /// Does the work, which ends when [`ProgressCounter::processed`] returns false, beside a watch thread.
    pub fn watch<T>(&self, work: impl FnOnce(&ProgressCounter) -> T) -> T {
        let watched = ProgressCounter {
            began: Instant::now(),
            end: Duration::from_secs_f64(self.seconds),
            bytes: AtomicU64::new(0),
            over: AtomicBool::new(false),
        };
        let every = Duration::from_secs_f64(self.every);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| log(&watched, every));
            let outcome = work(&watched);
            watched.over.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            outcome
        })
    }
}

fn log(watched: &ProgressCounter, every: Duration) {
    for tick in 1u32.. {
        let due = watched.began + every * tick;
        while !watched.over.load(Ordering::Relaxed) && Instant::now() < due {
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
        let progress = Progress {
            ns: watched.began.elapsed().as_nanos() as u64,
            bytes: watched.bytes.load(Ordering::Relaxed),
        };
        let _ = reply(&progress);
        if watched.over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Seconds and megabits a second, of each time between two reports: the paper's left-hand
/// plots. The last report comes at the end; one that is soon after another is left out.
pub fn bandwidth(progress: &[Progress]) -> Vec<(f64, f64)> {
    let start = Progress { ns: 0, bytes: 0 };
    let least = progress.first().map_or(0, |first| first.ns / 2);
    let before = std::iter::once(&start).chain(progress);
    let between = before
        .zip(progress)
        .filter(|(from, to)| to.ns - from.ns > least);
    between
        .map(|(from, to)| {
            let seconds = (to.ns - from.ns) as f64 / 1e9;
            let megabits = (to.bytes - from.bytes) as f64 * 8.0 / 1e6;
            (to.ns as f64 / 1e9, megabits / seconds)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_of_the_time_since_the_last_report() {
        let words = [
            (2_000_000_000, 1_000_000),
            (4_000_000_000, 4_000_000),
            (4_000_900_000, 4_000_000),
        ];
        let progress = words.map(|(ns, bytes)| Progress { ns, bytes });
        assert_eq!(bandwidth(&progress), [(2.0, 4.0), (4.0, 12.0)]);
        assert!(bandwidth(&[]).is_empty());
    }

    #[test]
    fn work_is_ended_by_its_time() {
        let span = ReportedRun {
            seconds: 0.01,
            every: 5.0,
        };
        let counted = span.watch(|watched| {
            while watched.processed(1) {}
            watched.bytes.load(Ordering::Relaxed)
        });
        assert!(counted > 0);
    }
}
