//! How long faults take while several threads fault and the evictor evicts: `cargo run
//! --release -p selfpage --example latency [THREADS [ACCESSES [STORE [MEGABYTES [write]]]]]`.
//!
//! Random accesses over eight times as many pages as there are frames; an access that does
//! not fault is not counted. Prints quantiles of the time of a fault, and what the domain
//! counted.

use selfpage::{Counter, DirectIo, Domain, Paged};
use std::time::Instant;

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().map_or(Ok(2), |n| n.parse())?;
    let accesses: usize = args.next().map_or(Ok(200_000), |n| n.parse())?;
    let store = args.next().unwrap_or_else(|| "ram:1G".into());
    let bytes = args.next().map_or(Ok(256), |m| m.parse::<usize>())? << 20;
    let write = args.next().is_some();
    let frames = (bytes / 8 / PAGE) as u32;
    let domain = Domain::builder()
        .frames(frames)
        .store(store.parse()?)
        .direct_io(DirectIo::PinnedOnly)
        .build()?;
    let stretch = domain.allocate(bytes)?;
    stretch.bind(Paged)?;
    // SAFETY: threads touch pages of their own.
    let memory = unsafe { stretch.bytes_mut() };
    let mut random = fastrand::Rng::with_seed(1);
    for page in memory.chunks_exact_mut(PAGE) {
        let (noise, rest) = page.split_at_mut(PAGE / 2);
        random.fill(noise);
        rest.fill(1);
    }
    let before: Vec<u64> = Counter::of_domain()
        .map(|c| domain.counters().get(c))
        .collect();
    let start = Instant::now();
    let base = memory.as_mut_ptr() as usize;
    let pages = bytes / PAGE / threads;
    let mut times: Vec<u64> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|id| {
                let page = move |n: usize| base + (n * threads + id) * PAGE;
                scope.spawn(move || fault_times(id as u64, accesses, write, |n| page(n % pages)))
            })
            .collect();
        all.into_iter()
            .flat_map(|t| t.join().unwrap_or_default())
            .collect()
    });
    let all = start.elapsed().as_nanos() as f64 / (accesses * threads) as f64;
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize] as f64 / 1000.0;
    println!(
        "{threads} threads, {all:.0} ns an access; a fault p50 {:.1} p90 {:.1} p98 {:.1} p99 {:.1} p99.9 {:.1} us; p99/p50 {:.1}",
        at(0.5),
        at(0.9),
        at(0.98),
        at(0.99),
        at(0.999),
        at(0.99) / at(0.5)
    );
    for (counter, before) in Counter::of_domain().zip(before) {
        let now = domain.counters().get(counter);
        if now != before {
            print!("{} {}  ", counter.key(), now as i64 - before as i64);
        }
    }
    println!();
    Ok(())
}

/// The times of a thread's accesses that faulted, in nanoseconds. `page` has the address of a
/// page of the thread's own, of any number.
fn fault_times(seed: u64, accesses: usize, write: bool, page: impl Fn(usize) -> usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut times = Vec::with_capacity(accesses);
    for _ in 0..accesses {
        let at = (page(random.usize(..)) + 64) as *mut u64;
        let start = Instant::now();
        // SAFETY: inside the stretch, and this thread's page.
        unsafe {
            let value = at.read_volatile();
            if write {
                at.write_volatile(value + 1);
            }
        }
        let time = start.elapsed().as_nanos() as u64;
        if time > 1500 {
            times.push(time);
        }
    }
    times
}
