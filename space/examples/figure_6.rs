//! Figure 6: VTLB misses and their processor time against the number of VTLB pages, for 3 and for
//! 10 processes over one object.
//!
//!     cargo run --release -p space --example figure_6 [SECONDS]
//!
//! The paper's load is a set-top box; here is its kind. Each process has 12 ranges of 2 MiB mapped,
//! so that 120 pages in all suffice for ten. It uses one 50 times a second, by Zipf's law (exponent
//! 1.5), reads 64 pages there, and nine times a second deallocates one and maps another: the misses
//! that no bound avoids, 90 a second for ten processes (in the paper 92). As in the paper all
//! processes share one budget of pages. The lines *divided* give each an equal part of its own in
//! its place, and *services* has seven processes of the ten that use a range twice a second and
//! replace none. The lines *kernel* have the object mapped once, without a VTLB.
//!
//! The processor time of a miss is that of accesses which all miss, one after the other, once the
//! timed part is over: signal, hiding, mapping, and the kernel's fault on the page. The share of a
//! processor is that times the misses of a second, as in the paper, and the time of the threads
//! that give entries back to the budget. Recycled pages are those of the space's own misses and
//! those given back.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{PAGE, status_kb};
use space::{AddressSpace, MapFlags, MemoryObject, VtlbBudget, VtlbStats};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const RANGE: usize = 2 << 20;
const OBJECT: usize = 16 << 30;
const WORKING_SET: usize = 12;
const TICK: Duration = Duration::from_millis(20);
const TICK_OF_SERVICE: Duration = Duration::from_millis(500);
/// Processes that are no services, where there are any.
const BUSY: usize = 3;
const TICKS_PER_CHANGE: f64 = 50.0 / 9.0;
const PAGES_READ: usize = 64;

/// What a process reports.
#[derive(Clone, Copy, Default)]
struct Run {
    misses: u64,
    recycled: u64,
    cpu_us: u64,
    miss_ns: u64,
    revocation_us: u64,
    table_kb: u64,
}

/// How the processes map the object.
#[derive(Clone, Copy)]
enum Arm<'a> {
    /// A part of its own.
    Vtlb {
        pages: usize,
    },
    Budget(&'a VtlbBudget),
    Kernel,
    /// Every range of the object is touched once.
    Sparse(&'a Arm<'a>),
}

fn cpu_us() -> u64 {
    wired::clock::thread_time().expect("the thread's clock is readable") / 1000
}

/// The processor time of the process's other threads.
fn others_us() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let all = clock_gettime(ClockId::ProcessCPUTime);
    (all.tv_sec as u64 * 1_000_000 + all.tv_nsec as u64 / 1000).saturating_sub(cpu_us())
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

/// One process. It calls `all_done` at the end of the timed part, which returns when all processes
/// are there: what follows takes pages of the others.
fn process(
    object: &MemoryObject,
    arm: Arm<'_>,
    service: bool,
    seconds: f64,
    seed: u64,
    all_done: impl FnOnce(),
) -> Run {
    let before = status_kb("self", "VmPTE:");
    let (arm, sparse) = match arm {
        Arm::Sparse(arm) => (*arm, true),
        arm => (arm, false),
    };
    let space = match arm {
        Arm::Vtlb { pages } => Some(AddressSpace::without_domain(pages).expect("a space")),
        Arm::Budget(budget) => Some(AddressSpace::without_domain(budget).expect("a space")),
        Arm::Kernel | Arm::Sparse(_) => None,
    };
    let base = match &space {
        Some(_) if !sparse => 0,
        Some(space) => map(space, object, 0, OBJECT),
        None => map_plain(object),
    };
    for range in (0..OBJECT / RANGE).filter(|_| sparse) {
        read(base + range * RANGE);
    }
    let (cpu, others) = (cpu_us(), others_us());
    load(service, seconds, seed, |old, range| match &space {
        Some(space) => {
            old.map_or(Ok(()), |old| space.deallocate(old, RANGE))
                .expect("deallocated");
            map(space, object, range * RANGE, RANGE)
        }
        None => base + range * RANGE,
    });
    let stats = space
        .as_ref()
        .map_or(VtlbStats::default(), AddressSpace::vtlb_stats);
    let (cpu_us, revocation_us) = (cpu_us() - cpu, others_us().saturating_sub(others));
    let table_kb = status_kb("self", "VmPTE:") - before;
    all_done();
    let miss_ns = space.as_ref().map_or(0, |space| miss_cost(space, object));
    Run {
        misses: stats.misses,
        recycled: stats.recycled + stats.given_back,
        cpu_us,
        miss_ns,
        revocation_us,
        table_kb,
    }
}

