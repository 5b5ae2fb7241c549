//! Cost of each operation: `cargo run --release -p translation --example translation_costs`. Median
//! and 99th percentile in microseconds; the second column with another thread of the process
//! running, so that flushes reach a second processor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use translation::{
    Capabilities, EntryKind, Feature, IoVec, Pagemap, Reservation, Userfault, Wake, discard,
    discard_batch, reserve, reserve_staging, restore_pinned, separate_pinned,
    separate_pinned_sparse, stage,
};
use wired::{HUGE_RANGE, HUGE_RANGE_PAGES, PAGE};

struct Bench {
    capabilities: Capabilities,
    userfault: Userfault,
    pagemap: Pagemap,
    area: Reservation,
    slot: Reservation,
    second: Reservation,
}

impl Bench {
    fn new() -> Self {
        let capabilities = Capabilities::probe().capabilities;
        let userfault =
            Userfault::open(EntryKind::Upcall, &capabilities).expect("upcall works here");
        let memory = || reserve_staging(2 * HUGE_RANGE).expect("address space");
        // Ranges of one page table each, as the pager uses them.
        let aligned = |r: Reservation| Reservation {
            addr: r.addr.next_multiple_of(HUGE_RANGE),
            len: HUGE_RANGE,
        };
        let bench = Self {
            pagemap: Pagemap::open(&capabilities).expect("pagemap"),
            area: aligned(memory()),
            slot: aligned(memory()),
            second: aligned(memory()),
            capabilities,
            userfault,
        };
        bench
            .userfault
            .register(bench.area.addr, HUGE_RANGE, true, true)
            .expect("registered");
        bench
            .userfault
            .register(bench.second.addr, HUGE_RANGE, true, false)
            .expect("registered");
        bench
    }

    fn fill(&self, pages: usize) {
        let page = [1; PAGE];
        for index in 0..pages {
            let at = self.area.addr + index * (HUGE_RANGE_PAGES / pages) * PAGE;
            self.userfault
                .copy(at, page.as_ptr(), PAGE, Wake::No)
                .expect("missing page");
        }
    }

    fn empty(&self) {
        for memory in [self.area, self.slot, self.second] {
            // SAFETY: the benchmark's own.
            unsafe { discard(memory.addr, memory.len) }.expect("mapped");
        }
    }

    /// Times `work` after `set_up`, which is not timed.
    fn time(&self, name: &str, per: usize, set_up: impl Fn(), work: impl Fn()) {
        let sample = |rounds: usize| {
            let mut times: Vec<f64> = (0..rounds)
                .map(|_| {
                    set_up();
                    let start = Instant::now();
                    work();
                    let time = start.elapsed().as_secs_f64() * 1e6 / per as f64;
                    self.empty();
                    time
                })
                .collect();
            times.sort_by(f64::total_cmp);
            (times[rounds / 2], times[rounds * 99 / 100])
        };
        let alone = sample(1000);
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let beside = sample(1000);
            stop.store(true, Ordering::Relaxed);
            beside
        });
        println!(
            "{name:<52} {:>8.2} {:>8.2} {:>10.2} {:>8.2}",
            alone.0, alone.1, beside.0, beside.1
        );
    }
}

/// Pins the calling thread to one processor, where the machine has more than one.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn main() {
    pin(0);
    let b = Bench::new();
    println!(
        "{:<52} {:>8} {:>8} {:>10} {:>8}",
        "us", "p50", "p99", "2 threads", "p99"
    );
    let nothing = || ();
    b.time("probe_fast", 1, nothing, || {
        let _ = Capabilities::probe_fast();
    });
    b.time("probe", 1, nothing, || drop(Capabilities::probe()));
    b.time("copy, a page", 64, nothing, || b.fill(64));
    b.time(
        "discard a page",
        1,
        || b.fill(64),
        || {
            // SAFETY: the benchmark's own.
            unsafe { discard(b.area.addr, PAGE) }.expect("mapped");
        },
    );
    discards(&b);
    for pages in [512, 64, 8] {
        staging(&b, pages);
        separation(&b, pages);
        scans(&b, pages);
    }
    b.time(
        "trans of one page",
        1,
        || b.fill(64),
        || {
            b.pagemap.trans(b.area.addr).expect("readable");
        },
    );
    b.time(
        "write_protect a page",
        1,
        || b.fill(64),
        || {
            b.userfault
                .write_protect(b.area.addr, PAGE, true)
                .expect("registered");
        },
    );
    b.time("poison a page", 1, nothing, || {
        // SAFETY: a missing page of the area.
        unsafe { b.userfault.poison(b.area.addr, PAGE) }.expect("missing page");
    });
    b.time("reserve and unmap", 1, nothing, || {
        let got = reserve(None, HUGE_RANGE, true).expect("address space");
        // SAFETY: just reserved.
        unsafe { translation::unmap_reservation(got) }.expect("mapped");
    });
}

