//! `selfpage contract`: the contracts that a daemon keeps.

use protocol::SOCKET;
use protocol::contract_spec::{DiskChange, FrameSpec};
use protocol::{CapacitySummary, FaultGrant, FaultShare, TenantInfo, TenantNumber};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tenant::{capacity, list, set};
use wired::{Bytes, PAGE, Time};

/// Show or change the contracts that a daemon keeps.
#[derive(clap::Args)]
pub struct ContractArgs {
    /// The daemon's socket
    #[arg(long, value_name = "SOCKET", default_value = SOCKET, global = true)]
    system: PathBuf,

    #[command(subcommand)]
    command: ContractCommand,
}

#[derive(clap::Subcommand)]
enum ContractCommand {
    /// Each contract, and what its tenant holds
    Show {
        /// As JSON: frames in pages of 4096 bytes, `swap` and `bytes` in bytes, times in seconds and nanoseconds. `most` is
        /// what is guaranteed and EXTRA together, `charged_idle` the part of `charged` in which the disk waited for
        /// the tenant (its laxity), `ran_before_others` its threads' time before other work
        #[arg(long)]
        json: bool,
    },
    /// What the daemon manages, and what of it is free
    Free {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a contract. More frames are there at once, other disk time is with the next period; a lowered
    /// guarantee of frames holds for the time that the daemon's configuration sets (memory.reduction_notice)
    #[command(group(clap::ArgGroup::new("change").required(true).multiple(true).args(["frames", "disk"])))]
    Set {
        /// The tenant's number, as `show` prints it
        #[arg(value_parser = number)]
        tenant: TenantNumber,
        /// Frames guaranteed, and more while no other contract needs them: 512M+128M. Both parts are
        /// replaced: 256M leaves nothing beyond the guarantee
        #[arg(long, value_name = "SIZE[+EXTRA]")]
        frames: Option<FrameSpec>,
        /// Disk time: 25ms/250ms. `extra` (or `noextra`) and `laxity=TIME` keep their values unless
        /// named
        #[arg(long, value_name = "SLICE/PERIOD[,extra][,laxity=TIME]")]
        disk: Option<DiskChange>,
    },
}

/// Shows or changes.
pub fn contract(args: ContractArgs) -> Result<ExitCode, Box<dyn Error>> {
    match args.command {
        ContractCommand::Show { json: true } => {
            println!("{}", serde_json::to_string_pretty(&list(&args.system)?)?);
        }
        ContractCommand::Show { json: false } => show(&list(&args.system)?),
        ContractCommand::Free { json: true } => {
            println!(
                "{}",
                serde_json::to_string_pretty(&capacity(&args.system)?)?
            );
        }
        ContractCommand::Free { json: false } => free(&capacity(&args.system)?),
        ContractCommand::Set {
            tenant,
            frames,
            disk,
        } => show(&[set(&args.system, tenant, frames, disk)?]),
    }
    Ok(ExitCode::SUCCESS)
}

fn number(text: &str) -> Result<TenantNumber, String> {
    let fail = |_| "expected a tenant's number, as `selfpage contract show` prints it".to_owned();
    text.parse().map_err(fail)
}

fn no_contracts() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "no contracts",
        false => "no contracts of this user",
    }
}

fn show(all: &[TenantInfo]) {
    if all.is_empty() {
        println!("{}", no_contracts());
    }
    for one in all {
        let size = |frames: u32| Bytes(u64::from(frames) * PAGE as u64);
        println!(
            "{} {} (process {}, user {})\n  contract  {}\n  frames    {} owned, {} used, {} resident beyond 8 MiB for each process\n  \
             disk      {:.3} s charged, {:.3} s of it waiting for its requests; {} transactions, {}",
            one.tenant,
            one.name,
            one.pid,
            one.uid,
            one.terms,
            size(one.n),
            size(one.used),
            size(one.resident),
            one.charged.as_secs_f64(),
            one.lax.as_secs_f64(),
            one.transactions,
            Bytes(one.bytes)
        );
        if one.terms.frames.x.saturating_sub(one.terms.frames.g) > one.revocable {
            println!(
                "  extra     {} at most: what its disk time gives back in time for others",
                size(one.revocable)
            );
        }
        if one.transactions > 0 {
            println!(
                "  requests  waited {} for the disk's schedule, took {} in all (p50, p99, p99.9)",
                times(&one.waited),
                times(&one.took)
            );
        }
        if one.ran_first > Duration::ZERO {
            println!(
                "  processor {:.3} s before other work, with its disk time",
                one.ran_first.as_secs_f64()
            );
        }
        if let Some((frames, within)) = &one.later {
            println!(
                "  pending   frames {frames} in {:.0} s",
                within.as_secs_f64().ceil()
            );
        }
        if let Some(faults) = &one.faults {
            println!("  faults    {}", in_words(faults));
        }
    }
}

fn times(all: &[Duration]) -> String {
    let each: Vec<_> = all.iter().map(|time| format!("{time:.1?}")).collect();
    each.join(" ")
}

fn in_words(faults: &FaultGrant) -> String {
    let FaultShare {
        period,
        limit,
        system,
    } = faults.share;
    match limit {
        0 => match faults.reservation {
            Some((runtime, period)) => format!(
                "within its own {}/{} of processor time",
                Time(runtime),
                Time(period)
            ),
            None => "none".to_owned(),
        },
        _ => format!(
            "at most {limit} of all tenants' {system} in {}, at {:.1?} each",
            Time(period),
            faults.unit
        ),
    }
}

fn free(all: &CapacitySummary) {
    let size = |frames: u32| Bytes(u64::from(frames) * PAGE as u64);
    println!(
        "frames  {} to promise, {} guaranteed, {} unowned\nswap    {} in all, {} free\n\
         disk    {:.1} % of its time to promise, {:.1} % promised, {} channels\n\
         cpu     {:.3} processors for reservations and faults, {:.3} reserved: {} faults in {}\ntenants {}",
        size(all.managed),
        size(all.guaranteed),
        size(all.free),
        Bytes(all.swap),
        Bytes(all.swap_free),
        all.capacity * 100.0,
        all.promised * 100.0,
        all.channels,
        all.processors,
        all.reserved,
        all.faults.0,
        Time(all.faults.1),
        all.tenants
    );
}
