//! One run of an arm: what it needs is set up, the program runs in its cgroup, and its peak is read.

use super::arm::{MemoryArm, MemorySplit};
use super::child::{self, Done};
use super::program::Workload;
use crate::env::kib;
use crate::prelude::*;
use crate::process::within;

/// What an arm's disk may hold, for a byte of the program's: incompressible pages, and those that
/// are stored anew before their old place is free.
const ROOM: f64 = 1.5;

/// The disk time of the contract: of each period almost all, and what is not used.
const DISK: &str = "200ms/250ms,extra";

/// The figures of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrialFigures {
    /// Time and output.
    pub done: Done,
    /// Bytes of the cgroup at its peak.
    pub cgroup_bytes: u64,
    /// Bytes that zram held at its peak, which no cgroup counts.
    pub zram_bytes: u64,
}

impl TrialFigures {
    /// Bytes of memory at the peak. Two peaks need not come at once, so with zram it is the most it
    /// can have been.
    pub fn peak(&self) -> u64 {
        self.cgroup_bytes + self.zram_bytes
    }
}

/// A program's need of memory, and the memory it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// Bytes that it takes alone.
    pub bytes: u64,
    /// Bytes that it gets.
    pub limit: u64,
}

impl Allotment {
    /// Bytes of swap, or of a store.
    fn room(self) -> u64 {
        (self.bytes as f64 * ROOM) as u64
    }
}

/// What is set up for an arm. Dropped from the top: a cgroup's processes end before their swap.
struct ArmFixture {
    cgroup: Cgroup,
    swap: Option<Swap>,
    _store: Option<OwnedFile>,
    command: Command,
}

/// Runs a program once in an arm.
pub fn run(
    env: &TestEnv,
    daemon: Option<&DaemonFixture>,
    arm: MemoryArm,
    work: &Workload,
    memory: Allotment,
    limit: Duration,
) -> Result<TrialFigures> {
    let fixture = set_up(env, daemon, arm, work, memory)?;
    if let Some(input) = &work.input {
        read_once(input)?;
    }
    let outcome = child::run(&fixture.command, work, &fixture.cgroup, limit);
    // A driver reports the kill of its compiler as a failure of its own, a client as a closed socket.
    let done = outcome.map_err(|why| match fixture.cgroup.oom_kills() {
        0 => why,
        _ => ExperimentError::Killed.into(),
    })?;
    Ok(TrialFigures {
        done,
        cgroup_bytes: fixture.cgroup.peak_bytes()?,
        zram_bytes: fixture.swap.as_ref().map_or(0, Swap::peak_ram_bytes),
    })
}

fn set_up(
    env: &TestEnv,
    daemon: Option<&DaemonFixture>,
    arm: MemoryArm,
    work: &Workload,
    memory: Allotment,
) -> Result<ArmFixture> {
    let mut fixture = ArmFixture {
        cgroup: match arm {
            MemoryArm::Alone | MemoryArm::AloneMimalloc | MemoryArm::OursRam => {
                Cgroup::unlimited(&env.cleanup, "program")?
            }
            _ => Cgroup::new(&env.cleanup, "program", memory.limit)?,
        },
        swap: None,
        _store: None,
        command: within(Command::new("env"), &work.command),
    };
    match arm {
        MemoryArm::Alone => {}
        MemoryArm::AloneMimalloc => fixture.command = env.alone(fixture.command)?,
        MemoryArm::Zram => fixture.swap = Some(Swap::on_zram(env, memory.room())?),
        MemoryArm::Swap => fixture.swap = Some(Swap::on_file(env, memory.room())?),
        MemoryArm::OursRam
        | MemoryArm::OursBoth
        | MemoryArm::OursDisk
        | MemoryArm::OursContract => {
            let split = MemorySplit::of(arm, memory.limit, memory.bytes, work.unpaged)?;
            let mut run = env.run(split.frames)?;
            if work.changes_user {
                run.arg("--share-store");
            }
            if arm == MemoryArm::OursContract {
                let daemon = daemon.ok_or_else(|| unavailable("the daemon does not run"))?;
                run.arg(format!("--system={}", daemon.socket().display()));
                run.args(["--disk", DISK, "--swap", &kib(memory.room())]);
            } else {
                let file = env.file("store")?;
                run.args(["--store", &store_of(arm, split, &file, memory.room())]);
                fixture._store = Some(file);
            }
            if matches!(arm, MemoryArm::OursBoth | MemoryArm::OursContract) {
                run.args(["--ram", &kib(split.ram)]);
            }
            run.arg("--");
            fixture.command = within(run, &work.command);
        }
    }
    Ok(fixture)
}

/// As `selfpage run --store` takes it.
fn store_of(arm: MemoryArm, split: MemorySplit, file: &Path, room: u64) -> String {
    match arm {
        MemoryArm::OursRam => format!("ram:{}", kib(split.ram)),
        _ => format!("disk:{},size={}", file.display(), kib(room)),
    }
}

/// Has a file in the page cache, charged to this process's cgroup and to no arm's.
fn read_once(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path);
    let read = file.and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
    read.map(drop).at("read", path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use selfpage::StoreConfig;

    #[test]
    fn a_store_is_one_that_run_takes() {
        let split = MemorySplit {
            frames: 8 << 20,
            ram: 4 << 20,
        };
        for arm in [MemoryArm::OursRam, MemoryArm::OursBoth, MemoryArm::OursDisk] {
            let text = store_of(arm, split, Path::new("/var/tmp/x"), 64 << 20);
            assert!(text.parse::<StoreConfig>().is_ok(), "{text}");
        }
    }
}
