//! Calls that stop at the tree's filter ([`host::seccomp`]) because the kernel may hold pages for a
//! device, a file system or another process afterwards.
//!
//! The supervisor sets the flag of the stats page, waits until every pager has acknowledged it, and lets
//! the call continue.
//!
//! Calls that stop for another reason are passed on: those that discard memory to `Discards`, those
//! by which a process joins the tree to the supervisor.
//!
//! Rule: a call continues only when every pager that could be evicting checks for pinned pages. A call
//! whose wait exceeds its bound fails with the error of a kernel without the call.
//!
//! A file system whose plain reads go straight into memory (FUSE, where its server wants that)
//! cannot be detected by a call on its files. So the tree is careful once one is mounted: mounts
//! are read before the program starts, when the tree mounts one, and when the kernel reports that
//! they have changed ([`Notifier::settle`]).

use crate::Supervisor;
use crate::discards::Discards;
use host::direct_io::{Mounts, mounted_in_place, reads_in_place};
use host::process_tree::ProcStat;
use host::seccomp::call::{self, CarriedMessage};
use host::seccomp::{Listener, is_of_other_table};
use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use rustix::process::Pid;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a call waits for the pagers of the tree. A running pager acknowledges within a
/// millisecond; one of 25 processes at idle priority, beside two processors of builds, took more
/// than 5 s (seed 1300026 of the fuzzer).
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two checks of the pagers' acknowledgements.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The value of the flag that every pager of the tree must acknowledge.
const CAREFUL: u32 = 1;

/// A call that waits.
struct PendingNotification {
    id: u64,
    number: i32,
    since: Instant,
}

/// The supervisor's end of the filter.
pub struct Notifier {
    listener: Listener,
    waiting: Vec<PendingNotification>,
    discards: Discards,
    mounts: Mounts,
    requests: Vec<ConnectionRequest>,
}

/// A call by which a process requests a connection, and joins if it carries a message.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest {
    /// The call's id.
    pub(crate) id: u64,
    /// The thread that calls; `None` in a process namespace that is not below this one.
    pub(crate) caller: Option<Pid>,
    pub(crate) message: CarriedMessage,
}

impl Notifier {
    /// Serves the filter whose listener this is.
    pub fn new(listener: OwnedFd) -> Self {
        Self {
            listener: listener.into(),
            waiting: Vec::new(),
            discards: Discards::default(),
            mounts: Mounts::open(),
            requests: Vec::new(),
        }
    }

    /// Readable when a call has stopped at the filter.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns true if calls wait for all pagers of the tree.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The time until [`Notifier::settle`] must be called again; `None` if no call waits.
    pub fn due_in(&self) -> Option<Duration> {
        let careful = self.is_waiting().then_some(CHECK_INTERVAL);
        careful.into_iter().chain(self.discards.due_in()).min()
    }

    /// Receives one stopped call, and sets the flag *careful* if the call can make the kernel hold pages.
    /// `Err` when no process is left under the filter.
    pub fn receive(&mut self, stats_page: &StatsPage) -> io::Result<()> {
        let Some(stopped) = self.listener.receive()? else {
            return Ok(());
        };
        if call::is_request(&stopped.data) {
            self.requests.push(ConnectionRequest {
                id: stopped.id,
                caller: Pid::from_raw(stopped.pid as i32),
                message: CarriedMessage::of(&stopped.data),
            });
            return Ok(());
        }
        if i64::from(stopped.data.nr) == libc::SYS_madvise {
            if !self.discards.take_up(&stopped, &self.listener) {
                self.listener.resume(stopped.id);
            }
            return Ok(());
        }
        if !can_hold_pages(&stopped) {
            self.listener.resume(stopped.id);
            return Ok(());
        }
        be_careful(stats_page);
        self.waiting.push(PendingNotification {
            id: stopped.id,
            number: stopped.data.nr,
            since: Instant::now(),
        });
        Ok(())
    }

