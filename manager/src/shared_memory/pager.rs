//! The thread that pages the shared memory of a tree: its loop, its requests, the life of its objects.

use super::clients::{ClientId, SlotIndex};
use super::evict::BATCH;
use super::fetches::{Fetches, QueuedFault, TOKENS, Waiter};
use super::frames::ObjectFrames;
use super::mapped_objects::MappedObjects;
use super::removal::RemovalPipe;
use super::requests::{Change, Mailbox, Request};
use super::reuse::ReuseClock;
use super::slots::Slots;
use super::streams::WINDOW;
use host::epoll_set::EpollSet;
use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use selfpage::{Replacement, ScanResistant};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use store::{Channel, Completion, ReadPage, SharedStore, Store, StoreError, Wait, WritePage};
use translation::{ForeignUserfault, UffdMessage};
use wired::{AdaptivePoll, Counter, PAGE};

/// Reads and writes of the store in flight.
const DEPTH: usize = 64;
/// Descriptors reported in a turn, and messages read in one call.
const A_TURN: usize = 64;
/// How long a turn waits: while a fault was deferred, while frames are wanted, and else.
const RETRY: Timespec = timespec(200_000);
const WANTED: Timespec = timespec(1_000_000);
const IDLE: Timespec = timespec(500_000_000);
/// How often the memory of processes that have left is looked at.
const CHECK: Duration = Duration::from_millis(100);
/// Reads of one client's messages in a turn.
const MOST_READS: usize = 16;
/// Faults that wait at once without an allocation.
const QUEUE: usize = 4096;

const BELL: u64 = u64::MAX;
const STORE: u64 = u64::MAX - 1;

const fn timespec(nanos: i64) -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: nanos,
    }
}

/// Why the pager cannot run.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// Its memory or its descriptors.
    #[error("its memory: {0}")]
    Memory(#[from] Errno),
    /// Pages cannot be taken out of a memfd.
    #[error(
        "this kernel copies the pages of a memfd that are spliced, or has no room for a pipe: {0}"
    )]
    Removal(Errno),
    /// Its channel.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The pager's state.
pub(super) struct SharedPager {
    requests: Mailbox,
    events: EpollSet,
    /// Of what is readable; reused.
    tokens: Vec<u64>,
    pub mapped: MappedObjects,
    pub frames: ObjectFrames,
    pub order: ScanResistant,
    /// When pages left, to tell those that come back soon.
    pub clock: ReuseClock,
    pub removal: RemovalPipe,
    pub slots: Slots,
    /// Pages in slots that wait for others, to be written with them.
    pub outgoing: Vec<WritePage>,
    pub fetches: Fetches,
    /// Of a run of pages; reused.
    pub reads: Vec<ReadPage>,
    /// Pairs of pages that were to come back together.
    pub pairs: u64,
    pub store: SharedStore,
    pub channel: Box<dyn Channel>,
    pub careful: Box<dyn Fn() -> bool + Send>,
    pub count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
    pub queue: VecDeque<QueuedFault>,
    checked: Instant,
    store_poll: AdaptivePoll,
    fault_poll: AdaptivePoll,
    /// The process of the last turn's fault, if there was one.
    faulting: Option<ClientId>,
    /// A warning is given once.
    pub has_warned: bool,
}

impl SharedPager {
    pub fn new(
        requests: Mailbox,
        frames: ObjectFrames,
        store: SharedStore,
        careful: Box<dyn Fn() -> bool + Send>,
        count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
    ) -> Result<Self, PagerError> {
        let events = EpollSet::new()?;
        events.add(requests.bell(), BELL)?;
        let most = frames.domain().contract().x as usize;
        let channel = store.channel(DEPTH)?;
        Ok(Self {
            requests,
            events,
            tokens: Vec::with_capacity(A_TURN),
            mapped: MappedObjects::default(),
            order: ScanResistant::for_small_ranges(most),
            clock: ReuseClock::new(most),
            removal: RemovalPipe::new().map_err(PagerError::Removal)?,
            slots: Slots::new(most)?,
            outgoing: Vec::with_capacity(2 * BATCH),
            fetches: Fetches::new()?,
            reads: Vec::with_capacity(WINDOW),
            pairs: 0,
            frames,
            store,
            channel,
            careful,
            count,
            queue: VecDeque::with_capacity(QUEUE),
            checked: Instant::now(),
            store_poll: AdaptivePoll::default(),
            fault_poll: AdaptivePoll::default(),
            faulting: None,
            has_warned: false,
        })
    }

