//! Figure 6: VTLB misses and their processor time against the number of VTLB pages, for 3 and for
//! 10 processes over one object.
//!
//!     cargo run --release -p space --example figure_6 [SECONDS]
//!
//! The paper's load is a set-top box; here is its kind. Each process has a working set of 12 ranges
//! of 2 MiB, so that 120 pages in all suffice for ten. It uses one 50 times a second, by Zipf's law
//! (exponent 1.5), reads 64 pages there, and nine times a second replaces one range of the set by a
//! new one: the misses that no bound avoids, 90 a second for ten processes (in the paper 92). The
//! pages are divided evenly among the processes. The last line is the kernel without a VTLB.
//!
//! The processor time of a miss is that of accesses which all miss, one after the other, once the
//! timed part is over: signal, hiding, mapping, and the kernel's fault on the page. The share of a
//! processor is that times the misses of a second, as in the paper.

use space::{AddressSpace, MapFlags, MemoryObject, VtlbStats};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const RANGE: usize = 2 << 20;
const OBJECT: usize = 16 << 30;
const WORKING_SET: usize = 12;
const TICK: Duration = Duration::from_millis(20);
const TICKS_PER_CHANGE: f64 = 50.0 / 9.0;
const PAGES_READ: usize = 64;

/// What a process reports.
#[derive(Clone, Copy, Default)]
struct Run {
    misses: u64,
    recycled: u64,
    cpu_us: u64,
    miss_ns: u64,
    table_kb: u64,
}

/// How the processes map the object.
#[derive(Clone, Copy)]
enum Arm<'a> {
    Vtlb {
        pages: usize,
    },
    Kernel,
    /// Every range of the object is touched once.
    Sparse(&'a Arm<'a>),
}

fn page_tables() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find(|l| l.starts_with("VmPTE:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn cpu_us() -> u64 {
    wired::clock::thread_time().expect("the thread's clock is readable") / 1000
}

/// A rank of the working set, by Zipf's law.
fn rank(random: &mut fastrand::Rng) -> usize {
    let weight = |k: usize| ((k + 1) as f64).powf(-1.5);
    let all: f64 = (0..WORKING_SET).map(weight).sum();
    let mut at = random.f64() * all;
    (0..WORKING_SET)
        .find(|k| {
            at -= weight(*k);
            at < 0.0
        })
        .unwrap_or(0)
}

fn process(object: &MemoryObject, arm: Arm<'_>, seconds: f64, seed: u64) -> Run {
    let before = page_tables();
    let mut space = None;
    let (arm, sparse) = match arm {
        Arm::Sparse(arm) => (*arm, true),
        arm => (arm, false),
    };
    let base = match arm {
        Arm::Vtlb { pages } => {
            let made = space.insert(AddressSpace::without_domain(pages).expect("a space"));
            made.map(None, OBJECT, object, 0, MapFlags::default())
                .expect("mapped")
        }
        Arm::Kernel | Arm::Sparse(_) => map_plain(object),
    };
    for range in (0..OBJECT / RANGE).filter(|_| sparse) {
        // SAFETY: mapped for reading by this process.
        unsafe { std::ptr::with_exposed_provenance::<u8>(base + range * RANGE).read_volatile() };
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut set: Vec<usize> = (0..WORKING_SET)
        .map(|_| random.usize(..OBJECT / RANGE))
        .collect();
    let begin = Instant::now();
    let (cpu, mut ticks, mut changes) = (cpu_us(), 0u32, 0.0);
    while begin.elapsed().as_secs_f64() < seconds {
        let at = base + set[rank(&mut random)] * RANGE;
        for page in 0..PAGES_READ {
            // SAFETY: mapped for reading by this process.
            unsafe { std::ptr::with_exposed_provenance::<u8>(at + page * PAGE).read_volatile() };
        }
        ticks += 1;
        changes += 1.0 / TICKS_PER_CHANGE;
        if changes >= 1.0 {
            changes -= 1.0;
            // The new range is used next, as a new window is.
            set.rotate_right(1);
            set[0] = random.usize(..OBJECT / RANGE);
        }
        std::thread::sleep((begin + TICK * ticks).saturating_duration_since(Instant::now()));
    }
    let stats = space
        .as_ref()
        .map_or(VtlbStats::default(), AddressSpace::vtlb_stats);
    let (cpu_us, table_kb) = (cpu_us() - cpu, page_tables() - before);
    let miss_ns = space.as_ref().map_or(0, |space| miss_cost(space, base));
    Run {
        misses: stats.misses,
        recycled: stats.recycled,
        cpu_us,
        miss_ns,
        table_kb,
    }
}

/// Nanoseconds of processor time of a miss.
fn miss_cost(space: &AddressSpace, base: usize) -> u64 {
    let (misses, begin) = (space.vtlb_stats().misses, cpu_us());
    for n in 0..1000 {
        let at = base + n % 1000 * 8 * RANGE;
        // SAFETY: mapped for reading by this process.
        unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
    }
    let spent = cpu_us() - begin;
    1000 * spent / (space.vtlb_stats().misses - misses).max(1)
}

/// The whole object by one mapping of the kernel's.
fn map_plain(object: &MemoryObject) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            OBJECT,
            ProtFlags::READ,
            flags,
            object.as_fd(),
            0,
        )
    };
    at.expect("mapped").expose_provenance()
}

