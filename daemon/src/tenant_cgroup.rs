//! A tenant's control group: its processes, their RSS, and their end.
//!
//! A tenant's processes are put in a control group of their own, where the daemon may make
//! one: the kernel then knows them all, whatever they do, and kills them in one step
//! (`cgroup.kill`). Elsewhere the tenant's processes are the leader (the process that requested the contract), its
//! descendants, and processes that were found below it before and still run: these stay the tenant's when the leader
//! ends. Processes that the leader starts between the last count and its end stay unknown there.
//!
//! Rule: resident memory is counted by the kernel, never taken from a tenant; the memory of
//! a killed process is freed at once (`process_mrelease`).

mod process_killer;

use crate::cgroup_origin;
use crate::persisted_tenants::TenantRecord;
use host::address_spaces::AddressSpaces;
use host::process_tree::{self, is_running};
use host::procfs;
use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where the second version of control groups may be mounted.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The folder of the control groups of all daemons.
const FOLDER: &str = "selfpage";

/// How long processes are moved back that were put into a group by mistake, and the pause between attempts to kill a
/// process that does not end.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The most bytes by which the kernel's count of a process may lag: each processor keeps a count of some
/// pages to itself.
const COUNT_LAG: u64 = 1 << 20;

/// The control groups of tenants, where there can be any.
pub struct CgroupRoot {
    root: Option<PathBuf>,
    /// True if the kernel's own swap can be kept off guaranteed frames.
    protects: bool,
}

/// One tenant's processes.
#[derive(Clone, Debug)]
pub struct TenantCgroup {
    path: Option<PathBuf>,
    leader: Pid,
    /// When the leader started, which together with its pid identifies it.
    start: u64,
    /// Where there is no group: the processes that were found, and when they started.
    found: Arc<Mutex<HashMap<Pid, u64>>>,
}

/// The warning where the kernel's own swap weakens the guarantee of frames.
const SWAPS: &str = "the kernel's own swap is on and no control group can keep it away from guaranteed frames: \
     they are best effort (turn it off with swapoff, or enable the memory controller of control groups version 2)";

impl CgroupRoot {
    /// The groups of the daemon called `name`, which no other daemon has: so no other daemon sweeps them.
    pub fn open(name: &str) -> Self {
        let root = MOUNTS.iter().map(Path::new).find_map(|mount| {
            let group = mount.join(FOLDER).join(name);
            let usable = mount.join("cgroup.procs").exists()
                && fs::create_dir_all(&group).is_ok()
                && group.join("cgroup.kill").exists();
            usable.then_some(group)
        });
        let protects = root.as_ref().is_some_and(|root| {
            // A group has the controllers that each group above it enables: the mount's root, `FOLDER`, the
            // daemon's.
            let above: Vec<_> = root.ancestors().take(3).collect();
            let enable = |group: &&Path| fs::write(group.join("cgroup.subtree_control"), "+memory");
            above.iter().rev().all(|group| enable(group).is_ok())
        });
        Self { root, protects }
    }

    /// Makes a group for a tenant whose leader started at `start`. The leader is not in it yet.
    pub fn create(&self, leader: Pid, start: u64, number: u32) -> TenantCgroup {
        let path = self.root.as_ref().map(|root| root.join(number.to_string()));
        TenantCgroup {
            path: path.filter(|path| fs::create_dir_all(path).is_ok()),
            leader,
            start,
            found: Arc::default(),
        }
    }

    /// The same, and moves the leader into it.
    pub fn create_entered(&self, leader: Pid, start: u64, number: u32) -> TenantCgroup {
        let mut group = self.create(leader, start, number);
        group.enter();
        group
    }

    /// Kills the processes left in groups without a tenant, and removes these groups: of tenants that ended while no
    /// daemon ran, and of tenants whose group could not be removed yet, since a process takes a
    /// moment longer to leave its group than to leave /proc.
    pub fn sweep(&self, is_tenant: impl Fn(u32) -> bool) {
        let folders = self.root.as_ref().map(fs::read_dir);
        for entry in folders.into_iter().flatten().flatten().flatten() {
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if number.is_some_and(|number| !is_tenant(number)) {
                let _ = fs::write(entry.path().join("cgroup.kill"), "1");
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// Keeps the group's memory out of the kernel's own swap, to which the kernel could else evict its anonymous memory.
    /// Returns a warning if it cannot.
    pub fn protect(&self, group: &TenantCgroup) -> &'static str {
        let swaps = fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1);
        let done = group
            .path
            .as_ref()
            .filter(|_| self.protects)
            .is_some_and(|path| fs::write(path.join("memory.swap.max"), "0").is_ok());
        match swaps && !done {
            true => SWAPS,
            false => "",
        }
    }
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        // Groups with live tenants in them stay for the next daemon; a group whose
        // last process had not quite ended when its tenant was removed does not.
        if let Some(root) = &self.root {
            for entry in fs::read_dir(root).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(root);
            let _ = root.parent().map(fs::remove_dir);
        }
    }
}

impl TenantCgroup {
    /// Moves the tenant into the group: the leader, and all that it starts from now on.
    pub fn enter(&mut self) {
        let (leader, start) = (self.leader, self.start);
        self.path = self.path.take().and_then(|path| {
            cgroup_origin::record(mount_of(&path)?, &path, leader);
            let pid = leader.as_raw_nonzero().to_string();
            match fs::write(path.join("cgroup.procs"), pid) {
                // If the leader ended meanwhile, its pid may be another process's, which must not be killed.
                Ok(()) if is_running(leader, start) => Some(path),
                _ => {
                    cgroup_origin::restore(mount_of(&path)?, &path, RETRY_PAUSE);
                    let _ = fs::remove_dir(&path);
                    None
                }
            }
        });
    }

