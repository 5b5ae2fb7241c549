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
//! | `system-extra` | the same, and the neighbour has the slack, too |
//! | `system-ram` | as `system`, with compressed RAM in the frames of both |
//! | `run` | none: what the neighbour leaves |
//! | `swap` | none |
//! | `swap-zram` | none; half of the memory of both is zram's, which the kernel fills before the disk |
//! | `swap-throttle` | the neighbour is held to a fifth of the requests it made alone |
//! | `swap-bfq` | BFQ weights 500 and 100 |

mod analysis;
mod arm;
mod share;

use super::backing::Backing;
use super::subject::{Done, Latency, Order, SubjectPlan};
use super::{Options, progress};
use crate::prelude::*;
use crate::process::within;
use crate::repeats::{Repeats, run_each};
pub use arm::Arm;
use share::DiskQueue;

/// Times as much data as memory.
const OVER: u64 = 8;

/// Threads of the neighbour's.
const THREADS: u64 = 4;

/// How long each of the two is at work before anything is measured of it, or beside it.
const WARM: Duration = Duration::from_secs(1);

/// The disk contract of each.
const SHARES: [&str; 2] = ["125ms/250ms,extra", "25ms/250ms"];

/// The neighbour's where it has the slack, too.
const EXTRA_SHARE: &str = "25ms/250ms,extra";

/// The same as BFQ's weights.
const WEIGHTS: [u64; 2] = [500, 100];

/// The neighbour's share over the victim's, for a throttle.
const PART: u64 = 5;

/// The victim's figures, alone or beside the neighbour.
#[derive(Clone, Copy, Debug)]
struct VictimFigures {
    closed: Done,
    open: Latency,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug)]
struct ArmRun {
    alone: VictimFigures,
    beside: VictimFigures,
    neighbour: Done,
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Victim,
    Neighbour,
}

impl Side {
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

    /// The program by itself, or to be run behind another command.
    fn command(self, memory: MemoryKind, options: &Options) -> Result<Command> {
        let (mib, backing) = (self.mib(options), Backing::default());
        WorkerPlan::Subject(SubjectPlan {
            memory,
            mib,
            backing,
        })
        .command()
    }

    /// The program behind `selfpage run` with its frames and these options.
    fn start_paged(self, env: &TestEnv, options: &Options, words: &[&str]) -> Result<Worker> {
        let mut command = env.run((self.mib(options) / OVER) << 20)?;
        command.args(words).arg("--");
        let program = self.command(MemoryKind::Paged, options)?;
        Worker::start(within(command, &program))
    }
}

/// What an arm holds while it runs. Dropped from the top: programs end before what they use.
struct ArmFixture {
    /// The victim and the neighbour.
    subjects: [Worker; 2],
    limits: Limits,
}

/// What divides the machine between the two. Dropped from the top.
#[derive(Default)]
struct Limits {
    /// The victim's and the neighbour's.
    shares: Vec<Cgroup>,
    _cgroups: Vec<Cgroup>,
    _scheduler: Option<UndoGuard>,
    _swap: Vec<Swap>,
    _system: Option<DaemonFixture>,
    _files: Vec<OwnedFile>,
}

/// Runs every arm in turn.
pub fn rows(env: &TestEnv, options: &Options) -> Vec<Row> {
    let arms = match options.arms.is_empty() {
        true => Arm::value_variants(),
        false => &options.arms,
    };
    let mut runs = Repeats::of(arms);
    for repeat in 0..options.repeats {
        run_each(&mut runs, repeat, |arm, _| {
            progress(&format!("neighbour: {}, repeat {}", arm.name(), repeat + 1));
            run(env, options, arm, repeat)
        });
    }
    analysis::judged(runs)
}

