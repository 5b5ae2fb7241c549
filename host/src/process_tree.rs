//! The processes below one, by /proc, and their end.

use crate::procfs::is_shortage;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use std::collections::HashMap;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The fields of /proc/PID/stat.
#[derive(Clone, Copy, Debug)]
pub struct ProcStat {
    /// The state: R, S, D, T, t, Z or X.
    pub state: u8,
    /// The parent; `None` for the first process of the namespace.
    pub parent: Option<Pid>,
    /// The start time in clock ticks since boot: with the process number it identifies the process for ever.
    pub start: u64,
    /// The kernel's flags of the first thread.
    flags: u32,
    /// The number of threads.
    threads: u32,
}

/// The flag of a thread that ends: PF_EXITING of sched.h.
const EXITING: u32 = 4;

impl ProcStat {
    /// Of a process; `None` where it does not exist or /proc cannot be read.
    pub fn of(pid: Pid) -> Option<Self> {
        Self::read(pid).ok()?
    }

    /// Of a process; `None` where it does not exist, and an error where /proc cannot be read, most likely for want of a descriptor.
    pub fn read(pid: Pid) -> io::Result<Option<Self>> {
        /// Bytes of 52 numbers of 20 digits, and a name.
        const LONGEST: usize = 2 << 10;
        match read_at_once(pid, "stat", &mut [0; LONGEST]) {
            Ok(stat) => Ok(Self::parse(stat)),
            Err(why) => match why.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => Ok(None),
                // No process of that number exists, whatever the error.
                _ if test_kill_process(pid) == Err(Errno::SRCH) => Ok(None),
                _ => Err(why),
            },
        }
    }

    /// Parses the contents of a /proc/PID/stat.
    pub fn parse(stat: &[u8]) -> Option<Self> {
        // The name stands in brackets and may hold brackets and spaces itself.
        let after = stat.iter().rposition(|b| *b == b')')? + 1;
        let mut words = stat
            .get(after..)?
            .split(|b| *b == b' ')
            .filter(|w| !w.is_empty());
        let state = *words.next()?.first()?;
        let parent = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        // The parent was field 4; the flags are field 9, the threads field 20, the start time is field 22.
        let flags = std::str::from_utf8(words.nth(4)?).ok()?.parse().ok()?;
        let mut number = |fields| {
            let word = words.nth(fields)?;
            std::str::from_utf8(word).ok()?.parse::<u64>().ok()
        };
        let (threads, start) = (number(10), number(1));
        Some(Self {
            state,
            parent: Pid::from_raw(parent),
            start: start.unwrap_or(0),
            flags,
            threads: threads.unwrap_or(1) as u32,
        })
    }

    /// Returns true if the first thread is ending, or has ended. The kernel sets the flag of an ending
    /// thread before it clears the thread's number in memory.
    pub fn is_exiting(&self) -> bool {
        matches!(self.state, b'Z' | b'X') || self.flags & EXITING != 0
    }

    /// Returns true if the process does not run: it is stopped by a signal or a tracer, or has ended.
    pub fn is_stopped_or_dead(&self) -> bool {
        self.is_dead() || matches!(self.state, b'T' | b't')
    }

    /// Returns true if the process has ended and waits to be reaped. The state of a process whose first
    /// thread has ended is a zombie's, too, while its other threads run.
    pub fn is_dead(&self) -> bool {
        self.state == b'X' || self.state == b'Z' && self.threads <= 1
    }
}

/// A process, identified for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot; 0 where unknown.
    pub start: u64,
}

/// The process that has this number now.
pub fn process(pid: Pid) -> Process {
    let start = ProcStat::of(pid).map_or(0, |stat| stat.start);
    Process {
        pid: pid.as_raw_nonzero().get() as u32,
        start,
    }
}

/// Returns true if a process still runs, or if that is unknown.
pub fn is_alive(process: Process) -> bool {
    let is_same =
        |stat: ProcStat| !stat.is_dead() && (process.start == 0 || stat.start == process.start);
    Pid::from_raw(process.pid as i32).is_some_and(|pid| may_match(pid, is_same))
}

