//! The supervisor's main loop: it is the parent of the program and the subreaper of the tree.
//!
//! The loop never waits for a single process, nor for the reader of standard error:
//! processes join, die, and stop at the filter at any moment, and the admission of other
//! processes must not be delayed. Work that may block has a thread of its own: lines for standard error
//! (`logging`), samples of the tree's memory, connections handed out through the filter, and the close of
//! descriptors that processes made (`host::fd_reaper`).

use super::front_process::{KILL_LIMIT, add_poll_fd};
use super::group_signals::GroupWitness;
use super::ipc::{Message, SignalInfo};
use super::page_client_end;
use super::signals::InheritedMask;
use super::start::{RunError, RunningTree, start};
use super::{FinishedRun, OWN_FAILURE, RunSpec};
use crate::TreeEvent;
use crate::direct_io_filter::Notifier;
use host::{cpu_reservation, process_tree};
use logging::LineQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::process::{Pid, Signal, getpid, getppid};
use std::collections::HashSet;
use std::error::Error;
use std::time::{Duration, Instant};
use wired::Counter;

/// Time after the program's end before `run` reports that it waits for other processes.
pub(super) const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Most distinct lines printed for the tree: a program that fails in a loop must not fill
/// the terminal.
const MAX_LINES: usize = 200;

