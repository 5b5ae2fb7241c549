//! Samples a neighbour's processes while it starts: faults, memory and processor, the
//! ordinates of the paper's figures 2 to 4 and 8 to 10.

use crate::prelude::*;
use crate::process_tree::{self, TreeUsage};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

/// Time between two samples. Each reads some files of /proc, which takes tens of
/// microseconds per process and no lock of a program's memory.
pub const EVERY: Duration = Duration::from_millis(50);

/// The difference between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UsageSample {
    /// Seconds since the clip began.
    pub at: f64,
    /// Faults a second that needed no I/O.
    pub minor: f64,
    /// Faults a second that needed some.
    pub major: f64,
    /// Percent of one processor that the neighbour had.
    pub processor: f64,
    /// Percent of the whole machine that all processes had.
    pub busy: f64,
    /// MiB of the neighbour in memory.
    pub resident: f64,
}

/// One sample.
#[derive(Clone, Copy, Debug)]
struct UsageCounts {
    at: Duration,
    tree: TreeUsage,
    machine: (Duration, Duration),
}

impl UsageCounts {
    fn now(root: u32, begin: Instant) -> Self {
        Self {
            at: begin.elapsed(),
            tree: TreeUsage::of(root),
            machine: process_tree::machine(),
        }
    }
}

/// A thread that samples, until it is stopped.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Vec<UsageCounts>>,
}

impl Sampler {
    /// Samples a process and its descendants.
    pub fn start(root: u32, begin: Instant) -> Self {
        let (stop, stopped) = channel();
        let look = move || {
            let mut looks = vec![UsageCounts::now(root, begin)];
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                looks.push(UsageCounts::now(root, begin));
            }
            looks
        };
        let thread = thread::spawn(look);
        Self { stop, thread }
    }

    /// The samples.
    pub fn stop(self) -> Vec<UsageSample> {
        drop(self.stop);
        seen(&self.thread.join().unwrap_or_default())
    }
}

fn seen(looks: &[UsageCounts]) -> Vec<UsageSample> {
    looks
        .windows(2)
        .map(|two| between(two[0], two[1]))
        .collect()
}

/// Counts fall when a process ends before its parent reaps it: the difference is then 0.
fn between(before: UsageCounts, now: UsageCounts) -> UsageSample {
    let seconds = (now.at - before.at).as_secs_f64().max(f64::EPSILON);
    let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
    let spent = now.tree.processor.saturating_sub(before.tree.processor);
    let used = now.machine.0.saturating_sub(before.machine.0);
    let all = now.machine.1.saturating_sub(before.machine.1);
    UsageSample {
        at: now.at.as_secs_f64(),
        minor: rate(before.tree.minor, now.tree.minor),
        major: rate(before.tree.major, now.tree.major),
        processor: 100.0 * spent.as_secs_f64() / seconds,
        busy: 100.0 * used.as_secs_f64() / all.as_secs_f64().max(f64::EPSILON),
        resident: now.tree.resident_bytes as f64 / 1048576.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(ms: u64, major: u64, spent: u64) -> UsageCounts {
        let time = Duration::from_millis;
        UsageCounts {
            at: time(ms),
            tree: TreeUsage {
                minor: 10,
                major,
                processor: time(spent),
                resident_bytes: 2048 << 10,
            },
            machine: (time(ms), time(2 * ms)),
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let seen = seen(&[look(0, 5, 0), look(100, 25, 50), look(200, 0, 50)]);
        assert_eq!(seen.len(), 2);
        assert_eq!(
            (seen[0].at, seen[0].major, seen[0].minor),
            (0.1, 200.0, 0.0)
        );
        assert_eq!(
            (seen[0].processor, seen[0].busy, seen[0].resident),
            (50.0, 50.0, 2.0)
        );
        assert_eq!(seen[1].major, 0.0, "what was lost is no rate");
    }

    #[test]
    fn a_sampler_sees_this_process_until_it_is_stopped() {
        let sampler = Sampler::start(std::process::id(), Instant::now());
        thread::sleep(EVERY * 5);
        let seen = sampler.stop();
        assert!(seen.iter().any(|seen| seen.resident > 0.0));
    }
}
