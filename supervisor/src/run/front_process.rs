//! The process that the user started, which stands for the program towards its terminal and its shell.
//!
//! Program and front process are in one process group. So the program receives the terminal's
//! signals (interrupt, quit, stop, window size) directly, and the supervisor forwards only signals
//! that the front process received and the group did not. When the program stops, the supervisor stops the front process, so that the shell sees it.

use super::group_signals::GroupWitness;
use super::ipc::Message;
use super::limits;
use super::signals::{Signals, die_by};
use super::supervise::{END_SIGNALS, supervise};
use super::{FinishedRun, OWN_FAILURE, RunSpec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, waitpid,
};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest wait for killed processes to end.
pub const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Longest time from the close of a process's sockets to its death.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// Runs a program, and returns its status, or ends by the signal that ended it. `report` is called in the
/// supervisor when the last process of the tree has ended; where it fails, a program's success is this process's failure.
pub fn run(
    spec: RunSpec,
    report: impl FnOnce(FinishedRun<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<ExitCode, Box<dyn Error>> {
    let device = spec.userfaultfd.iter().map(|fd| fd.as_raw_fd());
    let ours: Vec<RawFd> = device.chain(spec.kept_fds.iter().copied()).collect();
    let inherited_fds: Vec<RawFd> = open_descriptors()
        .into_iter()
        .filter(|fd| *fd > 2 && !ours.contains(fd))
        .collect();
    let (signals, inherited) = Signals::take()?;
    set_child_subreaper(Some(getpid()))?;
    let (group, witness) = GroupWitness::start()
        .map_err(|errno| format!("cannot start the group witness: {errno}"))?;
    let (mine, theirs) = host::seqpacket::pair()?;
    // SAFETY: this process has one thread, so the child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(format!("cannot fork: {}", std::io::Error::last_os_error()).into()),
        0 => {
            drop((mine, signals));
            // A stopped supervisor continues when this process is killed, and ends the tree; a running one ignores the
            // signal.
            let _ = set_parent_process_death_signal(Some(Signal::CONT));
            let status = supervise(spec, theirs, group, inherited, &inherited_fds, report);
            std::process::exit(status)
        }
        supervisor => {
            let killer = match spec.daemon {
                Some(_) => "by the daemon for a violated contract (see its log), by a user",
                None => "by a user",
            };
            drop((theirs, group, spec, report));
            // Readers of the program's output must see end of file when the program closes it.
            release(&inherited_fds);
            let supervisor = Pid::from_raw(supervisor).ok_or("fork gave no process")?;
            let children = Children {
                supervisor,
                witness,
            };
            Ok(watch(&mine, &signals, &children, killer))
        }
    }
}

/// The children of the front process.
struct Children {
    supervisor: Pid,
    /// The group witness, which ends with the front process.
    witness: Pid,
}

impl Children {
    fn await_release(&self) {
        await_release(self.supervisor);
        await_release(self.witness);
    }
}

fn watch(control: &OwnedFd, signals: &Signals, children: &Children, killer: &str) -> ExitCode {
    let supervisor = children.supervisor;
    let mut is_started = false;
    loop {
        let mut fds = [
            PollFd::new(control, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
        ];
        let _ = poll(&mut fds, None);
        loop {
            match Message::receive(control) {
                Ok(Some(Message::Ended(status))) => {
                    children.await_release();
                    return end(status);
                }
                Ok(Some(Message::Failed(status))) => {
                    children.await_release();
                    return ExitCode::from(status as u8);
                }
                Ok(Some(Message::Started)) => is_started = true,
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return orphaned(supervisor, killer),
            }
        }
        while let Some(arrived) = signals.next() {
            let ours = arrived.sender == supervisor.as_raw_nonzero().get();
            if ours || arrived.signal == libc::SIGCHLD {
                continue;
            }
            if !is_started && requests_end(arrived.signal) {
                return cancel(children, arrived.signal);
            }
            let _ = Message::Signal(arrived).send(control);
        }
    }
}

/// Returns true if a signal requests termination and this process was not started to ignore it.
fn requests_end(signal: i32) -> bool {
    let ends = END_SIGNALS.iter().any(|one| one.as_raw() == signal);
    ends && !host::signals::is_ignored(signal)
}

/// Ends by `signal` before the program was started: the supervisor may wait long for its contract, and has
/// made nothing yet that outlives it.
fn cancel(children: &Children, signal: i32) -> ExitCode {
    let _ = kill_process(children.supervisor, Signal::KILL);
    children.await_release();
    host::process_tree::kill_below(KILL_LIMIT);
    host::cpu_reservation::release(std::process::id());
    end(signal)
}

/// Waits for the end of a child whose tree has ended: its room in the swap file and the memory of compressed
/// pages are free then, for the next run. A pidfd is readable once the last thread has ended. The
/// child is reaped here, since the first process of a container may not do that.
fn await_release(child: Pid) {
    let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) else {
        return;
    };
    let limit = Timespec::try_from(KILL_LIMIT).ok();
    let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], limit.as_ref());
    let _ = waitpid(Some(child), WaitOptions::NOHANG);
}

