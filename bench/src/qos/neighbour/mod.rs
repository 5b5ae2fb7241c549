//! A program that must answer, beside one that pages hard: ours beside what Linux offers.
//!
//! The victim reads pages at random over eight times its memory; the neighbour changes
//! pages at random, by several threads, over eight times its own. In every arm they have the
//! same data, the same memory and the same accesses at the same times. What is compared is
//! what the victim keeps of what it had alone: both are measured in the same process, one
//! after the other, in turn.
//!
//! | arm | the victim's promise |
//! |---|---|
//! | `system` | 125 ms of disk in 250 ms and the slack; the neighbour has 25 ms, and nothing beyond |
//! | `run` | none: what the neighbour leaves |
//! | `swap` | none |
//! | `swap-throttle` | the neighbour is held to a fifth of the requests it made alone |
//! | `swap-bfq` | BFQ weights 500 and 100 |

mod arm;
mod judge;
mod share;

pub use arm::Arm;

use super::guest::{Done, Latency, Order};
use super::{Grounds, Options};
use crate::ExperimentError;
use crate::cgroup::Cgroup;
use crate::keeper::Owed;
use crate::process::Process;
use crate::real::goal::Row;
use crate::real::launch::within;
use crate::swap::Swap;
use crate::system::{Setup, System};
use share::{Disk, Scheduler, Share};
use std::process::Command;
use std::time::Duration;

/// Times as much data as memory.
const OVER: u64 = 8;

/// Threads of the neighbour's.
const THREADS: u64 = 4;

/// How long each of the two is at work before anything is measured of it, or beside it.
const WARM: Duration = Duration::from_secs(1);

/// The disk contract of each. The laxity is longer than a program takes from one fault to the
/// next, and shorter than the time between accesses that are due now and then: each of those
/// would be charged for a longer one.
const SHARES: [&str; 2] = ["125ms/250ms,extra,laxity=500us", "25ms/250ms,laxity=500us"];

/// The same as BFQ's weights.
const WEIGHTS: [u64; 2] = [500, 100];

/// The neighbour's share over the victim's, for a throttle.
const PART: u64 = 5;

/// The victim's figures, alone or beside the neighbour.
#[derive(Clone, Copy, Debug)]
struct Phase {
    closed: Done,
    open: Latency,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug)]
struct Run {
    alone: Phase,
    beside: Phase,
    neighbour: Done,
}

/// A place on the machine for each of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Victim,
    Neighbour,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Neighbour => "neighbour",
        }
    }

    fn mib(self, options: &Options) -> u64 {
        match self {
            Self::Victim => options.victim,
            Self::Neighbour => options.neighbour,
        }
    }
}

/// What an arm holds while it runs. Dropped from the top: programs end before what they use.
struct Setting {
    victim: Process,
    neighbour: Process,
    throttle: Option<Share>,
    _shares: Vec<Share>,
    _cgroups: Vec<Cgroup>,
    _scheduler: Option<Scheduler>,
    _swap: Option<Swap>,
    _system: Option<System>,
    _files: Vec<Owed>,
}

/// Runs every arm in turn.
pub fn rows(grounds: &Grounds<'_>, options: &Options) -> Vec<Row> {
    let arms = [
        Arm::System,
        Arm::Run,
        Arm::Swap,
        Arm::SwapThrottle,
        Arm::SwapBfq,
    ];
    let mut runs: Vec<(Arm, Vec<Run>, Option<ExperimentError>)> =
        arms.iter().map(|arm| (*arm, Vec::new(), None)).collect();
    for repeat in 0..options.repeats {
        let count = runs.len();
        for k in 0..count {
            let (arm, runs, failure) = &mut runs[(k + repeat as usize) % count];
            if failure.is_some() {
                continue;
            }
            super::say(&format!("neighbour: {}, repeat {}", arm.name(), repeat + 1));
            match run(grounds, options, *arm, repeat) {
                Ok(run) => runs.push(run),
                Err(why) => *failure = Some(why),
            }
        }
    }
    judge::judged(runs)
}

fn run(
    grounds: &Grounds<'_>,
    options: &Options,
    arm: Arm,
    repeat: u64,
) -> Result<Run, ExperimentError> {
    let mut setting = set_up(grounds, options, arm)?;
    for guest in [&mut setting.victim, &mut setting.neighbour] {
        guest.tell(&Order::Fill.to_string())?;
        guest.hear_as::<Done>()?;
    }
    // What was written last goes out first, and is none of a reader's time.
    setting.victim.tell(&Order::Closed(WARM).to_string())?;
    setting.victim.hear_as::<Done>()?;
    if let Some(share) = &setting.throttle {
        // A share of what it would do is what a throttle can be made of.
        let disk = Disk::under(&grounds.base.folder)?;
        let before = disk.requests();
        setting.neighbour.tell(&Order::Churn(THREADS).to_string())?;
        std::thread::sleep(WARM);
        let done = rest(&mut setting.neighbour)?;
        let requests = (disk.requests() - before) as f64 / (done.ns as f64 / 1e9);
        share.throttle(&disk, (requests as u64 / PART).max(1))?;
    }
    // What comes first has an emptier machine, or a warmer one.
    if repeat.is_multiple_of(2) {
        let alone = phase(&mut setting.victim, options, repeat)?;
        let (beside, neighbour) = beside(&mut setting, options, repeat)?;
        return end(
            setting,
            Run {
                alone,
                beside,
                neighbour,
            },
        );
    }
    let (beside, neighbour) = beside(&mut setting, options, repeat)?;
    let alone = phase(&mut setting.victim, options, repeat)?;
    end(
        setting,
        Run {
            alone,
            beside,
            neighbour,
        },
    )
}

