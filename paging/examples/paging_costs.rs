//! What paging costs a linked program: `cargo run --release -p selfpage --example paging_costs
//! [STORE [UPCALL|thread [MEGABYTES]]]`. Medians are `make bench`'s business; this is one run.

use selfpage::{Contract, Counter, DirectIo, Domain, EntryKind, Paged};
use std::time::Instant;

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let store = args.next().unwrap_or_else(|| "ram:512M".into());
    let entry = match args.next().as_deref() {
        Some("thread") => EntryKind::Thread,
        _ => EntryKind::Upcall,
    };
    let bytes = args.next().map_or(Ok(512), |m| m.parse::<usize>())? << 20;
    let frames = (bytes / 8 / PAGE) as u32;
    let direct_io = match std::env::var("DIRECT_IO").as_deref() {
        Ok("anytime") => DirectIo::Anytime,
        _ => DirectIo::PinnedOnly,
    };
    let domain = Domain::builder()
        .frames(Contract {
            g: frames,
            x: frames,
        })
        .store(store.parse()?)
        .entry(entry)
        .direct_io(direct_io)
        .build()?;
    let stretch = domain.allocate(bytes)?;
    stretch.bind(Paged)?;
    let pages = bytes / PAGE;
    println!("{pages} pages in {frames} frames, {store}, {entry:?}, {direct_io:?}");
    // SAFETY: one thread, and no other code uses the stretch.
    let memory = unsafe { stretch.bytes_mut() };
    let mut random = fastrand::Rng::with_seed(1);
    let report = |what: &str, start: Instant, pages: usize| {
        let ns = start.elapsed().as_nanos() as f64 / pages as f64;
        println!("{what:>24} {:8.2} us/page", ns / 1000.0);
    };
    let start = Instant::now();
    for page in memory.chunks_exact_mut(PAGE) {
        for word in page[..PAGE / 2].chunks_exact_mut(8) {
            word.copy_from_slice(&random.u64(..).to_le_bytes());
        }
        page[PAGE / 2..].fill(1);
    }
    report("fill", start, pages);
    let mut sum = 0u64;
    let start = Instant::now();
    for page in memory.chunks_exact(PAGE) {
        sum += u64::from(page[8]);
    }
    report("sequential read", start, pages);
    let count = pages / 2;
    let start = Instant::now();
    for _ in 0..count {
        sum += u64::from(memory[random.usize(..pages) * PAGE]);
    }
    report("random read", start, count);
    let start = Instant::now();
    for _ in 0..count {
        memory[random.usize(..pages) * PAGE] += 1;
    }
    report("random read-modify-write", start, count);
    for counter in Counter::of_domain() {
        print!("{} {}, ", counter.key(), domain.counters().get(counter));
    }
    println!("sum {sum}\n{:?}", domain.store_usage());
    Ok(())
}
