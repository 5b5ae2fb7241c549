//! The end of a tenant's processes.
//!
//! Rule: a process that has not ended keeps its frames. One that waits in the kernel for a device or a file system,
//! uninterruptibly, ends after that wait, and its memory is resident until then.

use super::{SHORT, TenantCgroup};
use host::process_tree::{self, release_memory};
use host::procfs;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// How often a killed tenant is polled until its memory has come back.
const LOOK: Duration = Duration::from_millis(1);

/// Killed processes that are held at a time: with all of a large tenant's held the daemon would have no descriptor left.
const MOST_HELD: usize = 32;

/// Processes that one line of the log names.
const MOST_NAMED: usize = 8;

/// Kills a tenant's processes and waits until each is done with, by `enough` or by its end, however long the kernel
/// keeps one. Processes that cannot be read of may live. Logs once what it still waits for after `usual`. Returns how
/// many processes there were.
pub(super) fn kill_until(
    group: &TenantCgroup,
    usual: Duration,
    enough: impl Fn(Pid) -> io::Result<bool>,
) -> usize {
    let begin = Instant::now();
    let mut killer = ProcessKiller::default();
    let (mut was_unknown, mut was_late) = (false, false);
    let leader = group.leader.as_raw_nonzero();
    loop {
        match killer.run_round(group, &enough) {
            Ok(left) if left.is_empty() => return killer.killed.len(),
            Ok(_) if begin.elapsed() <= usual => std::thread::sleep(LOOK),
            Ok(left) => {
                if !std::mem::replace(&mut was_late, true) {
                    let named = left.iter().take(MOST_NAMED).map(Pid::to_string);
                    tracing::warn!(
                        "{} killed processes of a tenant (the first was process {leader}) have not ended: {}; what the \
                         tenant has stays taken until they have. /proc/PID/stack shows what in the kernel each waits for",
                        left.len(),
                        named.collect::<Vec<_>>().join(", ")
                    );
                }
                std::thread::sleep(SHORT);
            }
            Err(why) => {
                if !std::mem::replace(&mut was_unknown, true) {
                    tracing::warn!(
                        "the processes of a killed tenant (the first was process {leader}) cannot be read: {why}; its \
                         frames are free once they can be, and have ended"
                    );
                }
                // What is short may be what these take.
                killer.held.clear();
                std::thread::sleep(SHORT);
            }
        }
    }
}

/// The end of a tenant's processes, in rounds.
#[derive(Default)]
struct ProcessKiller {
    /// Those whose memory is being freed.
    held: Vec<(Pid, OwnedFd)>,
    /// All that there were.
    killed: HashSet<Pid>,
}

impl ProcessKiller {
    /// Kills the processes there are. Returns those that are not done with; an error where that is not known.
    fn run_round(
        &mut self,
        group: &TenantCgroup,
        enough: impl Fn(Pid) -> io::Result<bool>,
    ) -> io::Result<Vec<Pid>> {
        // Before the processes' descriptors, which may be the last that are free.
        let kill = group.path.as_ref().map(|path| path.join("cgroup.kill"));
        let kill = kill.and_then(|path| File::options().write(true).open(path).ok());
        let short = self.hold(group);
        let at_once = kill.is_some_and(|mut kill| kill.write_all(b"1").is_ok());
        for (_, fd) in &self.held {
            if !at_once {
                let _ = pidfd_send_signal(fd, Signal::KILL);
            }
            release_memory(fd);
        }
        let mut left = Vec::new();
        for pid in group.try_processes()? {
            if !has_ended(pid)? && !enough(pid)? {
                left.push(pid);
            }
        }
        match short {
            Err(why) if !at_once && !left.is_empty() => Err(why),
            _ => Ok(left),
        }
    }

    /// Holds processes before they are killed: their memory is freed through these.
    fn hold(&mut self, group: &TenantCgroup) -> io::Result<()> {
        self.held
            .retain(|(pid, _)| !has_ended(*pid).unwrap_or(false));
        let (mut new, mut held) = (Vec::new(), Ok(()));
        for pid in group.try_processes()? {
            let is_known = self.held.iter().any(|(known, _)| *known == pid);
            if is_known || self.held.len() + new.len() == MOST_HELD {
                continue;
            }
            match pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from) {
                Ok(fd) => new.push((pid, fd)),
                Err(why) if procfs::is_shortage(&why) => {
                    // Some, and what it takes to read of them.
                    new.truncate(new.len().saturating_sub(2));
                    held = Err(why);
                    break;
                }
                Err(_) => {}
            }
        }
        // A number may have become another's before it was held.
        let still = group.try_processes()?;
        new.retain(|(pid, _)| still.contains(pid));
        self.killed.extend(still);
        self.held.extend(new);
        held
    }
}

/// Returns true if a process has ended; an error where there was nothing to find it out by.
fn has_ended(pid: Pid) -> io::Result<bool> {
    match process_tree::ProcStat::read(pid) {
        Ok(stat) => Ok(stat.is_none_or(|stat| stat.is_dead())),
        Err(why) if procfs::is_shortage(&why) => Err(why),
        Err(_) => Ok(false),
    }
}