    pub fn run(mut self) {
        let mut watches_store = false;
        let (mut is_deferred, mut is_alone) = (false, false);
        loop {
            if !watches_store && let Some(fd) = self.channel.poll_fd() {
                watches_store = self.events.add(fd, STORE).is_ok();
            }
            let has_events = !is_deferred && (self.poll_store() || is_alone && self.poll_faults());
            if !has_events {
                self.wait(is_deferred);
            }
            // Between evictions the supervisor learns that none begins any more.
            (self.careful)();
            while let Some(request) = self.requests.receive() {
                self.serve(request);
            }
            while let Some(completion) = self.channel.complete(Wait::No) {
                self.on_completion(completion);
            }
            self.place_arrived();
            let has_faults = !self.queue.is_empty();
            is_alone = self.is_one_process_faulting();
            is_deferred = self.answer_queue();
            self.answer_revocations(has_faults);
            if self.checked.elapsed() > CHECK {
                self.drop_ended();
            }
        }
    }

    /// Polls for the one read in flight before it sleeps, if that pays. Returns true if a read or a write has completed.
    fn poll_store(&mut self) -> bool {
        let probe = |it: &mut Self| it.channel.complete(Wait::No);
        let may_come = |it: &Self| it.fetches.awaited() == 1 && it.channel.may_poll();
        let completion = AdaptivePoll::poll(self, |it| &mut it.store_poll, probe, may_come);
        completion.is_some_and(|completion| {
            self.on_completion(completion);
            true
        })
    }

    /// Returns true if this turn's one fault and the one before are of the same process. With more of them the
    /// processors have work, and to poll takes one from it.
    fn is_one_process_faulting(&mut self) -> bool {
        let faulting = match self.queue.len() {
            1 => self.queue.front().map(|fault| fault.at.client),
            _ => None,
        };
        let before = std::mem::replace(&mut self.faulting, faulting);
        faulting.is_some() && faulting == before
    }

    /// Polls for the next fault before it sleeps, if that pays: where the program runs on another processor, to wake
    /// this thread takes longer than most faults come after each other. Returns true if messages were read.
    fn poll_faults(&mut self) -> bool {
        let probe = |it: &mut Self| it.read_events(&timespec(0)).then_some(());
        let may_come = |it: &Self| it.fetches.awaited() == 0;
        AdaptivePoll::poll(self, |it| &mut it.fault_poll, probe, may_come).is_some()
    }

    /// Waits for something to do, and reads all messages of those that have any.
    fn wait(&mut self, is_deferred: bool) {
        let limit = match is_deferred || self.fetches.arrived(0).is_some() {
            _ if self.channel.is_ready() => timespec(0),
            true => RETRY,
            false if self.is_busy() => WANTED,
            false => IDLE,
        };
        if !self.read_events(&limit) {
            self.flush();
        }
    }

    /// Returns true while frames are to come of what is under way.
    fn is_busy(&self) -> bool {
        self.frames.is_wanted() || self.channel.pending() > 0 || !self.outgoing.is_empty()
    }

    /// Waits for events, and reads them. Returns false if there was none.
    fn read_events(&mut self, limit: &Timespec) -> bool {
        let mut tokens = std::mem::take(&mut self.tokens);
        self.events.wait(limit, &mut tokens);
        for token in &tokens {
            match *token {
                BELL => self.requests.hear(),
                STORE => {}
                client => self.receive(client),
            }
        }
        let has_events = !tokens.is_empty();
        self.tokens = tokens;
        has_events
    }

    /// Reads the messages of a client: events take effect at once, faults are queued. A bound keeps a process
    /// that unmaps without end from holding up the others.
    pub fn receive(&mut self, id: ClientId) {
        for _ in 0..MOST_READS {
            let mut messages = [const { None }; A_TURN];
            let Some(client) = self.mapped.clients.get_mut(id) else {
                return;
            };
            let count = match client.uffd.read(&mut messages) {
                Ok(count) => count,
                Err(why) => {
                    tracing::debug!("the userfaultfd of slot {} is closed: {why}", client.slot);
                    return self.drop_client(id);
                }
            };
            for message in messages.into_iter().flatten() {
                self.on_message(id, message);
            }
            if count < A_TURN {
                return;
            }
        }
    }

    fn on_message(&mut self, id: ClientId, message: UffdMessage) {
        match message {
            UffdMessage::Fault(fault) => self.queue.push_back(QueuedFault {
                at: Waiter {
                    client: id,
                    addr: fault.addr,
                },
                waits_since: None,
            }),
            UffdMessage::Unmapped { addr, len } => {
                let ended = self.mapped.unmap(id, addr, len);
                ended
                    .into_iter()
                    .for_each(|(id, object)| self.end_object(id, &object));
            }
            UffdMessage::Moved { from, to, len } => {
                if let Some(client) = self.mapped.clients.get_mut(id) {
                    client.mappings.relocate(from, to, len);
                }
            }
            // Contents of shared memory outlive the mapping's own pages.
            UffdMessage::Removed { .. } => {}
            UffdMessage::Forked(_) | UffdMessage::Unknown(_) => {
                tracing::debug!("an event of shared memory that was not asked for");
            }
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Share {
                slot,
                uffd,
                addr,
                len,
                memory,
                respond,
            } => respond(self.share(slot, uffd, addr, len, memory)),
            Request::Fork {
                parent,
                child,
                uffd,
                respond,
            } => respond(self.fork(parent, child, uffd)),
            Request::Change {
                slot,
                change,
                respond,
            } => respond(self.change(slot, change)),
            Request::End { slot } => {
                if let Some(id) = self.mapped.clients.in_slot(slot) {
                    if let Some(client) = self.mapped.clients.get_mut(id) {
                        client.has_left = true;
                    }
                    self.drop_ended();
                }
            }
        }
    }