    /// Returns true if the process that requested the contract still runs.
    pub fn is_alive(&self) -> bool {
        is_running(self.leader, self.start)
    }

    /// Returns true if the process of a new tenant is in this group.
    pub fn contains(&self, new: &TenantRecord) -> bool {
        let there = |pid| self.path.is_some() && self.processes().contains(&pid);
        new.process().is_some_and(there)
    }

    /// Its processes; an empty list where they cannot be read.
    pub fn processes(&self) -> Vec<Pid> {
        self.try_processes().unwrap_or_default()
    }

    /// Its processes; an error where they cannot be read, most likely for lack of a descriptor.
    pub fn try_processes(&self) -> io::Result<Vec<Pid>> {
        let path = self.path.as_ref().map(|path| path.join("cgroup.procs"));
        match path.map(fs::read_to_string) {
            Some(Ok(text)) => {
                let pids = text.lines().filter_map(|line| line.parse().ok());
                return Ok(pids.filter_map(Pid::from_raw).collect());
            }
            Some(Err(why)) if procfs::is_shortage(&why) => return Err(why),
            _ => {}
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(self.leader, self.start);
        found.retain(|pid, start| is_running(*pid, *start));
        let mut all: HashSet<Pid> = found.keys().copied().collect();
        let roots = match self.is_alive() {
            true => vec![self.leader],
            false => all.iter().copied().collect(),
        };
        for root in roots {
            all.extend(process_tree::try_below(root)?);
        }
        for pid in &all {
            if let Some(stat) = process_tree::ProcStat::of(*pid) {
                found.entry(*pid).or_insert(stat.start);
            }
        }
        Ok(all.into_iter().collect())
    }

    /// About how many bytes of anonymous memory are resident, by the kernel's count, beyond `own` bytes of each process
    /// for its pager: half of the sum, as if every second process were a pager process, which shares its program's
    /// memory. Pages that are shared after a fork count in each process. It does not block.
    pub fn resident_estimate(&self, own: u64) -> u64 {
        let processes = self.processes();
        let bytes = |pid: &Pid| procfs::anonymous(*pid).ok().flatten().unwrap_or(0);
        let beyond = |pid| bytes(pid).saturating_sub(own);
        processes.iter().map(beyond).sum::<u64>() / 2
    }

    /// The same count with each address space counted once; an error where /proc cannot be read. It waits for a process that
    /// executes a program until its old address space is torn down, with all I/O in it: so the daemon's loop must not call it.
    pub fn resident(&self, own: u64) -> io::Result<u64> {
        self.resident_by(own, procfs::anonymous)
    }

    /// The same count with shared pages counted once, too. It also waits for the lock of each address space.
    pub fn resident_exactly(&self, own: u64) -> io::Result<u64> {
        self.resident_by(own, |pid| {
            Ok(procfs::rollup(pid)?.map(|memory| memory.anonymous))
        })
    }

    /// A program and its pager process share one address space, which counts once. The unused part of one address space's
    /// `own` bytes is not allowed to another.
    fn resident_by(
        &self,
        own: u64,
        bytes: impl Fn(Pid) -> io::Result<Option<u64>>,
    ) -> io::Result<u64> {
        let spaces = AddressSpaces::of(&self.try_processes()?);
        let beyond = |pid: &Pid| Ok(bytes(*pid)?.unwrap_or(0).saturating_sub(own));
        let sum = |pids: &[Pid]| pids.iter().map(beyond).sum::<io::Result<u64>>();
        // Of the processes that cannot be compared at most every second one is a pager process.
        Ok(sum(&spaces.distinct)? + sum(&spaces.unknown)? / 2)
    }

    /// Kills its processes and waits until their anonymous memory is free, however long the kernel keeps a process: a warning
    /// is logged after `usual`. The last process may end some time later, which a caller that needs only the memory
    /// does not wait for.
    pub fn kill_and_await_memory(&self, usual: Duration) {
        process_killer::kill_until(self, usual, |pid| {
            Ok(procfs::anonymous(pid)?.is_none_or(|bytes| bytes <= COUNT_LAG))
        });
    }

    /// Kills its processes and waits until they have ended, with a warning after `usual`. Returns how many processes there were.
    pub fn kill_and_await_exit(&self, usual: Duration) -> usize {
        process_killer::kill_until(self, usual, |_| Ok(false))
    }

    /// Moves its processes, which belong to no tenant any more, back to the group that they came from.
    pub fn release(&self) {
        if let Some(path) = &self.path
            && let Some(mount) = mount_of(path)
        {
            cgroup_origin::restore(mount, path, cgroup_origin::RESTORE_TIMEOUT);
        }
    }

    /// Removes the group.
    pub fn remove(&self) {
        let _ = self.path.as_ref().map(fs::remove_dir);
    }
}

/// Where the control groups are mounted that a tenant's group belongs to: between the two are the daemon's group and
/// the folder of all daemons.
fn mount_of(group: &Path) -> Option<&Path> {
    group.ancestors().nth(3)
}

#[cfg(test)]
mod tests;
