//! The loop of the thread that pages the shared memory of a tree: what it waits and polls for, what a turn does, and the
//! messages and requests of its clients.

use super::clients::{ClientId, SlotIndex};
use super::pager::{PagerError, SharedPager};
use super::requests::{Change, Mailbox, Request};
use frames::DomainId;
use host::epoll_set::EpollSet;
use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};
use store::{Completion, Wait};
use translation::ForeignUserfault;
use wired::{AdaptivePoll, PAGE};

/// Descriptors reported in a turn.
const A_TURN: usize = 64;
/// How long a turn waits: while a fault was deferred, while frames are wanted, and else.
const RETRY: Timespec = timespec(200_000);
const WANTED: Timespec = timespec(1_000_000);
const IDLE: Timespec = timespec(500_000_000);
/// How often the memory of processes that have left is looked at.
const CHECK: Duration = Duration::from_millis(100);

const BELL: u64 = u64::MAX;
const STORE: u64 = u64::MAX - 1;

const fn timespec(nanos: i64) -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: nanos,
    }
}

/// The pager, and what its thread waits for.
pub(super) struct PagerLoop {
    pager: SharedPager,
    requests: Mailbox,
    /// Requests of clients whose memory changes.
    deferred: VecDeque<Request>,
    /// Of what is readable; reused.
    tokens: Vec<u64>,
    checked: Instant,
    store_poll: AdaptivePoll,
    fault_poll: AdaptivePoll,
    /// The process of the last turn's fault, if there was one.
    faulting: Option<ClientId>,
}

impl PagerLoop {
    /// A loop for a pager that is made with the descriptors it waits for.
    pub fn new(
        requests: Mailbox,
        pager: impl FnOnce(EpollSet) -> Result<SharedPager, PagerError>,
    ) -> Result<Self, PagerError> {
        let events = EpollSet::new()?;
        events.add(requests.bell(), BELL)?;
        Ok(Self {
            pager: pager(events)?,
            requests,
            deferred: VecDeque::new(),
            tokens: Vec::with_capacity(A_TURN),
            checked: Instant::now(),
            store_poll: AdaptivePoll::default(),
            fault_poll: AdaptivePoll::default(),
            faulting: None,
        })
    }

    /// Never returns.
    pub fn run(mut self) {
        let mut watches_store = false;
        let (mut is_deferred, mut is_alone) = (false, false);
        loop {
            if !watches_store && let Some(fd) = self.pager.channel.poll_fd() {
                watches_store = self.pager.events.add(fd, STORE).is_ok();
            }
            let has_events = !is_deferred && (self.poll_store() || is_alone && self.poll_faults());
            if !has_events {
                self.wait(is_deferred);
            }
            // Between evictions the supervisor learns that none begins any more.
            (self.pager.careful)();
            let has_waiting = self.serve_requests();
            while let Some(completion) = self.complete() {
                self.pager.on_completion(completion);
            }
            self.pager.place_arrived();
            let has_faults = !self.pager.queue.is_empty();
            is_alone = self.is_one_process_faulting();
            is_deferred = self.pager.answer_queue() || has_waiting;
            self.pager.answer_revocations(has_faults);
            if self.checked.elapsed() > CHECK {
                self.drop_ended();
            }
        }
    }

    fn complete(&mut self) -> Option<Completion> {
        self.pager.channel.complete(Wait::No)
    }

    /// Polls for the one read in flight before it sleeps, if that pays. Returns true if a read or a write has completed.
    fn poll_store(&mut self) -> bool {
        let may_come = |it: &Self| it.pager.fetches.awaited() == 1 && it.pager.channel.may_poll();
        let completion =
            AdaptivePoll::poll(self, |it| &mut it.store_poll, Self::complete, may_come);
        completion.is_some_and(|completion| {
            self.pager.on_completion(completion);
            true
        })
    }

    /// Returns true if this turn's one fault and the one before are of the same process. With more of them the
    /// processors have work, and to poll takes one from it.
    fn is_one_process_faulting(&mut self) -> bool {
        let queue = &self.pager.queue;
        let faulting = match queue.len() {
            1 => queue.front().map(|fault| fault.at.client),
            _ => None,
        };
        let before = std::mem::replace(&mut self.faulting, faulting);
        faulting.is_some() && faulting == before
    }

