//! The constant load, in a process of its own: threads that want a part of a processor each,
//! in short periods. The demand is in processor time, so that the load is the same however
//! long a thread waits for a processor; a period that got less is not made up for.

use crate::prelude::*;
use crate::worker::linger;
use rustix::time::{ClockId, clock_gettime};
use std::process::exit;

/// Short beside a frame's time.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Threads per processor, at least.
const LEAST_THREADS: usize = 4;

/// Threads per processor, at most: with more of them the load would be of switches.
const MOST_THREADS: usize = 64;

/// What the load wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadPlan {
    /// Processors' worth of time.
    pub load: f64,
    /// Threads that want a part of it each.
    pub threads: usize,
}

impl LoadPlan {
    /// As much as all processors and more, without an end.
    pub fn endless() -> Self {
        let threads = LEAST_THREADS * processors();
        Self {
            load: threads as f64,
            threads,
        }
    }
}

/// Threads for loads up to `most` processors beside a player that wants a part `demand` of one.
///
/// Linux divides the processor time evenly, up to the demand of each thread: the thread with the
/// highest demand is short first. So there are so many that each of them wants less than the
/// player: on a fast processor, where the player wants little, 8 threads on 2 processors left it
/// its fair share at any load.
pub fn threads_beside(demand: f64, most: f64) -> usize {
    let threads = (most / demand.max(f64::EPSILON)).ceil() as usize;
    threads.clamp(LEAST_THREADS * processors(), MOST_THREADS * processors())
}

/// Processors of this machine.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The highest load that the option accepts.
pub fn max_load() -> f64 {
    LoadPlan::endless().load
}

/// The main function of the load: it runs until the parent closes the pipe.
pub fn serve(plan: &LoadPlan) -> Result<()> {
    let threads = plan.threads;
    let each = plan.load / threads as f64;
    if !(0.0..=1.0).contains(&each) {
        bail!(
            "a load of {} processors cannot be made by {threads} threads",
            plan.load
        );
    }
    ready()?;
    if each == 1.0 {
        (0..threads).for_each(|_| _ = std::thread::spawn(compute));
        linger();
        exit(0)
    }
    let begin = Instant::now();
    for n in 0..threads {
        let offset = PERIOD.mul_f64(n as f64 / threads as f64);
        let first = begin + offset;
        std::thread::spawn(move || spin(first, PERIOD.mul_f64(each)));
    }
    linger();
    exit(0)
}

/// Computes without a look at the clock, for which the kernel would bring the run queue up to date.
fn compute() {
    loop {
        std::hint::black_box(0);
    }
}

fn spin(first: Instant, wanted: Duration) {
    let mut next = first;
    loop {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let from = processor_time();
        while processor_time() - from < wanted {
            std::hint::spin_loop();
        }
        next = following(next, Instant::now());
    }
}

/// The begin of the first period that is not over: those that passed are not made up for.
fn following(period: Instant, now: Instant) -> Instant {
    let passed = now.saturating_duration_since(period).as_nanos() / PERIOD.as_nanos();
    period + PERIOD * (u32::try_from(passed).unwrap_or(u32::MAX - 1) + 1)
}

/// Of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_of_a_load_wants_less_than_the_player() {
        let most = processors() as f64 * 1.25;
        for demand in [0.05, 0.13, 0.4, 0.9] {
            let threads = threads_beside(demand, most);
            assert!(most / threads as f64 <= demand, "{demand}: {threads}");
        }
        let least = LEAST_THREADS * processors();
        assert_eq!(threads_beside(f64::INFINITY, most), least);
        let most_threads = MOST_THREADS * processors();
        assert_eq!(threads_beside(0.0, most), most_threads);
    }

    #[test]
    fn periods_that_passed_are_not_made_up_for() {
        let first = Instant::now();
        assert_eq!(following(first, first), first + PERIOD);
        assert_eq!(following(first, first + PERIOD / 2), first + PERIOD);
        assert_eq!(following(first, first + PERIOD * 7 / 2), first + PERIOD * 4);
    }
}
