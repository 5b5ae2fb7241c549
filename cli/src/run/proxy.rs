//! What the user started: stands for the program towards its terminal and its shell.
//!
//! Program, keeper and proxy are in one process group. So what the terminal sends
//! (interrupt, quit, stop, window size) the program gets by itself, and only what was
//! sent to the proxy alone is passed on. When the program stops, the proxy stops: that
//! is what the shell sees.

use super::control::Message;
use super::keeper;
use super::plan::Plan;
use super::signals::{Inherited, Signals, die_by};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long to see that everything killed has really ended.
pub const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How long a process whose sockets are closed may take to be dead.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Runs the plan, and returns with the program's status, or ends as it ended.
pub fn stand_for(plan: Plan) -> Result<ExitCode, Box<dyn Error>> {
    let ours = keep_open(&plan);
    let inherited_fds: Vec<RawFd> = open_descriptors()
        .into_iter()
        .filter(|fd| *fd > 2 && !ours.contains(fd))
        .collect();
    let (signals, inherited) = Signals::take()?;
    set_child_subreaper(Some(getpid()))?;
    let (mine, keepers) = system::seqpacket::pair()?;
    // SAFETY: this process has one thread, so the child may go on as it likes.
    match unsafe { libc::fork() } {
        -1 => Err(format!("cannot fork: {}", std::io::Error::last_os_error()).into()),
        0 => {
            drop((mine, signals));
            keep(plan, keepers, inherited, inherited_fds)
        }
        keeper => {
            let killer = match plan.system {
                Some(_) => {
                    "by the system's daemon for a contract that was not kept (its log says so), by a user"
                }
                None => "by a user",
            };
            drop((keepers, plan));
            // Whoever reads what the program writes must see its end, not ours.
            let_go(&inherited_fds);
            let keeper = Pid::from_raw(keeper).ok_or("fork gave no process")?;
            Ok(watch(&mine, &signals, keeper, killer))
        }
    }
}

fn keep(plan: Plan, control: OwnedFd, inherited: Inherited, fds: Vec<RawFd>) -> ! {
    let status = keeper::keep(plan, control, inherited, &fds);
    std::process::exit(status)
}

fn watch(control: &OwnedFd, signals: &Signals, keeper: Pid, killer: &str) -> ExitCode {
    loop {
        let mut fds = [
            PollFd::new(control, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
        ];
        let _ = poll(&mut fds, None);
        while let Some(arrived) = signals.next() {
            let ours = arrived.sender == keeper.as_raw_nonzero().get();
            let sent = arrived.code <= 0 && !ours;
            if sent && arrived.signal != libc::SIGCHLD {
                let _ = Message::Signal(arrived).send(control);
            }
        }
        loop {
            match Message::receive(control) {
                Ok(Some(Message::Stopped(_))) => {
                    // SAFETY: stops this process, until someone continues it.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
                Ok(Some(Message::Ended(status))) => return end(status),
                Ok(Some(Message::Failed(status))) => return ExitCode::from(status as u8),
                Ok(Some(Message::Signal(_))) => {}
                Ok(None) => break,
                Err(_) => return orphaned(keeper, killer),
            }
        }
    }
}

/// The keeper is gone without a word: it was killed, by whom SIGKILL may be from (`killer`).
fn orphaned(keeper: Pid, killer: &str) -> ExitCode {
    let end = how_it_ended(keeper, killer);
    system::process_tree::kill_below(KILL_LIMIT);
    system::reservation::release(std::process::id());
    crate::say!(
        "selfpage: the supervisor of this run (process {}) {end}, so the program and all that it started were ended: \
         without it nothing takes back what a process that dies leaves behind",
        keeper.as_raw_nonzero()
    );
    ExitCode::from(crate::OWN_FAILURE)
}

/// In words. Its socket closes a moment before it can be waited for.
fn how_it_ended(keeper: Pid, killer: &str) -> String {
    let begin = Instant::now();
    while begin.elapsed() < LAST_MOMENT {
        match waitpid(Some(keeper), WaitOptions::NOHANG) {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some((_, status))) => {
                return match (status.terminating_signal(), status.exit_status()) {
                    (Some(libc::SIGKILL), _) => {
                        format!(
                            "was killed by signal 9: {killer}, or by the kernel for want of memory"
                        )
                    }
                    (Some(signal), _) => format!("was ended by signal {signal}"),
                    (None, code) => format!("failed with status {}", code.unwrap_or(0)),
                };
            }
            Err(_) => break,
        }
    }
    "does not answer any more".into()
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

/// Descriptors of the plan's own, that must stay open.
fn keep_open(plan: &Plan) -> Vec<RawFd> {
    use rustix::fd::AsRawFd;
    let device = plan.userfaultfd.iter().map(|fd| fd.as_raw_fd());
    let figures = plan.stats_json.iter().map(|file| file.as_raw_fd());
    device.chain(figures).collect()
}

/// The descriptors open now.
pub fn open_descriptors() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let numbers = folder
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.collect();
    // The folder's own is among them, and closed by now.
    // SAFETY: asks about a number.
    numbers
        .into_iter()
        .filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0)
        .collect()
}

/// Closes what only the program should hold: inherited descriptors, and the standard
/// streams but the one we complain on.
pub fn let_go(inherited: &[RawFd]) {
    for fd in inherited {
        // SAFETY: inherited, so nothing in this process owns it.
        unsafe { libc::close(*fd) };
    }
    use rustix::fs::{Mode, OFlags, open};
    let Ok(null) = open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    for stream in [0, 1] {
        // SAFETY: the standard streams are this program's own; nothing else owns them.
        unsafe { libc::dup2(rustix::fd::AsRawFd::as_raw_fd(&null), stream) };
    }
}

/// Used by both to wait on a descriptor that may be absent.
pub fn borrowed<'a>(fd: Option<BorrowedFd<'a>>, fds: &mut Vec<PollFd<'a>>) {
    fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
}
