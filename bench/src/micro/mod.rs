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

mod kernel;
mod ours;

use crate::prelude::*;
use crate::report::write_json;
use kernel::KernelArm;
use ours::OursArm;
use serde_json::json;
use std::process::ExitCode;

/// One-page stretches, or pages, among which a random one is taken.
const MANY: usize = 256;
/// Pages of the larger range: the paper's number.
const RANGE: usize = 100;
/// Operations timed at once.
const BATCH: usize = 2_000;
/// How often each is timed; the median is what is printed.
const ROUNDS: usize = 15;

/// How to print it.
#[derive(Clone, Debug, clap::Args)]
pub struct MicroOptions {
    /// Writes the rows here as JSON.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub json: Option<std::path::PathBuf>,
}

/// A test: the paper's name, microseconds over these interfaces, over the kernel's own primitives,
/// and what Nemesis took on a 266 MHz Alpha, from the paper's table 1.
struct Test(
    &'static str,
    fn(&OursArm, &mut fastrand::Rng) -> f64,
    Option<fn(&KernelArm, &mut fastrand::Rng) -> f64>,
    &'static str,
);

const TESTS: [Test; 7] = [
    Test("dirty", OursArm::dirty, None, "0.15"),
    Test(
        "(un)prot1",
        OursArm::protect_one,
        Some(KernelArm::protect_one),
        "0.42 [0.40]",
    ),
    Test(
        "(un)prot100",
        OursArm::protect_range,
        Some(KernelArm::protect_range),
        "10.78 [0.30]",
    ),
    Test(
        "idempotent",
        OursArm::idempotent,
        Some(KernelArm::idempotent),
        "0.15",
    ),
    Test("trap", OursArm::trap, Some(KernelArm::trap), "4.20"),
    Test("appel1", OursArm::appel1, Some(KernelArm::appel1), "5.33"),
    Test("appel2", OursArm::appel2, Some(KernelArm::appel2), "9.75"),
];

/// Measures and prints table 1.
pub fn run(options: &MicroOptions) -> Result<ExitCode> {
    let ours = OursArm::new().or_unavailable("table 1")?;
    let kernel = KernelArm::new()?;
    let mut rng = fastrand::Rng::with_seed(0x9e37_79b9);
    let mut table = Table::new("", ["selfpage", "kernel", "ratio"]);
    let mut rows = Vec::new();
    for Test(name, on_ours, on_kernel, nemesis_us) in &TESTS {
        let (mut own, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            own.push(on_ours(&ours, &mut rng));
            beside.extend(on_kernel.map(|run| run(&kernel, &mut rng)));
        }
        let [own, beside] = [median(&own), median(&beside)];
        let ratio = own.zip(beside).map(|(own, beside)| own / beside);
        let cell = |v: Option<f64>| v.map_or_else(|| "n/a".to_owned(), |v| format!("{v:.2}"));
        let nemesis = format!("Nemesis {nemesis_us}");
        table.row(*name, [own, beside, ratio].map(cell), &nemesis);
        rows.push(json!({
            "name": name,
            "selfpage_us": own,
            "kernel_us": beside,
            "nemesis_us": nemesis_us,
        }));
    }
    println!(
        "Table 1: micro-benchmarks, us (medians; appel2 per page); Nemesis's from the paper\n"
    );
    print!("{table}");
    if let Some(path) = &options.json {
        write_json(&rows.into(), path)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn timed(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / 1000.0 / operations as f64
}

/// A batch of operations, so many at a time.
fn batch(each: usize, mut work: impl FnMut()) -> f64 {
    timed(each * BATCH, || (0..BATCH).for_each(|_| work()))
}

/// Touches pages from an address on.
fn touch_all(addr: usize, pages: impl IntoIterator<Item = usize>) {
    pages.into_iter().for_each(|page| touch(addr + page * PAGE));
}

fn touch(addr: usize) {
    // SAFETY: the caller's memory, mapped or brought in by a handler.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(addr).write_volatile(1) };
}

/// The pages of the larger range in a random order.
fn shuffled(rng: &mut fastrand::Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..RANGE).collect();
    rng.shuffle(&mut order);
    order
}
