//! Measurements beside the alternatives, in the same run.
//!
//! A user moves off kernel swap only if ours costs less on the same work, so every figure
//! is taken beside what it competes with: same contents, same accesses, same memory, arms
//! interleaved and repeated, medians of the repeats, ratios first. Taking data ([`trial`],
//! [`worker`]) is apart from judging it ([`report`], [`target`], [`real::goal`]).
//!
//! Rules: an arm that cannot run here prints the reason; the configuration in force is printed
//! with the figures; contents are verified while they are read, because a fast pager that
//! loses a page has no figure at all; whatever is switched on (swap, zram, cgroups, files) is
//! switched off by a [`keeper`] that outlives this process.
//!
//! This is the binary `selfpage-bench`, which `selfpage bench` starts. [`Bench`] is the set of
//! its subcommands.

mod access;
mod arm;
mod cgroup;
mod choice;
mod contents;
mod device;
mod error;
mod faults;
mod ground;
mod keeper;
mod launch;
mod machine;
mod memory;
mod micro;
mod order;
mod output;
mod paging;
mod pass;
mod plot;
mod process;
mod qos;
mod real;
mod report;
mod statistics;
mod swap;
mod system;
mod target;
mod text;
mod trial;
mod worker;
mod zipf;

use error::ExperimentError;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The benchmarks, as subcommands.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// More data than frames: ours beside kernel swap, mapped files and the bare device.
    Paging(paging::Options),
    /// Nemesis's table 1 over these interfaces, the kernel's own primitives beside them.
    Micro(micro::Options),
    /// What single operations cost, the kernel's own beside them.
    Faults(faults::Options),
    /// Real programs: ours beside kernel swap, and beside themselves where memory suffices.
    Programs(real::Options),
    /// Contracts beside each other: Nemesis's figures 7, 8 and 9, and the kernel's answers.
    Qos(qos::Options),
    /// A launch beside a player: the paper of RAPHA's experiment, ours beside stock Linux.
    Launch(launch::Options),
    /// One measurement of `faults` in a process of its own.
    #[command(hide = true)]
    Fault(faults::Plan),
    /// PageRank in a process of its own.
    #[command(hide = true)]
    Pagerank(real::pagerank::Plan),
    /// One arm's work in a process of its own.
    #[command(hide = true)]
    Worker(worker::Plan),
    /// The application of Nemesis's section 7.2 in a process of its own.
    #[command(hide = true)]
    Pager(qos::pager::Plan),
    /// The client of section 7.3, which reads a file, in a process of its own.
    #[command(hide = true)]
    Reader(qos::reader::Plan),
    /// A program that `qos` has beside another, in a process of its own.
    #[command(hide = true)]
    Guest(qos::guest::Plan),
    /// The player's screen, in a process of its own.
    #[command(hide = true)]
    Sink(launch::sink::Plan),
    /// A constant load, in a process of its own.
    #[command(hide = true)]
    Spin(launch::spin::Plan),
    /// Undoes what a benchmark switched on, also when it was killed.
    #[command(hide = true)]
    Keeper,
}

/// How this program starts itself again as a worker or a keeper.
#[derive(Clone, Debug)]
pub struct Myself {
    program: PathBuf,
}

impl Myself {
    /// The running program.
    fn new() -> Result<Self, ExperimentError> {
        let program = std::env::current_exe();
        Ok(Self {
            program: program.map_err(error::while_doing("find the own program"))?,
        })
    }

    /// A command that runs one of [`Bench`]'s subcommands.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(subcommand);
        command
    }
}

/// The benchmarks: the tables and figures of the papers, and comparisons with the alternatives
/// in the same run, as ratios.
#[derive(Parser)]
#[command(
    name = "selfpage-bench",
    bin_name = "selfpage bench",
    version,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

/// Exit status of the benchmark's own failures, as `selfpage` has it.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|message| {
        // Help and the version are errors to clap; a closed pipe is ignored.
        let _ = message.print();
        let is_error = message.use_stderr();
        std::process::exit(if is_error { OWN_FAILURE.into() } else { 0 })
    });
    let outcome = Myself::new().and_then(|myself| run(&arguments.bench, &myself));
    outcome.unwrap_or_else(|failure| {
        let _ = writeln!(std::io::stderr(), "selfpage bench: {failure}");
        OWN_FAILURE.into()
    })
}

/// Runs a benchmark, or the part of one this process was started for.
fn run(bench: &Bench, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    match bench {
        Bench::Paging(options) => paging::run(options, myself),
        Bench::Micro(options) => micro::run(options),
        Bench::Faults(options) => faults::run(options, myself),
        Bench::Programs(options) => real::run(options, myself),
        Bench::Qos(options) => qos::run(options, myself),
        Bench::Launch(options) => launch::run(options, myself),
        Bench::Pager(plan) => qos::pager::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Reader(plan) => qos::reader::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Guest(plan) => qos::guest::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Sink(plan) => launch::sink::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Spin(plan) => launch::spin::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Fault(plan) => faults::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Pagerank(plan) => real::pagerank::serve(plan).map(|()| ExitCode::SUCCESS),
        Bench::Worker(plan) => worker::run(plan).map(|()| ExitCode::SUCCESS),
        Bench::Keeper => {
            keeper::serve();
            Ok(ExitCode::SUCCESS)
        }
    }
}
