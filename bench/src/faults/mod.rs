//! `selfpage bench faults`: what single operations of the pager cost a linked program, the
//! kernel's own beside them.
//!
//! Each measurement is a process of its own, so that none inherits another's page tables;
//! what it is compared with runs in the same process, in turn. All faults are upcalls,
//! pages are 4 KiB, and the program does no direct I/O and declares that.

mod eviction;
mod first_touch;
mod latency;
mod scan;
mod tables;

use crate::memory;
use crate::prelude::*;
use crate::process::output;
use clap::value_parser;
use selfpage::{Counter, Domain, EntryKind, Stretch};
use std::process::{ExitCode, Stdio};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct FaultsOptions {
    /// Times each is measured; the median counts.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// MiB of data where there is more than memory.
    #[arg(long, default_value_t = 512)]
    pub data: u64,
    /// MiB of frames for it.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(8..))]
    pub frames: u64,
    /// Random accesses of a measurement.
    #[arg(long, default_value_t = 200_000, value_parser = value_parser!(u64).range(1000..))]
    pub accesses: u64,
    /// Only these, by name.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Measure>,
    /// Writes all figures here.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub json: Option<PathBuf>,
}

/// What a process measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultPlan {
    /// What to measure.
    pub measure: Measure,
    /// Bytes of data.
    pub data: u64,
    /// Bytes of frames.
    pub frames: u64,
    /// Random accesses.
    pub accesses: u64,
    /// Makes the random order.
    pub seed: u64,
}

/// A single operation, or a property of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Measure {
    /// The first touch of pages in no order: one fault a page.
    ZeroFill,
    /// The first touch of pages in order.
    FirstTouch,
    /// Eviction of pages that hold only zeros.
    EvictZero,
    /// Eviction of pages whose stored copy is the same.
    EvictClean,
    /// Two threads faulting while eviction runs.
    Latency,
    /// The pager's tables for a stretch that was filled.
    Tables,
    /// The pager's tables for a stretch of 16 GiB of which little was touched.
    SparseTables,
    /// A zipf workload with a scan beside it.
    Scan,
}

impl Measure {
    /// How its figures read, and what they must be.
    fn row(self) -> Row {
        use Bound::{AtLeast, AtMost};
        let beside = |what, beside, unit, bound| Row::new(what, unit, bound).beside(beside);
        match self {
            Self::ZeroFill => {
                let what = "zero-fill fault by upcall, p50";
                beside(what, "native fault, p50", "us", AtMost(4.0))
            }
            Self::FirstTouch => beside("first touch in order, a page", "native", "us", AtMost(1.5)),
            Self::EvictZero => {
                Row::new("eviction, zero pages, 64 of 512", "us a page", AtMost(1.5))
            }
            Self::EvictClean => {
                Row::new("eviction, clean pages, 64 of 512", "us a page", AtMost(1.5))
            }
            Self::Latency => {
                let what = "fault p99, two threads, evicting";
                beside(what, "its p50", "us", AtMost(4.0))
            }
            Self::Tables => beside("tables, stretch filled", "the stretch", "MiB", AtMost(0.01)),
            Self::SparseTables => {
                let what = "tables, 16 GiB sparsely touched";
                beside(what, "the stretch", "MiB", AtMost(0.01))
            }
            Self::Scan => {
                let what = "zipf hit rate with a scan";
                beside(what, "without", "of accesses", AtLeast(0.9))
            }
        }
    }

    fn take(self, plan: &FaultPlan) -> Result<Sample> {
        match self {
            Self::ZeroFill => first_touch::at_random(plan),
            Self::FirstTouch => first_touch::in_order(plan),
            Self::EvictZero => eviction::of(eviction::Pages::Zero, plan),
            Self::EvictClean => eviction::of(eviction::Pages::Clean, plan),
            Self::Latency => latency::of_two_threads(plan),
            Self::Tables => tables::of_a_filled_stretch(plan),
            Self::SparseTables => tables::of_a_sparse_stretch(plan),
            Self::Scan => scan::beside_zipf(plan),
        }
    }
}

/// Measures and prints.
pub fn run(options: &FaultsOptions) -> Result<ExitCode> {
    if options.data < 2 * options.frames {
        bail!("--data must be twice --frames at least");
    }
    let measures = match options.only.as_slice() {
        [] => Measure::value_variants(),
        some => some,
    };
    let machine = Machine::now(&std::env::temp_dir());
    let settings = vec![format!(
        "linked program, upcalls, 4 KiB pages; {} MiB of data compressing 2:1 under lz4 over {} MiB of frames and \
         compressed RAM where there is more data than frames; {} random accesses; medians of {} interleaved runs",
        options.data, options.frames, options.accesses, options.repeats
    )];
    let mut report = Report::new("faults", machine, settings);
    report.rows = measures.iter().map(|measure| measure.row()).collect();
    for repeat in 0..options.repeats {
        for (measure, row) in measures.iter().zip(&mut report.rows) {
            if row.failure.is_some() {
                continue;
            }
            progress(&format!(
                "{} of {}: {}",
                repeat + 1,
                options.repeats,
                row.what
            ));
            match in_a_process(*measure, options, repeat + 1) {
                Ok(sample) => row.samples.push(sample),
                Err(failure) => row.failure = Some(failure),
            }
        }
    }
    progress("");
    report.publish(options.json.as_deref())
}

fn in_a_process(measure: Measure, options: &FaultsOptions, seed: u64) -> Result<Sample> {
    let plan = FaultPlan {
        measure,
        data: options.data << 20,
        frames: options.frames << 20,
        accesses: options.accesses,
        seed,
    };
    let command = WorkerPlan::Fault(plan).command()?;
    Ok(serde_json::from_slice(&output(command, Stdio::null())?)?)
}

/// The main function of a process that measures.
pub fn serve(plan: &FaultPlan) -> Result<()> {
    reply(&plan.measure.take(plan)?)
}

/// A domain with so many frames over compressed RAM that holds `data` bytes at 2:1 with
/// room to spare, and a paged stretch of `pages`.
fn paged(frames: usize, data: u64, pages: usize) -> Result<(Domain, Stretch)> {
    let store = format!("ram:{}K", ((data * 3 / 4) >> 10).max(1 << 10));
    let frames = (frames * PAGE) as u64;
    let (stretch, domain) = memory::paged(EntryKind::Upcall, &store, pages * PAGE, frames, false)?;
    Ok((domain, stretch))
}

/// A figure of the domain's.
fn figure(domain: &Domain, counter: Counter) -> u64 {
    domain.counters().get(counter)
}

/// A page of a stretch that only this thread writes meanwhile.
fn page_at(stretch: &Stretch, page: u64) -> PageAt {
    assert!(page < stretch.pages() as u64);
    // SAFETY: a page of the stretch; each measurement writes a page by one thread at a time.
    unsafe { PageAt::new(stretch.as_ptr(), page) }
}
