//! `selfpage bench paging`: more data than memory, ours beside the alternatives.
//!
//! What is the same in every arm: the code that accesses the pages, their contents, the
//! order of accesses, what comes before the clock starts, pages of 4 KiB (huge pages are
//! advised off) but in `linked-huge`. No other advice is given that an arm's name does not
//! name. What is not:
//!
//! | | the kernel's arms | ours |
//! |---|---|---|
//! | what is limited | all that the worker is charged for once it works, page tables too (1 page in 512 of data) | linked: the stretch's frames; `run`: all private memory |
//! | room for what is out | half as much again as the data, zram's at 2:1 uncounted | the same |
//! | direct I/O by the program | pages may be pinned | linked: the program declares that it does none; `run`: as the kernel |
//!
//! zram is measured twice: with vm.page-cluster as it is on this machine, which the targets
//! are against, and with 0. A file's read-ahead is the device's own setting.

pub mod arm;
pub mod device;
mod figure;
pub mod pass;
mod plot;
mod schedule;
pub mod series;
mod target;
mod trial;
mod work;
pub mod worker;

use crate::machine::{self};
use crate::prelude::*;
use arm::Arm;
use clap::value_parser;
use pass::Pass;
use schedule::Amount;
use series::{AllSeries, Series};
use std::process::ExitCode;
use target::Target;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct PagingOptions {
    /// MiB of data.
    #[arg(long, default_value_t = 512, value_parser = value_parser!(u64).range(..=1 << 20))]
    pub data: u64,
    /// MiB of memory for it.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(1..))]
    pub frames: u64,
    /// Accesses in each pass that is not in order.
    #[arg(long, default_value_t = 20_000, value_parser = value_parser!(u64).range(16..=1 << 32))]
    pub accesses: u64,
    /// Numbers of threads, each measured on its own.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = value_parser!(u64).range(1..=256))]
    pub threads: Vec<u64>,
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// Only these arms.
    #[arg(long, value_delimiter = ',')]
    pub arms: Vec<Arm>,
    /// Only these passes; memory is always filled first.
    #[arg(long, value_delimiter = ',')]
    pub passes: Vec<Pass>,
    /// Only what the targets need: their arms, passes and numbers of threads.
    #[arg(long, conflicts_with_all = ["arms", "passes", "threads"])]
    pub targets: bool,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
    /// Draws the times here, as SVG.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub svg: Option<PathBuf>,
}

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PagingPlan {
    /// Which memory.
    pub memory: MemoryKind,
    /// What to do with it, in order; filling comes first.
    pub passes: Vec<Pass>,
    /// How much; the frames are also those of a domain of its own.
    pub amount: Amount,
}

/// Repeats below which the header notes that there are few.
const ENOUGH: u64 = 5;

/// Measures and prints. The status is a failure only where an arm of ours gave wrong data
/// or none though it could have: a target that is not met is a figure.
pub fn run(options: &PagingOptions) -> Result<ExitCode> {
    check(options)?;
    let env = TestEnv::new(&options.env)?;
    let pages = |mib: u64| mib << 8;
    let amount = Amount {
        pages: pages(options.data),
        frames: pages(options.frames),
        accesses: options.accesses,
        threads: 1,
        seed: 1,
    };
    let machine = Machine::now(&options.env.folder);
    let mut all = AllSeries(match options.targets {
        true => of_targets(),
        false => chosen(options),
    });
    for repeat in 0..options.repeats {
        take(&env, amount, &mut all.0, repeat, options.repeats);
    }
    progress("");
    let load_at_end = machine::load();
    let settings = vec![settings(options, &machine.load, &load_at_end)];
    let mut report = Report::new("paging", machine, settings);
    report.rows = Target::ALL.iter().filter_map(|t| t.row(&all)).collect();
    report.tables = all.tables();
    report.data.extend(all.json());
    report.data.extend([
        ("load_at_end".to_owned(), load_at_end.into()),
        ("data_bytes".to_owned(), (options.data << 20).into()),
        ("frames_bytes".to_owned(), (options.frames << 20).into()),
        ("accesses".to_owned(), options.accesses.into()),
        ("repeats".to_owned(), options.repeats.into()),
    ]);
    let status = report.publish(options.env.json.as_deref())?;
    if let Some(path) = &options.svg {
        let (data, frames) = (options.data, options.frames);
        let what = format!("Time a page: {data} MiB of data over {frames} MiB of memory");
        let how = format!(
            "medians of {} runs, 95 % intervals; less is better; full circles are ours",
            options.repeats
        );
        crate::plot::save(plot::drawn(&all, [&what, &how]), path)?;
        println!("plot: {}", path.display());
    }
    Ok(if all.failed() {
        ExitCode::FAILURE
    } else {
        status
    })
}

