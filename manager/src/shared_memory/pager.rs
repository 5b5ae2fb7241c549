//! What pages the shared memory of a tree: the messages and changes of its clients, the life of its objects.

use super::clients::{ClientId, SlotIndex};
use super::evict::BATCH;
use super::fetches::{Fetches, QueuedFault, TOKENS, Waiter};
use super::frames::ObjectFrames;
use super::mapped_objects::MappedObjects;
use super::removal::RemovalPipe;
use super::requests::Change;
use super::reuse::ReuseClock;
use super::slots::Slots;
use super::streams::WINDOW;
use host::epoll_set::EpollSet;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use selfpage::{Replacement, ScanResistant};
use std::collections::VecDeque;
use store::{Channel, Completion, ReadPage, SharedStore, Store, StoreError, WritePage};
use translation::{ForeignUserfault, UffdMessage};
use wired::{Counter, PAGE};

/// Reads and writes of the store in flight.
const DEPTH: usize = 64;
/// Messages read in one call.
const AT_ONCE: usize = 64;
/// Reads of one client's messages in a turn.
const MOST_READS: usize = 16;
/// Faults that wait at once without an allocation.
const QUEUE: usize = 4096;

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
    /// The userfaultfds of its clients, and what the loop waits for beside them.
    pub events: EpollSet,
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
    /// A warning is given once.
    pub has_warned: bool,
}

impl SharedPager {
    pub fn new(
        events: EpollSet,
        frames: ObjectFrames,
        store: SharedStore,
        careful: Box<dyn Fn() -> bool + Send>,
        count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
    ) -> Result<Self, PagerError> {
        let most = frames.domain().contract().x as usize;
        let channel = store.channel(DEPTH)?;
        Ok(Self {
            events,
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
            has_warned: false,
        })
    }

    /// Returns true while frames are to come of what is under way.
    pub fn is_busy(&self) -> bool {
        self.frames.is_wanted() || self.channel.pending() > 0 || !self.outgoing.is_empty()
    }

    /// Reads the messages of a client: events take effect at once, faults are queued. A bound keeps a process
    /// that unmaps without end from holding up the others.
    pub fn receive(&mut self, id: ClientId) {
        for _ in 0..MOST_READS {
            let mut messages = [const { None }; AT_ONCE];
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
            if count < AT_ONCE {
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

    /// The process in a slot ends. Returns true if it shares memory.
    pub fn leave(&mut self, slot: SlotIndex) -> bool {
        let id = self.mapped.clients.in_slot(slot);
        let client = id.and_then(|id| self.mapped.clients.get_mut(id));
        client.map(|client| client.has_left = true).is_some()
    }

    /// Makes a change for the process in a slot; what is not paged is left as it is.
    pub fn change(&mut self, slot: SlotIndex, change: Change) -> Result<(), String> {
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

    pub fn share(
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

    pub fn fork(
        &mut self,
        parent: SlotIndex,
        child: SlotIndex,
        uffd: OwnedFd,
    ) -> Result<(), String> {
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
    pub fn drop_ended(&mut self) {
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
    pub fn answer_revocations(&mut self, has_faults: bool) {
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
