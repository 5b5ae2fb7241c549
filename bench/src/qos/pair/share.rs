//! What the kernel offers to share a disk: a limit of requests, or a scheduler with weights,
//! by cgroups of either version.

use crate::machine::{chosen, disk_of, read};
use crate::prelude::*;

/// The whole disk that holds a folder.
#[derive(Clone, Debug)]
pub struct DiskQueue {
    number: String,
    queue: PathBuf,
}

impl DiskQueue {
    /// Finds it.
    pub fn under(folder: &Path) -> Result<Self> {
        let disk = disk_of(folder).ok_or_else(|| {
            unavailable(format_args!(
                "{} is on no disk of its own whose requests could be shared out",
                folder.display()
            ))
        })?;
        Ok(Self {
            number: read(disk.join("dev")),
            queue: disk.join("queue"),
        })
    }

    /// Requests to this disk, as /proc/diskstats counts them.
    pub fn requests(&self) -> u64 {
        let stat = read(self.queue.join("../stat"));
        let field = |n| stat.split_whitespace().nth(n).and_then(|w| w.parse().ok());
        field(0).unwrap_or(0u64) + field(4).unwrap_or(0u64)
    }

    /// Has it scheduled by BFQ for one arm: its own scheduler is back when the guard is dropped.
    pub fn by_bfq(&self, env: &TestEnv) -> Result<UndoGuard> {
        let path = self.queue.join("scheduler");
        let offered = read(&path);
        let mut all = offered.split_whitespace();
        if !all.any(|word| word.trim_matches(['[', ']']) == "bfq") {
            bail!(unavailable(format_args!(
                "the disk offers no BFQ but {offered:?} (needs CONFIG_IOSCHED_BFQ, or `modprobe bfq`)"
            )));
        }
        env.cleanup.set(&path, "bfq", chosen(&offered))
    }
}

/// So many reads and as many writes a second, at most.
pub fn throttle(cgroup: &Cgroup, disk: &DiskQueue, requests: u64) -> Result<()> {
    let number = &disk.number;
    let one = format!("{number} {requests}");
    let two = format!("{number} riops={requests} wiops={requests}");
    cgroup.set(
        ["blkio.throttle.read_iops_device", "io.max"],
        cgroup.either(&one, &two),
    )?;
    cgroup.set(
        ["blkio.throttle.write_iops_device", "io.max"],
        cgroup.either(&one, &two),
    )
}

/// Its weight under BFQ, of 1 to 1000.
pub fn weigh(cgroup: &Cgroup, weight: u64) -> Result<()> {
    let two = format!("default {weight}");
    cgroup.set(
        ["blkio.bfq.weight", "io.bfq.weight"],
        cgroup.either(weight.to_string(), two),
    )
}