/// Runs `count` processes at once. The sums; the mean time of a miss; the largest page tables.
fn run(object: &MemoryObject, arm: Arm<'_>, count: usize, seconds: f64) -> Run {
    let children: Vec<_> = (0..count)
        .map(|n| {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            // SAFETY: this program has one thread; the child ends by `_exit`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork");
            if pid == 0 {
                drop(reader);
                let Run {
                    misses,
                    recycled,
                    cpu_us,
                    miss_ns,
                    table_kb,
                } = process(object, arm, seconds, n as u64);
                for word in [misses, recycled, cpu_us, miss_ns, table_kb] {
                    writer
                        .write_all(&word.to_le_bytes())
                        .expect("the parent reads");
                }
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            (pid, reader)
        })
        .collect();
    let mut all = Run::default();
    for (pid, mut reader) in children {
        let mut word = || {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes).expect("a process reports");
            u64::from_le_bytes(bytes)
        };
        all.misses += word();
        all.recycled += word();
        all.cpu_us += word();
        all.miss_ns += word() / count as u64;
        all.table_kb = all.table_kb.max(word());
        // SAFETY: a child of this program.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    all
}

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(5.0);
    let object = MemoryObject::create(OBJECT as u64).expect("an object");
    println!(
        "{} processors, {seconds} s a line, object of 16 GiB, working sets of {WORKING_SET} ranges",
        std::thread::available_parallelism().map_or(0, usize::from)
    );
    println!(
        "processes  pages in all  misses/s  recycled/s  CPU us a miss  misses' CPU %  CPU % in all  page tables kB a process"
    );
    for (count, totals) in [
        (3, &[12, 24, 36, 64][..]),
        (10, &[20, 40, 64, 90, 120, 160][..]),
    ] {
        for total in totals {
            let pages = total / count;
            let ours = run(&object, Arm::Vtlb { pages }, count, seconds);
            print(count, &total.to_string(), &ours, seconds);
        }
        print(
            count,
            "kernel",
            &run(&object, Arm::Kernel, count, seconds),
            seconds,
        );
    }
    for (name, arm) in [
        ("64 VTLB pages", Arm::Vtlb { pages: 64 }),
        ("the kernel", Arm::Kernel),
    ] {
        let run = run(&object, Arm::Sparse(&arm), 1, 0.0);
        println!(
            "all 8192 ranges of the object touched once, {name}: page tables +{} kB",
            run.table_kb
        );
    }
}

fn print(count: usize, pages: &str, run: &Run, seconds: f64) {
    let rate = |n: u64| n as f64 / seconds;
    let misses_cpu = rate(run.misses) * run.miss_ns as f64 / 1e7;
    println!(
        "{count:9}  {pages:>12}  {:8.1}  {:10.1}  {:13.1}  {misses_cpu:13.2}  {:12.2}  {:6}",
        rate(run.misses),
        rate(run.recycled),
        run.miss_ns as f64 / 1e3,
        run.cpu_us as f64 / seconds / 1e4,
        run.table_kb
    );
}
