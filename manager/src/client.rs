//! One client: its memory, its contract, and the thread that answers its faults.
//!
//! Each client has a handler thread and a userfaultfd of its own, so the queue of a client's faults is the
//! client's alone: a client that pages hard, waits for its disk turns or misbehaves delays itself.
//! All of a client's state belongs to that thread, which takes no lock to answer a fault from memory.
//!
//! Rules:
//! - Events before faults: all pending messages are read before a fault is answered, and a fault is
//!   answered from the state after them. So a page that the client discarded reads zero, although
//!   its fault may have been read before the event.
//! - A fault that the kernel defers (EAGAIN, an event is unread) goes back to the queue, after a moment in which the
//!   thread that changes memory may go on ([`translation::ForeignUserfault`]).
//! - A fault is answered by the page's state, not by its flags: the kernel may deliver it twice.
//! - A manager may be killed at any instruction, and another one goes on ([`crate::client_record`], `resume`).
//! - The page path allocates nothing: tables, queues and buffers are sized when the client is admitted.

mod children;
mod discards;
mod evict;
mod fault;
mod pager;
mod replay;
mod resume;
mod saving;

use crate::client_memory::ClientMemory;
use crate::client_record::ClientRecord;
use crate::commands::Commands;
use crate::keeper_link::{ChildNumber, KeptSlot};
use crate::paging_object::PagingObject;
use crate::recording::Recording;
use crate::save::SaveRequest;
use crate::snapshot::Snapshot;
use children::Children;
use pager::ClientPager;
pub(crate) use pager::note_present;
use replay::Replay;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use saving::{BeginError, Saving};
use selfpage::WorkingSet;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use translation::{Fault, ForeignUserfault, UffdMessage};

/// Faults that wait at once without an allocation: a client has at most as many as threads.
const QUEUE: usize = 4096;
/// How long a fault that was deferred waits, and how long a thread without faults.
const RETRY: Duration = Duration::from_micros(200);
/// The wait doubles so often: up to 100 ms.
const MOST_DOUBLED: u32 = 9;
const IDLE: Duration = Duration::from_secs(1);
/// How long one waits whose messages cannot be read for want of a descriptor.
const SHORT: Duration = Duration::from_millis(10);

/// What a client is served with.
pub struct ClientParts {
    /// What outlives the manager: its memory, and where its pages are.
    pub record: Arc<ClientRecord>,
    /// Its place with the keeper, where there is one.
    pub kept: Option<KeptSlot>,
    /// Its faults.
    pub uffd: ForeignUserfault,
    /// How pages are reached.
    pub memory: ClientMemory,
    /// What untouched pages read; zeros without one.
    pub origin: Option<Snapshot>,
    /// Its frames, and the object that takes evicted pages.
    pub contract: Option<(usize, PagingObject)>,
    /// The pages to bring in before they fault.
    pub working_set: Option<WorkingSet>,
    /// Where pages are noted that fault.
    pub recording: Option<Recording>,
    /// Its process, where the kernel names it.
    pub process: Option<OwnedFd>,
    /// The userfaultfds of its children that the keeper has.
    pub children: BTreeMap<ChildNumber, OwnedFd>,
    /// Readable when the client is to be left.
    pub stop: Arc<OwnedFd>,
    /// What the client's thread is asked to do.
    pub commands: Arc<Commands>,
}

/// The handler thread of one client: its messages, and the order of its work.
pub struct HandlerThread {
    pager: ClientPager,
    replay: Option<Replay>,
    kept: Option<KeptSlot>,
    process: Option<OwnedFd>,
    stop: Arc<OwnedFd>,
    commands: Arc<Commands>,
    /// A save that the kernel deferred.
    deferred_save: Option<SaveRequest>,
    /// Faults that are read and not answered.
    queue: Vec<Fault>,
    children: Children,
    /// A part of the snapshot has arrived, or cannot be had, since the thread has looked at what waits for it.
    has_rung: bool,
    /// Each is reported once: a client may do so without end.
    has_moved: bool,
    has_forked: bool,
    was_short: bool,
}

