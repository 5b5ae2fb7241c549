//! The end of a tenant's processes.
//!
//! Rule: a process that has not ended keeps its frames. One that waits in the kernel for a device or a file system,
//! uninterruptibly, ends after that wait, and its memory is resident until then.

use super::{RETRY_PAUSE, TenantCgroup};
use host::process_tree::{self, release_memory};
use host::procfs;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// How often a killed tenant is polled until its memory is freed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The most killed processes that are held by a pidfd at a time: with pidfds of all processes of a large tenant the
/// daemon would have no descriptor left.
const MAX_HELD: usize = 32;

/// The most processes that one line of the log names.
const MAX_NAMED: usize = 8;

/// Kills a tenant's processes and waits until each has ended or `is_enough` is true of it, however long the kernel
/// keeps a process. Processes of which nothing can be read may still run. After `usual`, logs once the processes that
/// it still waits for. Returns how many processes there were.
pub(super) fn kill_until(
    group: &TenantCgroup,
    usual: Duration,
    is_enough: impl Fn(Pid) -> io::Result<bool>,
) -> usize {
    let begin = Instant::now();
    let mut killer = ProcessKiller::default();
    let (mut was_unknown, mut was_late) = (false, false);
    let leader = group.leader.as_raw_nonzero();
    loop {
        match killer.run_round(group, &is_enough) {
            Ok(left) if left.is_empty() => return killer.killed.len(),
            Ok(_) if begin.elapsed() <= usual => std::thread::sleep(POLL_INTERVAL),
            Ok(left) => {
                if !std::mem::replace(&mut was_late, true) {
                    let named = left.iter().take(MAX_NAMED).map(Pid::to_string);
                    tracing::warn!(
                        "{} killed processes of a tenant (the first was process {leader}) have not ended: {}; what the \
                         tenant has stays taken until they have. /proc/PID/stack shows what in the kernel each waits for",
                        left.len(),
                        named.collect::<Vec<_>>().join(", ")
                    );
                }
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(why) => {
                if !std::mem::replace(&mut was_unknown, true) {
                    tracing::warn!(
                        "the processes of a killed tenant (the first was process {leader}) cannot be read: {why}; its \
                         frames are free once they can be, and have ended"
                    );
                }
                // The pidfds that are held may be the descriptors that are lacking.
                killer.held.clear();
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }
}

/// Kills a tenant's processes, in rounds.
#[derive(Default)]
struct ProcessKiller {
    /// Processes whose memory is being freed.
    held: Vec<(Pid, OwnedFd)>,
    /// All processes that there were.
    killed: HashSet<Pid>,
}

impl ProcessKiller {
    /// Kills the present processes. Returns those that have neither ended nor freed enough memory; an error where that is not known.
    fn run_round(
        &mut self,
        group: &TenantCgroup,
        is_enough: impl Fn(Pid) -> io::Result<bool>,
    ) -> io::Result<Vec<Pid>> {
        // Opened before the pidfds, which may take the last descriptors that are free.
        let kill = group.path.as_ref().map(|path| path.join("cgroup.kill"));
        let kill = kill.and_then(|path| File::options().write(true).open(path).ok());
        let lack = self.hold(group);
        let at_once = kill.is_some_and(|mut kill| kill.write_all(b"1").is_ok());
        for (_, fd) in &self.held {
            if !at_once {
                let _ = pidfd_send_signal(fd, Signal::KILL);
            }
            release_memory(fd);
        }
        let mut left = Vec::new();
        for pid in group.try_processes()? {
            if !has_ended(pid)? && !is_enough(pid)? {
                left.push(pid);
            }
        }
        match lack {
            Err(why) if !at_once && !left.is_empty() => Err(why),
            _ => Ok(left),
        }
    }

    /// Opens pidfds of processes before they are killed: their memory is freed through these.
    fn hold(&mut self, group: &TenantCgroup) -> io::Result<()> {
        self.held
            .retain(|(pid, _)| !has_ended(*pid).unwrap_or(false));
        let (mut new, mut held) = (Vec::new(), Ok(()));
        for pid in group.try_processes()? {
            let is_known = self.held.iter().any(|(known, _)| *known == pid);
            if is_known || self.held.len() + new.len() == MAX_HELD {
                continue;
            }
            match pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from) {
                Ok(fd) => new.push((pid, fd)),
                Err(why) if procfs::is_shortage(&why) => {
                    // Keeps two descriptors free, which reading the processes takes.
                    new.truncate(new.len().saturating_sub(2));
                    held = Err(why);
                    break;
                }
                Err(_) => {}
            }
        }
        // A pid may have been reused before its pidfd was opened.
        let still = group.try_processes()?;
        new.retain(|(pid, _)| still.contains(pid));
        self.killed.extend(still);
        self.held.extend(new);
        held
    }
}

/// Returns true if a process has ended; an error where a descriptor is lacking to find that out.
fn has_ended(pid: Pid) -> io::Result<bool> {
    match process_tree::ProcStat::read(pid) {
        Ok(stat) => Ok(stat.is_none_or(|stat| stat.is_dead())),
        Err(why) if procfs::is_shortage(&why) => Err(why),
        Err(_) => Ok(false),
    }
}