    /// Polls for the next fault before it sleeps, if that pays: where the program runs on another processor, to wake
    /// this thread takes longer than most faults come after each other. Returns true if messages were read.
    fn poll_faults(&mut self) -> bool {
        let probe = |it: &mut Self| it.read_events(&timespec(0)).then_some(());
        let may_come = |it: &Self| it.pager.fetches.awaited() == 0;
        AdaptivePoll::poll(self, |it| &mut it.fault_poll, probe, may_come).is_some()
    }

    /// Waits for something to do, and reads all messages of those that have any.
    fn wait(&mut self, is_deferred: bool) {
        let limit = match is_deferred || self.pager.fetches.arrived(0).is_some() {
            _ if self.pager.channel.is_ready() => timespec(0),
            true => RETRY,
            false if self.pager.is_busy() => WANTED,
            false => IDLE,
        };
        if !self.read_events(&limit) {
            self.pager.flush();
        }
    }

    /// Waits for events, and reads them. Returns false if there was none.
    fn read_events(&mut self, limit: &Timespec) -> bool {
        self.pager.events.wait(limit, &mut self.tokens);
        let tokens = std::mem::take(&mut self.tokens);
        for token in &tokens {
            match *token {
                BELL => self.requests.hear(),
                STORE => {}
                client => self.pager.receive(client),
            }
        }
        self.tokens = tokens;
        self.note_locked();
        !self.tokens.is_empty()
    }

    /// Serves requests. One of a client whose memory changes waits: what the client has unmapped or moved before is
    /// unread, and would be taken for what it has mapped there since. Later ones of the same process wait with it. Returns true
    /// if any waits.
    fn serve_requests(&mut self) -> bool {
        for request in std::mem::take(&mut self.deferred) {
            self.serve_or_defer(request);
        }
        while let Some(request) = self.requests.receive() {
            self.serve_or_defer(request);
        }
        !self.deferred.is_empty()
    }

    fn serve_or_defer(&mut self, request: Request) {
        let is_behind = self.deferred.iter().any(|it| it.precedes(&request));
        match is_behind || !self.is_up_to_date(&request) {
            true => self.deferred.push_back(request),
            false => self.serve(request),
        }
    }

