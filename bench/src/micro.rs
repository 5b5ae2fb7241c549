//! Nemesis's table 1: the micro-benchmarks of memory primitives.
//!
//! *Self-Paging in the Nemesis Operating System*, section 7.1, after Appel and Li. Each is
//! measured over these interfaces and beside it over the kernel's own primitives
//! (`mprotect` and a SIGSEGV handler), in the same run, in turn. What each means here:
//!
//! | name | selfpage | the kernel's own |
//! |---|---|---|
//! | dirty | `trans` of a random page | none: `/proc/self/pagemap` has no such bit for a program |
//! | (un)prot1 | rights of a random stretch of one page, alternately | `mprotect` of a random page |
//! | (un)prot100 | rights of a stretch of 100 pages, alternately | `mprotect` of 100 pages |
//! | idempotent | the rights a stretch has already | `mprotect` to what is there |
//! | trap | the first access to a page of a physical stretch, driver included | an access to a protected page, and one `mprotect` in the handler |
//! | appel1 | access a random protected stretch; its handler unprotects it and protects another | the same with pages |
//! | appel2 | 100 pages unmapped, accessed in random order, mapped by the driver | 100 pages protected, accessed in random order, unprotected one by one |
//!
//! As in the paper, appel2 unmaps rather than protects: all pages of a stretch have the
//! same accessibility. A stretch's rights are the process's, changed by `mprotect`
//! underneath: the paper's second way, by protection domain, needs protection keys.

use selfpage::{Contract, DirectIo, Domain, FaultKind, Handled, Physical, Rights, Stretch};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::error::{ExperimentError, while_doing};

const PAGE: usize = 4096;
/// One-page stretches, or pages, among which a random one is taken.
const MANY: usize = 256;
/// Pages of the larger range: the paper's number.
const RANGE: usize = 100;
/// Operations timed at once.
const BATCH: usize = 2_000;
/// How often each is timed; the median is what is printed.
const ROUNDS: usize = 15;

/// One row: medians in microseconds.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Row {
    /// The paper's name.
    pub name: &'static str,
    /// Over these interfaces.
    pub selfpage_us: Option<f64>,
    /// Over the kernel's own primitives.
    pub kernel_us: Option<f64>,
    /// What Nemesis took on a 266 MHz Alpha, from the paper's table 1.
    pub nemesis_us: &'static str,
}

/// How to print it.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Writes the rows here as JSON.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub json: Option<std::path::PathBuf>,
}

