//! Cost of one page in and out for a thread, alone and beside another, and the rate of filling a
//! disk: `cargo run --release -p store --example pages [DIR]`.
//!
//! Medians of interleaved repeats, in microseconds of the thread's own processor time: on a machine
//! with other work, contention between the threads shows there, and waiting for a processor does
//! not. Half of each page is noise. DIR takes the swap file; without it the disk is left out.

use fastrand::Rng;
use std::sync::Barrier;
use std::time::Instant;
use store::{
    Channel, Checksum, PageHandle, ReadPage, SharedStore, Store, StoreConfig, Submitted, Wait,
    WritePage,
};

const PAGE: usize = 4096;
const PAGES: usize = 4096;
const REPEATS: usize = 9;
const CACHED: usize = 64;
/// As many as the pager submits at once.
const BATCH: usize = 64;

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

fn contents(thread: usize) -> Vec<Page> {
    let mut numbers = Rng::with_seed(thread as u64);
    let mut page = |number: usize| {
        let mut page = Page([0; PAGE]);
        for (at, word) in page.0.chunks_mut(8).enumerate() {
            let noise = (at / 64).is_multiple_of(2);
            let value = if noise {
                numbers.u64(..)
            } else {
                number as u64
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
        page
    };
    (0..PAGES).map(&mut page).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn processor_time() -> f64 {
    wired::clock::thread_time().unwrap_or(0) as f64 / 1e3
}

/// Microseconds a page: written, read at random, discarded.
type Costs = [f64; 3];

fn writes(pages: &[Page]) -> Vec<WritePage> {
    let write = |(token, page): (u64, &Page)| WritePage {
        from: page.0.as_ptr(),
        sum: Checksum::of(&page.0),
        token,
    };
    (0..).zip(pages).map(write).collect()
}

/// Writes with two batches in flight; returns the handles, by token.
fn fill(channel: &mut dyn Channel, writes: &[WritePage]) -> Vec<PageHandle> {
    let mut handles = vec![None; writes.len()];
    let mut wait_until = |channel: &mut dyn Channel, left: usize| {
        while channel.pending() > left {
            let done = channel.complete(Wait::Yes).expect("pages are pending");
            handles[done.token as usize] = done.result.expect("the store has room");
        }
    };
    for batch in writes.chunks(BATCH) {
        wait_until(channel, BATCH);
        channel.submit_write(batch).expect("few are in flight");
    }
    wait_until(channel, 0);
    handles.into_iter().flatten().collect()
}

fn in_ram(store: &SharedStore, writes: &[WritePage], start: &Barrier) -> Costs {
    let mut channel = store.channel(1).expect("a channel");
    let mut into = Page([0; PAGE]);
    let mut numbers = Rng::with_seed(7);
    start.wait();
    let begun = processor_time();
    let handles = fill(&mut *channel, writes);
    let written = processor_time();
    for _ in 0..PAGES {
        let handle = handles[numbers.usize(..PAGES)];
        let read = channel.submit_read(ReadPage {
            handle,
            into: into.0.as_mut_ptr(),
            token: 0,
        });
        assert_eq!(read.expect("a page"), Submitted::Done);
    }
    let read = processor_time();
    handles
        .iter()
        .for_each(|&handle| store.discard(0, &[handle]));
    let discarded = processor_time();
    [written - begun, read - written, discarded - read].map(|time| time / PAGES as f64)
}

fn with_threads(store: &SharedStore, threads: usize, pages: &[Vec<Page>]) -> Costs {
    let start = Barrier::new(threads);
    let costs: Vec<Costs> = std::thread::scope(|scope| {
        let run = |pages| {
            let start = &start;
            scope.spawn(move || in_ram(store, &writes(pages), start))
        };
        let running: Vec<_> = pages[..threads].iter().map(|pages| run(pages)).collect();
        let costs = running.into_iter().map(|thread| thread.join());
        costs.map(|costs| costs.expect("no panic")).collect()
    });
    std::array::from_fn(|at| costs.iter().map(|cost| cost[at]).sum::<f64>() / threads as f64)
}

fn ram() {
    let config: StoreConfig = "ram:64M".parse().expect("a store's line");
    let store = SharedStore::create(&config, 1).expect("a store").0;
    let pages = [contents(1), contents(2)];
    let mut costs = [const { Vec::new() }; 2];
    with_threads(&store, 2, &pages);
    for _ in 0..REPEATS {
        for (threads, costs) in [1, 2].into_iter().zip(&mut costs) {
            costs.push(with_threads(&store, threads, &pages));
        }
    }
    println!(
        "{}: us a page        one thread   two, each",
        store.describe()
    );
    for (at, what) in ["written", "read at random", "discarded"]
        .iter()
        .enumerate()
    {
        let [one, two] = [0, 1].map(|of: usize| median(costs[of].iter().map(|c| c[at]).collect()));
        println!("  {what:24} {one:10.2} {two:10.2}");
    }
    let sums = (0..REPEATS).map(|_| {
        let begun = processor_time();
        // As many as the caches hold.
        for page in pages[0][..CACHED].iter().cycle().take(PAGES) {
            std::hint::black_box(Checksum::of(&page.0));
        }
        (processor_time() - begun) / PAGES as f64
    });
    println!(
        "  {:24} {:10.2}",
        "of a read, the checksum",
        median(sums.collect())
    );
}

fn disk(dir: &str, options: &str) {
    let config = format!("disk:{dir}/pages-swap,size=256M{options}");
    let config: StoreConfig = config.parse().expect("a store's line");
    let store = SharedStore::create(&config, 1).expect("a store").0;
    let mut channel = store.channel(16).expect("a channel");
    let pages = contents(3);
    let writes = writes(&pages);
    let mut into = vec![Page([0; PAGE]); 256];
    let (mut filling, mut reading) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let handles = fill(&mut *channel, &writes);
        filling.push((PAGES * PAGE) as f64 / 1e6 / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for window in handles.chunks(into.len()) {
            let pages = window.iter().zip(&mut into);
            let run: Vec<ReadPage> = (0..)
                .zip(pages)
                .map(|(token, (&handle, page))| ReadPage {
                    handle,
                    into: page.0.as_mut_ptr(),
                    token,
                })
                .collect();
            channel.submit_read_ahead(&run).expect("few are in flight");
            while let Some(done) = channel.complete(Wait::Yes) {
                done.result.expect("a page");
            }
            let sound =
                |(handle, page): (&PageHandle, &Page)| store.verify_checksum(*handle, &page.0);
            assert!(window.iter().zip(&into).all(sound));
        }
        reading.push((PAGES * PAGE) as f64 / 1e6 / begun.elapsed().as_secs_f64());
        store.discard(0, &handles);
    }
    println!("{}: MB/s, elapsed", store.describe());
    println!(
        "  filled, two batches of {BATCH} in flight  {:8.0}",
        median(filling)
    );
    println!(
        "  read ahead, windows of {}, one      {:8.0}",
        into.len(),
        median(reading)
    );
}

fn main() {
    ram();
    if let Some(dir) = std::env::args().nth(1) {
        disk(&dir, "");
        disk(&dir, ",written");
    }
}
