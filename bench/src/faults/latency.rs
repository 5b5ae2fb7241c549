//! What a fault costs while pages are being evicted: two threads read pages at random,
//! eight times as many as there are frames.

use super::{FaultPlan, figure, page_at, paged};
use crate::prelude::*;
use crate::process::joined;
use crate::statistics::percentile_us;
use selfpage::{Counter, Stretch};

const THREADS: u64 = 2;

/// An access that took less found its page: a signal alone takes 2.5 us here.
const FOUND_NS: u64 = 1_000;

/// p99 over p50 of the accesses that faulted, by both threads.
pub fn of_two_threads(plan: &FaultPlan) -> Result<Sample> {
    let pages = plan.data / PAGE as u64;
    let (domain, stretch) = paged(plan.frames as usize / PAGE, plan.data, pages as usize)?;
    for page in 0..pages {
        page_at(&stretch, page).write(1);
    }
    let accesses = plan.accesses / THREADS;
    let (before, begin) = (figure(&domain, Counter::Faults), Instant::now());
    let preempted = preemptions();
    let each: Vec<u64> = std::thread::scope(|scope| {
        let stretch = &stretch;
        let read = |id| move || read(stretch, pages, accesses, plan.seed, id);
        let threads: Vec<_> = (0..THREADS).map(|id| scope.spawn(read(id))).collect();
        threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })?
    .concat();
    let elapsed = begin.elapsed();
    let mut faulted: Vec<u64> = each.into_iter().filter(|ns| *ns >= FOUND_NS).collect();
    let [p50, p99] = [50, 99].map(|percent| percentile_us(&mut faulted, percent));
    let faults = (figure(&domain, Counter::Faults) - before).max(1) as f64;
    let starved = figure(&domain, Counter::FrameWaits) as f64;
    Ok(Sample::new(p99, p50).notes([
        (
            "longest",
            faulted.last().copied().unwrap_or(0) as f64 / 1000.0,
        ),
        (
            "us a fault, aggregate",
            elapsed.as_secs_f64() * 1e6 / faults,
        ),
        (
            "preempted, of faults",
            (preemptions() - preempted) as f64 / faults,
        ),
        ("starved, of faults", starved / faults),
    ]))
}

/// How often a thread of this process had to make way for another: other work on the
/// machine shows in the last percentile, and here.
fn preemptions() -> u64 {
    crate::machine::usage(libc::RUSAGE_SELF).ru_nivcsw as u64
}

/// One thread's accesses: the pages whose number leaves its own remainder. Times of the
/// second half, when the first has brought about the steady state.
fn read(stretch: &Stretch, pages: u64, accesses: u64, seed: u64, id: u64) -> Result<Vec<u64>> {
    let mut each_ns = Vec::with_capacity(accesses as usize);
    for i in 0..accesses {
        let page = mix(seed ^ i ^ id << 48) % (pages / THREADS) * THREADS + id;
        let begin = Instant::now();
        page_at(stretch, page).probe(1)?;
        each_ns.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(each_ns.split_off(accesses as usize / 2))
}