fn discards(b: &Bench) {
    let pieces: Vec<IoVec> = (0..64)
        .map(|i| IoVec {
            addr: b.area.addr + i * 8 * PAGE,
            len: PAGE,
        })
        .collect();
    for (name, capabilities) in [
        (
            "discard 64 scattered pages in a batch, a page",
            b.capabilities,
        ),
        (
            "the same, without batches",
            b.capabilities.without(Feature::BatchDiscard),
        ),
    ] {
        b.time(
            name,
            64,
            || b.fill(64),
            || {
                // SAFETY: the benchmark's own.
                unsafe { discard_batch(&pieces, &capabilities) }.expect("mapped");
            },
        );
    }
}

/// The calls that take pages out of a program's reach.
fn staging(b: &Bench, pages: usize) {
    b.time(
        &format!("stage 2 MiB with {pages} pages, the call"),
        1,
        || b.fill(pages),
        || {
            // SAFETY: the benchmark's own.
            unsafe { stage(b.area.addr, HUGE_RANGE, b.slot.addr) }.expect("one mapping");
        },
    );
}

/// The calls that move staged pages on, or back.
fn separation(b: &Bench, pages: usize) {
    let staged = || {
        b.fill(pages);
        // SAFETY: the benchmark's own.
        unsafe { stage(b.area.addr, HUGE_RANGE, b.slot.addr) }.expect("one mapping");
    };
    if b.capabilities.has(Feature::Move) {
        b.time(
            &format!("separate_pinned, {pages} pages, a page"),
            pages,
            staged,
            || {
                // SAFETY: the benchmark's own.
                unsafe {
                    separate_pinned(&b.userfault, b.slot.addr, b.second.addr, HUGE_RANGE, |_| {})
                }
                .expect("moved");
            },
        );
    }
    if b.capabilities.has(Feature::Move) {
        b.time(
            &format!("separate_pinned_sparse, {pages} pages, a page"),
            pages,
            staged,
            || {
                let (src, dst) = (b.slot.addr, b.second.addr);
                // SAFETY: the benchmark's own.
                unsafe {
                    separate_pinned_sparse(&b.userfault, &b.pagemap, src, dst, HUGE_RANGE, |_| {})
                }
                .expect("moved");
            },
        );
    }
    if pages == 64 {
        b.time("restore_pinned, a page", 1, staged, || {
            // SAFETY: the benchmark's own.
            unsafe { restore_pinned(b.slot.addr, b.area.addr, &b.userfault, true) }
                .expect("put back");
        });
        b.time("copy back from the slot, a page", 1, staged, || {
            b.userfault
                .copy(b.area.addr, b.slot.addr as *const u8, PAGE, Wake::No)
                .expect("missing page");
        });
    }
}

fn scans(b: &Bench, pages: usize) {
    for (name, capabilities) in [
        ("scan", b.capabilities),
        ("read", b.capabilities.without(Feature::PagemapScan)),
    ] {
        let pagemap = Pagemap::open(&capabilities).expect("pagemap");
        b.time(
            &format!("present_pages of 2 MiB with {pages}, by {name}"),
            1,
            || b.fill(pages),
            || {
                let mut bitmap = [0; HUGE_RANGE_PAGES / 64];
                pagemap
                    .present_pages(b.area.addr, HUGE_RANGE, &mut bitmap)
                    .expect("readable");
            },
        );
    }
}