/// Both end well, or the run has no figures.
fn end(setting: Setting, run: Run) -> Result<Run, ExperimentError> {
    setting.victim.end()?;
    setting.neighbour.end()?;
    Ok(run)
}

fn phase(victim: &mut Process, options: &Options, repeat: u64) -> Result<Phase, ExperimentError> {
    let during = Duration::from_secs_f64(options.phase);
    victim.tell(&Order::Closed(during).to_string())?;
    let closed = victim.hear_as()?;
    let open = Order::Open {
        during,
        rate: options.rate,
        seed: repeat + 1,
    };
    victim.tell(&open.to_string())?;
    Ok(Phase {
        closed,
        open: victim.hear_as()?,
    })
}

fn beside(
    setting: &mut Setting,
    options: &Options,
    repeat: u64,
) -> Result<(Phase, Done), ExperimentError> {
    setting.neighbour.tell(&Order::Churn(THREADS).to_string())?;
    std::thread::sleep(WARM);
    let beside = phase(&mut setting.victim, options, repeat)?;
    Ok((beside, rest(&mut setting.neighbour)?))
}

fn rest(neighbour: &mut Process) -> Result<Done, ExperimentError> {
    neighbour.tell(&Order::Rest.to_string())?;
    neighbour.hear_as()
}

fn set_up(grounds: &Grounds<'_>, options: &Options, arm: Arm) -> Result<Setting, ExperimentError> {
    let both = [Who::Victim, Who::Neighbour];
    let all = options.victim + options.neighbour;
    let (mut files, mut cgroups, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let (mut swap, mut scheduler, mut system) = (None, None, None);
    let mut guests = Vec::new();
    match arm {
        Arm::System => {
            let started = System::start(&grounds.base, &grounds.disk, Setup::of(all / OVER + 64))?;
            for (who, disk) in both.into_iter().zip(SHARES) {
                let swap = format!("{}M", who.mib(options) * 3 / 2);
                let mut command = selfpage_run(grounds, who, options)?;
                command.arg(format!("--system={}", started.socket().display()));
                command.args(["--disk", disk, "--swap", &swap, "--"]);
                guests.push(Process::start(guest(
                    grounds, command, "paged", who, options,
                ))?);
            }
            system = Some(started);
        }
        Arm::Run => {
            for who in both {
                let (path, owed) = grounds.base.file(who.name())?;
                files.push(owed);
                let size = who.mib(options) * 3 / 2;
                let mut command = selfpage_run(grounds, who, options)?;
                command.args([
                    "--store",
                    &format!("disk:{},size={size}M", path.display()),
                    "--",
                ]);
                guests.push(Process::start(guest(
                    grounds, command, "paged", who, options,
                ))?);
            }
        }
        Arm::Swap | Arm::SwapThrottle | Arm::SwapBfq => {
            let disk = Disk::under(&grounds.base.folder)?;
            swap = Some(Swap::on_file(
                &grounds.base.keeper,
                &grounds.base.folder,
                (all * 3 / 2) << 20,
            )?);
            if arm == Arm::SwapBfq {
                scheduler = Some(Scheduler::bfq(&grounds.base.keeper, &disk)?);
            }
            for (who, weight) in both.into_iter().zip(WEIGHTS) {
                let memory = (who.mib(options) / OVER) << 20;
                let cgroup = Cgroup::new(&grounds.base.keeper, who.name(), memory)?;
                let command = grounds.base.myself.command("guest");
                let process = Process::start(told(command, "anonymous", who, options))?;
                cgroup.add(process.id())?;
                if arm != Arm::Swap {
                    let share = Share::new(&grounds.base.keeper, who.name(), &cgroup)?;
                    share.add(process.id())?;
                    if arm == Arm::SwapBfq {
                        share.weigh(weight)?;
                    }
                    shares.push(share);
                }
                cgroups.push(cgroup);
                guests.push(process);
            }
        }
    }
    let (Some(neighbour), Some(victim)) = (guests.pop(), guests.pop()) else {
        return Err(ExperimentError::Worker(
            "two guests were not started".into(),
        ));
    };
    Ok(Setting {
        victim,
        neighbour,
        throttle: (arm == Arm::SwapThrottle).then(|| shares.pop()).flatten(),
        _shares: shares,
        _cgroups: cgroups,
        _scheduler: scheduler,
        _swap: swap,
        _system: system,
        _files: files,
    })
}

/// `selfpage run` with the frames of one of the two.
fn selfpage_run(
    grounds: &Grounds<'_>,
    who: Who,
    options: &Options,
) -> Result<Command, ExperimentError> {
    let mut command = Command::new(grounds.base.selfpage()?);
    let frames = format!("{}M", who.mib(options) / OVER);
    command.args(["run", "--frames", &frames]);
    Ok(command)
}

/// A guest behind another command.
fn guest(
    grounds: &Grounds<'_>,
    outer: Command,
    memory: &str,
    who: Who,
    options: &Options,
) -> Command {
    let guest = told(grounds.base.myself.command("guest"), memory, who, options);
    within(outer, &guest)
}

fn told(mut command: Command, memory: &str, who: Who, options: &Options) -> Command {
    command.args(["--memory", memory]);
    command.args(["--mib", &who.mib(options).to_string()]);
    command
}
