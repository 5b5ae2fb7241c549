//! A fault: from the page's state to contents in its object.

use super::UNIT;
use super::fetches::{QueuedFault, Waiter};
use super::mapped_objects::{Contents, FaultOutcome, Placed};
use super::mappings::ObjectId;
use super::pager::SharedPager;
use super::slots::SlotNumber;
use crate::page_table::PageState;
use selfpage::{Key, Replacement};
use std::time::{Duration, Instant};
use translation::{MapError, Wake};
use wired::{Counter, PAGE};

/// How long a fault waits for a frame before its access fails.
const NO_FRAME: Duration = Duration::from_secs(30);

/// How long a fault waits for a mapping before its thread faults again.
const UNMAPPED: Duration = Duration::from_millis(10);

impl SharedPager {
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
        if since.elapsed() < NO_FRAME {
            return FaultOutcome::Deferred;
        }
        tracing::error!(
            "shared memory: no frame came within {} s, and an access fails: give the program a larger --store \
             or more --frames",
            NO_FRAME.as_secs()
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
        let frames = (0..window).take_while(|_| self.take_frame()).count();
        if frames == 0 {
            return Err(NoFrame);
        }
        let client = self.mapped.clients.get(at.client);
        let filled = client.map_or(Err(MapError::Gone), |client| {
            let userfault = client.uffd.userfault();
            userfault.zero(at.addr, frames * PAGE, Wake::Yes)
        });
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
        self.frames.put((frames - there) as u32);
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

/// No frame is free.
pub(super) struct NoFrame;
