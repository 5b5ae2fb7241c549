//! How long the exclusive sections of a space are held, under 130,000 mutations of its tree.
//!
//!     cargo run --release -p space --example lock_times [MUTATIONS]
//!
//! One thread reserves, commits, protects, maps and deallocates at random; another accesses mapped
//! memory, so that misses take the same locks. In the paper (4): AS-mutation functions 14 us mean,
//! 506 us maximum over 130,000 calls; VTLB functions 33 us mean, 4729 us maximum over 50,000.

use selfpage::{DirectIo, Domain, Rights};
use space::{AddressSpace, Backing, CommitFlags, MapFlags, MemoryObject, SectionTimes};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const PAGE: usize = 4096;
const RANGE: usize = 2 << 20;

fn main() {
    let wanted = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(130_000u64);
    let domain = Domain::builder()
        .frames(4096)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .expect("a domain");
    let space = AddressSpace::new(Backing::new(domain), 16).expect("a space");
    let object = MemoryObject::create(64 * RANGE as u64).expect("an object");
    let mapped = space
        .map(None, 64 * RANGE, &object, 0, MapFlags::default())
        .expect("mapped");
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let mut calls = 0u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            while !stop.load(Ordering::Relaxed) {
                let at = mapped + random.usize(..64) * RANGE;
                // SAFETY: mapped for reading.
                unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
            }
        });
        let mut random = fastrand::Rng::with_seed(2);
        let mut reserved: Vec<(usize, usize)> = Vec::new();
        while space.lock_times().mutations.count < wanted {
            calls += change(&space, &object, &mut reserved, &mut random);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let times = space.lock_times();
    println!(
        "{calls} calls, {:.1} us each",
        begin.elapsed().as_secs_f64() * 1e6 / calls as f64
    );
    println!("sections    count     mean us   p99 us   p99.9 us   max us");
    print("mutations", &times.mutations);
    print("VTLB", &times.vtlb);
}

fn print(name: &str, times: &SectionTimes) {
    let us = |ns: u64| ns as f64 / 1e3;
    println!(
        "{name:10} {:7} {:9.2} {:8.2} {:10.2} {:8.1}",
        times.count,
        us(times.mean_ns),
        us(times.p99_ns),
        us(times.p999_ns),
        us(times.max_ns)
    );
}

/// Some operations on one reservation. Returns how many.
fn change(
    space: &AddressSpace,
    object: &MemoryObject,
    reserved: &mut Vec<(usize, usize)>,
    random: &mut fastrand::Rng,
) -> u64 {
    let pages = random.usize(2..32);
    let size = pages * PAGE;
    let at = space.reserve(None, size, false).expect("reserved");
    reserved.push((at, size));
    let half = pages / 2 * PAGE;
    if random.bool() {
        let flags = CommitFlags {
            auto: true,
            ..CommitFlags::default()
        };
        space.commit(at, half, flags).expect("committed");
        space.protect(at, half, Rights::READ).expect("protected");
        space.decommit(at, PAGE).expect("decommitted");
    } else {
        space
            .map(Some(at), half, object, 0, MapFlags::default())
            .expect("mapped");
        space.protect(at, PAGE, Rights::NONE).expect("protected");
    }
    if reserved.len() > 200 {
        let (at, size) = reserved.swap_remove(random.usize(..reserved.len()));
        space.deallocate(at, size).expect("deallocated");
    }
    4
}