/// Returns true if a process matches, or if that is unknown: a running process is never taken for an ended one.
fn may_match(pid: Pid, matches: impl FnOnce(ProcStat) -> bool) -> bool {
    ProcStat::read(pid).map_or(true, |stat| stat.is_some_and(matches))
}

/// A process's number in its own PID namespace.
pub fn inner_pid(pid: Pid) -> Option<u32> {
    let status = read_status(pid).ok()?;
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// The `status` file of a process or thread. Its name may be any bytes, so the text is converted lossily.
fn read_status(pid: Pid) -> io::Result<String> {
    /// Bytes of a file with a few dozen lines.
    const LONGEST: usize = 8 << 10;
    let mut status = [0; LONGEST];
    let status = read_at_once(pid, "status", &mut status)?;
    Ok(String::from_utf8_lossy(status).into_owned())
}

/// The process of a thread; an error where a shortage of descriptors or memory keeps it unknown.
pub fn process_of(thread: Pid) -> io::Result<Option<Pid>> {
    let status = match read_status(thread) {
        Err(why) if is_shortage(&why) => return Err(why),
        status => status.unwrap_or_default(),
    };
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    Ok(number.and_then(|number| Pid::from_raw(number.trim().parse().ok()?)))
}

/// Returns true if the process with this number and start time still runs, or if that is unknown.
pub fn is_running(pid: Pid, start: u64) -> bool {
    may_match(pid, |stat| stat.start == start && !stat.is_dead())
}

/// Reads a file of a process's in /proc by one read: the kernel formats it as a whole, and each process
/// that joins a tree costs several such reads.
fn read_at_once<'a>(pid: Pid, name: &str, into: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let mut file = std::fs::File::open(format!("/proc/{}/{name}", pid.as_raw_nonzero()))?;
    let len = file.read(into)?;
    Ok(&into[..len])
}

/// Returns true if `pid` is `ancestor` or below it. A process whose parent ended is below its
/// nearest subreaper.
pub fn descends(pid: Pid, ancestor: Pid) -> bool {
    let mut at = Some(pid);
    while let Some(pid) = at {
        if pid == ancestor {
            return true;
        }
        at = ProcStat::of(pid).and_then(|stat| stat.parent);
    }
    false
}

/// Returns true if `pid` is at most `levels` generations below `ancestor`. The bound is for untrusted
/// processes, which may be any number of generations deep.
pub fn descends_within(pid: Pid, ancestor: Pid, levels: usize) -> bool {
    let parent = |pid: &Pid| ProcStat::of(*pid).and_then(|stat| stat.parent);
    std::iter::successors(Some(pid), parent)
        .take(levels + 1)
        .any(|pid| pid == ancestor)
}

/// The parent and the users of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcStatus {
    /// The parent; `None` for the first process of the namespace.
    pub parent: Option<Pid>,
    /// Its real user.
    pub user: u32,
    /// Its effective user, which decides which processes it may signal.
    pub effective_user: u32,
}

/// The kernel's `struct pidfd_info`, as of its first version.
#[repr(C)]
#[derive(Default)]
pub struct PidfdInfo {
    /// The requested fields; on return, the fields that the kernel filled.
    pub mask: u64,
    cgroup: u64,
    pid: u32,
    /// The process's number in the caller's namespace: [`PIDFD_INFO_PID`].
    pub tgid: u32,
    ppid: u32,
    ruid: u32,
    rgid: u32,
    euid: u32,
    /// Saved and file-system users and groups; the exit status.
    others: [u32; 6],
}

/// A bit of [`PidfdInfo::mask`]: the process numbers.
pub const PIDFD_INFO_PID: u64 = 1;

/// Linux 6.13.
pub const PIDFD_GET_INFO: libc::Ioctl =
    rustix::ioctl::opcode::read_write::<PidfdInfo>(0xff, 11) as libc::Ioctl;
const PIDFD_INFO_CREDS: u64 = 1 << 1;

impl ProcStatus {
    /// Of a process; `None` where it does not exist or cannot be read.
    pub fn of(pid: Pid) -> Option<Self> {
        Self::read(pid).ok()?
    }

