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
use crate::statistics::median;
use crate::table::Table;
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
pub struct Options {
    /// Writes the rows here as JSON.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub json: Option<std::path::PathBuf>,
}

/// A test: the paper's name, microseconds over these interfaces, over the kernel's own primitives,
/// and what Nemesis took on a 266 MHz Alpha, from the paper's table 1.
struct Test {
    name: &'static str,
    ours: fn(&OursArm, &mut fastrand::Rng) -> f64,
    kernel: Option<fn(&KernelArm, &mut fastrand::Rng) -> f64>,
    nemesis_us: &'static str,
}

const TESTS: [Test; 7] = [
    Test {
        name: "dirty",
        ours: OursArm::dirty,
        kernel: None,
        nemesis_us: "0.15",
    },
    Test {
        name: "(un)prot1",
        ours: OursArm::protect_one,
        kernel: Some(KernelArm::protect_one),
        nemesis_us: "0.42 [0.40]",
    },
    Test {
        name: "(un)prot100",
        ours: |arm, _| arm.protect_range(),
        kernel: Some(|arm, _| arm.protect_range()),
        nemesis_us: "10.78 [0.30]",
    },
    Test {
        name: "idempotent",
        ours: |arm, _| arm.idempotent(),
        kernel: Some(|arm, _| arm.idempotent()),
        nemesis_us: "0.15",
    },
    Test {
        name: "trap",
        ours: |arm, _| arm.trap(),
        kernel: Some(|arm, _| arm.trap()),
        nemesis_us: "4.20",
    },
    Test {
        name: "appel1",
        ours: OursArm::appel1,
        kernel: Some(KernelArm::appel1),
        nemesis_us: "5.33",
    },
    Test {
        name: "appel2",
        ours: OursArm::appel2,
        kernel: Some(KernelArm::appel2),
        nemesis_us: "9.75",
    },
];

/// Measures and prints table 1.
pub fn run(options: &Options) -> Result<ExitCode> {
    let lacking = |why| unavailable(format!("table 1: {why}"));
    let ours = OursArm::new().map_err(|why| lacking(why.to_string()))?;
    let kernel = KernelArm::new()?;
    let mut rng = fastrand::Rng::with_seed(0x9e37_79b9);
    let mut table = Table::new("", ["selfpage", "kernel", "ratio"]);
    let mut rows = Vec::new();
    for test in &TESTS {
        let (mut own, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            own.push((test.ours)(&ours, &mut rng));
            beside.extend(test.kernel.map(|run| run(&kernel, &mut rng)));
        }
        let [own, beside] = [median(&own), median(&beside)];
        let ratio = own.zip(beside).map(|(own, beside)| own / beside);
        let cell = |v: Option<f64>| v.map_or_else(|| "n/a".to_owned(), |v| format!("{v:.2}"));
        let nemesis = format!("Nemesis {}", test.nemesis_us);
        table.row(test.name, [own, beside, ratio].map(cell), &nemesis);
        rows.push(json!({
            "name": test.name,
            "selfpage_us": own,
            "kernel_us": beside,
            "nemesis_us": test.nemesis_us,
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