    /// The calls by which processes request connections: see [`crate::Supervisor::connect`].
    pub fn take_requests(&mut self) -> Vec<ConnectionRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Lets calls continue if the pagers that they wait for have acknowledged, and refuses those
    /// that have waited too long for all pagers of the tree. Returns the number of refused calls. Checks
    /// new mounts, too.
    pub fn settle(&mut self, supervisor: &Supervisor) -> usize {
        self.discards.settle(&self.listener, supervisor);
        let stats_page = supervisor.stats_page();
        if self.mounts.changed() && mounted_in_place().is_some() {
            be_careful(stats_page);
        }
        if self.waiting.is_empty() {
            return 0;
        }
        let ready = all_careful(stats_page, supervisor.members());
        let mut refused = 0;
        let listener = &self.listener;
        self.waiting.retain(|call| {
            if ready {
                listener.resume(call.id);
                return false;
            }
            if call.since.elapsed() > ACKNOWLEDGE_TIMEOUT {
                refused += 1;
                listener.fail(call.id, error_without(call.number));
                return false;
            }
            true
        });
        refused
    }
}

/// Returns true if a call that has stopped can make the kernel hold pages.
fn can_hold_pages(call: &libc::seccomp_notif) -> bool {
    /// Flags of mounts that mount no file system.
    const MOVES: libc::c_ulong = libc::MS_BIND
        | libc::MS_MOVE
        | libc::MS_REMOUNT
        | libc::MS_SHARED
        | libc::MS_PRIVATE
        | libc::MS_SLAVE
        | libc::MS_UNBINDABLE;
    let args = call.data.args;
    // A text that cannot be read counts as a file system that reads in place.
    let in_place = |at| text_of(call.pid, at).is_none_or(|kind| reads_in_place(&kind));
    match i64::from(call.data.nr) {
        libc::SYS_mount => args[3] & MOVES == 0 && in_place(args[2]),
        libc::SYS_fsopen => in_place(args[0]),
        // Another mount namespace may have such mounts.
        libc::SYS_setns => args[1] == 0 || args[1] & libc::CLONE_NEWNS as u64 != 0,
        _ => true,
    }
}

/// A short text in a stopped thread's memory; `None` where it cannot be read without waiting
/// for that process's pager.
fn text_of(thread: u32, at: u64) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open(format!("/proc/{thread}/mem")).ok()?;
    let mut text = Vec::new();
    while text.len() < LONGEST_KIND {
        let mut byte = [0];
        memory
            .read_exact_at(&mut byte, at + text.len() as u64)
            .ok()?;
        match byte {
            [0] => return Some(text),
            [byte] => text.push(byte),
        }
    }
    None
}

/// Bytes of a file system's type that are compared.
const LONGEST_KIND: usize = 64;

/// Makes every pager of the tree check for pinned pages, for ever.
pub fn be_careful(stats_page: &StatsPage) {
    stats_page.careful().store(CAREFUL, Ordering::SeqCst);
    wired::futex::wake_all(stats_page.careful());
}

/// Returns true if no pager evicts without the check. A stopped or dead pager evicts nothing.
fn all_careful(
    stats_page: &StatsPage,
    mut members: impl Iterator<Item = (SlotIndex, Pid)>,
) -> bool {
    members.all(|(slot, pid)| {
        stats_page.block(slot).careful_seen().load(Ordering::SeqCst) == CAREFUL
            || ProcStat::read(pid)
                .is_ok_and(|stat| stat.is_none_or(|stat| stat.is_stopped_or_dead()))
    })
}

/// The error of a kernel, a device or a file that lacks what the call needs: programs handle
/// that.
fn error_without(number: i32) -> i32 {
    match i64::from(number) {
        libc::SYS_io_uring_setup
        | libc::SYS_io_setup
        | libc::SYS_process_vm_writev
        | libc::SYS_pidfd_getfd => libc::ENOSYS,
        libc::SYS_socket => libc::EAFNOSUPPORT,
        libc::SYS_ioctl => libc::ENOTTY,
        libc::SYS_mount | libc::SYS_fsopen => libc::ENODEV,
        libc::SYS_setns => libc::EPERM,
        _ if is_of_other_table(number) => libc::ENOSYS,
        _ => libc::EINVAL,
    }
}
