//! `selfpage run`: an unmodified program, and all it starts, under one contract.
//!
//! This module parses the request and prints its figures; `supervisor::run` runs it.

mod figures_file;
mod nested;
mod plan;
mod report;
mod store;

use crate::machine;
use crate::remote_client::RemoteOptions;
use ::store::MIN_RAM;
use host::cpu_reservation::CpuReservation;
use plan::{Plan, PlanError};
use protocol::SOCKET;
use protocol::contract_spec::{DiskSpec, FrameSpec};
use rate::OverCommitted;
use report::Report;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;
use supervisor::fault_limits::{FaultRate, TreeFaultLimits};
use wired::Bytes;

/// Run a program in a given number of frames.
///
/// PROGRAM and every process it starts share one contract: together they hold at most
/// the frames asked for; the rest of their memory is in the store. `run` stays as their
/// parent. It passes on signals, job control, the standard streams and the exit status;
/// its own failures exit 125, a program that cannot be executed 126, one that is not
/// found 127. When it dies, by SIGKILL too, they die.
///
/// `run` returns when the last process of the tree has ended, with PROGRAM's status; see
/// --on-exit. A request to end (SIGTERM, SIGINT, SIGHUP, SIGQUIT) sent to `run` goes to
/// PROGRAM, and once that has ended to what it left running.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Physical memory for the whole tree: a whole number and a unit, 64M or 2GiB. With
    /// --system also what it may have beyond that while no other contract needs it: 64M+32M
    #[arg(
        long,
        value_name = "SIZE[+EXTRA]",
        value_parser = plan::parse_frames,
    )]
    frames: Option<FrameSpec>,

    /// Run under a contract with the system's daemon (`selfpage system`), beside other tenants.
    /// The daemon's configuration has the defaults
    #[arg(
        long,
        value_name = "SOCKET",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = SOCKET
    )]
    system: Option<PathBuf>,

    /// Time of the system's disk, as in 25ms/250ms
    #[arg(
        long,
        value_name = "SLICE/PERIOD[,extra][,laxity=TIME]",
        requires = "system"
    )]
    disk: Option<DiskSpec>,

    /// The contract's name in `selfpage contract show`; the program's by default
    #[arg(long, value_name = "NAME", requires = "system")]
    name: Option<String>,

    /// Frames of this NUMA node only
    #[arg(long, value_name = "NUMBER", requires = "system")]
    numa_node: Option<u32>,

    /// Room on the system's disk
    #[arg(long, value_name = "SIZE", requires = "system", value_parser = swap_size)]
    swap: Option<u64>,

    /// The most of the frames that may hold compressed pages, up to half of them; how much does is found
    /// while the program runs. Half of them by default with --system; without it the store needs a disk
    /// and no ram: of its own
    #[arg(long, value_name = "SIZE", value_parser = ram_size)]
    ram: Option<u64>,

    /// Where pages go: ram:SIZE (compressed), disk:PATH,size=SIZE[,grow|,written], remote:SIZE (memory
    /// of other machines) or opendal:URL,size=SIZE (objects of a store), or several joined by +: ram: before
    /// the others, remote: or opendal: before disk:, which then has what these do not take
    ///
    /// Default: compressed RAM of four times the frames or an eighth of what is available,
    /// whichever is less, backed by a file in the state folder ($XDG_STATE_HOME/selfpage,
    /// ~/.local/state/selfpage or /var/tmp), which has no name and goes with its last user.
    /// Where no such folder has room, compressed RAM alone, with a notice.
    #[arg(long, value_name = "STORE")]
    store: Option<::store::StoreConfig>,

    #[command(flatten)]
    remote: RemoteOptions,

    /// Faults of each thread handled in a period, FAULTS/PERIOD, and of all threads together:
    /// 200/10ms,tree=1000. A thread over its limit sleeps in the fault until the next period.
    /// Or auto[/PERIOD]: as many as fit beside the reservations, at the measured cost of a
    /// fault
    #[arg(long, value_name = "FAULTS/PERIOD")]
    fault_rate: Option<FaultRate>,

    /// Processor time for the program, RUNTIME/PERIOD, whatever else runs: 10ms/40ms. By
    /// SCHED_DEADLINE, real-time priority with a budget, or the weight of a control group,
    /// whichever is available first, or the one given: ,by=deadline|realtime|weight
    #[arg(long, value_name = "RUNTIME/PERIOD")]
    cpu: Option<CpuReservation>,

    /// All figures at the end, on standard error
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    stats: Option<Format>,

    /// All figures at the end, as JSON, in a file
    #[arg(long, value_name = "FILE", value_parser = parse_file)]
    stats_json: Option<PathBuf>,

    /// Print the settings in force; twice: each process that starts and ends
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Let programs that cannot be paged (static, set-user-ID, of another machine) run
    /// unpaged, with a warning
    #[arg(long)]
    allow_unpaged: bool,

    /// Let programs that are executed as another user (after su, or setuid) page, too. All
    /// processes of the tree can read each other's pages in the store
    #[arg(long)]
    share_store: bool,

    /// When PROGRAM has ended and processes it started run on
    #[arg(long, value_enum, default_value_t = OnExit::Wait)]
    on_exit: OnExit,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// The format of the figures.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// JSON.
    Json,
}

