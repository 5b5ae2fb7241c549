//! `selfpage bench faults`: what single operations of the pager cost a linked program, the
//! kernel's own beside them.
//!
//! Each measurement is a process of its own, so that none inherits another's page tables;
//! what it is compared with runs in the same process, in turn. All faults are upcalls,
//! pages are 4 KiB, and the program does no direct I/O and says so.

mod eviction;
mod first_touch;
mod latency;
mod scan;
mod tables;

use crate::contents::PAGE;
use crate::error::while_doing;
use crate::machine::Machine;
use crate::real::goal::{Bound, Report, Row, Sample};
use crate::real::launch::{ends_with_us, last_words};
use crate::real::progress;
use crate::{ExperimentError, Myself};
use clap::ValueEnum;
use selfpage::{Contract, Counter, DirectIo, Domain, Paged, StoreConfig, Stretch};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Times each is measured; the median counts.
    #[arg(long, default_value_t = 5)]
    pub repeats: u64,
    /// MiB of data where there is more than memory.
    #[arg(long, default_value_t = 512)]
    pub data: u64,
    /// MiB of frames for it.
    #[arg(long, default_value_t = 64)]
    pub frames: u64,
    /// Random accesses of a measurement.
    #[arg(long, default_value_t = 200_000)]
    pub accesses: u64,
    /// Only these, by name.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Measure>,
    /// Writes all figures here.
    #[arg(long, value_parser = crate::output::file)]
    pub json: Option<PathBuf>,
}

/// The options of a process that measures.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// What to measure.
    #[arg(long, value_enum)]
    pub measure: Measure,
    /// Bytes of data.
    #[arg(long)]
    pub data: u64,
    /// Bytes of frames.
    #[arg(long)]
    pub frames: u64,
    /// Random accesses.
    #[arg(long)]
    pub accesses: u64,
    /// Makes the random order.
    #[arg(long)]
    pub seed: u64,
}

/// A single operation, or a property of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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

/// How a measurement reads.
struct About {
    what: &'static str,
    beside: Option<&'static str>,
    unit: &'static str,
    bound: Bound,
}

impl Measure {
    fn about(self) -> About {
        let about = |what, beside, unit, bound| About {
            what,
            beside,
            unit,
            bound,
        };
        match self {
            Self::ZeroFill => about(
                "zero-fill fault by upcall, p50",
                Some("native fault, p50"),
                "us",
                Bound::AtMost(4.0),
            ),
            Self::FirstTouch => about(
                "first touch in order, a page",
                Some("native"),
                "us",
                Bound::AtMost(1.5),
            ),
            Self::EvictZero => about(
                "eviction, zero pages, 64 of 512",
                None,
                "us a page",
                Bound::AtMost(1.5),
            ),
            Self::EvictClean => about(
                "eviction, clean pages, 64 of 512",
                None,
                "us a page",
                Bound::AtMost(1.5),
            ),
            Self::Latency => about(
                "fault p99, two threads, evicting",
                Some("its p50"),
                "us",
                Bound::AtMost(4.0),
            ),
            Self::Tables => about(
                "tables, stretch filled",
                Some("the stretch"),
                "MiB",
                Bound::AtMost(0.01),
            ),
            Self::SparseTables => about(
                "tables, 16 GiB sparsely touched",
                Some("the stretch"),
                "MiB",
                Bound::AtMost(0.01),
            ),
            Self::Scan => about(
                "zipf hit rate with a scan",
                Some("without"),
                "of accesses",
                Bound::AtLeast(0.9),
            ),
        }
    }

