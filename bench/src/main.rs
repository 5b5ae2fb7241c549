//! Measurements beside the alternatives, in the same run.
//!
//! A user moves off kernel swap only if ours costs less on the same work, so every figure
//! is taken beside what it competes with: same contents, same accesses, same memory, arms
//! interleaved and repeated, medians of the repeats, ratios first. Taking data ([`worker`])
//! is apart from judging it ([`report`]).
//!
//! Rules: an arm that cannot run here prints the reason; the configuration in force is printed
//! with the figures; contents are verified while they are read, because a fast pager that
//! loses a page has no figure at all; whatever is switched on (swap, zram, cgroups, files) is
//! switched off by a [`cleanup`] process that outlives this process.
//!
//! This is the binary `selfpage-bench`, which `selfpage bench` starts. [`Bench`] is the set of
//! its subcommands.

mod bound;
mod cgroup;
mod cleanup;
mod cli_parse;
mod daemon_fixture;
mod env;
mod error;
mod faults;
mod launch;
mod machine;
mod memory;
mod micro;
mod owned_file;
mod page_pattern;
mod paging;
mod plot;
mod prelude;
mod process;
mod process_tree;
mod programs;
mod qos;
mod redis_server;
mod remote;
mod repeats;
mod report;
mod statistics;
mod swap;
mod table;
mod worker;
mod zipf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// The benchmarks, as subcommands.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// More data than frames: ours beside kernel swap, mapped files and the bare device.
    Paging(paging::PagingOptions),
    /// Nemesis's table 1 over these interfaces, the kernel's own primitives beside them.
    Micro(micro::MicroOptions),
    /// What single operations cost, the kernel's own beside them.
    Faults(faults::FaultsOptions),
    /// Programs that people know in less memory than they take: ours beside kernel swap.
    Programs(programs::ProgramsOptions),
    /// Contracts beside each other: Nemesis's figures 7, 8 and 9, and the kernel's answers.
    Qos(qos::QosOptions),
    /// A launch beside a player: the paper of RAPHA's experiment, ours beside stock Linux.
    Launch(launch::LaunchOptions),
    /// A page from a paging server: ours beside memcached, redis, a disk and raw sockets.
    Remote(remote::RemoteOptions),
    /// A part of a benchmark in a process of its own.
    #[command(hide = true)]
    Worker {
        /// What it is to do, as JSON.
        plan: String,
        /// What it starts itself.
        #[arg(last = true)]
        program: Vec<OsString>,
    },
    /// Undoes what a benchmark switched on, also when it was killed.
    #[command(hide = true)]
    Cleanup,
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
    let outcome = run(&arguments.bench);
    outcome.unwrap_or_else(|failure| {
        let _ = writeln!(std::io::stderr(), "selfpage bench: {failure:#}");
        OWN_FAILURE.into()
    })
}

/// Runs a benchmark, or the part of one this process was started for.
fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::Paging(options) => paging::run(options),
        Bench::Micro(options) => micro::run(options),
        Bench::Faults(options) => faults::run(options),
        Bench::Programs(options) => programs::run(options),
        Bench::Qos(options) => qos::run(options),
        Bench::Launch(options) => launch::run(options),
        Bench::Remote(options) => remote::run(options),
        Bench::Worker { plan, program } => {
            let plan = serde_json::from_str(plan)?;
            worker::serve(&plan, program).map(|()| ExitCode::SUCCESS)
        }
        Bench::Cleanup => {
            cleanup::serve();
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The benchmark that these words ask for.
#[cfg(test)]
fn parse(words: &[&str]) -> anyhow::Result<Bench> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        bench: Bench,
    }
    let words = ["bench"].iter().chain(words);
    Ok(<Line as clap::Parser>::try_parse_from(words)?.bench)
}
