//! What the kernel offers to share a disk: a limit of requests, or a scheduler with weights,
//! by cgroups of either version. What was changed is put back when dropped.

use crate::cgroup::{Cgroup, Hierarchy};
use crate::cleanup::{CleanupProcess, UndoAction};
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
            unavailable(format!(
                "{} is on no disk of its own whose requests could be shared out",
                folder.display()
            ))
        })?;
        Ok(Self {
            number: read(&disk.join("dev").to_string_lossy()),
            queue: disk.join("queue"),
        })
    }

    /// Requests to this disk, as /proc/diskstats counts them.
    pub fn requests(&self) -> u64 {
        let stat = read(&self.queue.join("../stat").to_string_lossy());
        let field = |n| stat.split_whitespace().nth(n).and_then(|w| w.parse().ok());
        field(0).unwrap_or(0u64) + field(4).unwrap_or(0u64)
    }
}

/// The scheduler of a disk, set for one arm.
pub struct Scheduler {
    _guard: UndoGuard,
}

impl Scheduler {
    /// BFQ.
    pub fn bfq(cleanup: &CleanupProcess, disk: &DiskQueue) -> Result<Self> {
        let path = disk.queue.join("scheduler");
        let offered = read(&path.to_string_lossy());
        if !offered
            .split_whitespace()
            .any(|word| word.trim_matches(['[', ']']) == "bfq")
        {
            return Err(unavailable(format!(
                "the disk offers no BFQ but {offered:?} (needs CONFIG_IOSCHED_BFQ, or `modprobe bfq`)"
            )));
        }
        let guard = cleanup.register(UndoAction::Setting {
            path: path.clone(),
            value: chosen(&offered),
        })?;
        std::fs::write(&path, "bfq").doing(format_args!("set {} (root can)", path.display()))?;
        Ok(Self { _guard: guard })
    }
}

/// A program's part of a disk, by the kernel's cgroups.
pub struct DiskGroup {
    hierarchy: Hierarchy,
    path: PathBuf,
    _guard: Option<UndoGuard>,
}

impl DiskGroup {
    /// For a program in a memory cgroup: in version 2 that is the place for the disk, too.
    pub fn new(cleanup: &CleanupProcess, name: &str, memory: &Cgroup) -> Result<Self> {
        let hierarchy = Hierarchy::of_disks()?;
        let (path, guard) = match &hierarchy {
            Hierarchy::Two(root) => {
                // Fails where it is on already, or shows where it cannot be.
                let _ = std::fs::write(root.join("cgroup.subtree_control"), "+io");
                (memory.path().to_owned(), None)
            }
            Hierarchy::One(root) => {
                let path = root.join(format!("selfpage-bench-{}-{name}", std::process::id()));
                let guard = cleanup.register(UndoAction::Cgroup(path.clone()))?;
                std::fs::create_dir(&path).at("make the cgroup", &path)?;
                (path, Some(guard))
            }
        };
        Ok(Self {
            hierarchy,
            path,
            _guard: guard,
        })
    }

    /// Puts a process in.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    /// So many reads and as many writes a second, at most.
    pub fn throttle(&self, disk: &DiskQueue, requests: u64) -> Result<()> {
        let number = &disk.number;
        match self.hierarchy {
            Hierarchy::One(_) => {
                let line = format!("{number} {requests}");
                self.set("blkio.throttle.read_iops_device", &line)?;
                self.set("blkio.throttle.write_iops_device", &line)
            }
            Hierarchy::Two(_) => {
                let line = format!("{number} riops={requests} wiops={requests}");
                self.set("io.max", &line)
            }
        }
    }

    /// Its weight under BFQ, of 1 to 1000.
    pub fn weigh(&self, weight: u64) -> Result<()> {
        match self.hierarchy {
            Hierarchy::One(_) => self.set("blkio.bfq.weight", &weight.to_string()),
            Hierarchy::Two(_) => self.set("io.bfq.weight", &format!("default {weight}")),
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        if !path.exists() {
            return Err(unavailable(format!(
                "there is no {}: this kernel, or this disk's scheduler, does not offer it",
                path.display()
            )));
        }
        std::fs::write(&path, value).doing(format_args!("write {value:?} to {}", path.display()))
    }
}
