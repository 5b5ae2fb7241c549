//! Cost of a page in the store: `cargo run --release -p store --example store_costs [DIR]`.
//!
//! Medians over batches, one thread, pages that compress to about half; DIR (default: the current
//! directory) takes the swap file. Memory is touched before; the checksum is not part of a write's
//! cost (the pager has it already) and is part of a read's.

use std::time::Instant;
use store::{
    Channel, Checksum, PageHandle, ReadPage, SharedStore, Store, StoreConfig, Submitted, Wait,
    WritePage,
};

const PAGE: usize = 4096;
const BATCH: usize = 512;
const BATCHES: usize = 64;

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

fn contents(count: usize) -> Vec<Page> {
    let mut random = fastrand::Rng::with_seed(0);
    // Records of 16 bytes: a counter, a small number, and 6 bytes of noise. lz4 halves them, as it
    // does real heaps.
    let mut counter = 0u64;
    let mut page = || {
        let mut page = Page([0; PAGE]);
        for record in page.0.chunks_mut(16) {
            counter += 1;
            record[..8].copy_from_slice(&(0x7f00_0000_0000 + counter * 16).to_le_bytes());
            record[8..14].copy_from_slice(&random.u64(..).to_le_bytes()[..6]);
            if !counter.is_multiple_of(3) {
                record[8..14].fill(0);
            }
        }
        page
    };
    (0..count).map(|_| page()).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Microseconds a page of a batch: elapsed, and of this thread's processor time.
struct Cost(f64, f64);

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:7.2} {:7.2}", self.0, self.1)
    }
}

fn processor_time() -> f64 {
    wired::clock::thread_time().unwrap_or(0) as f64 / 1e9
}

fn per_page(batches: usize, pages: usize, mut batch: impl FnMut(usize)) -> Cost {
    let (elapsed, worked) = (0..batches)
        .map(|at| {
            let (start, worked) = (Instant::now(), processor_time());
            batch(at);
            let scale = 1e6 / pages as f64;
            (
                start.elapsed().as_secs_f64() * scale,
                (processor_time() - worked) * scale,
            )
        })
        .unzip();
    Cost(median(elapsed), median(worked))
}

fn write(channel: &mut dyn Channel, writes: &[WritePage], handles: &mut Vec<PageHandle>) {
    channel
        .submit_write(writes)
        .expect("within what a channel takes");
    let from = handles.len();
    handles.resize(from + writes.len(), PageHandle::new(1).expect("a number"));
    while channel.pending() > 0 {
        let done = channel.complete(Wait::Yes).expect("pages are pending");
        let handle = done
            .result
            .expect("the store has room")
            .expect("a write's handle");
        handles[from + done.token as usize] = handle;
    }
}

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let pages = contents(BATCH);
    let writes: Vec<WritePage> = (0..)
        .zip(&pages)
        .map(|(token, page)| WritePage {
            from: page.0.as_ptr(),
            sum: Checksum::of(&page.0),
            token,
        })
        .collect();
    let mut into = vec![Page([0; PAGE]); BATCH];
    println!("us a page, medians of {BATCHES} batches of {BATCH}: elapsed, processor");
    println!(
        "checksum            {}",
        per_page(BATCHES, BATCH, |_| {
            pages.iter().for_each(|page| {
                std::hint::black_box(Checksum::of(&page.0));
            });
        })
    );
    for config in [
        "ram:256M".to_owned(),
        format!("disk:{dir}/costs-swap,size=256M"),
        format!("ram:16M+disk:{dir}/costs-swap,size=256M"),
    ] {
        measure(&config, &writes, &mut into);
    }
}

fn measure(config: &str, writes: &[WritePage], into: &mut [Page]) {
    let config: StoreConfig = config.parse().expect("a store's line");
    let (store, _fds) = match SharedStore::create(&config, 4) {
        Ok(store) => store,
        Err(error) => return println!("{config}: {error}"),
    };
    println!("{}", store.describe());
    let mut channel = store.channel(32).expect("a channel");
    let channel = &mut *channel;
    let mut handles = Vec::new();
    let ios = store.usage().ios;
    let first = per_page(BATCHES, BATCH, |_| write(channel, writes, &mut handles));
    let ios = store.usage().ios - ios;
    println!("  write, fresh      {first}");
    if ios > 0 {
        println!(
            "  pages a write I/O {:6.1}",
            (BATCH * BATCHES) as f64 / ios as f64
        );
    }
    measure_reads(channel, &handles, into);
    let discard = per_page(BATCHES, BATCH, |batch| {
        store.discard(0, &handles[batch * BATCH..(batch + 1) * BATCH]);
    });
    println!("  discard           {discard}");
    handles.clear();
    let again = per_page(BATCHES, BATCH, |_| write(channel, writes, &mut handles));
    println!("  write, again      {again}");
    let usage = store.usage();
    if usage.pages_ram > 0 {
        let ratio = (usage.pages_ram * 4096) as f64 / usage.ram_compressed as f64;
        println!("  compressed        {ratio:6.2} to 1");
    }
}

fn measure_reads(channel: &mut dyn Channel, handles: &[PageHandle], into: &mut [Page]) {
    let count = handles.len();
    let mut at = 1;
    let random = per_page(BATCHES, 64, |_| {
        for _ in 0..64 {
            at = (at * 7919 + 13) % count;
            let read = read_page(handles[at], &mut into[0]);
            if channel.submit_read(read).expect("a read") == Submitted::Pending {
                await_page(channel);
            }
        }
    });
    println!("  read, one, random {random}");
    for run in [1, 8, 32] {
        let sequential = per_page(BATCHES, BATCH, |batch| {
            let first = batch * BATCH;
            let reads: Vec<ReadPage> = (0..BATCH)
                .map(|at| read_page(handles[first + at], &mut into[at]))
                .collect();
            for reads in reads.chunks(run) {
                channel.submit_read_run(reads).expect("a read");
                while channel.pending() > 0 {
                    await_page(channel);
                }
            }
        });
        println!("  read, runs of {run:2}  {sequential}");
    }
}

fn read_page(handle: PageHandle, into: &mut Page) -> ReadPage {
    ReadPage {
        handle,
        into: into.0.as_mut_ptr(),
        token: 0,
    }
}

fn await_page(channel: &mut dyn Channel) {
    let completion = channel.complete(Wait::Yes).expect("pending");
    completion.result.expect("a page");
}