fn settings(options: &PagingOptions, load: &str, load_at_end: &str) -> String {
    let (data, repeats) = (options.data, options.repeats);
    let few = if repeats < ENOUGH {
        " (few: a quick look)"
    } else {
        ""
    };
    format!(
        "{data} MiB of data compressing 2:1 under lz4 over {} MiB of memory: frames, or a memory cgroup's limit\n\
         (page tables count in a cgroup); swap areas of {} MiB; 4 KiB pages; {} accesses in passes out of order,\n\
         after as many untimed as there are frames; {repeats} interleaved and rotated runs{few}; contents verified;\n\
         load {load} at the start, {load_at_end} at the end",
        options.frames,
        data * 3 / 2,
        options.accesses
    )
}

/// One run of each arm, rotated, so that none always follows the same one.
fn take(env: &TestEnv, amount: Amount, series: &mut [Series], repeat: u64, repeats: u64) {
    let count = series.len();
    for k in 0..count {
        let one = &mut series[(k + repeat as usize) % count];
        if one.failure.is_some() {
            continue;
        }
        let (turn, k, arm, threads) = (repeat + 1, k + 1, one.arm.name(), one.threads);
        progress(&format!(
            "repeat {turn} of {repeats}, {k} of {count}: {arm}, {threads} threads"
        ));
        let (passes, seed) = (one.passes.clone(), repeat + 1);
        match trial::run(
            env,
            one.arm,
            passes,
            Amount {
                threads,
                seed,
                ..amount
            },
        ) {
            Ok(figures) => one.runs.push(figures),
            Err(failure) => one.failure = Some(failure),
        }
    }
}

/// What the options name.
fn chosen(options: &PagingOptions) -> Vec<Series> {
    let arms = if options.arms.is_empty() {
        Arm::value_variants().to_vec()
    } else {
        options.arms.clone()
    };
    let chosen = |pass: &Pass| options.passes.is_empty() || options.passes.contains(pass);
    let passes = with_fill(chosen);
    let threads = options.threads.iter();
    threads
        .flat_map(|threads| {
            let one = |arm: &Arm| Series::new(*arm, *threads, passes.clone());
            arms.iter().map(one).collect::<Vec<_>>()
        })
        .collect()
}

/// What the targets need. Arms with as many threads do the same passes: what came before
/// a pass is then the same for both sides of a ratio.
fn of_targets() -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for target in &Target::ALL {
        let as_many = |other: &&Target| other.threads == target.threads;
        let needs = |pass: &Pass| {
            let mut others = Target::ALL.iter().filter(as_many);
            others.any(|other| other.pass == *pass)
        };
        for arm in [target.ours, target.theirs] {
            let there = |s: &Series| s.arm == arm && s.threads == target.threads;
            if !all.iter().any(there) {
                all.push(Series::new(arm, target.threads, with_fill(needs)));
            }
        }
    }
    all.sort_by_key(|series| (series.threads, series.arm));
    all
}

/// The passes that are wanted, in their order, after filling.
fn with_fill(wanted: impl Fn(&Pass) -> bool) -> Vec<Pass> {
    let needed = |pass: &Pass| *pass == Pass::Fill || wanted(pass);
    Pass::value_variants()
        .iter()
        .copied()
        .filter(needed)
        .collect()
}

fn check(options: &PagingOptions) -> Result<()> {
    if options.data < options.frames {
        bail!("there must be more data than memory: --data and --frames are in MiB");
    }
    if options
        .threads
        .iter()
        .any(|threads| options.accesses < *threads)
    {
        bail!("there must be an access for each thread");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_every_target_are_run_and_do_the_same() {
        let all = of_targets();
        for target in &Target::ALL {
            let of = |arm| {
                let mut found = all
                    .iter()
                    .filter(|s| s.arm == arm && s.threads == target.threads);
                let series = found.next().expect("it is run");
                assert!(found.next().is_none(), "and once");
                &series.passes
            };
            assert_eq!(of(target.ours), of(target.theirs));
            assert!(of(target.ours).contains(&target.pass));
        }
    }

    #[test]
    fn memory_is_filled_before_anything_is_read() {
        let passes = with_fill(|pass| *pass == Pass::Zipf);
        assert_eq!(passes, [Pass::Fill, Pass::Zipf]);
    }
}
