//! What pages the shared memory of a tree: its state, the messages of its clients, and a fault, from the page's state to
//! contents in its object.

use super::UNIT;
use super::clients::{ClientId, SlotIndex};
use super::evict::BATCH;
use super::fetches::{Fetches, QueuedFault, TOKENS, Waiter};
use super::frames::{NoFrame, ObjectFrames};
use super::mapped_objects::{FaultOutcome, MappedObjects};
use super::mappings::ObjectId;
use super::placement::{Contents, Placed};
use super::removal::RemovalPipe;
use super::reuse::ReuseClock;
use super::slots::{SlotNumber, Slots};
use super::streams::WINDOW;
use crate::page_table::PageState;
use crate::unreadable::UnreadablePages;
use host::epoll_set::EpollSet;
use rustix::io::Errno;
use selfpage::{Key, Replacement, ScanResistant};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use store::{Channel, Completion, ReadPage, SharedStore, Store, StoreError, WritePage};
use translation::{MapError, UffdMessage};
use wired::{Counter, PAGE};

/// Messages read in one call.
const AT_ONCE: usize = 64;
/// Reads of one client's messages in a turn.
const MOST_READS: usize = 16;
/// Reads and writes of the store in flight.
pub const CHANNEL_DEPTH: usize = 64;
/// Faults that wait at once without an allocation.
const QUEUE: usize = 4096;

