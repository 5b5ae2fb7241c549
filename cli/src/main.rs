//! The binary `selfpage`: each subcommand is a file.

/// Prints a line on standard error and ignores failures: a full or closed standard error must not
/// change the exit status.
macro_rules! print_error {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod bench;
mod cluster;
mod contract;
mod disk;
mod doctor;
mod machine;
mod object_client;
mod page_client;
mod preload;
mod remote;
mod remote_client;
mod run;
mod serve;
mod server_memory;
mod system;
mod trace;
mod vm;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::io::ErrorKind;
use std::process::ExitCode;
use supervisor::run::OWN_FAILURE;
use tracing::level_filters::LevelFilter;

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
    Run(Box<run::RunArgs>),
    System(system::SystemArgs),
    Contract(contract::ContractArgs),
    Disk(disk::DiskArgs),
    Serve(serve::ServeArgs),
    Cluster(cluster::ClusterArgs),
    Remote(remote::RemoteArgs),
    RemoteClient(remote_client::RemoteClientArgs),
    ObjectClient(object_client::ObjectClientArgs),
    Trace(trace::TraceArgs),
    Vm(vm::VmArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(said) => {
            // Help and the version are errors to clap; a closed pipe is ignored.
            return match said.print() {
                Err(why) if why.kind() != ErrorKind::BrokenPipe => {
                    print_error!("selfpage: failed printing to stdout: {why}");
                    OWN_FAILURE.into()
                }
                _ if said.use_stderr() => OWN_FAILURE.into(),
                _ => ExitCode::SUCCESS,
            };
        }
    };
    machine::give_up_own_privilege();
    machine::end_at_full_output();

    if !matches!(
        line.command,
        Command::Run(_)
            | Command::System(_)
            | Command::Serve(_)
            | Command::RemoteClient(_)
            | Command::ObjectClient(_)
            | Command::Bench(_)
            | Command::Vm(_)
    ) {
        machine::end_at_closed_pipes();
    }
    let outcome = start_log(&line.command).and_then(|()| match line.command {
        Command::Run(args) => run::run(*args),
        Command::System(args) => system::system(args),
        Command::Contract(args) => contract::contract(args),
        Command::Disk(args) => disk::disk(args),
        Command::Serve(args) => serve::serve(args),
        Command::Cluster(args) => cluster::cluster(args),
        Command::Remote(args) => remote::remote(args),
        Command::RemoteClient(args) => remote_client::remote_client(args),
        Command::ObjectClient(args) => object_client::object_client(args),
        Command::Trace(args) => trace::trace(args),
        Command::Vm(args) => vm::vm(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Bench(args) => bench::bench(args),
    });
    outcome.unwrap_or_else(|failure| {
        print_error!("selfpage: {}", printable(&failure.to_string()));
        OWN_FAILURE.into()
    })
}

/// A text as a terminal may have it: another host may have sent a part of it.
fn printable(text: &str) -> String {
    let is_printable = |c: &char| !c.is_control() || *c == '\n';
    text.chars().filter(is_printable).collect()
}

fn start_log(command: &Command) -> Result<(), Box<dyn Error>> {
    // Each `-v` chooses the next.
    let levels = [
        LevelFilter::WARN,
        LevelFilter::INFO,
        LevelFilter::DEBUG,
        LevelFilter::TRACE,
    ];
    let from = |least: usize, verbose: u8| levels[(least + usize::from(verbose)).min(3)];
    let (prefix, level) = match command {
        Command::Run(args) => ("selfpage: ", from(0, args.verbose)),
        Command::System(args) => ("selfpage system: ", from(1, args.verbose)),
        Command::Serve(args) => ("selfpage serve: ", from(1, args.verbose)),
        Command::Vm(args) => ("selfpage vm: ", vm::log_level(args)),
        _ => ("selfpage: ", LevelFilter::WARN),
    };
    Ok(logging::init(prefix, level)?)
}