/// Reports that the supervisor has ended without a message: it was killed. `killer` names the likely causes.
fn orphaned(supervisor: Pid, killer: &str) -> ExitCode {
    let end = how_it_ended(supervisor, killer);
    host::process_tree::kill_below(KILL_LIMIT);
    host::cpu_reservation::release(std::process::id());
    tracing::error!(
        "the supervisor of this run (process {}) {end}, so the program and all that it started were ended: \
         without it nothing reclaims the frames of dead processes",
        supervisor.as_raw_nonzero()
    );
    ExitCode::from(OWN_FAILURE)
}

/// Describes the supervisor's end. Its socket closes shortly before it can be reaped.
fn how_it_ended(supervisor: Pid, killer: &str) -> String {
    let begin = Instant::now();
    while begin.elapsed() < EXIT_GRACE {
        match waitpid(Some(supervisor), WaitOptions::NOHANG) {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some((_, status))) => {
                return match (status.terminating_signal(), status.exit_status()) {
                    (Some(libc::SIGKILL), _) => {
                        let limit = limits::processor_time().map(|seconds| {
                            format!(", or for its limit on processor time (`ulimit -t {seconds}`)")
                        });
                        format!(
                            "was killed by signal 9: {killer}, or by the kernel for want of memory{}",
                            limit.unwrap_or_default()
                        )
                    }
                    (Some(signal), _) => format!("was ended by signal {signal}"),
                    (None, code) => format!("failed with status {}", code.unwrap_or(0)),
                };
            }
            Err(_) => break,
        }
    }
    "does not reply any more".into()
}

/// Ends as the program ended.
fn end(status: i32) -> ExitCode {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        die_by(signal);
        return ExitCode::from(128u8.wrapping_add(signal as u8));
    }
    ExitCode::from(libc::WEXITSTATUS(status) as u8)
}

/// Lists the open descriptors.
pub fn open_descriptors() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let numbers = folder
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.collect();
    // The descriptor of the folder is among them, and closed by now.
    // SAFETY: queries a descriptor number.
    numbers
        .into_iter()
        .filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0)
        .collect()
}

/// Closes the descriptors that only the program should hold: inherited ones, and the standard
/// streams except standard error.
pub fn release(inherited: &[RawFd]) {
    for fd in inherited {
        // SAFETY: inherited, so no code of this process owns it.
        unsafe { libc::close(*fd) };
    }
    use rustix::fs::{Mode, OFlags, open};
    let Ok(null) = open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    for stream in [0, 1] {
        // SAFETY: no code of this process owns the standard streams.
        unsafe { libc::dup2(rustix::fd::AsRawFd::as_raw_fd(&null), stream) };
    }
}

/// Adds a descriptor that may be absent to those to poll.
pub fn add_poll_fd<'a>(fd: Option<BorrowedFd<'a>>, fds: &mut Vec<PollFd<'a>>) {
    fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
}