    /// Makes a change for the process in a slot; what is not paged is left as it is.
    fn change(&mut self, slot: SlotIndex, change: Change) -> Result<(), String> {
        let Some(id) = self.mapped.clients.in_slot(slot) else {
            return Ok(());
        };
        // What the process has unmapped before.
        self.receive(id);
        match change {
            Change::Discard(range) => {
                for (object, pages) in self.mapped.pages_in(id, &range) {
                    pages.for_each(|page| self.forget_page(object, page));
                }
                Ok(())
            }
            Change::Extend { from, offset, to } => {
                self.mapped
                    .add_mapping(id, from, |page| page + offset / PAGE, to)
            }
            Change::Remap { like, page, to } => self.mapped.add_mapping(id, like, |_| page, to),
            Change::Lock(range) => {
                let most = self.frames.most_locked();
                self.mapped.lock(id, &range, most)
            }
            Change::Unlock(range) => {
                for key in self.mapped.unlock(id, &range) {
                    self.order.filled(key);
                }
                Ok(())
            }
        }
    }

    fn share(
        &mut self,
        slot: SlotIndex,
        uffd: Option<OwnedFd>,
        addr: usize,
        len: usize,
        memory: OwnedFd,
    ) -> Result<(), String> {
        let id = match (self.mapped.clients.in_slot(slot), uffd) {
            (Some(id), _) => id,
            (None, Some(uffd)) => self.add_client(slot, uffd)?,
            (None, None) => return Err("the process has handed over no userfaultfd".into()),
        };
        if (self.careful)() {
            return Err("the kernel may hold pages of this tree for direct I/O".into());
        }
        self.mapped.share(id, addr, len, memory)
    }

    fn add_client(&mut self, slot: SlotIndex, uffd: OwnedFd) -> Result<ClientId, String> {
        let uffd = ForeignUserfault::adopt(uffd).map_err(|why| why.to_string())?;
        let id = self.mapped.clients.insert(slot, uffd);
        if let Some(client) = self.mapped.clients.get(id) {
            let watched = self.events.add(&client.uffd, id);
            watched.map_err(|why| why.to_string())?;
        }
        Ok(id)
    }

    fn fork(&mut self, parent: SlotIndex, child: SlotIndex, uffd: OwnedFd) -> Result<(), String> {
        let parent = self.mapped.clients.in_slot(parent);
        // What the parent has unmapped before.
        parent.into_iter().for_each(|parent| self.receive(parent));
        let Some(parent) = parent.filter(|parent| self.mapped.clients.get(*parent).is_some())
        else {
            // It shares nothing any more.
            return Ok(());
        };
        let child = self.add_client(child, uffd)?;
        self.mapped.inherit(parent, child);
        Ok(())
    }

    /// Ends the clients whose address spaces have ended.
    fn drop_ended(&mut self) {
        self.checked = Instant::now();
        let clients = self.mapped.clients.iter();
        let ended = clients.filter(|(_, it)| it.has_left && !it.uffd.is_owner_alive());
        let ended: Vec<_> = ended.map(|(id, _)| id).collect();
        ended.into_iter().for_each(|id| self.drop_client(id));
    }

    fn drop_client(&mut self, id: ClientId) {
        if let Some((client, ended)) = self.mapped.remove_client(id) {
            self.events.remove(&client.uffd);
            ended
                .into_iter()
                .for_each(|(id, object)| self.end_object(id, &object));
        }
    }

    /// Gives frames back that were demanded, and evicts ahead of need.
    fn answer_revocations(&mut self, has_faults: bool) {
        let missing = self.frames.release_wanted();
        let mut evicted = 0;
        while evicted < BATCH {
            let staged = self.slots.staged_pages();
            let is_low = has_faults && self.frames.held() > 0 && self.frames.is_low(staged);
            let left = match missing > staged || is_low {
                true => self.evict(),
                false => 0,
            };
            if left == 0 {
                break;
            }
            evicted += left;
        }
        if missing > 0 {
            self.flush();
            self.frames.release_wanted();
        }
    }

    pub fn on_completion(&mut self, completion: Completion) {
        let Completion { token, result } = completion;
        if token < TOKENS {
            let stored = result.and_then(|handle| handle.ok_or(StoreError::Busy));
            self.on_written(token as usize, stored);
        } else {
            self.on_read((token - TOKENS) as usize, result.map(drop));
        }
    }
}
