//! Two programs beside each other: one that must answer, the victim, and one that pages hard, its
//! neighbour; and what keeps them apart, ours or what Linux offers.
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

mod arm;
mod share;

use super::QosOptions;
use crate::env::kib;
use crate::prelude::*;
use crate::process::within;
use crate::repeats::{Repeats, run_each};
pub use arm::Arm;
pub use share::DiskQueue;

/// The disk contract of each.
const SHARES: [&str; 2] = ["125ms/250ms,extra", "25ms/250ms"];

/// What the victim's promises without the slack.
const PROMISED: &str = "125ms/250ms,noextra";

/// The neighbour's where it has the slack, too.
const EXTRA_SHARE: &str = "25ms/250ms,extra";

/// The same as BFQ's weights.
const WEIGHTS: [u64; 2] = [500, 100];

/// The neighbour's share over the victim's, for a throttle.
const PART: u64 = 5;

/// How long each of the two is at work before anything is measured of it, or beside it.
pub const WARM: Duration = Duration::from_secs(1);

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Victim,
    Neighbour,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Neighbour => "neighbour",
        }
    }
}

/// What one of the two gets.
#[derive(Clone, Copy, Debug)]
pub struct Allotment {
    /// Bytes of memory in all.
    pub memory: u64,
    /// Bytes of swap, or of a store.
    pub swap: u64,
}

/// What divides the machine between the two. Dropped from the top, after the programs.
pub struct Limits {
    arm: Arm,
    disk: Option<DiskQueue>,
    /// The neighbour's of the disk.
    neighbour: Option<Cgroup>,
    _cgroups: Vec<Cgroup>,
    _scheduler: Option<UndoGuard>,
    _swap: Vec<Swap>,
    system: Option<DaemonFixture>,
    _files: Vec<OwnedFile>,
}

impl Limits {
    /// Those of an arm, for a victim and a neighbour.
    pub fn new(env: &TestEnv, arm: Arm, of: [Allotment; 2]) -> Result<Self> {
        let mut limits = Self {
            arm,
            disk: None,
            neighbour: None,
            _cgroups: Vec::new(),
            _scheduler: None,
            _swap: Vec::new(),
            system: None,
            _files: Vec::new(),
        };
        let memory: u64 = of.iter().map(|one| one.memory).sum();
        let swap = of.iter().map(|one| one.swap).sum();
        match arm {
            Arm::System | Arm::SystemExtra | Arm::SystemRam => {
                let config = DaemonConfig::of((memory >> 20) + 64);
                limits.system = Some(DaemonFixture::start(env, config)?);
            }
            Arm::Run => {}
            // Pages compress 2:1.
            Arm::SwapZram => limits._swap = Swap::on_zram_and_file(env, memory, swap)?,
            Arm::Swap | Arm::SwapThrottle | Arm::SwapBfq => {
                limits._swap = vec![Swap::on_file(env, swap)?];
            }
        }
        if matches!(arm, Arm::SwapThrottle | Arm::SwapBfq) {
            limits.disk = Some(DiskQueue::under(&env.folder)?);
        }
        if let (Arm::SwapBfq, Some(disk)) = (arm, &limits.disk) {
            limits._scheduler = Some(disk.by_bfq(env)?);
        }
        Ok(limits)
    }

    /// Which memory a worker of ours makes.
    pub fn memory(&self) -> MemoryKind {
        match self.arm {
            Arm::System | Arm::SystemExtra | Arm::SystemRam | Arm::Run => MemoryKind::Paged,
            _ => MemoryKind::Anonymous,
        }
    }

