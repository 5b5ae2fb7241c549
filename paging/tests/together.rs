//! Several threads that fault, evict, discard and unmap at the same time.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

mod common;

use common::{PAGE, domain};
use fastrand::Rng;
use selfpage::{Counter, DirectIo, EntryKind, Paged, Stretch};
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads that live on one stretch, each on pages of its own.
const THREADS: usize = 4;

/// Word `k` of a page as it was written in this version; version 0 is zeros.
fn word(page: usize, version: u32, k: usize) -> u64 {
    match version {
        0 => 0,
        _ => {
            (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ u64::from(version) << 9
                ^ (k as u64 / 3)
        }
    }
}

/// One thread's life on pages that are its own: it writes, checks and discards, and knows
/// what each page must hold.
fn live(stretch: &Stretch, id: usize, steps: usize) {
    let mut random = Rng::with_seed(0x5eed + id as u64);
    let pages = stretch.pages();
    let mut versions = vec![0u32; pages / THREADS];
    for step in 0..steps {
        let number = random.usize(..versions.len());
        let page = number * THREADS + id;
        let at = stretch.as_ptr().wrapping_add(page * PAGE).cast::<u64>();
        match random.usize(..16) {
            0..8 => {
                versions[number] = step as u32 + 1;
                for k in 0..PAGE / 8 {
                    unsafe { at.add(k).write_volatile(word(page, versions[number], k)) };
                }
            }
            8 => {
                stretch.discard(page..page + 1).unwrap();
                versions[number] = 0;
            }
            _ => {
                for k in (0..PAGE / 8).step_by(7) {
                    let found = unsafe { at.add(k).read_volatile() };
                    let expected = word(page, versions[number], k);
                    assert_eq!(found, expected, "page {page} step {step} word {k}");
                }
            }
        }
    }
}

/// Threads live on one stretch while another unmaps its pages, whichever thread uses them, and
/// stretches come and go.
fn stress(
    frames: u32,
    pages: usize,
    store: &str,
    entry: EntryKind,
    direct_io: DirectIo,
    steps: usize,
) {
    let domain = domain(frames, store, entry, direct_io);
    let stretch = domain.allocate(pages * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..THREADS)
            .map(|id| {
                let stretch = &stretch;
                scope.spawn(move || live(stretch, id, steps))
            })
            .collect();
        scope.spawn(|| {
            let mut random = Rng::with_seed(77);
            while !done.load(Ordering::Relaxed) {
                let page = random.usize(..pages);
                let few = 1 + random.usize(..64.min(pages - page));
                stretch.unmap(page..page + few).unwrap();
                domain.relinquish(1 + random.u32(..8));
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let guest = domain.allocate(64 * PAGE).unwrap();
                guest.bind(Paged).unwrap();
                for page in 0..64 {
                    let at = guest.as_ptr().wrapping_add(page * PAGE).cast::<u64>();
                    unsafe { at.write_volatile(page as u64 + 1) };
                }
                for page in 0..64 {
                    let at = guest.as_ptr().wrapping_add(page * PAGE).cast::<u64>();
                    assert_eq!(unsafe { at.read_volatile() }, page as u64 + 1);
                }
            }
        });
        for life in lives {
            let ended = life.join();
            done.store(true, Ordering::Relaxed);
            ended.unwrap();
        }
    });
    assert!(domain.n() <= frames);
    assert!(domain.counters().get(Counter::Staged) > 0);
    assert_eq!(domain.counters().get(Counter::UnreadablePages), 0);
}

#[test]
fn nothing_is_lost_over_a_tiny_contract() {
    stress(
        16,
        512,
        "ram:16M",
        EntryKind::Upcall,
        DirectIo::PinnedOnly,
        2_000,
    );
}

#[test]
fn nothing_is_lost_over_a_larger_contract() {
    stress(
        1024,
        8192,
        "ram:64M",
        EntryKind::Upcall,
        DirectIo::PinnedOnly,
        20_000,
    );
}

#[test]
fn nothing_is_lost_with_handler_threads() {
    stress(
        256,
        4096,
        "ram:64M",
        EntryKind::Thread,
        DirectIo::PinnedOnly,
        5_000,
    );
}

#[test]
fn nothing_is_lost_when_every_page_is_checked_for_pins() {
    stress(
        512,
        4096,
        "ram:64M",
        EntryKind::Upcall,
        DirectIo::Anytime,
        5_000,
    );
}

#[test]
fn nothing_is_lost_on_disk() {
    let path = std::env::temp_dir().join(format!("selfpage-together-{}", std::process::id()));
    let store = format!("disk:{},size=64M", path.display());
    stress(
        512,
        4096,
        &store,
        EntryKind::Upcall,
        DirectIo::PinnedOnly,
        5_000,
    );
}

/// Accesses to a hot set, of every `scan + 1`th access, that needed no read of the store.
fn hit_rate(scan: usize) -> f64 {
    const RANGE: usize = 128;
    const RANGES: usize = 64;
    const COUNT: usize = 40_000;
    let domain = domain(1024, "ram:64M", EntryKind::Upcall, DirectIo::PinnedOnly);
    let stretch = domain.allocate(2 * RANGES * RANGE * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for page in 0..stretch.pages() {
        let at = stretch.as_ptr().wrapping_add(page * PAGE).cast::<usize>();
        unsafe { at.write_volatile(page + 1) };
    }
    let reads = || {
        let counters = domain.counters();
        counters.get(Counter::CompressedHits) + counters.get(Counter::ReadaheadHits)
    };
    let touch = |page: usize| {
        let before = reads();
        let at = stretch.as_ptr().wrapping_add(page * PAGE).cast::<usize>();
        assert_eq!(unsafe { at.read_volatile() }, page + 1);
        reads() == before
    };
    // Zipf with exponent 1 over the ranges of the first half, uniform within one.
    let mut sums = vec![0.0];
    for rank in 1..=RANGES {
        sums.push(sums[rank - 1] + 1.0 / rank as f64);
    }
    let mut random = Rng::with_seed(0x5eed);
    let (mut hits, mut scanned) = (0, 0);
    for n in 0..2 * COUNT {
        let at = random.f64() * sums[RANGES];
        let rank = sums.partition_point(|sum| *sum <= at) - 1;
        let hit = touch(rank * 37 % RANGES * RANGE + random.usize(..RANGE));
        hits += usize::from(hit && n >= COUNT);
        for _ in 0..scan {
            touch(RANGES * RANGE + scanned % (RANGES * RANGE));
            scanned += 1;
        }
    }
    hits as f64 / COUNT as f64
}

#[test]
fn a_scan_beside_it_leaves_a_hot_set_nine_tenths_of_its_hits() {
    let (alone, beside) = (hit_rate(0), hit_rate(1));
    println!("hits: {alone:.3} alone, {beside:.3} with a scan");
    assert!(beside >= 0.9 * alone, "{beside:.3} of {alone:.3}");
}
