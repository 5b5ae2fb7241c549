//! `selfpage bench paging`: more data than memory, ours beside the alternatives.
//!
//! What is the same in every arm: the code that accesses the pages, their contents, the
//! order of accesses, what comes before the clock starts, pages of 4 KiB (huge pages are
//! advised off) but in `linked-huge`. No other advice is given that an arm's name does not
//! say. What is not:
//!
//! | | the kernel's arms | ours |
//! |---|---|---|
//! | what is limited | all that the worker is charged for once it works, page tables too (1 page in 512 of data) | linked: the stretch's frames; `run`: all private memory |
//! | room for what is out | half as much again as the data, zram's at 2:1 uncounted | the same |
//! | direct I/O by the program | pages may be pinned | linked: the program says it does none; `run`: as the kernel |
//!
//! zram is measured twice: with vm.page-cluster as it is on this machine, which the targets
//! are against, and with 0. A file's read-ahead is the device's own setting.

use crate::arm::Arm;
use crate::ground::{Ground, GroundOptions};
use crate::machine::{self, Machine};
use crate::pass::Pass;
use crate::report::{Report, Series};
use crate::target::Target;
use crate::trial::{Trial, Trials};
use crate::{ExperimentError, Myself, plot};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// MiB of data.
    #[arg(long, default_value_t = 512)]
    pub data: u64,
    /// MiB of memory for it.
    #[arg(long, default_value_t = 64)]
    pub frames: u64,
    /// Accesses in each pass that is not in order.
    #[arg(long, default_value_t = 20_000)]
    pub accesses: u64,
    /// Numbers of threads, each measured on its own.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<u64>,
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 5)]
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
    pub ground: GroundOptions,
    /// Draws the times here, as SVG.
    #[arg(long, value_parser = crate::output::file)]
    pub svg: Option<PathBuf>,
}

/// Measures and prints. The status is a failure only where an arm of ours gave wrong data
/// or none though it could have: a target that is not met is a figure.
pub fn run(options: &Options, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    check(options)?;
    let trials = Trials {
        base: Ground::new(myself, &options.ground)?,
        bytes: options.data << 20,
        frames: options.frames << 20,
        accesses: options.accesses,
    };
    let mut report = Report {
        machine: Machine::now(&options.ground.folder),
        load_at_end: String::new(),
        data_bytes: trials.bytes,
        frames_bytes: trials.frames,
        accesses: options.accesses,
        repeats: options.repeats,
        series: if options.targets {
            of_targets()
        } else {
            asked(options)
        },
    };
    for repeat in 0..options.repeats {
        take(&trials, &mut report.series, repeat, options.repeats);
    }
    report.load_at_end = machine::load();
    say("");
    print!("{report}");
    if let Some(path) = &options.ground.json {
        report.save(path)?;
        println!("all figures: {}", path.display());
    }
    if let Some(path) = &options.svg {
        plot::save(&report, path)?;
        println!("plot: {}", path.display());
    }
    Ok(if report.failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// One run of each arm, rotated, so that none always follows the same one.
fn take(trials: &Trials, series: &mut [Series], repeat: u64, repeats: u64) {
    let count = series.len();
    for k in 0..count {
        let one = &mut series[(k + repeat as usize) % count];
        if one.failure.is_some() {
            continue;
        }
        say(&format!(
            "repeat {} of {repeats}, {} of {count}: {}, {} threads",
            repeat + 1,
            k + 1,
            one.arm.name(),
            one.threads
        ));
        let trial = Trial {
            arm: one.arm,
            threads: one.threads,
            passes: &one.passes,
            seed: repeat + 1,
        };
        match trials.run(trial) {
            Ok(figures) => one.runs.push(figures),
            Err(failure) => one.failure = Some(failure),
        }
    }
}

/// What the options name.
fn asked(options: &Options) -> Vec<Series> {
    let arms = if options.arms.is_empty() {
        Arm::all().to_vec()
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
    Pass::ALL.into_iter().filter(needed).collect()
}

fn check(options: &Options) -> Result<(), ExperimentError> {
    let absurd = |what: &str| Err(ExperimentError::Options(what.to_owned()));
    if options.frames == 0 || options.data < options.frames {
        return absurd("there must be more data than memory: --data and --frames are in MiB");
    }
    if options.data > 1 << 20 {
        return absurd("more than 1 TiB of data is not measured here");
    }
    let most = options.threads.iter().copied().max().unwrap_or(1);
    if options.threads.contains(&0)
        || most > 256
        || options.repeats == 0
        || options.accesses < most.max(16)
    {
        return absurd(
            "there must be 1 to 256 threads, a repeat, and 16 accesses or one for each thread",
        );
    }
    let folder = &options.ground.folder;
    if !folder.is_dir() {
        return absurd(&format!("{} is not a folder", folder.display()));
    }
    Ok(())
}

/// Prints the progress on one line of a terminal; nothing where stderr is no terminal.
fn say(what: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}");
        let _ = err.flush();
    }
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