    /// Starts a program within its limits. `begin` starts the command, which is the program or runs
    /// it, and waits until the program may be put in a control group.
    pub fn start(
        &mut self,
        env: &TestEnv,
        side: Side,
        of: Allotment,
        program: &Command,
        begin: impl FnOnce(Command) -> Result<Worker>,
    ) -> Result<Worker> {
        let swap = kib(of.swap);
        if self.system.is_some() {
            let mut run = env.run(of.memory)?;
            run.args(self.contract(side, &swap)?).arg("--");
            return begin(within(run, program));
        }
        if self.arm == Arm::Run {
            let file = env.file(side.name())?;
            let store = format!("disk:{},size={swap}", file.display());
            self._files.push(file);
            return begin(env.paged(of.memory, &store, program)?);
        }
        let memory = match self.arm {
            Arm::SwapZram => of.memory / 2,
            _ => of.memory,
        };
        let cgroup = Cgroup::new(&env.cleanup, side.name(), memory)?;
        let process = begin(within(Command::new("env"), program))?;
        cgroup.add(process.id())?;
        if matches!(self.arm, Arm::SwapThrottle | Arm::SwapBfq) {
            let share = cgroup.for_disk(&env.cleanup, side.name())?;
            share.add(process.id())?;
            if self.arm == Arm::SwapBfq {
                share::weigh(&share, WEIGHTS[side as usize])?;
            }
            match side {
                Side::Victim => self._cgroups.push(share),
                Side::Neighbour => self.neighbour = Some(share),
            }
        }
        self._cgroups.push(cgroup);
        Ok(process)
    }

    /// The options of `selfpage run` for the contract of either side, but for its frames.
    pub fn contract(&self, side: Side, swap: &str) -> Result<Vec<String>> {
        let system = self.system.as_ref();
        let system = system.ok_or_else(|| anyhow!("the arm has no daemon"))?;
        let share = match (self.arm, side) {
            (Arm::SystemExtra, Side::Neighbour) => EXTRA_SHARE,
            _ => SHARES[side as usize],
        };
        let socket = format!("--system={}", system.socket().display());
        let mut words = vec![&*socket, "--disk", share, "--swap", swap];
        if self.arm != Arm::SystemRam {
            words.extend(["--ram", "0"]);
        }
        Ok(words.into_iter().map(str::to_owned).collect())
    }

    /// Measures the victim with what its contract promises, the slack taken away; `None` in an arm
    /// that promises nothing.
    pub fn promised<F>(&self, measure: impl FnOnce() -> Result<F>) -> Result<Option<F>> {
        let Some(system) = &self.system else {
            return Ok(None);
        };
        let [whole, _] = SHARES;
        // In the order in which they came.
        let tenants = system.tenants()?;
        let victim = tenants.iter().map(|tenant| tenant.tenant).min();
        let victim = victim.ok_or_else(|| anyhow!("the victim has no contract"))?;
        system.set_disk(victim, PROMISED)?;
        let figures = measure()?;
        system.set_disk(victim, whole)?;
        Ok(Some(figures))
    }

    /// Returns true if the neighbour is to be throttled.
    pub fn throttles(&self) -> bool {
        self.arm == Arm::SwapThrottle
    }

    /// Throttles the neighbour where the arm does: a share of what it would do is what a throttle can
    /// be made of. `work` has it work without one, and returns how long it did.
    pub fn throttle(&self, work: impl FnOnce() -> Result<Duration>) -> Result<()> {
        let (Arm::SwapThrottle, Some(disk), Some(share)) = (self.arm, &self.disk, &self.neighbour)
        else {
            return Ok(());
        };
        let before = disk.requests();
        let during = work()?;
        let requests = (disk.requests() - before) as f64 / during.as_secs_f64();
        share::throttle(share, disk, (requests as u64 / PART).max(1))
    }
}

/// Runs every arm in turn that the options name.
pub fn run_arms<R>(
    what: &str,
    options: &QosOptions,
    run: impl Fn(Arm, u64) -> Result<R>,
) -> Vec<Repeats<Arm, R>> {
    let arms = match options.arms.is_empty() {
        true => Arm::value_variants(),
        false => &options.arms,
    };
    let mut runs = Repeats::of(arms);
    for repeat in 0..options.repeats {
        run_each(&mut runs, repeat, |arm, _| {
            progress(&format!("{what}: {}, repeat {}", arm.name(), repeat + 1));
            run(arm, repeat)
        });
    }
    runs
}

/// Measures alone and beside a neighbour. What comes first has an emptier machine, or a warmer one:
/// every other repeat begins with either.
pub fn alone_and_beside<V, F>(
    repeat: u64,
    victim: &mut V,
    alone: impl Fn(&mut V) -> Result<F>,
    beside: impl FnOnce(&mut V) -> Result<F>,
) -> Result<[F; 2]> {
    if repeat.is_multiple_of(2) {
        return Ok([alone(victim)?, beside(victim)?]);
    }
    let beside = beside(victim)?;
    Ok([alone(victim)?, beside])
}
