//! Pages zeroed or erased, and time, on a workload of allocate, use and free by stretches.
//!
//!     cargo run --release -p space --example zeroing [ROUNDS]
//!
//! Each round allocates one of eight sizes (64 KiB to 2 MiB), writes every page, and frees a random
//! earlier allocation. The kernel's arm is `mmap` and `munmap`, which zeroes a page at each first
//! use. Ours commits without alloc-zero, so that the domain's own frames are used again as they
//! are; a line below is with alloc-zero for every commit. The paper (2.1): 43 % fewer pages,
//! start-up included, 13 % without.

use selfpage::{Counter, DirectIo, Domain};
use space::{AddressSpace, Backing, CommitFlags};
use std::time::Instant;

const PAGE: usize = 4096;
const SIZES: usize = 8;
const KEPT: usize = 12;

trait Memory {
    fn allocate(&mut self, size: usize) -> usize;
    fn free(&mut self, addr: usize, size: usize);
    fn zeroed_pages(&self) -> u64;
}

struct Kernel {
    touched: u64,
}

impl Memory for Kernel {
    fn allocate(&mut self, size: usize) -> usize {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        self.touched += (size / PAGE) as u64;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), size, rights, MapFlags::PRIVATE) };
        at.expect("memory").expose_provenance()
    }

    fn free(&mut self, addr: usize, size: usize) {
        // SAFETY: mapped above, and not used any more.
        unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(addr), size) }
            .expect("unmapped");
    }

    fn zeroed_pages(&self) -> u64 {
        self.touched
    }
}

struct Ours {
    space: AddressSpace,
    zero: bool,
}

impl Memory for Ours {
    fn allocate(&mut self, size: usize) -> usize {
        let at = self.space.reserve(None, size, false).expect("reserved");
        let flags = CommitFlags {
            auto: true,
            zero: self.zero,
            ..CommitFlags::default()
        };
        self.space.commit(at, size, flags).expect("committed");
        at
    }

    fn free(&mut self, addr: usize, size: usize) {
        self.space.deallocate(addr, size).expect("deallocated");
    }

    fn zeroed_pages(&self) -> u64 {
        let backing = self.space.backing().expect("a domain");
        let stats = backing.stats();
        let filled = backing.domain().counters().get(Counter::ZeroFilled);
        filled + stats.zeroed_pages + stats.erased_pages
    }
}

fn ours(zero: bool) -> Ours {
    let domain = Domain::builder()
        .frames(32_768)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .expect("a domain");
    let space = AddressSpace::new(Backing::new(domain), 6).expect("a space");
    Ours { space, zero }
}

/// Pages zeroed at start-up (until every size was used), pages zeroed in all, seconds.
fn work(memory: &mut dyn Memory, rounds: usize) -> (u64, u64, f64) {
    let mut random = fastrand::Rng::with_seed(5);
    let mut kept: Vec<(usize, usize)> = Vec::new();
    let begin = Instant::now();
    let mut start_up = 0;
    for round in 0..rounds {
        let size = (16 << random.usize(..SIZES).min(5)) * PAGE;
        let at = memory.allocate(size);
        for page in 0..size / PAGE {
            // SAFETY: allocated above.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<u64>(at + page * PAGE)
                    .write_volatile(round as u64)
            };
        }
        kept.push((at, size));
        if kept.len() > KEPT {
            let (at, size) = kept.swap_remove(random.usize(..kept.len()));
            memory.free(at, size);
        }
        if round == rounds / 10 {
            start_up = memory.zeroed_pages();
        }
    }
    let (all, seconds) = (memory.zeroed_pages(), begin.elapsed().as_secs_f64());
    kept.into_iter()
        .for_each(|(at, size)| memory.free(at, size));
    (start_up, all, seconds)
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(5000);
    let (kernel_start, kernel, kernel_s) = work(&mut Kernel { touched: 0 }, rounds);
    println!("{rounds} rounds           pages zeroed  after the first tenth  seconds");
    println!(
        "kernel                  {kernel:12}  {:21}  {kernel_s:7.3}",
        kernel - kernel_start
    );
    for (name, zero) in [("space", false), ("space, all alloc-zero", true)] {
        let (start, all, seconds) = work(&mut ours(zero), rounds);
        let fewer = |ours: u64, theirs: u64| 100.0 * (1.0 - ours as f64 / theirs.max(1) as f64);
        println!(
            "{name:22}  {all:12}  {:21}  {seconds:7.3}   {:.1} % fewer, {:.1} % without the first tenth",
            all - start,
            fewer(all, kernel),
            fewer(all - start, kernel - kernel_start)
        );
    }
}