    /// Of a process; `None` where it does not exist, and an error where a shortage of descriptors or memory keeps it unknown.
    pub fn read(pid: Pid) -> io::Result<Option<Self>> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
        let status = pidfd.and_then(|pidfd| match Self::of_pidfd(&pidfd) {
            None => Self::of_proc(pid),
            status => Ok(status),
        });
        match status {
            Err(why) if !is_shortage(&why) => Ok(None),
            status => status,
        }
    }

    /// By an ioctl on a pidfd, which takes a tenth of the time of /proc, where the kernel formats every field.
    fn of_pidfd(pidfd: &OwnedFd) -> Option<Self> {
        let mut info = PidfdInfo {
            mask: PIDFD_INFO_CREDS,
            ..PidfdInfo::default()
        };
        // SAFETY: the structure of this request, whose size its number states.
        let answer = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (answer == 0 && info.mask & PIDFD_INFO_CREDS != 0).then(|| Self {
            parent: Pid::from_raw(info.ppid as i32),
            user: info.ruid,
            effective_user: info.euid,
        })
    }

    fn of_proc(pid: Pid) -> io::Result<Option<Self>> {
        /// Room for the whole file, with its lists of processors and memory nodes.
        const LONGEST: usize = 16 << 10;
        let mut buffer = vec![0; LONGEST];
        Ok(Self::parse(read_at_once(pid, "status", &mut buffer)?))
    }

    /// Parses the contents of a /proc/PID/status.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split(|b| *b == b'\n');
        // The kernel writes the lines in this order, and escapes a newline in the name.
        let mut field = |name: &str| {
            let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
            std::str::from_utf8(line).ok()
        };
        let parent = field("PPid:")?.trim().parse().ok()?;
        // Real, effective, saved, of files.
        let mut users = field("Uid:")?.split_whitespace().map(str::parse);
        Some(Self {
            parent: Pid::from_raw(parent),
            user: users.next()?.ok()?,
            effective_user: users.next()?.ok()?,
        })
    }
}

/// All live processes below `root`, without `root`, parents before their children. Empty where they cannot be read.
pub fn below(root: Pid) -> Vec<Pid> {
    try_below(root).unwrap_or_default()
}

/// As [`below`], with an error where the processes cannot be read, most likely for want of a descriptor.
pub fn try_below(root: Pid) -> io::Result<Vec<Pid>> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        // Not by `stat`: while that is read, the kernel keeps the memory of an ending process, and with it files that
        // other processes wait to write or unmount.
        let Some(pid) = pid else { continue };
        if let Some(parent) = ProcStatus::read(pid)?.and_then(|status| status.parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found.retain(|pid| may_match(*pid, |stat| !stat.is_dead()));
    Ok(found)
}

/// Sends `signal` to every process of `pids` that is still below this one.
pub fn signal_all(pids: &[Pid], signal: Signal) {
    let us = rustix::process::getpid();
    for pid in pids {
        // The number may belong to another process by now: open a pidfd, then check the ancestry.
        let Ok(held) = pidfd_open(*pid, PidfdFlags::empty()) else {
            continue;
        };
        if descends(*pid, us) {
            let _ = pidfd_send_signal(&held, signal);
        }
    }
}

/// Kills all processes below this one, which must be their subreaper, and reaps them.
/// Repeats until none is left, since processes fork while others are killed.
/// Returns the number of killed processes; after `limit` it leaves those in an
/// uninterruptible wait, which end when the wait does.
pub fn kill_below(limit: Duration) -> usize {
    let (begin, mut killed) = (Instant::now(), std::collections::HashSet::new());
    loop {
        reap();
        let known = try_below(rustix::process::getpid());
        let is_done = known.as_ref().is_ok_and(Vec::is_empty);
        if is_done || begin.elapsed() > limit {
            return killed.len();
        }
        let left = known.unwrap_or_default();
        signal_all(&left, Signal::KILL);
        killed.extend(left);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Frees the memory of a process that was killed, before its threads have run and ended.
pub fn release_memory(pidfd: &OwnedFd) {
    // SAFETY: takes a descriptor and flags, touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0) };
}

/// Reaps every child that has ended, orphans of other processes included.
fn reap() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

#[cfg(test)]
mod tests;
