//! `selfpage system`: the daemon that keeps contracts across programs.

use ::disk::swapfs::{DATA, OpenError};
use daemon::config::Config;
use daemon::{Daemon, DaemonError, calibrate_disk, check_disk, check_socket};
use host::systemd;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use wired::Time;
use wired::{Bytes, PAGE};

/// Keep contracts across programs: frames, swap space and disk time.
///
/// A daemon that listens for `selfpage run --system` and for programs that link the library,
/// admits their contracts, and keeps them. SIGHUP has it read its configuration again;
/// SIGTERM ends it. Programs with contracts live on: they keep what they hold, and faults that
/// need the disk wait until the daemon is started again.
#[derive(clap::Args)]
pub struct SystemArgs {
    /// The configuration
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/selfpage.toml",
        global = true
    )]
    config: PathBuf,

    /// Log more: each connection; twice: each message
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,

    #[command(subcommand)]
    command: Option<SystemCommand>,
}

#[derive(clap::Subcommand)]
enum SystemCommand {
    /// Measure the disk again, for some seconds, while no daemon runs
    Calibrate,
    /// Check the configuration, and print what follows from it
    Check,
}

/// Runs the daemon, or one of its helpers.
pub fn system(args: SystemArgs) -> Result<ExitCode, Box<dyn Error>> {
    match args.command {
        None => {
            let mut daemon = Daemon::start(&args.config)?;
            tracing::info!("listening at {}", daemon.socket().display());
            systemd::notify("READY=1");
            daemon.run()?;
            systemd::notify("STOPPING=1");
        }
        Some(SystemCommand::Calibrate) => {
            crate::machine::end_at_closed_pipes();
            let config = Config::read(&args.config)?;
            let (found, path) = calibrate_disk(&config.disk)?;
            println!("{found}\nkept in {}", path.display());
        }
        Some(SystemCommand::Check) => {
            crate::machine::end_at_closed_pipes();
            let config = Config::read(&args.config)?;
            let total = daemon::total_memory();
            config.check_memory(total)?;
            check_socket(&config.socket)?;
            match check_disk(&config.disk) {
                Err(DaemonError::Swap(held @ OpenError::Held { .. })) => {
                    tracing::warn!("not looked at further: {held}")
                }
                other => other?.iter().for_each(|note| tracing::warn!("{note}")),
            }
            warn_of_default(&config, total);
            println!(
                "socket {}\nmemory to promise {} of {}\nswap {}, {}\ndefault contract: {}{}\n\
                 faults: {} of the processors for reservations and faults, in periods of {}, at {} each until measured\n\
                 rules for who may ask: {}",
                config.socket.display(),
                Bytes(config.managed(total)),
                Bytes(total),
                config.disk.swap.display(),
                swap_size(&config),
                config.default.terms(None, None, None),
                match config.default.swap {
                    None => " (four times the frames of a contract)",
                    Some(_) => "",
                },
                config.faults.cpu_share,
                Time(config.faults.period.0),
                Time(config.faults.initial_cost.0),
                match config.allow.len() {
                    0 => "none: root and the daemon's own user".to_owned(),
                    rules => rules.to_string(),
                }
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The size of the swap, and what of it contracts may have.
fn swap_size(config: &Config) -> String {
    match config.disk.size {
        Some(size) => format!(
            "{size}: {} for contracts, the rest for its tables",
            Bytes(size.0.saturating_sub(DATA))
        ),
        None => "the whole of it".into(),
    }
}

/// Warns of a default contract that this daemon can never admit.
fn warn_of_default(config: &Config, total: u64) {
    let (managed, default) = (config.managed(total), &config.default);
    let frames = u64::from(default.frames.g) * PAGE as u64;
    if frames > managed {
        tracing::warn!(
            "default.frames guarantees {}, and {} are to promise: no program starts without --frames",
            Bytes(frames),
            Bytes(managed)
        );
    }
    let swap = default.terms(None, None, None).swap;
    if let Some(size) = config
        .disk
        .size
        .filter(|size| size.0 < swap.saturating_add(DATA))
    {
        tracing::warn!(
            "the default contract has {} of swap, and disk.size is {size}, {} of it for tables: no program starts without --swap",
            Bytes(swap),
            Bytes(DATA)
        );
    }
}