/// Measures and prints table 1.
pub fn run(options: &Options) -> Result<ExitCode, ExperimentError> {
    let rows = table_1().map_err(|why| ExperimentError::Unavailable(format!("table 1: {why}")))?;
    print!("{}", render(&rows));
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&rows).unwrap_or_default();
        std::fs::write(path, text).map_err(while_doing(format!("write {}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all of table 1 and returns its rows.
///
/// # Errors
/// What the domain or the kernel refuses, in words.
pub fn table_1() -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let ours = Ours::new()?;
    let kernel = Kernel::new()?;
    let mut rng = Random(0x9e37_79b9);
    let row = |name, nemesis_us, selfpage_us, kernel_us| Row {
        name,
        selfpage_us,
        kernel_us,
        nemesis_us,
    };
    let pair = |a: &mut dyn FnMut(&mut Random) -> f64,
                b: &mut dyn FnMut(&mut Random) -> f64,
                rng: &mut Random| {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            left.push(a(rng));
            right.push(b(rng));
        }
        (Some(median(left)), Some(median(right)))
    };
    let mut rows = Vec::new();
    let dirty = median((0..ROUNDS).map(|_| ours.dirty(&mut rng)).collect());
    rows.push(row("dirty", "0.15", Some(dirty), None));
    let (a, b) = pair(
        &mut |r| ours.protect_one(r),
        &mut |r| kernel.protect_one(r),
        &mut rng,
    );
    rows.push(row("(un)prot1", "0.42 [0.40]", a, b));
    let (a, b) = pair(
        &mut |_| ours.protect_range(),
        &mut |_| kernel.protect_range(),
        &mut rng,
    );
    rows.push(row("(un)prot100", "10.78 [0.30]", a, b));
    let (a, b) = pair(
        &mut |_| ours.idempotent(),
        &mut |_| kernel.idempotent(),
        &mut rng,
    );
    rows.push(row("idempotent", "0.15", a, b));
    let (a, b) = pair(&mut |_| ours.trap(), &mut |_| kernel.trap(), &mut rng);
    rows.push(row("trap", "4.20", a, b));
    let (a, b) = pair(&mut |r| ours.appel1(r), &mut |r| kernel.appel1(r), &mut rng);
    rows.push(row("appel1", "5.33", a, b));
    let (a, b) = pair(&mut |r| ours.appel2(r), &mut |r| kernel.appel2(r), &mut rng);
    rows.push(row("appel2", "9.75", a, b));
    Ok(rows)
}

/// Table 1 as text.
pub fn render(rows: &[Row]) -> String {
    let mut out = String::from(
        "Table 1: micro-benchmarks, us (medians; appel2 per page); Nemesis's from the paper\n\n",
    );
    let _ = writeln!(
        out,
        "{:<14}{:>10}{:>10}{:>8}   Nemesis",
        "", "selfpage", "kernel", "ratio"
    );
    let cell = |v: Option<f64>| v.map_or_else(|| "n/a".to_owned(), |v| format!("{v:.2}"));
    for row in rows {
        let ratio = row.selfpage_us.zip(row.kernel_us).map(|(a, b)| a / b);
        let _ = writeln!(
            out,
            "{:<14}{:>10}{:>10}{:>8}   {}",
            row.name,
            cell(row.selfpage_us),
            cell(row.kernel_us),
            cell(ratio),
            row.nemesis_us
        );
    }
    out
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % bound
    }

    fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn timed(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / 1000.0 / operations as f64
}

fn touch(addr: usize) {
    // SAFETY: the caller's memory, mapped or brought in by a handler.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(addr).write_volatile(1) };
}

const READ_ONLY: fn() -> Rights = || Rights::READ | Rights::META;

/// Over the interfaces of this project.
struct Ours {
    domain: Domain,
    small: &'static [Stretch],
    large: Stretch,
    tracked: Option<(Domain, Stretch)>,
}

/// Which small stretch an appel1 handler protects next.
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Ours {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let frames = (MANY + 4 * RANGE + 64) as u32;
        let build = || {
            Domain::builder()
                .frames(Contract {
                    g: frames,
                    x: frames,
                })
                .direct_io(DirectIo::PinnedOnly)
        };
        let domain = build().build()?;
        let mut small = Vec::new();
        for _ in 0..MANY {
            let stretch = domain.allocate(PAGE)?;
            stretch.bind(Physical)?;
            touch(stretch.base());
            small.push(stretch);
        }
        // Handlers are given references for good.
        let small: &'static [Stretch] = Box::leak(small.into_boxed_slice());
        let large = domain.allocate(RANGE * PAGE)?;
        large.bind(Physical)?;
        (0..RANGE).for_each(|page| touch(large.base() + page * PAGE));
        // Where the kernel cannot track writes the row says so.
        let tracked = match build().track_dirty(true).build() {
            Err(_) => None,
            Ok(domain) => {
                let stretch = domain.allocate(MANY * PAGE)?;
                stretch.bind(Physical)?;
                (0..MANY).for_each(|page| touch(stretch.base() + page * PAGE));
                stretch.mark_clean(0..MANY)?;
                (0..MANY)
                    .step_by(2)
                    .for_each(|page| touch(stretch.base() + page * PAGE));
                Some((domain, stretch))
            }
        };
        Ok(Self {
            domain,
            small,
            large,
            tracked,
        })
    }

    fn dirty(&self, rng: &mut Random) -> f64 {
        let Some((_, stretch)) = &self.tracked else {
            return f64::NAN;
        };
        timed(BATCH, || {
            for _ in 0..BATCH {
                let page = rng.below(MANY);
                let dirty = stretch.trans(page).ok().and_then(|t| t.dirty);
                assert_eq!(dirty, Some(page.is_multiple_of(2)), "page {page}");
            }
        })
    }

    fn protect_one(&self, rng: &mut Random) -> f64 {
        timed(2 * BATCH, || {
            for _ in 0..BATCH {
                let stretch = &self.small[rng.below(MANY)];
                let _ = stretch.protect(READ_ONLY());
                let _ = stretch.protect(Rights::ALL);
            }
        })
    }

    fn protect_range(&self) -> f64 {
        timed(2 * BATCH, || {
            for _ in 0..BATCH {
                let _ = self.large.protect(READ_ONLY());
                let _ = self.large.protect(Rights::ALL);
            }
        })
    }

    fn idempotent(&self) -> f64 {
        timed(BATCH, || {
            for _ in 0..BATCH {
                let _ = std::hint::black_box(&self.large).protect(Rights::ALL);
            }
        })
    }

    fn trap(&self) -> f64 {
        let Ok(fresh) = self.domain.allocate(RANGE * PAGE) else {
            return f64::NAN;
        };
        if fresh.bind(Physical).is_err() {
            return f64::NAN;
        }
        timed(RANGE, || {
            (0..RANGE).for_each(|page| touch(fresh.base() + page * PAGE))
        })
    }

    fn appel1(&self, rng: &mut Random) -> f64 {
        for (i, stretch) in self.small.iter().enumerate() {
            let small = self.small;
            stretch.override_fault(
                FaultKind::Protection,
                Some(Box::new(move |_| {
                    let other = &small[NEXT.load(Ordering::Relaxed)];
                    let done =
                        small[i].protect(Rights::ALL).is_ok() && other.protect(READ_ONLY()).is_ok();
                    if done {
                        Handled::Resume
                    } else {
                        Handled::Default
                    }
                })),
            );
        }
        let mut at = rng.below(MANY);
        let _ = self.small[at].protect(READ_ONLY());
        let time = timed(BATCH, || {
            for _ in 0..BATCH {
                let next = (at + 1 + rng.below(MANY - 1)) % MANY;
                NEXT.store(next, Ordering::Relaxed);
                touch(self.small[at].base());
                at = next;
            }
        });
        self.small
            .iter()
            .for_each(|s| s.override_fault(FaultKind::Protection, None));
        let _ = self.small[at].protect(Rights::ALL);
        time
    }

    fn appel2(&self, rng: &mut Random) -> f64 {
        let order = rng.shuffled(RANGE);
        timed(RANGE, || {
            let _ = self.large.unmap(0..RANGE);
            for page in order {
                touch(self.large.base() + page * PAGE);
            }
        })
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// While it lives, SIGSEGV goes straight to the kernel arm's handler, not through a
/// domain's, which would make the alternative look slow.
struct Direct(Action);

fn exchange(new: &Action) -> Action {
    let mut old = Action::default();
    // SAFETY: two actions of the kernel's shape; 8 bytes of signals.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGSEGV,
            std::ptr::from_ref(new),
            &raw mut old,
            8usize,
        )
    };
    old
}