/// Uses the object as the module's text says. `replace` maps a range in place of an old one.
fn load(
    service: bool,
    seconds: f64,
    seed: u64,
    mut replace: impl FnMut(Option<usize>, usize) -> usize,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut set: Vec<usize> = (0..WORKING_SET)
        .map(|_| replace(None, random.usize(..OBJECT / RANGE)))
        .collect();
    let tick = if service { TICK_OF_SERVICE } else { TICK };
    let begin = Instant::now();
    let (mut ticks, mut changes) = (0u32, 0.0);
    while begin.elapsed().as_secs_f64() < seconds {
        let at = set[rank(&mut random)];
        (0..PAGES_READ).for_each(|page| read(at + page * PAGE));
        ticks += 1;
        changes += if service { 0.0 } else { 1.0 / TICKS_PER_CHANGE };
        if changes >= 1.0 {
            changes -= 1.0;
            // The new range is used next, as a new window is.
            set.rotate_right(1);
            set[0] = replace(Some(set[0]), random.usize(..OBJECT / RANGE));
        }
        std::thread::sleep((begin + tick * ticks).saturating_duration_since(Instant::now()));
    }
}

fn map(space: &AddressSpace, object: &MemoryObject, offset: usize, len: usize) -> usize {
    space
        .map(None, len, object, offset as u64, MapFlags::default())
        .expect("mapped")
}

fn read(addr: usize) {
    // SAFETY: mapped for reading by this process.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() };
}

/// Nanoseconds of processor time of a miss.
fn miss_cost(space: &AddressSpace, object: &MemoryObject) -> u64 {
    let base = map(space, object, 0, OBJECT);
    let (misses, begin) = (space.vtlb_stats().misses, cpu_us());
    for n in 0..1000 {
        read(base + n * 8 * RANGE);
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

/// Runs `count` processes at once, of which all but `busy` are services. The sums; the mean time of
/// a miss.
fn run(object: &MemoryObject, arm: Arm<'_>, count: usize, busy: usize, seconds: f64) -> Run {
    let (mut go_on, all_done) = std::io::pipe().expect("a pipe");
    let mut children: Vec<_> = (0..count)
        .map(|n| {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            // SAFETY: this program has one thread; the child ends by `_exit`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork");
            if pid == 0 {
                drop(reader);
                // SAFETY: the child's copy of a descriptor that only the parent uses.
                unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&all_done)) };
                let run = process(object, arm, n >= busy, seconds, n as u64, || {
                    writer.write_all(&[0]).expect("the parent reads");
                    go_on.read_to_end(&mut Vec::new()).expect("a pipe");
                });
                for word in words(run) {
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
    for (_, reader) in &mut children {
        reader.read_exact(&mut [0]).expect("a process is done");
    }
    drop(all_done);
    let mut all = [0; 6];
    for (pid, mut reader) in children {
        for sum in &mut all {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes).expect("a process reports");
            *sum += u64::from_le_bytes(bytes);
        }
        // SAFETY: a child of this program.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    let [misses, recycled, cpu_us, miss_ns, revocation_us, table_kb] = all;
    Run {
        misses,
        recycled,
        cpu_us,
        miss_ns: miss_ns / count as u64,
        revocation_us,
        table_kb,
    }
}

fn words(run: Run) -> [u64; 6] {
    let Run {
        misses,
        recycled,
        cpu_us,
        miss_ns,
        revocation_us,
        table_kb,
    } = run;
    [misses, recycled, cpu_us, miss_ns, revocation_us, table_kb]
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
        "processes     pages in all  misses/s  recycled/s  CPU us a miss  misses' CPU %  CPU % in all  page tables kB in all"
    );
    let with_budget = |name: &str, count, busy, pages| {
        let budget = VtlbBudget::create(pages, count).expect("a budget");
        let ours = run(&object, Arm::Budget(&budget), count, busy, seconds);
        print(name, &pages.to_string(), &ours, seconds);
    };
    let others = |name: &str, count, busy, pages: usize| {
        let part = Arm::Vtlb {
            pages: pages / count,
        };
        let divided = run(&object, part, count, busy, seconds);
        print(name, &format!("{pages} divided"), &divided, seconds);
        let kernel = run(&object, Arm::Kernel, count, busy, seconds);
        print(name, "kernel", &kernel, seconds);
    };
    for pages in [24, 36, 64] {
        with_budget("3", 3, 3, pages);
    }
    others("3", 3, 3, 24);
    for pages in [64, 90, 120, 160] {
        with_budget("10", 10, 10, pages);
    }
    others("10", 10, 10, 64);
    for pages in [64, 90, 120] {
        with_budget("10/services", 10, BUSY, pages);
    }
    others("10/services", 10, BUSY, 64);
    for (name, arm) in [
        ("64 VTLB pages", Arm::Vtlb { pages: 64 }),
        ("the kernel", Arm::Kernel),
    ] {
        let run = run(&object, Arm::Sparse(&arm), 1, 1, 0.0);
        println!(
            "all 8192 ranges of the object touched once, {name}: page tables +{} kB",
            run.table_kb
        );
    }
}

fn print(processes: &str, pages: &str, run: &Run, seconds: f64) {
    let rate = |n: u64| n as f64 / seconds;
    let misses_cpu = (rate(run.misses) * run.miss_ns as f64 / 1e3 + rate(run.revocation_us)) / 1e4;
    println!(
        "{processes:12}  {pages:>12}  {:8.1}  {:10.1}  {:13.1}  {misses_cpu:13.2}  {:12.2}  {:6}",
        rate(run.misses),
        rate(run.recycled),
        run.miss_ns as f64 / 1e3,
        rate(run.cpu_us + run.revocation_us) / 1e4,
        run.table_kb
    );
}