/// What `run` does with processes that outlive the program.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OnExit {
    /// Keep the contract until the last has ended; signals then go to them all
    Wait,
    /// End them
    Kill,
}

/// Runs a program.
pub fn run(args: RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    check_first(&args)?;
    let hint = socket_hint(&args);
    match Plan::make(args) {
        Ok(Plan { spec, output }) => {
            supervisor::run::run(
                spec,
                |finished| Ok(Report::gather(&finished).give(&output)?),
            )
        }
        Err(PlanError::Program(why)) => {
            print_error!("selfpage: {why}{hint}");
            Ok(why.status().into())
        }
        Err(PlanError::Own(why)) => Err(why),
    }
}

/// The limits of the tree's faults, if its faults or its processor time are limited.
fn fault_limits(
    rate: Option<FaultRate>,
    cpu: Option<CpuReservation>,
) -> Result<Option<TreeFaultLimits>, OverCommitted> {
    if let Some(rate) = &rate {
        tracing::info!("fault rate {rate}");
    }
    match (rate, cpu.map(|cpu| cpu.reservation)) {
        (None, None) => Ok(None),
        (rate, cpu) => TreeFaultLimits::admit(rate, cpu, machine::processors()).map(Some),
    }
}

/// Refuses what would be taken for the program: an option that there is not, and the daemon's socket,
/// after `--system` and a space.
fn check_first(args: &RunArgs) -> Result<(), String> {
    let first = args
        .command
        .first()
        .map_or(OsStr::new(""), OsString::as_os_str);
    let shown = first.display();
    if first.as_bytes().starts_with(b"-") && !is_after_dashes(first) {
        return Err(format!(
            "`{shown}` is no option of `run` (`selfpage run --help`); a program of that name follows `--`"
        ));
    }
    let is_socket =
        |path: &OsStr| std::fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if args.system.is_some() && is_socket(first) {
        return Err(format!(
            "{shown} is a socket, and no program: write --system={shown}"
        ));
    }
    if args.system.is_some() && args.store.is_some() {
        return Err(
            "--store: a program under contract with the daemon (--system) pages to the daemon's disk; leave one out"
                .into(),
        );
    }
    match args.system.is_some() || args.frames.is_some() {
        true => Ok(()),
        false => Err(
            "--frames is missing: give --frames SIZE (`selfpage run --frames 64M -- PROGRAM`), or --system for the default \
             contract of the system's daemon"
                .into(),
        ),
    }
}

/// What to do where the program is not found, and may be the socket of a daemon that does not run.
fn socket_hint(args: &RunArgs) -> String {
    match args.command.first() {
        Some(first) if args.system.is_some() && !is_after_dashes(first) => {
            let first = first.display();
            format!("; if it is the daemon's socket, write --system={first}")
        }
        _ => String::new(),
    }
}

/// Returns true if the first argument after `--` is the program.
fn is_after_dashes(program: &OsStr) -> bool {
    let mut arguments = std::env::args_os();
    arguments.find(|argument| argument == "--");
    arguments.next().is_some_and(|first| first == program)
}

/// Swap is in whole MiB: fewer bytes are a unit that was left out.
fn swap_size(text: &str) -> Result<u64, String> {
    let bytes = size_in_bytes(text).map_err(|why| why.to_string())?;
    match (1..1 << 20).contains(&bytes) {
        true => Err(format!(
            "swap is in whole MiB: give 1M or more{}",
            unit_hint(text)
        )),
        false => Ok(bytes),
    }
}

/// Less compressed RAM than its least is none: one that is asked for has a unit that was left out.
fn ram_size(text: &str) -> Result<u64, String> {
    let bytes = size_in_bytes(text).map_err(|why| why.to_string())?;
    match (1..MIN_RAM).contains(&bytes) {
        true => Err(format!(
            "{} is too little compressed RAM: give {} or more, or 0 for none{}",
            Bytes(bytes),
            Bytes(MIN_RAM),
            unit_hint(text)
        )),
        false => Ok(bytes),
    }
}

/// What may have been meant by a size that is too small.
pub fn unit_hint(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(1..) => format!("; {text} with no unit is bytes: {text}M?"),
        _ => String::new(),
    }
}

/// A file to write. There is no stream of that name: standard output is the program's.
fn parse_file(text: &str) -> Result<PathBuf, &'static str> {
    match text {
        "-" => Err("write ./- for a file of that name, or --stats=json for standard error"),
        text => Ok(text.into()),
    }
}

fn size_in_bytes(text: &str) -> Result<u64, wired::SizeError> {
    text.parse::<Bytes>().map(|bytes| bytes.0)
}