impl Direct {
    fn new() -> Self {
        let mut theirs = Action::default();
        // SAFETY: asks for the action in force.
        unsafe {
            let none = std::ptr::null::<Action>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                libc::SIGSEGV,
                none,
                &raw mut theirs,
                8usize,
            )
        };
        // Theirs but for the function: the same way back from the handler.
        exchange(&Action {
            handler: on_segv as *const () as usize,
            ..theirs
        });
        Self(theirs)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        exchange(&self.0);
    }
}

/// Over `mprotect` and SIGSEGV.
struct Kernel {
    base: usize,
}

/// What the kernel arm's handler does: the page it protects next, or none.
static PROTECT_NEXT: AtomicUsize = AtomicUsize::new(0);
static KERNEL_BASE: AtomicUsize = AtomicUsize::new(0);

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn mprotect(addr: usize, pages: usize, rights: i32) {
    // SAFETY: the kernel arm's own memory.
    unsafe {
        libc::mprotect(
            std::ptr::with_exposed_provenance_mut(addr),
            pages * PAGE,
            rights,
        )
    };
}

extern "C" fn on_segv(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's own pointer.
    let page = unsafe { (*info).si_addr() } as usize & !(PAGE - 1);
    let base = KERNEL_BASE.load(Ordering::Relaxed);
    if page < base || page >= base + (MANY + RANGE) * PAGE {
        // Not ours: the access ends the process when it is repeated.
        // SAFETY: resets a disposition.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    mprotect(page, 1, RW);
    let next = PROTECT_NEXT.load(Ordering::Relaxed);
    if next != 0 {
        mprotect(next, 1, libc::PROT_READ);
    }
}

impl Kernel {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let len = (MANY + RANGE) * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, RW, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let base = at as usize;
        KERNEL_BASE.store(base, Ordering::Relaxed);
        (0..MANY + RANGE).for_each(|page| touch(base + page * PAGE));
        Ok(Self { base })
    }

    fn page(&self, n: usize) -> usize {
        self.base + n * PAGE
    }

    fn large(&self) -> usize {
        self.page(MANY)
    }

    fn protect_one(&self, rng: &mut Random) -> f64 {
        timed(2 * BATCH, || {
            for _ in 0..BATCH {
                let page = self.page(rng.below(MANY));
                mprotect(page, 1, libc::PROT_READ);
                mprotect(page, 1, RW);
            }
        })
    }

    fn protect_range(&self) -> f64 {
        timed(2 * BATCH, || {
            for _ in 0..BATCH {
                mprotect(self.large(), RANGE, libc::PROT_READ);
                mprotect(self.large(), RANGE, RW);
            }
        })
    }

    fn idempotent(&self) -> f64 {
        timed(BATCH, || {
            (0..BATCH).for_each(|_| mprotect(self.large(), RANGE, RW))
        })
    }

    fn trap(&self) -> f64 {
        let _direct = Direct::new();
        PROTECT_NEXT.store(0, Ordering::Relaxed);
        mprotect(self.large(), RANGE, libc::PROT_READ);
        timed(RANGE, || {
            (0..RANGE).for_each(|page| touch(self.large() + page * PAGE))
        })
    }

    fn appel1(&self, rng: &mut Random) -> f64 {
        let _direct = Direct::new();
        let mut at = rng.below(MANY);
        mprotect(self.page(at), 1, libc::PROT_READ);
        let time = timed(BATCH, || {
            for _ in 0..BATCH {
                let next = (at + 1 + rng.below(MANY - 1)) % MANY;
                PROTECT_NEXT.store(self.page(next), Ordering::Relaxed);
                touch(self.page(at));
                at = next;
            }
        });
        PROTECT_NEXT.store(0, Ordering::Relaxed);
        mprotect(self.page(at), 1, RW);
        time
    }

    fn appel2(&self, rng: &mut Random) -> f64 {
        let _direct = Direct::new();
        PROTECT_NEXT.store(0, Ordering::Relaxed);
        let order = rng.shuffled(RANGE);
        timed(RANGE, || {
            mprotect(self.large(), RANGE, libc::PROT_READ);
            for page in order {
                touch(self.large() + page * PAGE);
            }
        })
    }
}