/// How long a fault waits for a mapping before its thread faults again.
const UNMAPPED: Duration = Duration::from_millis(10);

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
    /// Pages whose reads have failed, of the store's or its server's for a moment.
    pub unreadable: UnreadablePages<(ObjectId, usize)>,
    /// Of a run of pages; reused.
    pub reads: Vec<ReadPage>,
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
        let channel = store.channel(CHANNEL_DEPTH)?;
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
            frames,
            store,
            channel,
            careful,
            count,
            unreadable: UnreadablePages::default(),
            queue: VecDeque::with_capacity(QUEUE),
            has_warned: false,
        })
    }

    /// Returns true while frames are to come of what is under way.
    pub fn is_busy(&self) -> bool {
        self.frames.is_wanted() || self.channel.pending() > 0 || !self.outgoing.is_empty()
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
                self.end_objects(ended);
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

    pub fn drop_client(&mut self, id: ClientId) {
        if let Some((client, ended)) = self.mapped.remove_client(id) {
            self.events.remove(&client.uffd);
            self.end_objects(ended);
        }
    }

    /// Answers what is queued. Returns true if a fault was deferred.
    pub fn answer_queue(&mut self) -> bool {
        let mut is_deferred = false;
        for _ in 0..self.queue.len() {
            let Some(mut fault) = self.queue.pop_front() else {
                break;
            };
            if self.answer(&mut fault) == FaultOutcome::Deferred {
                self.queue.push_back(fault);
                is_deferred = true;
            }
        }
        is_deferred
    }

    fn answer(&mut self, fault: &mut QueuedFault) -> FaultOutcome {
        let at = fault.at;
        let Some(client) = self.mapped.clients.get(at.client) else {
            return FaultOutcome::Answered;
        };
        let slot = client.slot;
        let Some((id, page)) = client.mappings.find(at.addr) else {
            return self.wake_unmapped(fault);
        };
        let Some(state) = self.mapped.state(id, page) else {
            return self.mapped.wake(at);
        };
        if fault.waits_since.is_none() {
            self.frames.note_use();
            (self.count)(slot, Counter::Faults, 1);
        }
        if self.unreadable.rests((id, page), fault.waits_since) {
            return FaultOutcome::Deferred;
        }
        let outcome = match state {
            PageState::Lost => Ok(self.mapped.poison(at)),
            // Another process brought it in, or the program has punched a hole.
            _ if state.is_resident() => Ok(self.place_first(id, page, Contents::Zeros, at)),
            PageState::Staged => Ok(self.take_back(id, page, at)),
            PageState::Stored(copy) => self.bring_in(id, page, copy, at),
            _ => self.fill_with_zeros(id, page, at),
        };
        outcome.unwrap_or_else(|NoFrame| self.wait_for_frame(fault, slot))
    }

    /// No object is mapped there: another thread has unmapped it since, or has moved the mapping, of which a
    /// request tells soon. What is mapped there now may be private memory, and is left alone.
    fn wake_unmapped(&mut self, fault: &mut QueuedFault) -> FaultOutcome {
        let since = *fault.waits_since.get_or_insert_with(Instant::now);
        if since.elapsed() < UNMAPPED {
            return FaultOutcome::Deferred;
        }
        let client = self.mapped.clients.get_mut(fault.at.client);
        if client.is_some_and(|client| client.count_stray(fault.at.addr)) {
            return self.mapped.poison(fault.at);
        }
        self.mapped.wake(fault.at)
    }

    fn wait_for_frame(&mut self, fault: &mut QueuedFault, slot: u16) -> FaultOutcome {
        let since = *fault.waits_since.get_or_insert_with(|| {
            (self.count)(slot, Counter::FrameWaits, 1);
            Instant::now()
        });
        let has_evicted = self.evict() > 0;
        self.flush();
        let has_none = !has_evicted && self.slots.staged_pages() == 0;
        self.frames.want(has_none);
        // Frames of the guarantee that the tree is owed come, however late.
        let patience = self.frames.shortage.patience(Instant::now());
        if since.elapsed() < patience || self.frames.domain().request_guaranteed() {
            return FaultOutcome::Deferred;
        }
        self.frames.shortage.on_failed(Instant::now());
        tracing::error!(
            "shared memory: no frame came within {} s, and an access fails: give the program a larger --store \
             or more --frames",
            patience.as_secs()
        );
        self.mapped.poison(fault.at)
    }

    /// Takes a frame. A careful tree goes without where none is free, as if the memory were not paged: nothing of
    /// it may be evicted.
    pub fn take_frame(&mut self) -> bool {
        if self.frames.take() {
            return true;
        }
        let is_careful = (self.careful)();
        if is_careful {
            self.warn(
                "it is beyond the frames, since the kernel may hold its pages for direct I/O: none is evicted",
            );
        }
        is_careful
    }

    /// How many pages to bring in from one on: see [`super::object::Object::window`].
    pub fn window(&mut self, id: ObjectId, page: usize, is_alike: fn(PageState) -> bool) -> usize {
        let object = self.mapped.objects.get_mut(&id);
        object.map_or(1, |object| object.window(page, is_alike))
    }

    /// Fills a page that has no contents, and those behind it while faults come in order.
    fn fill_with_zeros(
        &mut self,
        id: ObjectId,
        page: usize,
        at: Waiter,
    ) -> Result<FaultOutcome, NoFrame> {
        let is_empty = |state| state == PageState::Zero;
        let window = self.window(id, page, is_empty);
        let held = self.frames.held();
        let frames = (0..window).take_while(|_| self.take_frame()).count();
        // Fewer where a careful tree goes without.
        let taken = (self.frames.held() - held) as usize;
        if frames == 0 {
            return Err(NoFrame);
        }
        let filled = self.mapped.fill(id, page, frames, at);
        let there = match filled {
            Ok(()) => frames,
            Err(MapError::Again { done }) => done / PAGE,
            // Another mapping lies behind the window's first pages: one by one, by any mapping.
            Err(_) => {
                let place = |number: usize| {
                    let first = (number == 0).then_some(at);
                    self.mapped.place(id, page + number, Contents::Zeros, first)
                };
                let mut numbers = 0..frames;
                numbers
                    .find(|number| place(*number) != Placed::There)
                    .unwrap_or(frames)
            }
        };
        (page..page + there).for_each(|page| self.set_resident(id, page));
        self.charge(at, Counter::ZeroFilled);
        self.frames.put(taken.min(frames - there) as u32);
        Ok(match filled {
            _ if there > 0 => FaultOutcome::Answered,
            Err(MapError::Again { .. } | MapError::NoMemory) => FaultOutcome::Deferred,
            _ => self.mapped.wake(at),
        })
    }

    /// A page that the store does not have yet: its frame is still in use.
    fn take_back(&mut self, id: ObjectId, page: usize, at: Waiter) -> FaultOutcome {
        match self.slots.staged(id, page) {
            Some(slot) => self.place_from_slot(slot, at),
            None => {
                tracing::error!("shared memory: a staged page is in no slot");
                self.mapped.poison(at)
            }
        }
    }

    /// A second chance: a page comes back from the slot that it was evicted to.
    pub fn place_from_slot(&mut self, slot: SlotNumber, at: Waiter) -> FaultOutcome {
        let (id, page) = self.slots.page(slot);
        let contents = Contents::At(self.slots.contents(slot));
        let outcome = self.place_first(id, page, contents, at);
        if self.mapped.is_resident(id, page) {
            self.slots.release(slot);
            self.order.refaulted(Key::new(id, page / UNIT));
            self.charge(at, Counter::StandbyHits);
        }
        outcome
    }

    /// Places contents for one fault.
    fn place_first(
        &mut self,
        id: ObjectId,
        page: usize,
        contents: Contents,
        at: Waiter,
    ) -> FaultOutcome {
        match self.place(id, page, contents, Some(at)) {
            Placed::There | Placed::Nowhere => FaultOutcome::Answered,
            Placed::Later => FaultOutcome::Deferred,
        }
    }

    /// Puts contents into an object: see [`MappedObjects::place`](super::mapped_objects::MappedObjects::place).
    pub fn place(
        &mut self,
        id: ObjectId,
        page: usize,
        contents: Contents,
        first: Option<Waiter>,
    ) -> Placed {
        let placed = self.mapped.place(id, page, contents, first);
        if placed == Placed::There {
            self.set_resident(id, page);
        }
        placed
    }

    pub fn set_resident(&mut self, id: ObjectId, page: usize) {
        if let Some(object) = self.mapped.objects.get_mut(&id) {
            object.set_resident(page);
            self.order.filled(Key::new(id, page / UNIT));
        }
    }

    pub fn charge(&self, at: Waiter, counter: Counter) {
        if let Some(client) = self.mapped.clients.get(at.client) {
            (self.count)(client.slot, counter, 1);
        }
    }
}