fn run(env: &TestEnv, options: &Options, arm: Arm, repeat: u64) -> Result<ArmRun> {
    let mut fixture = set_up(env, options, arm)?;
    let [victim, neighbour] = &mut fixture.subjects;
    victim.call::<Done>(&Order::Fill)?;
    neighbour.call::<Done>(&Order::Fill)?;
    // What was written last goes out first, and is none of a reader's time.
    victim.call::<Done>(&Order::Closed(WARM))?;
    if let (Arm::SwapThrottle, Some(share)) = (arm, fixture.limits.shares.last()) {
        // A share of what it would do is what a throttle can be made of.
        let disk = DiskQueue::under(&env.folder)?;
        let before = disk.requests();
        neighbour.send(&Order::Churn(THREADS))?;
        std::thread::sleep(WARM);
        let done: Done = neighbour.call(&Order::Rest)?;
        let requests = (disk.requests() - before) as f64 / (done.ns as f64 / 1e9);
        share::throttle(share, &disk, (requests as u64 / PART).max(1))?;
    }
    // What comes first has an emptier machine, or a warmer one.
    let before = match repeat.is_multiple_of(2) {
        true => Some(phase(victim, options, repeat)?),
        false => None,
    };
    neighbour.send(&Order::Churn(THREADS))?;
    std::thread::sleep(WARM);
    let beside = phase(victim, options, repeat)?;
    let busy = neighbour.call(&Order::Rest)?;
    let alone = match before {
        Some(before) => before,
        None => phase(victim, options, repeat)?,
    };
    // Both end well, or the run has no figures.
    for subject in fixture.subjects {
        subject.end()?;
    }
    Ok(ArmRun {
        alone,
        beside,
        neighbour: busy,
    })
}

fn phase(victim: &mut Worker, options: &Options, repeat: u64) -> Result<VictimFigures> {
    let during = Duration::from_secs_f64(options.phase);
    let (rate, seed) = (options.rate, repeat + 1);
    let closed = victim.call(&Order::Closed(during))?;
    let open = victim.call(&Order::Open { during, rate, seed })?;
    Ok(VictimFigures { closed, open })
}

fn set_up(env: &TestEnv, options: &Options, arm: Arm) -> Result<ArmFixture> {
    let mut limits = Limits::default();
    let all = options.victim + options.neighbour;
    let swap = (all * 3 / 2) << 20;
    match arm {
        Arm::System | Arm::SystemExtra | Arm::SystemRam => {
            let config = DaemonConfig::of(all / OVER + 64);
            limits._system = Some(DaemonFixture::start(env, config)?);
        }
        Arm::Run => {}
        Arm::SwapZram => {
            // Pages compress 2:1.
            let bytes = (all / OVER) << 20;
            limits._swap = Swap::on_zram_and_file(env, bytes, swap)?;
        }
        Arm::Swap | Arm::SwapThrottle | Arm::SwapBfq => {
            limits._swap = vec![Swap::on_file(env, swap)?];
        }
    }
    if arm == Arm::SwapBfq {
        limits._scheduler = Some(DiskQueue::under(&env.folder)?.by_bfq(env)?);
    }
    let subjects = [
        start(Side::Victim, arm, env, options, &mut limits)?,
        start(Side::Neighbour, arm, env, options, &mut limits)?,
    ];
    Ok(ArmFixture { subjects, limits })
}

/// Starts one of the two within its limits.
fn start(
    side: Side,
    arm: Arm,
    env: &TestEnv,
    options: &Options,
    limits: &mut Limits,
) -> Result<Worker> {
    let swap = side.mib(options) * 3 / 2;
    if let Some(system) = &limits._system {
        let socket = format!("--system={}", system.socket().display());
        let swap = format!("{swap}M");
        let share = match (arm, side) {
            (Arm::SystemExtra, Side::Neighbour) => EXTRA_SHARE,
            _ => SHARES[side as usize],
        };
        let mut words = vec![&*socket, "--disk", share, "--swap", &swap];
        if arm != Arm::SystemRam {
            words.extend(["--ram", "0"]);
        }
        return side.start_paged(env, options, &words);
    }
    if arm == Arm::Run {
        let file = env.file(side.name())?;
        let store = format!("disk:{},size={swap}M", file.display());
        limits._files.push(file);
        return side.start_paged(env, options, &["--store", &store]);
    }
    let in_all = (side.mib(options) / OVER) << 20;
    let memory = match arm {
        Arm::SwapZram => in_all / 2,
        _ => in_all,
    };
    let cgroup = Cgroup::new(&env.cleanup, side.name(), memory)?;
    let process = Worker::start(side.command(MemoryKind::Anonymous, options)?)?;
    cgroup.add(process.id())?;
    if matches!(arm, Arm::SwapThrottle | Arm::SwapBfq) {
        let share = cgroup.for_disk(&env.cleanup, side.name())?;
        share.add(process.id())?;
        if arm == Arm::SwapBfq {
            share::weigh(&share, WEIGHTS[side as usize])?;
        }
        limits.shares.push(share);
    }
    limits._cgroups.push(cgroup);
    Ok(process)
}