/// What a client made: the close of it may wait for the client, if the keeper has closed it.
pub struct ClientFds {
    _uffd: ForeignUserfault,
    _memory: ClientMemory,
    _children: Children,
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Answered,
    /// An event is unread, or no frame is free.
    Deferred,
    /// Its page is on its way from the snapshot's store; other faults are answered meanwhile.
    Awaited,
    /// The address space has ended.
    Ended,
}

impl HandlerThread {
    /// Prepares a client; allocates all that its faults need.
    pub fn new(mut parts: ClientParts) -> io::Result<Self> {
        let (process, stop) = (parts.process.take(), Arc::clone(&parts.stop));
        let (commands, set) = (Arc::clone(&parts.commands), parts.working_set.take());
        let kept = parts.kept.take();
        let children = Children::new(std::mem::take(&mut parts.children));
        let pager = ClientPager::new(parts)?;
        Ok(Self {
            replay: set.map(|set| Replay::new(&set, &pager)),
            pager,
            kept,
            process,
            stop,
            commands,
            deferred_save: None,
            queue: Vec::with_capacity(QUEUE),
            children,
            has_rung: false,
            has_moved: false,
            has_forked: false,
            was_short: false,
        })
    }

    /// Prepares a client that no manager has served. What its memfd had already is noted in its record (`note_present`).
    pub fn admit(parts: ClientParts) -> io::Result<Self> {
        let mut client = Self::new(parts)?;
        client.pager.table.resume();
        client.restore_order();
        client.pager.count_resident();
        Ok(client)
    }

    /// Answers faults until the client's address space ends, or the manager does. Returns what was
    /// recorded, and what the client made.
    pub fn serve(mut self) -> (Option<Recording>, ClientFds) {
        if let Some(replay) = &self.replay {
            replay.prefetch(&self.pager);
        }
        let mut deferrals = 0u32;
        loop {
            if self.wait(deferrals) == Outcome::Ended || self.receive() == Outcome::Ended {
                break;
            }
            self.children.keep(self.kept.as_ref());
            deferrals = match self.answer_queue() {
                Outcome::Ended => break,
                Outcome::Deferred => deferrals.saturating_add(1),
                Outcome::Answered | Outcome::Awaited => {
                    self.step_replay();
                    if std::mem::take(&mut self.has_rung) {
                        self.pager.origin.iter().for_each(Snapshot::forget_failures);
                    }
                    0
                }
            };
            // Also of a guest that waits for a frame, which a save does not need.
            self.step_save();
            self.pager.count_resident();
        }
        let (recording, uffd, memory) = self.pager.into_received();
        let fds = ClientFds {
            _uffd: uffd,
            _memory: memory,
            _children: self.children,
        };
        (recording, fds)
    }

    /// Brings a piece of the working set in.
    fn step_replay(&mut self) {
        if let Some(replay) = &mut self.replay
            && !replay.step(&mut self.pager)
        {
            self.replay = None;
        }
    }

    /// Does a piece of a save, or begins one that was requested.
    fn step_save(&mut self) {
        if let Some(request) = self.deferred_save.take().or_else(|| self.commands.take()) {
            match Saving::begin(&mut self.pager, &request) {
                Ok(()) => {}
                Err(BeginError::Again) => self.deferred_save = Some(request),
                Err(BeginError::Refused(why)) => request.fail(why),
            }
        }
        Saving::step(&mut self.pager);
    }

