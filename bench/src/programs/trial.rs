//! One run of an arm: what it needs is set up, the program runs in its cgroup, and its peak is read.

use super::arm::{ArmNeeds, MemoryArm, MemorySplit, Store};
use super::child::{self, Done};
use super::program::Workload;
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
    let needs = arm.needs();
    let mut fixture = ArmFixture {
        cgroup: match needs {
            ArmNeeds::Alone { .. } | ArmNeeds::Run(Store::Ram) => {
                Cgroup::unlimited(&env.cleanup, "program")?
            }
            _ => Cgroup::new(&env.cleanup, "program", memory.limit)?,
        },
        swap: None,
        _store: None,
        command: within(Command::new("env"), &work.command),
    };
    match needs {
        ArmNeeds::Alone { mimalloc: false } => {}
        ArmNeeds::Alone { mimalloc: true } => fixture.command = env.alone(fixture.command)?,
        ArmNeeds::Zram => fixture.swap = Some(Swap::on_zram(env, memory.room())?),
        ArmNeeds::SwapFile => fixture.swap = Some(Swap::on_file(env, memory.room())?),
        ArmNeeds::Run(_) | ArmNeeds::Contract => {
            let split = MemorySplit::of(needs, memory.limit, memory.bytes, work.unpaged)?;
            let mut run = Command::new(env.selfpage()?);
            run.args(["run", "--frames", &kib(split.frames)]);
            if work.changes_user {
                run.arg("--share-store");
            }
            if let ArmNeeds::Run(store) = needs {
                let file = env.file("store")?;
                run.args(["--store", &store_of(store, split, &file, memory.room())]);
                if store == Store::Both {
                    run.args(["--ram", &kib(split.ram)]);
                }
                fixture._store = Some(file);
            } else {
                let daemon = daemon.ok_or_else(|| unavailable("the daemon does not run"))?;
                run.arg(format!("--system={}", daemon.socket().display()));
                run.args(["--ram", &kib(split.ram), "--disk", DISK]);
                run.args(["--swap", &kib(memory.room())]);
            }
            run.arg("--");
            fixture.command = within(run, &work.command);
        }
    }
    Ok(fixture)
}

/// As `selfpage run --store` takes it.
fn store_of(store: Store, split: MemorySplit, file: &Path, room: u64) -> String {
    let disk = format!("disk:{},size={}", file.display(), kib(room));
    match store {
        Store::Ram => format!("ram:{}", kib(split.ram)),
        Store::Both | Store::Disk => disk,
    }
}

/// As the options of `selfpage run` take it.
fn kib(bytes: u64) -> String {
    format!("{}K", bytes.next_multiple_of(PAGE as u64) >> 10)
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
        for store in [Store::Ram, Store::Both, Store::Disk] {
            let text = store_of(store, split, Path::new("/var/tmp/x"), 64 << 20);
            assert!(text.parse::<StoreConfig>().is_ok(), "{text}");
        }
    }
}
