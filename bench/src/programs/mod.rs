//! `selfpage bench programs`: what real programs take, ours beside the kernel's.
//!
//! Two questions. A program with more data than memory: is it done sooner under
//! `selfpage run`, or linked, than under kernel swap on the same medium within a cgroup of
//! the same size? A program that fits in its frames: what does it pay for being able to
//! page? There the same program runs without us, its allocator replaced alike.
//!
//! Both runs of a pair have the same input, and a run whose output differs has no figure.
//! Input is read from the page cache and output goes to a pipe, so that no file's pages
//! take part of the cgroup's memory, which `selfpage run` would not count.

pub mod child;
mod graph;
mod lines;
mod medium;
pub mod pagerank;
mod python;
mod redis;
mod sort;

pub use pagerank::PagerankPlan;

use crate::env::find_allocator;
use crate::prelude::*;
use child::Done;
use clap::value_parser;
use medium::Medium;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Times each is run; the median counts.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// MiB that are sorted.
    #[arg(long, default_value_t = 300)]
    pub sort: u64,
    /// MiB of memory for sort.
    #[arg(long, default_value_t = 128, value_parser = value_parser!(u64).range(4..))]
    pub sort_frames: u64,
    /// Edges of PageRank's graph.
    #[arg(long, default_value_t = 10_000_000, value_parser = value_parser!(u64).range(100_000..))]
    pub edges: u64,
    /// MiB of memory for PageRank, for each 10 million edges: the shares are kept.
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u64).range(24..))]
    pub edges_frames: u64,
    /// Seconds that a program takes which fits in its frames, about: shorter shows little.
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Only these, by name.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Pair>,
    /// Seconds that a run may take at most.
    #[arg(long, default_value_t = 3600)]
    pub limit: u64,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
    /// The allocator's library, where Debian's libmimalloc2.0 is not to be used.
    #[arg(long)]
    pub allocator: Option<PathBuf>,
}

/// A pair of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pair {
    /// GNU sort, more than memory, compressed RAM.
    SortRam,
    /// GNU sort, more than memory, disk.
    SortDisk,
    /// PageRank, more than memory, compressed RAM.
    PagerankRam,
    /// PageRank, more than memory, disk.
    PagerankDisk,
    /// GNU sort within its frames.
    SortFits,
    /// CPython within its frames.
    PythonFits,
    /// Redis within its frames.
    RedisFits,
}

/// Which system runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// With us.
    Ours,
    /// Without.
    Beside,
}

/// A program with its input, to be run on either side.
pub trait Benchmark {
    /// What is measured, what stands beside it, and what must hold.
    fn about(&self) -> (String, &'static str, Bound);

    /// Runs it once.
    fn run(&self, env: &TestEnv, side: System) -> Result<Done>;
}

/// Most that a program may take of its own time within its frames.
const FITS: Bound = Bound::AtMost(1.02);

/// Measures and prints.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.sort < options.sort_frames {
        bail!("--sort must be more than --sort-frames");
    }
    let mut env = TestEnv::new(&options.env)?;
    env.allocator = find_allocator(options.allocator.as_deref());
    env.limit = Duration::from_secs(options.limit);
    child::adopt()?;
    let names = match options.only.as_slice() {
        [] => Pair::value_variants(),
        some => some,
    };
    let machine = Machine::now(&options.env.folder);
    let mut report = Report::new("programs", machine, settings(options, &env));
    for name in names {
        report.rows.push(measure(*name, options, &env));
    }
    progress("");
    report.publish(options.env.json.as_deref())
}

fn settings(options: &Options, env: &TestEnv) -> Vec<String> {
    vec![
        format!(
            "sort: {} MiB in lines of 100 to 400 bytes compressing 2:1 under lz4, {} MiB of memory, one thread, LC_ALL=C",
            options.sort, options.sort_frames
        ),
        format!(
            "PageRank: {} edges, {} MiB of data, {} MiB of memory, {} iterations",
            options.edges,
            pagerank::bytes(options.edges) >> 20,
            pagerank_frames(options) >> 20,
            pagerank::ITERATIONS
        ),
        format!(
            "within frames: sized for {} s; beside it the same program, allocator {}",
            options.seconds,
            env.allocator
                .as_deref()
                .unwrap_or(Path::new("none"))
                .display()
        ),
        format!(
            "memory is frames, or a cgroup's limit; medians of {} interleaved runs, outputs compared",
            options.repeats
        ),
    ]
}

fn pagerank_frames(options: &Options) -> u64 {
    (options.edges_frames << 20) * options.edges / 10_000_000
}

fn case(name: Pair, options: &Options, env: &TestEnv) -> Result<Box<dyn Benchmark>> {
    let sort =
        |medium| sort::Sort::larger(env, options.sort << 20, options.sort_frames << 20, medium);
    let rank = |medium| pagerank::Pagerank {
        edges: options.edges,
        frames: pagerank_frames(options),
        medium,
    };
    Ok(match name {
        Pair::SortRam => Box::new(sort(Medium::Ram)?),
        Pair::SortDisk => Box::new(sort(Medium::Disk)?),
        Pair::PagerankRam => Box::new(rank(Medium::Ram)),
        Pair::PagerankDisk => Box::new(rank(Medium::Disk)),
        Pair::SortFits => Box::new(sort::Sort::fitting(env, options.seconds)?),
        Pair::PythonFits => Box::new(python::Python::new(options.seconds)?),
        Pair::RedisFits => Box::new(redis::Redis::new(env, options.seconds)?),
    })
}

/// All repeats of one pair. A feature that this machine lacks is the row's failure.
fn measure(name: Pair, options: &Options, env: &TestEnv) -> Row {
    progress(&format!("{}: its input", name.name()));
    let case = match case(name, options, env) {
        Ok(case) => case,
        Err(failure) => return Row::new(name.name(), "s", FITS).failure(Some(failure)),
    };
    let (what, beside, bound) = case.about();
    let mut row = Row::new(what, "s", bound).beside(beside);
    let mut expected = None;
    for repeat in 0..options.repeats {
        progress(&format!(
            "{} of {}: {}",
            repeat + 1,
            options.repeats,
            row.what
        ));
        match pair(case.as_ref(), env, repeat, &mut expected) {
            Ok(sample) => row.samples.push(sample),
            Err(failure) => return row.failure(Some(failure)),
        }
    }
    row
}

/// Both runs of a pair, by turns the one first and the other.
fn pair(
    case: &dyn Benchmark,
    env: &TestEnv,
    repeat: u64,
    expected: &mut Option<u64>,
) -> Result<Sample> {
    let mut run = |side| {
        let done = case.run(env, side)?;
        if *expected.get_or_insert(done.digest) != done.digest {
            bail!("its output differs from the first run's ({side:?})");
        }
        Ok(done)
    };
    let (ours, beside) = match repeat.is_multiple_of(2) {
        true => (run(System::Ours)?, run(System::Beside)?),
        false => {
            let beside = run(System::Beside)?;
            (run(System::Ours)?, beside)
        }
    };
    let notes = [
        ("processor", ours.processor.as_secs_f64()),
        ("processor beside it", beside.processor.as_secs_f64()),
        ("killed beside it", f64::from(beside.killed)),
    ];
    Ok(Sample::new(ours.elapsed.as_secs_f64(), beside.elapsed.as_secs_f64()).notes(notes))
}