    fn take(self, plan: &Plan) -> Result<Sample, ExperimentError> {
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

    fn name(self) -> String {
        crate::choice::name(&self)
    }
}

/// Measures and prints.
pub fn run(options: &Options, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    if options.frames < 8 || options.data < 2 * options.frames || options.accesses < 1000 {
        return Err(ExperimentError::Options(
            "at least 8 MiB of --frames, twice as much --data and 1000 --accesses are needed"
                .into(),
        ));
    }
    let measures = match options.only.as_slice() {
        [] => Measure::value_variants(),
        some => some,
    };
    let mut report = Report {
        experiment: "faults",
        machine: Machine::now(&std::env::temp_dir()),
        settings: vec![format!(
            "linked program, upcalls, 4 KiB pages; {} MiB of data compressing 2:1 under lz4 over {} MiB of frames and \
             compressed RAM where there is more data than frames; {} random accesses; medians of {} interleaved runs",
            options.data, options.frames, options.accesses, options.repeats
        )],
        rows: measures.iter().map(|m| row(*m)).collect(),
    };
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
            match in_a_process(*measure, options, repeat + 1, myself) {
                Ok(sample) => row.samples.push(sample),
                Err(failure) => row.failure = Some(failure),
            }
        }
    }
    progress("");
    report.publish(options.json.as_deref())
}

fn row(measure: Measure) -> Row {
    let about = measure.about();
    Row {
        what: about.what.into(),
        beside: about.beside.map(Into::into),
        unit: about.unit,
        bound: about.bound,
        samples: Vec::new(),
        failure: None,
    }
}

fn in_a_process(
    measure: Measure,
    options: &Options,
    seed: u64,
    myself: &Myself,
) -> Result<Sample, ExperimentError> {
    let mut command = myself.command("fault");
    command.args(["--measure", &measure.name()]);
    let amounts = [
        ("--data", options.data << 20),
        ("--frames", options.frames << 20),
        ("--accesses", options.accesses),
        ("--seed", seed),
    ];
    for (name, value) in amounts {
        command.args([name, &value.to_string()]);
    }
    ends_with_us(&mut command);
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(while_doing("start a measurement"))?;
    if !done.status.success() {
        let said = last_words(&done.stderr);
        return Err(ExperimentError::Worker(format!("{}: {said}", done.status)));
    }
    serde_json::from_slice(&done.stdout).map_err(|e| ExperimentError::Worker(e.to_string()))
}

/// The main function of a process that measures.
pub fn serve(plan: &Plan) -> Result<(), ExperimentError> {
    let sample = plan.measure.take(plan)?;
    let line =
        serde_json::to_string(&sample).map_err(|e| ExperimentError::Worker(e.to_string()))?;
    println!("{line}");
    Ok(())
}

fn sample<const N: usize>(ours: f64, beside: Option<f64>, notes: [(&str, f64); N]) -> Sample {
    let notes = notes.map(|(name, value)| (name.to_owned(), value));
    Sample {
        ours,
        beside,
        notes: BTreeMap::from(notes),
    }
}

/// A domain with so many frames over compressed RAM that holds `data` bytes at 2:1 with
/// room to spare, and a paged stretch of `pages`.
fn paged(frames: usize, data: u64, pages: usize) -> Result<(Domain, Stretch), ExperimentError> {
    let refused = |e: &dyn std::fmt::Display| ExperimentError::Worker(e.to_string());
    let count = u32::try_from(frames)
        .map_err(|_| ExperimentError::Options(format!("{frames} frames are too many")))?;
    let store = format!("ram:{}K", ((data * 3 / 4) >> 10).max(1 << 10));
    let domain = Domain::builder()
        .frames(Contract { g: count, x: count })
        .store(store.parse::<StoreConfig>().map_err(|e| refused(&e))?)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .map_err(|e| refused(&e))?;
    let stretch = domain.allocate(pages * PAGE).map_err(|e| refused(&e))?;
    stretch.bind(Paged).map_err(|e| refused(&e))?;
    Ok((domain, stretch))
}

/// A figure of the domain's.
fn figure(domain: &Domain, counter: Counter) -> u64 {
    domain.counters().get(counter)
}

/// The part of sorted values below which `percent` of them lie.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let at = sorted.len() * percent / 100;
    sorted.get(at).copied().unwrap_or(0) as f64
}
