//! The process of a manager, as its keeper sees it end.
//!
//! A manager that was killed has ended when its threads have. One that is in a call for a client may wait as long as the client
//! likes: a VMM holds the lock of its memfd while a hole is punched into it. Such a thread executes nothing of the manager's any
//! more. So a manager that has no other threads left has ended, and its successor leaves the clients of such threads alone until
//! their calls have returned ([`ClientRecord::has_server`](crate::client_record::ClientRecord::has_server)).

use host::killed_process::waits_in_kernel;
use host::restart_policy::{describe_end, wait_for_child};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, waitpid};
use std::fmt;
use std::time::{Duration, Instant};

/// How often its threads are polled.
pub(crate) const POLL_PERIOD: Duration = Duration::from_secs(1);
/// Polls in a row that find its threads in the kernel: a call that waits for a disk alone returns sooner.
const STUCK_POLLS: u32 = 3;

/// How a manager ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ManagerEnd {
    /// It has been waited for.
    Ended(Option<WaitStatus>),
    /// It was killed, and some of its threads wait in the kernel.
    Stuck,
}

impl ManagerEnd {
    /// Returns true if it ended as it was asked to.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Ended(Some(status)) if status.exit_status() == Some(0))
    }
}

impl fmt::Display for ManagerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(status) => f.write_str(&describe_end(*status)),
            Self::Stuck => f.write_str("a signal, while threads of it wait for guests"),
        }
    }
}

/// A child of the keeper's.
pub(crate) struct ManagerProcess {
    pid: Pid,
    pidfd: OwnedFd,
    polled: Instant,
    stuck_polls: u32,
}

impl ManagerProcess {
    pub fn open(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            polled: Instant::now(),
            stuck_polls: 0,
        })
    }

    /// Its end, if it has ended. `is_ready`: its descriptor is readable. To be called as often as [`POLL_PERIOD`].
    pub fn end(&mut self, is_ready: bool) -> Option<ManagerEnd> {
        if is_ready {
            return Some(ManagerEnd::Ended(wait_for_child(self.pid)));
        }
        if self.polled.elapsed() < POLL_PERIOD {
            return None;
        }
        self.polled = Instant::now();
        self.stuck_polls = match waits_in_kernel(self.pid) {
            true => self.stuck_polls + 1,
            false => 0,
        };
        (self.stuck_polls >= STUCK_POLLS).then_some(ManagerEnd::Stuck)
    }

    /// Returns true until the last call of one that is stuck has returned.
    pub fn has_threads(&self) -> bool {
        matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None))
    }
}

impl AsFd for ManagerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