    /// Waits for a message; not where faults or other work wait. A fault that was deferred again and again
    /// waits longer each time: an attempt write-protects what it cannot evict.
    fn wait(&mut self, deferrals: u32) -> Outcome {
        let is_saving = self.pager.is_saving() || self.deferred_save.is_some();
        let is_replaying = self.replay.as_ref().is_some_and(|it| !it.is_waiting());
        let has_work = is_replaying || is_saving;
        let timeout = match deferrals {
            0 if has_work => Duration::ZERO,
            0 => IDLE,
            _ if is_saving => RETRY,
            _ => RETRY * (1 << deferrals.min(MOST_DOUBLED)),
        };
        let has_waited = !timeout.is_zero();
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        let mut ready = [
            PollFd::from_borrowed_fd(self.pager.uffd().as_fd(), PollFlags::IN),
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(self.process.as_ref().unwrap_or(&self.stop), PollFlags::IN),
            PollFd::from_borrowed_fd(self.commands.as_fd(), PollFlags::IN),
        ];
        let count = poll(&mut ready, Some(&timeout));
        let [_, has_stopped, has_ended, has_rung] = ready.map(|it| !it.revents().is_empty());
        if has_rung {
            self.commands.silence();
            self.has_rung = true;
        }
        if has_stopped {
            return Outcome::Ended;
        }
        // Also of one whose faults wait: where another process connected, nothing else tells its end.
        if has_ended || count == Ok(0) && has_waited {
            if !self.pager.uffd().is_owner_alive() {
                return Outcome::Ended;
            }
            if has_ended {
                // The process that connected has ended, and another one has the memory.
                self.process = None;
            }
        }
        Outcome::Answered
    }

    /// Reads all messages: events take effect, faults are queued. A message stays in the client's record until
    /// then.
    fn receive(&mut self) -> Outcome {
        loop {
            let slots = self.pager.record.messages();
            let most = slots.len();
            let count = match self.pager.uffd().read_into(slots) {
                Ok(count) => count,
                Err(Errno::SRCH) => return Outcome::Ended,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                    // For the descriptor of a fork's child: the kernel keeps the event, and faults wait behind it.
                    self.wait_for_descriptors(errno);
                    return Outcome::Answered;
                }
                Err(errno) => {
                    tracing::error!("the client's faults cannot be read: {errno}");
                    return Outcome::Ended;
                }
            };
            for at in 0..count {
                if let Some(message) = self.pager.slot(at).message() {
                    self.on_message(message);
                }
                self.pager.slot(at).clear();
            }
            if count < most {
                return Outcome::Answered;
            }
        }
    }

    /// Says once why the client's faults wait.
    fn wait_for_descriptors(&mut self, errno: Errno) {
        if !std::mem::replace(&mut self.was_short, true) {
            tracing::error!(
                "the client's faults wait, since its fork takes a descriptor of the manager's: {errno}; raise \
                 `ulimit -n`, or end other clients"
            );
        }
        std::thread::sleep(SHORT);
    }

    fn on_message(&mut self, message: UffdMessage) {
        match message {
            UffdMessage::Fault(fault) => self.queue.push(fault),
            UffdMessage::Removed { addr, len } | UffdMessage::Unmapped { addr, len } => {
                self.pager.on_removed(addr, len);
            }
            UffdMessage::Moved { from, to, len } if !self.has_moved => {
                self.has_moved = true;
                tracing::error!(
                    "the client moved {len} bytes at {from:#x} to {to:#x}, which is not served: faults \
                     there wait for ever; hand the memory over where it stays"
                );
            }
            UffdMessage::Moved { .. } => {}
            UffdMessage::Forked(child) => {
                if !std::mem::replace(&mut self.has_forked, true) {
                    tracing::error!(
                        "the client forked, which is not served: faults of the child wait for ever, or fail; set \
                         MADV_DONTFORK on the memory"
                    );
                }
                let (ranges, size) = (self.pager.ranges(), self.pager.table.page_size());
                self.children.add(child, ranges, size);
            }
            UffdMessage::Unknown(event) => {
                tracing::error!("the kernel reports event {event} of the client, which is unknown");
            }
        }
    }

    /// Answers the queued faults; the rest stay queued when one is deferred, and so do those whose pages are on their way.
    fn answer_queue(&mut self) -> Outcome {
        let (mut at, mut awaited) = (0, 0);
        let mut outcome = Outcome::Answered;
        while let Some(&fault) = self.queue.get(at) {
            match self.pager.answer(fault) {
                Outcome::Answered => self.pager.counters().faults.add(1),
                Outcome::Awaited => {
                    self.queue[awaited] = fault;
                    awaited += 1;
                }
                other => {
                    self.pager.counters().deferred_faults.add(1);
                    outcome = other;
                    break;
                }
            }
            at += 1;
        }
        self.queue.drain(awaited..at);
        outcome
    }
}
