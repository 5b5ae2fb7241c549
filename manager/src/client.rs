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
//! - A fault that the kernel defers (EAGAIN, an event is unread) goes back to the queue.
//! - A fault is answered by the page's state, not by its flags: the kernel may deliver it twice.
//! - The page path allocates nothing: tables, queues and buffers are sized when the client is admitted.

mod evict;
mod fault;
mod replay;

use crate::client_memory::ClientMemory;
use crate::counters::Counters;
use crate::handoff::Handoff;
use crate::page_table::{PageState, PageTable, UNIT};
use crate::paging_object::PagingObject;
use crate::recording::Recording;
use crate::snapshot::Snapshot;
use crate::standby::Standby;
use replay::Replay;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use selfpage::{Key, ScanResistant, WorkingSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use translation::{Fault, ForeignUserfault, Message};
use wired::WiredMemory;

/// Faults that wait at once without an allocation: a client has at most as many as threads.
const QUEUE: usize = 4096;
/// Messages read in one call.
const BATCH: usize = 64;
/// How long a fault that was deferred waits, and how long a thread without faults.
const RETRY: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_secs(1);
/// Children's descriptors that are kept open, so that their faults wait and never read zeros.
const MOST_CHILDREN: usize = 16;

/// What a client is served with.
pub struct ClientParts {
    /// Its memory.
    pub handoff: Handoff,
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
    /// Readable when the client is to be left.
    pub stop: Arc<OwnedFd>,
    /// What happens.
    pub counters: Arc<Counters>,
}

/// Frames, and where pages go that have none.
struct Contract {
    /// Frames for resident pages: those of the contract without the standby slots.
    frames: usize,
    paging: PagingObject,
    order: ScanResistant,
    standby: Standby,
}

/// A client as its handler thread has it.
pub struct Client {
    uffd: ForeignUserfault,
    memory: ClientMemory,
    table: PageTable,
    origin: Option<Snapshot>,
    contract: Option<Contract>,
    replay: Option<Replay>,
    recording: Option<Recording>,
    process: Option<OwnedFd>,
    stop: Arc<OwnedFd>,
    counters: Arc<Counters>,
    /// Faults that are read and not answered.
    queue: Vec<Fault>,
    /// A page of zeros, of the client's page size.
    zeros: WiredMemory,
    children: Vec<OwnedFd>,
    /// Said once.
    has_warned: bool,
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Answered,
    /// An event is unread, or no frame is free.
    Deferred,
    /// The address space has ended.
    Ended,
}

impl Client {
    /// Prepares a client; allocates all that its faults need.
    pub fn new(parts: ClientParts) -> io::Result<Self> {
        let table = PageTable::new(&parts.handoff);
        let contract = match parts.contract {
            Some((frames, paging)) => Some(Contract::new(frames, paging)?),
            None => None,
        };
        parts.counters.frames.set(
            contract
                .as_ref()
                .map_or(0, |it| it.frames + it.standby.frames()),
        );
        let most = contract.as_ref().map_or(usize::MAX, |it| it.frames / 4 * 3);
        let replay = parts.working_set.map(|set| Replay::new(&set, &table, most));
        Ok(Self {
            zeros: WiredMemory::private(table.page_size())?,
            uffd: parts.uffd,
            memory: parts.memory,
            table,
            origin: parts.origin,
            contract,
            replay,
            recording: parts.recording,
            process: parts.process,
            stop: parts.stop,
            counters: parts.counters,
            queue: Vec::with_capacity(QUEUE),
            children: Vec::with_capacity(MOST_CHILDREN),
            has_warned: false,
        })
    }

    /// Answers faults until the client's address space ends, or the manager does. Returns what was
    /// recorded.
    pub fn serve(mut self) -> Option<Recording> {
        if let (Some(replay), Some(origin)) = (&self.replay, &self.origin) {
            replay.prefetch(origin, &self.table);
        }
        let mut is_waiting = false;
        loop {
            if self.wait(is_waiting) == Outcome::Ended || self.receive() == Outcome::Ended {
                break;
            }
            is_waiting = match self.answer_queue() {
                Outcome::Ended => break,
                Outcome::Deferred => true,
                Outcome::Answered => {
                    self.step_replay();
                    false
                }
            };
            self.counters.resident_pages.set(self.table.resident());
        }
        self.recording
    }

    /// Waits for a message; not where faults or a replay wait.
    fn wait(&mut self, is_waiting: bool) -> Outcome {
        let timeout = match (is_waiting, &self.replay) {
            (true, _) => RETRY,
            (false, Some(_)) => Duration::ZERO,
            (false, None) => IDLE,
        };
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        let mut ready = [
            PollFd::from_borrowed_fd(self.uffd.as_fd(), PollFlags::IN),
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(self.process.as_ref().unwrap_or(&self.stop), PollFlags::IN),
        ];
        let count = poll(&mut ready, Some(&timeout));
        let has = |at: usize| !ready[at].revents().is_empty();
        if has(1) {
            return Outcome::Ended;
        }
        let is_idle = count == Ok(0) && !is_waiting && self.replay.is_none();
        if has(2) || is_idle {
            if !self.uffd.is_owner_alive() {
                return Outcome::Ended;
            }
            if has(2) {
                // The process that connected has ended, and another one has the memory.
                self.process = None;
            }
        }
        Outcome::Answered
    }

    /// Reads all messages: events take effect, faults are queued.
    fn receive(&mut self) -> Outcome {
        loop {
            let mut messages = [const { None }; BATCH];
            let count = match self.uffd.read(&mut messages) {
                Ok(count) => count,
                Err(Errno::SRCH) => return Outcome::Ended,
                Err(errno) => {
                    tracing::error!("the client's faults cannot be read: {errno}");
                    return Outcome::Ended;
                }
            };
            for message in messages.into_iter().take(count).flatten() {
                self.on_message(message);
            }
            if count < BATCH {
                return Outcome::Answered;
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Fault(fault) => self.queue.push(fault),
            Message::Removed { addr, len } | Message::Unmapped { addr, len } => {
                self.on_removed(addr, len);
            }
            Message::Moved { from, to, len } => {
                tracing::error!(
                    "the client moved {len} bytes at {from:#x} to {to:#x}, which is not served: faults \
                     there wait for ever; hand the memory over where it stays"
                );
            }
            Message::Forked(child) => {
                tracing::error!(
                    "the client forked, which is not served: faults of the child wait for ever; set \
                     MADV_DONTFORK on the memory"
                );
                if self.children.len() < MOST_CHILDREN {
                    self.children.push(child);
                }
            }
            Message::Unknown(event) => {
                tracing::error!("the kernel reports event {event} of the client, which is unknown");
            }
        }
    }

    /// The client discarded contents. Pages of a memfd may still be there, if only a mapping of them was
    /// discarded: these stay as they are, and a hole is found at its next fault.
    fn on_removed(&mut self, addr: usize, len: usize) {
        let keeps_residents = self.memory.can_evict();
        // By index: the table changes meanwhile, and no list of ranges may be allocated.
        for part in 0.. {
            let Some(pages) = self.table.pages_in(addr, len).nth(part) else {
                break;
            };
            for page in pages {
                let state = self.table.get(page);
                if keeps_residents && state.is_resident() {
                    continue;
                }
                self.release(state);
                self.table.set(page, PageState::Zero);
                self.counters.removed_pages.add(1);
            }
        }
    }

    /// Releases a page's stored copy.
    fn release(&mut self, state: PageState) {
        if let (Some(contract), Some(copy)) = (&mut self.contract, state.handle()) {
            use crate::memory_object::WritableObject;
            contract.paging.release(copy);
        }
    }

    /// Answers the queued faults; the rest stay queued when one is deferred.
    fn answer_queue(&mut self) -> Outcome {
        let mut at = 0;
        let mut outcome = Outcome::Answered;
        while let Some(&fault) = self.queue.get(at) {
            outcome = self.answer(fault);
            if outcome != Outcome::Answered {
                self.counters.deferred_faults.add(1);
                break;
            }
            self.counters.faults.add(1);
            at += 1;
        }
        self.queue.drain(..at);
        outcome
    }
}

impl Contract {
    fn new(frames: usize, paging: PagingObject) -> io::Result<Self> {
        let standby = Standby::new(frames)?;
        let frames = frames.saturating_sub(standby.frames()).max(UNIT);
        Ok(Self {
            frames,
            paging,
            order: ScanResistant::new(frames),
            standby,
        })
    }
}

/// The key of a page's unit.
fn unit_of(page: usize) -> Key {
    Key::new(0, page / UNIT)
}