/// Signals that request termination.
pub(super) const END_SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Supervises the tree until it has ended. Returns this process's exit status.
pub(super) fn supervise(
    spec: RunSpec,
    front: OwnedFd,
    group: GroupWitness,
    inherited: InheritedMask,
    fds: &[RawFd],
    report: impl FnOnce(FinishedRun<'_>) -> Result<(), Box<dyn Error>>,
) -> i32 {
    let _ = rustix::thread::set_name(c"selfpage-super");
    let owner = getppid().map_or(0, |front| front.as_raw_nonzero().get() as u32);
    let report_failure = |why: &RunError| {
        tracing::error!("{why}");
        let _ = Message::Failed(why.status().into()).send(&front);
    };
    let tree = match start(spec, &inherited, fds, owner, report_failure) {
        Ok(tree) => tree,
        Err(why) => return why.status().into(),
    };
    let _ = Message::Started.send(&front);
    let mut main = MainLoop::new(tree, front, group);
    match main.run() {
        TreeExit::Ended(status) => {
            main.log = None;
            let reported = report(FinishedRun {
                spec: &main.tree.spec,
                supervisor: &main.tree.supervisor,
                sampler: &main.tree.program.sampler,
                time: main.tree.program.begin.elapsed(),
                status,
            });
            cpu_reservation::release(owner);
            page_client_end::wait(&main.tree.supervisor, &main.front);
            main.tree.supervisor.free_store();
            if let Err(why) = &reported {
                tracing::error!("{why}");
            }
            let end = match (reported, status) {
                (Err(_), 0) => Message::Failed(OWN_FAILURE.into()),
                _ => Message::Ended(status),
            };
            let _ = end.send(&main.front);
            0
        }
        TreeExit::Orphaned => {
            process_tree::kill_below(KILL_LIMIT);
            cpu_reservation::release(owner);
            OWN_FAILURE.into()
        }
    }
}

/// The reason that the main loop ends.
enum TreeExit {
    /// The tree has ended; the program's wait status.
    Ended(i32),
    /// The front process has ended: the tree must end.
    Orphaned,
}

struct MainLoop {
    tree: RunningTree,
    /// The front process, and the socket to it.
    front_pid: Option<Pid>,
    front: OwnedFd,
    /// Lines for standard error: the loop does not wait for their reader before the end.
    log: Option<LineQueue>,
    /// The program's wait status, once it has ended, and when that was.
    status: Option<i32>,
    ended: Option<Instant>,
    is_noticed: bool,
    /// A termination request sent to `run`: it applies to the processes that outlive the
    /// program, too.
    end_request: Option<Signal>,
    printed: HashSet<String>,
    group: GroupWitness,
}

impl MainLoop {
    fn new(tree: RunningTree, front: OwnedFd, group: GroupWitness) -> Self {
        Self {
            tree,
            front_pid: getppid(),
            front,
            log: LineQueue::start(Duration::MAX),
            status: None,
            ended: None,
            is_noticed: false,
            end_request: None,
            printed: HashSet::new(),
            group,
        }
    }

    fn run(&mut self) -> TreeExit {
        loop {
            self.wait();
            // Before children are reaped, so that a process's last message is handled.
            let events = self.tree.supervisor.dispatch();
            events.into_iter().for_each(|event| self.on_event(event));
            self.on_stopped_calls();
            // Children that have ended are found below; other signals to this process alone have no effect.
            while self.tree.signals.next().is_some() {}
            loop {
                match Message::receive(&self.front) {
                    Ok(Some(Message::Signal(signal))) => self.forward(signal),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return TreeExit::Orphaned,
                }
            }
            self.tree
                .program
                .sampler
                .sample_if_due(self.tree.supervisor.programs());
            if self.reap() {
                // The last messages of processes that died.
                let events = self.tree.supervisor.dispatch();
                events.into_iter().for_each(|event| self.on_event(event));
                return TreeExit::Ended(self.status.unwrap_or(0));
            }
            self.on_program_ended();
        }
    }

    fn wait(&self) {
        let notifier = self.tree.program.notifier.as_ref();
        let soon = notifier.and_then(Notifier::due_in).unwrap_or(NOTICE_DELAY);
        let limit = self
            .tree
            .supervisor
            .next_timeout()
            .min(self.tree.program.sampler.due_in())
            .min(soon);
        // At most NOTICE_DELAY, so the conversion succeeds.
        let limit = Timespec::try_from(limit).ok();
        let mut fds: Vec<PollFd> = Vec::with_capacity(4);
        add_poll_fd(Some(self.front.as_fd()), &mut fds);
        add_poll_fd(Some(self.tree.signals.fd()), &mut fds);
        add_poll_fd(Some(self.tree.supervisor.fd()), &mut fds);
        add_poll_fd(
            self.tree.program.notifier.as_ref().map(Notifier::fd),
            &mut fds,
        );
        let _ = poll(&mut fds, limit.as_ref());
    }

    fn on_event(&mut self, event: TreeEvent) {
        match event {
            TreeEvent::Notice { pid, text } => {
                self.print_once(format!("[{}] {text}", pid.as_raw_nonzero()), text)
            }
            TreeEvent::Joined { slot, pid } => {
                tracing::debug!("[{}] pages, slot {slot}", pid.as_raw_nonzero())
            }
            TreeEvent::Left { pid, frames, .. } => tracing::debug!(
                "[{}] has ended, {frames} frames are reclaimed",
                pid.as_raw_nonzero()
            ),
            TreeEvent::DaemonReconnected => tracing::warn!("reconnected to the daemon"),
            TreeEvent::PagesLost(why) => {
                tracing::error!(
                    "{why}, and the pages it had are out of reach: the program is ended"
                );
                // The main loop reaps the processes, so that the program's status is passed on, and kills
                // those that they have started meanwhile.
                self.end_request = Some(Signal::KILL);
                process_tree::signal_all(&process_tree::below(getpid()), Signal::KILL);
            }
        }
    }

    /// Prints each text once.
    fn print_once(&mut self, line: String, text: String) {
        if self.printed.len() < MAX_LINES && self.printed.insert(text) {
            tracing::warn!("{line}");
        }
    }

    /// Handles calls that stopped at the filter.
    fn on_stopped_calls(&mut self) {
        let Some(notifier) = &mut self.tree.program.notifier else {
            return;
        };
        let mut ready = [PollFd::from_borrowed_fd(notifier.fd(), PollFlags::IN)];
        let _ = poll(&mut ready, Some(&Timespec::default()));
        let (readable, hung_up) = {
            let flags = ready[0].revents();
            (
                flags.contains(PollFlags::IN),
                flags.contains(PollFlags::HUP),
            )
        };
        let is_unused = readable && notifier.receive(self.tree.supervisor.stats_page()).is_err();
        notifier
            .take_requests()
            .into_iter()
            .for_each(|request| self.tree.supervisor.connect(request));
        if notifier.is_waiting() {
            self.tree.supervisor.ring_shared_memory();
            // An idle pager sleeps for longer than the call waits.
            self.tree.supervisor.wake_evictors();
        }
        let refused = notifier.settle(&self.tree.supervisor);
        if is_unused || (hung_up && !readable) {
            self.tree.program.notifier = None;
        }
        if refused > 0 {
            let text =
                "direct I/O was refused to a program: a pager of the tree did not acknowledge the check of pinned pages in time"
                    .to_owned();
            self.print_once(text.clone(), text);
        }
    }

    /// Forwards a signal that the front process received to the program.
    fn forward(&mut self, signal: SignalInfo) {
        let group = |pid: Option<Pid>| pid.and_then(|pid| rustix::process::getpgid(Some(pid)).ok());
        // A program may have left the group (timeout does).
        let is_in_group = group(self.front_pid) == group(Some(self.tree.program.pid));
        if is_in_group && self.group.has_received(signal) {
            return;
        }
        let named = Signal::from_named_raw(signal.signal);
        if self.status.is_none() {
            self.end_request = named
                .filter(|s| END_SIGNALS.contains(s))
                .or(self.end_request);
        }
        let queued = signal.code == libc::SI_QUEUE;
        match (self.status, named) {
            (None, _) if queued => {
                let value = libc::sigval {
                    sival_ptr: signal.value as *mut libc::c_void,
                };
                // SAFETY: our own child, which is not reaped yet, so the number is still the child's.
                unsafe {
                    libc::sigqueue(
                        self.tree.program.pid.as_raw_nonzero().get(),
                        signal.signal,
                        value,
                    )
                };
            }
            (None, _) => {
                // SAFETY: as above.
                unsafe { libc::kill(self.tree.program.pid.as_raw_nonzero().get(), signal.signal) };
            }
            (Some(_), Some(signal)) => signal_survivors(signal),
            (Some(_), None) => {}
        }
    }

    /// Reaps children that ended, and handles those that stopped or continued. Returns true if
    /// no child is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: waits for children of this process.
            let pid = unsafe {
                libc::waitpid(
                    -1,
                    &mut status,
                    libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED,
                )
            };
            if pid > 0 && libc::WIFSIGNALED(status) && libc::WCOREDUMP(status) {
                self.report_core_dump(pid);
            }
            match pid {
                0 => return false,
                -1 => return std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
                // Another process may have the number of a program that was reaped.
                pid if self.status.is_some()
                    || pid != self.tree.program.pid.as_raw_nonzero().get() =>
                {
                    let pager = Pid::from_raw(pid).filter(|_| libc::WIFSTOPPED(status));
                    // `pkill` by a pattern can stop the pager, too, which has to run to give up a stopped program's frames.
                    if let Some(pid) = pager.filter(|pid| self.tree.supervisor.is_pager(*pid)) {
                        let _ = rustix::process::kill_process(pid, Signal::CONT);
                    }
                }
                // This process sends both signals, so that they arrive in order.
                _ if libc::WIFSTOPPED(status) => self.signal_front(Signal::STOP),
                _ if libc::WIFCONTINUED(status) => self.signal_front(Signal::CONT),
                _ => {
                    self.status = Some(status);
                    self.ended = Some(Instant::now());
                }
            }
        }
    }

    fn signal_front(&self, signal: Signal) {
        if let Some(front) = self.front_pid {
            let _ = rustix::process::kill_process(front, signal);
        }
    }

    /// Reports a core dump that lacks pages: the kernel dumps a missing page as if it was never written.
    fn report_core_dump(&mut self, pid: libc::pid_t) {
        if self.tree.supervisor.counter(Counter::Staged) == 0 {
            return;
        }
        let text = "its core dump has zeros for the pages that were paged out; with frames for all its memory \
                    (--frames) a core dump is whole";
        self.print_once(format!("[{pid}] {text}"), text.to_owned());
    }

    /// Handles the time between the end of the program and the end of the last process.
    fn on_program_ended(&mut self) {
        let Some(ended) = self.ended else { return };
        if self.tree.spec.kill_survivors {
            process_tree::kill_below(KILL_LIMIT);
            return;
        }
        if let Some(signal) = self.end_request.take() {
            signal_survivors(signal);
        }
        if ended.elapsed() > NOTICE_DELAY && !self.is_noticed {
            let mut left = process_tree::below(getpid());
            left.retain(|pid| !self.tree.supervisor.is_pager(*pid));
            let left = left.len();
            if left == 0 {
                return;
            }
            self.is_noticed = true;
            tracing::warn!(
                "{} has ended; {left} of the processes it started run on and keep the contract: waiting \
                 for them (a signal to this process goes to them all; --on-exit kill ends them at once)",
                self.tree.spec.program.name()
            );
        }
    }
}

/// Sends a signal to all processes that outlive the program. A stopped process handles a request to end only once it continues.
fn signal_survivors(signal: Signal) {
    let left = process_tree::below(getpid());
    process_tree::signal_all(&left, signal);
    if END_SIGNALS.contains(&signal) {
        process_tree::signal_all(&left, Signal::CONT);
    }
}
