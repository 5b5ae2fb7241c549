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
//! [`Bench`] is a set of subcommands for the `selfpage` command; [`run`] does one.

pub mod access;
pub mod arm;
pub mod cgroup;
mod choice;
pub mod contents;
pub mod device;
pub mod error;
pub mod faults;
mod ground;
pub mod keeper;
pub mod launch;
pub mod machine;
pub mod memory;
pub mod micro;
pub mod order;
mod output;
pub mod paging;
pub mod pass;
pub mod plot;
pub mod process;
pub mod qos;
pub mod real;
pub mod report;
pub mod statistics;
pub mod swap;
mod system;
pub mod target;
pub mod text;
pub mod trial;
pub mod worker;
pub mod zipf;

pub use error::ExperimentError;

use clap::Subcommand;
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
    words: Vec<String>,
}

impl Myself {
    /// The running program; `words` come before the subcommand (`bench`, under the
    /// `selfpage` command).
    pub fn new(words: &[&str]) -> Result<Self, ExperimentError> {
        let program =
            std::env::current_exe().map_err(error::while_doing("find the own program"))?;
        Ok(Self {
            program,
            words: words.iter().map(|w| (*w).to_owned()).collect(),
        })
    }

    /// A command that runs one of [`Bench`]'s subcommands.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.words).arg(subcommand);
        command
    }
}

/// Runs a benchmark, or the part of one this process was started for.
pub fn run(bench: &Bench, myself: &Myself) -> Result<ExitCode, ExperimentError> {
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
