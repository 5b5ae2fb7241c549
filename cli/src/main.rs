//! The binary `selfpage`: each subcommand is a file.

mod bench;
mod contract;
mod disk;
mod doctor;
mod machine;
mod preload;
mod run;
mod system;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use supervisor::run::OWN_FAILURE;

/// Memory contracts for Linux programs: every program deals with its own page faults,
/// out of the resources that its contract guarantees.
#[derive(Parser)]
#[command(name = "selfpage", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    System(system::Args),
    Contract(contract::Args),
    Disk(disk::Args),
    Trace(trace::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(said) => {
            // Help and the version are errors to clap; a closed pipe is ignored.
            let _ = said.print();
            return if said.use_stderr() {
                OWN_FAILURE.into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    machine::give_up_own_privilege();

    if !matches!(
        line.command,
        Command::Run(_) | Command::System(_) | Command::Bench(_)
    ) {
        machine::end_at_closed_pipes();
    }
    let outcome = match line.command {
        Command::Run(args) => run::run(args),
        Command::System(args) => system::system(args),
        Command::Contract(args) => contract::contract(args),
        Command::Disk(args) => disk::disk(args),
        Command::Trace(args) => trace::trace(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Bench(args) => bench::bench(args),
    };
    outcome.unwrap_or_else(|failure| {
        supervisor::say!("selfpage: {failure}");
        OWN_FAILURE.into()
    })
}
