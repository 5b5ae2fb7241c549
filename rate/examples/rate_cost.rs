//! The cost that the check adds to a fault under its limit: `cargo run --release -p rate
//! --example rate_cost`. The clock is measured beside it, since a check reads it once.

use rate::limiter::ChargeToken;
use rate::thread_counters::{ThreadCounters, ThreadKey};
use rate::{FaultLimits, Limiter, SharedLimits, shared_limits};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Instant;
use wired::clock::now;

const ROUNDS: u64 = 2_000_000;

fn main() {
    let words = |n: usize| -> Vec<AtomicU64> { (0..n).map(|_| AtomicU64::new(0)).collect() };
    let (generation, limit_words, task_words) =
        (AtomicU32::new(0), words(shared_limits::WORDS), words(4096));
    let shared = SharedLimits::new(&generation, &limit_words);
    let limiter = Limiter::new(shared, ThreadCounters::new(&task_words));
    let measure = |what: &str, work: &mut dyn FnMut()| {
        let mut best = f64::MAX;
        for _ in 0..7 {
            let begin = Instant::now();
            (0..ROUNDS).for_each(|_| work());
            best = best.min(begin.elapsed().as_nanos() as f64 / ROUNDS as f64);
        }
        println!("{what:>44} {best:6.1} ns");
    };
    let charge = || {
        black_box(limiter.page_fault(
            black_box(ThreadKey::new(4711)),
            now(),
            ChargeToken::default(),
        ));
    };
    measure("the clock alone", &mut || {
        black_box(now());
    });
    measure("no limits", &mut || {
        black_box(shared.is_limited());
    });
    let many = 1_000_000;
    for (what, task_limit, tree_limit) in [
        ("a limit of each thread", many, 0),
        ("a limit of all threads", 0, many),
        ("both", many, many),
    ] {
        let limits = FaultLimits {
            fault_period: 1_000_000,
            task_limit,
            tree_limit,
            system_limit: 0,
        };
        shared.set(limits, now());
        measure(what, &mut || charge());
    }
}
