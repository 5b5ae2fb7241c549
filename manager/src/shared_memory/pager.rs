//! The thread that pages the shared memory of a tree: its loop, its requests, the life of its objects.

use super::clients::{ClientId, Clients, SlotIndex};
use super::fetches::{Fetches, TOKENS, Waiter};
use super::frames::ObjectFrames;
use super::mappings::ObjectId;
use super::object::Object;
use super::requests::{Mailbox, Request};
use super::slots::{SlotPage, Slots};
use crate::page_table::PageState;
use frames::{DomainId, Ledger};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use selfpage::ScanResistant;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use store::{Channel, Completion, SharedStore, Store, StoreError, Wait};
use translation::{ForeignUserfault, Modes, UffdMessage};
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
/// Objects of a tree: each is a descriptor of the supervisor's.
const MOST_OBJECTS: usize = 4096;
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

/// What the pager works with.
pub struct SharedMemoryParts {
    /// The tree's ledger; under the daemon one that rings it.
    pub ledger: Ledger,
    /// The domain that was admitted and adopted for the objects.
    pub domain: DomainId,
    /// The tree's store, attached as the domain's holder, with its transport if it needs one.
    pub store: SharedStore,
    /// Returns true once the kernel may hold pages of the tree; from then on nothing is evicted.
    pub careful: Box<dyn Fn() -> bool + Send>,
    /// Counts for the process in a slot; slot 0 is the tree.
    pub count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
}

/// Starts the pager and the thread that hears the ledger's bell for it.
pub fn start(parts: SharedMemoryParts) -> io::Result<Mailbox> {
    let mailbox = Mailbox::new()?;
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.into());
        let spawned = thread.spawn(run);
        spawned.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
    };
    // As long as the supervisor.
    let ledger: &'static Ledger = Box::leak(Box::new(parts.ledger));
    let frames = ledger.client(parts.domain).map_err(|_| Errno::SRCH)?;
    let ears = mailbox.clone();
    spawn(
        "selfpage-bell",
        Box::new(move || {
            loop {
                let seq = frames.bell_seq();
                if frames.demanded() + frames.trimmed() > 0 {
                    ears.ring();
                }
                frames.wait_bell(seq, Some(Duration::from_secs(1)));
            }
        }),
    )?;
    let (store, careful, count) = (parts.store, parts.careful, parts.count);
    let requests = mailbox.clone();
    spawn(
        "selfpage-shared",
        Box::new(move || {
            let frames = ObjectFrames::new(frames);
            match SharedPager::new(requests.clone(), frames, store, careful, count) {
                Ok(pager) => pager.run(),
                Err(why) => {
                    tracing::warn!("shared memory is not paged: {why}");
                    refuse_all(&requests, &why);
                }
            }
        }),
    )?;
    Ok(mailbox)
}

/// Refuses requests for as long as the supervisor lives.
fn refuse_all(requests: &Mailbox, why: &PagerError) {
    loop {
        while let Some(request) = requests.receive() {
            match request {
                Request::Share { done, .. }
                | Request::Fork { done, .. }
                | Request::Change { done, .. } => done(Err(why.to_string())),
                Request::End { .. } => {}
            }
        }
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            requests.bell(),
            rustix::event::PollFlags::IN,
        )];
        let _ = rustix::event::poll(&mut fds, None);
        requests.hear();
    }
}

/// Why the pager cannot run.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// Its memory or its descriptors.
    #[error("its memory: {0}")]
    Memory(#[from] Errno),
    /// Its channel.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A fault that is read and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedFault {
    pub at: Waiter,
    pub write_protected: bool,
    /// When it first found no frame.
    pub waits_since: Option<Instant>,
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Answered,
    /// An event is unread, no frame is free, or the store is busy.
    Deferred,
}

/// The pager's state.
pub(super) struct SharedPager {
    requests: Mailbox,
    epoll: OwnedFd,
    pub clients: Clients,
    pub objects: BTreeMap<ObjectId, Object>,
    next_object: ObjectId,
    pub frames: ObjectFrames,
    pub order: ScanResistant,
    pub slots: Slots,
    pub fetches: Fetches,
    pub store: SharedStore,
    pub channel: Box<dyn Channel>,
    pub careful: Box<dyn Fn() -> bool + Send>,
    pub count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
    queue: VecDeque<QueuedFault>,
    checked: Instant,
    store_poll: AdaptivePoll,
    fault_poll: AdaptivePoll,
    /// The process of the last turn's fault, if there was one.
    faulting: Option<ClientId>,
    /// A warning is given once.
    pub has_warned: bool,
}