    /// Reads what a request's client has changed before. Returns false if that is not all.
    fn is_up_to_date(&mut self, request: &Request) -> bool {
        let id = match request {
            Request::End { .. } => None,
            _ => self.pager.mapped.clients.in_slot(request.slot()),
        };
        let Some(id) = id else {
            return true;
        };
        self.pager.receive(id);
        let client = self.pager.mapped.clients.get(id);
        client.is_none_or(|client| client.uffd.has_settled())
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
            Request::Attach {
                slot,
                uffd,
                inode,
                page,
                to,
                respond,
            } => respond(self.attach(slot, uffd, inode, page, to)),
            Request::Fork {
                slot,
                child,
                respond,
            } => respond(self.fork(slot, child)),
            Request::Inherit {
                slot,
                domain,
                uffd,
                respond,
            } => respond(self.inherit(slot, domain, uffd)),
            Request::Change {
                slot,
                change,
                respond,
            } => respond(self.change(slot, change)),
            Request::End { slot } => {
                if self.leave(slot) {
                    self.drop_ended();
                }
            }
        }
        self.note_locked();
    }

    /// Locks begin and end by requests, and end with mappings.
    fn note_locked(&self) {
        self.pager
            .frames
            .note_locked(self.pager.mapped.locked.get());
    }

    /// The process in a slot ends. Returns true if it shares memory.
    fn leave(&mut self, slot: SlotIndex) -> bool {
        let id = self.pager.mapped.clients.in_slot(slot);
        let client = id.and_then(|id| self.pager.mapped.clients.get_mut(id));
        client.map(|client| client.has_left = true).is_some()
    }

    /// Makes a change for the process in a slot; what is not paged is left as it is.
    fn change(&mut self, slot: SlotIndex, change: Change) -> Result<(), String> {
        let Some(id) = self.pager.mapped.clients.in_slot(slot) else {
            // It does not remove what it does not page.
            return match change {
                Change::Discard(_) => Err("nothing is paged there".into()),
                _ => Ok(()),
            };
        };
        match change {
            Change::Discard(range) => {
                if !self.pager.mapped.maps_all(id, &range) {
                    return Err("a part of it is not paged".into());
                }
                for (object, pages) in self.pager.mapped.used_pages_in(id, &range) {
                    for page in pages {
                        self.pager.forget_page(object, page);
                    }
                }
                Ok(())
            }
            Change::Unmapped(range) => {
                let ended = self.pager.mapped.unmap(id, range.start, range.len());
                self.pager.end_objects(ended);
                Ok(())
            }
            Change::Extend { from, offset, to } => {
                self.pager
                    .mapped
                    .add_mapping(id, from, |page| page + offset / PAGE, to)
            }
            Change::Remap { like, page, to } => {
                self.pager.mapped.add_mapping(id, like, |_| page, to)
            }
            Change::Lock(range) => {
                let most = self.pager.frames.most_locked();
                self.pager.mapped.lock(id, &range, most)
            }
            Change::Unlock(range) => {
                self.pager.mapped.unlock(id, &range);
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
        let id = self.client(slot, uffd)?;
        if (self.pager.careful)() {
            return Err("the kernel may hold pages of this tree for direct I/O".into());
        }
        self.pager.mapped.share(id, addr, len, memory)
    }

    fn attach(
        &mut self,
        slot: SlotIndex,
        uffd: Option<OwnedFd>,
        inode: u64,
        page: usize,
        to: Range<usize>,
    ) -> Result<(), String> {
        let id = self.client(slot, uffd)?;
        self.pager.mapped.attach(id, inode, page, to)
    }

    /// The process in a slot, which hands its userfaultfd over if it is new.
    fn client(&mut self, slot: SlotIndex, uffd: Option<OwnedFd>) -> Result<ClientId, String> {
        match (self.pager.mapped.clients.in_slot(slot), uffd) {
            (Some(id), _) => Ok(id),
            (None, Some(uffd)) => self.add_client(slot, uffd),
            (None, None) => Err("the process has handed over no userfaultfd".into()),
        }
    }

    fn add_client(&mut self, slot: SlotIndex, uffd: OwnedFd) -> Result<ClientId, String> {
        let uffd = ForeignUserfault::adopt(uffd).map_err(|why| why.to_string())?;
        let id = self.pager.mapped.clients.insert(slot, uffd);
        let client = self.pager.mapped.clients.get(id);
        let watched = client.map(|client| self.pager.events.add(&client.uffd, id));
        if let Some(Err(why)) = watched {
            self.pager.mapped.clients.remove(id);
            return Err(why.to_string());
        }
        Ok(id)
    }

    /// Keeps what a process maps for its child.
    fn fork(&mut self, slot: SlotIndex, child: DomainId) -> Result<(), String> {
        if !self.has_domain(child) {
            return Err("the child has no domain".into());
        }
        let parent = self.pager.mapped.clients.in_slot(slot);
        let ended = self.pager.mapped.keep_for_child(parent, child);
        self.pager.end_objects(ended);
        Ok(())
    }

    fn inherit(&mut self, slot: SlotIndex, child: DomainId, uffd: OwnedFd) -> Result<(), String> {
        let Some(inherited) = self.pager.mapped.pending.remove(child) else {
            return Err("its parent has kept no shared memory for it".into());
        };
        let added = self.add_client(slot, uffd);
        let ended = match added {
            Ok(id) => self.pager.mapped.inherit(id, inherited),
            Err(_) => self.pager.mapped.take_unmapped_of(Some(&inherited)),
        };
        self.pager.end_objects(ended);
        added.map(|_| ())
    }

    fn has_domain(&self, child: DomainId) -> bool {
        let ledger = self.pager.frames.domain().ledger();
        ledger.stats(child).is_some()
    }

    /// Gives up children that do not come any more.
    fn give_up_children(&mut self) {
        let pending = &self.pager.mapped.pending;
        for child in pending.given_up(|child| self.has_domain(child)) {
            let ended = self.pager.mapped.give_up_child(child);
            self.pager.end_objects(ended);
        }
    }

    /// Ends the clients that have left, and have no address space any more or map nothing in it.
    fn drop_ended(&mut self) {
        self.checked = Instant::now();
        let clients = self.pager.mapped.clients.iter();
        let ended = clients
            .filter(|(_, it)| it.has_left && (it.mappings.is_empty() || !it.uffd.is_owner_alive()));
        let ended: Vec<_> = ended.map(|(id, _)| id).collect();
        ended.into_iter().for_each(|id| self.pager.drop_client(id));
        self.give_up_children();
    }
}