impl SharedPager {
    fn new(
        requests: Mailbox,
        frames: ObjectFrames,
        store: SharedStore,
        careful: Box<dyn Fn() -> bool + Send>,
        count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
    ) -> Result<Self, PagerError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let most = frames.domain().contract().x as usize;
        let channel = store.channel(DEPTH)?;
        let watch = |fd, token| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN)
        };
        watch(requests.bell(), BELL)?;
        Ok(Self {
            requests,
            epoll,
            clients: Clients::default(),
            objects: BTreeMap::new(),
            next_object: 0,
            order: ScanResistant::new(most),
            slots: Slots::new(most)?,
            fetches: Fetches::new()?,
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

    fn run(mut self) {
        let mut watches_store = false;
        let (mut is_deferred, mut is_alone) = (false, false);
        loop {
            if !watches_store && let Some(fd) = self.channel.poll_fd() {
                let data = epoll::EventData::new_u64(STORE);
                watches_store = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).is_ok();
            }
            let has_events = !is_deferred && (self.poll_store() || is_alone && self.poll_faults());
            if !has_events {
                self.wait(is_deferred);
            }
            // Acknowledged between evictions.
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
        let may_come = |it: &Self| it.fetches.count() == 1 && it.channel.may_poll();
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
        let may_come = |it: &Self| it.fetches.count() == 0;
        AdaptivePoll::poll(self, |it| &mut it.fault_poll, probe, may_come).is_some()
    }

    /// Waits for something to do, and reads all messages of those that have any.
    fn wait(&mut self, is_deferred: bool) {
        let limit = match is_deferred || self.fetches.arrived().next().is_some() {
            true => RETRY,
            false if self.frames.is_wanted() || self.channel.pending() > 0 => WANTED,
            false => IDLE,
        };
        let now = timespec(0);
        let limit = if self.channel.is_ready() {
            &now
        } else {
            &limit
        };
        self.read_events(limit);
    }

    /// Waits for events, and reads them. Returns false if there was none.
    fn read_events(&mut self, limit: &Timespec) -> bool {
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; A_TURN];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut ready, Some(limit)) else {
            return false;
        };
        for event in events.iter() {
            match event.data.u64() {
                BELL => self.requests.hear(),
                STORE => {}
                client => self.receive(client),
            }
        }
        !events.is_empty()
    }

    /// Reads the messages of a client: events take effect at once, faults are queued. A bound keeps a process
    /// that unmaps without end from holding up the others.
    pub fn receive(&mut self, id: ClientId) {
        for _ in 0..MOST_READS {
            let mut messages = [const { None }; A_TURN];
            let Some(client) = self.clients.get_mut(id) else {
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
                write_protected: fault.write_protected,
                waits_since: None,
            }),
            UffdMessage::Unmapped { addr, len } => self.on_unmapped(id, addr, len),
            UffdMessage::Moved { from, to, len } => {
                if let Some(client) = self.clients.get_mut(id) {
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

    fn on_unmapped(&mut self, id: ClientId, addr: usize, len: usize) {
        let parts = self.pages_in(id, &(addr..addr.saturating_add(len)));
        if let Some(client) = self.clients.get_mut(id) {
            client.mappings.remove(addr, len);
        }
        for (number, pages) in parts {
            if let Some(object) = self.objects.get_mut(&number) {
                object.unlock(id, &pages);
            }
            self.end_if_unmapped(number);
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
                done,
            } => done(self.share(slot, uffd, addr, len, memory)),
            Request::Fork {
                parent,
                child,
                uffd,
                done,
            } => done(self.fork(parent, child, uffd)),
            Request::Change { slot, change, done } => done(self.change(slot, change)),
            Request::End { slot } => {
                if let Some(id) = self.clients.in_slot(slot) {
                    if let Some(client) = self.clients.get_mut(id) {
                        client.has_left = true;
                    }
                    self.drop_ended();
                }
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
        let id = match (self.clients.in_slot(slot), uffd) {
            (Some(id), _) => id,
            (None, Some(uffd)) => self.add_client(slot, uffd)?,
            (None, None) => return Err("the process has handed over no userfaultfd".into()),
        };
        if (self.careful)() {
            return Err("the kernel may hold pages of this tree for direct I/O".into());
        }
        if self.objects.len() >= MOST_OBJECTS {
            return Err(format!(
                "the tree shares {MOST_OBJECTS} ranges of memory already"
            ));
        }
        let mut object = Object::new(memory, len / PAGE).map_err(|why| why.to_string())?;
        let mut others = self.objects.values();
        if others.any(|other| other.inode() == object.inode()) {
            return Err("this memory is an object already".into());
        }
        let client = self.clients.get_mut(id).ok_or("the process has ended")?;
        let registered = client.uffd.register(addr, len, MODES);
        registered.map_err(|why| why.to_string())?;
        let number = self.next_object;
        self.next_object += 1;
        client.mappings.insert(addr, len, number, 0);
        object.users.push(id);
        self.objects.insert(number, object);
        Ok(())
    }

    fn add_client(&mut self, slot: SlotIndex, uffd: OwnedFd) -> Result<ClientId, String> {
        let uffd = ForeignUserfault::adopt(uffd).map_err(|why| why.to_string())?;
        let id = self.clients.insert(slot, uffd);
        let data = epoll::EventData::new_u64(id);
        if let Some(client) = self.clients.get(id) {
            epoll::add(&self.epoll, &client.uffd, data, epoll::EventFlags::IN)
                .map_err(|why| why.to_string())?;
        }
        Ok(id)
    }

    fn fork(&mut self, parent: SlotIndex, child: SlotIndex, uffd: OwnedFd) -> Result<(), String> {
        let parent = self.clients.in_slot(parent);
        // What the parent has unmapped before.
        parent.into_iter().for_each(|parent| self.receive(parent));
        let Some(parent) = parent.and_then(|parent| self.clients.get(parent)) else {
            // It shares nothing any more.
            return Ok(());
        };
        let mut mappings = parent.mappings.clone();
        let id = self.add_client(child, uffd)?;
        let client = self.clients.get_mut(id).ok_or("the child has ended")?;
        let all: Vec<_> = mappings.iter().collect();
        for (addr, bytes, object) in all {
            match client.uffd.register(addr, bytes, MODES) {
                Ok(()) => {
                    if let Some(object) = self.objects.get_mut(&object)
                        && !object.users.contains(&id)
                    {
                        object.users.push(id);
                    }
                }
                // Advised not to be inherited: nothing is mapped there.
                Err(_) => mappings.remove(addr, bytes),
            }
        }
        client.mappings = mappings;
        Ok(())
    }

    /// Releases a page's stored copy.
    pub fn release_copy(&self, state: PageState) {
        if let Some(copy) = state.handle() {
            self.store.discard(self.store.holder(), &[copy]);
        }
    }

    /// Ends the clients whose address spaces have ended.
    fn drop_ended(&mut self) {
        self.checked = Instant::now();
        let ended = self
            .clients
            .iter()
            .filter(|(_, it)| it.has_left && !it.uffd.is_owner_alive());
        let ended: Vec<_> = ended.map(|(id, _)| id).collect();
        ended.into_iter().for_each(|id| self.drop_client(id));
    }

    pub fn drop_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(id) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &client.uffd);
        for (_, _, number) in client.mappings.iter() {
            self.end_if_unmapped(number);
        }
    }

    /// Ends an object that no process maps any more.
    fn end_if_unmapped(&mut self, number: ObjectId) {
        let Some(object) = self.objects.get_mut(&number) else {
            return;
        };
        let clients = &self.clients;
        let maps = |id: &ClientId| clients.get(*id).is_some_and(|it| it.mappings.has(number));
        object.users.retain(maps);
        object.drop_locks_of_others();
        if object.users.is_empty() {
            self.end_object(number);
        }
    }

    fn end_object(&mut self, id: ObjectId) {
        let Some(object) = self.objects.remove(&id) else {
            return;
        };
        self.fetches.cancel(id);
        let mut frames = self.slots.forget(id);
        for page in 0..object.pages() {
            let state = object.get(page);
            frames += u32::from(state.is_resident());
            self.release_copy(state);
        }
        self.frames.put(frames);
    }

    /// Answers what is queued. Returns true if a fault was deferred.
    fn answer_queue(&mut self) -> bool {
        let mut is_deferred = false;
        for _ in 0..self.queue.len() {
            let Some(fault) = self.queue.pop_front() else {
                break;
            };
            let mut fault = fault;
            if self.answer(&mut fault) == Outcome::Deferred {
                self.queue.push_back(fault);
                is_deferred = true;
            }
        }
        is_deferred
    }

    /// Gives frames back that were demanded, and evicts ahead of need.
    fn answer_revocations(&mut self, has_faults: bool) {
        let missing = self.frames.release_wanted();
        let is_low = has_faults && self.frames.held() > 0 && self.frames.is_low();
        if (missing > 0 || is_low) && self.evict() {
            self.frames.release_wanted();
        }
    }

    pub fn on_completion(&mut self, completion: Completion) {
        let Completion { token, result } = completion;
        if token < TOKENS {
            let stored = result.and_then(|handle| handle.ok_or(StoreError::Busy));
            self.on_written(SlotPage::from_token(token), stored);
        } else {
            self.on_read((token - TOKENS) as usize, result.map(drop));
        }
    }
}

/// A fault on a page that the object lacks, and on a page that an eviction protects.
pub(super) const MODES: Modes = Modes {
    missing: true,
    write_protect: true,
    minor: false,
};
