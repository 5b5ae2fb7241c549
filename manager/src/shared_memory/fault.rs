//! A fault: from the page's state to contents in its object.

use super::UNIT;
use super::fetches::{TOKENS, Waiter};
use super::mappings::ObjectId;
use super::pager::{Outcome, QueuedFault, SharedPager};
use super::streams::WINDOW;
use crate::page_table::PageState;
use selfpage::{Key, Replacement};
use std::time::{Duration, Instant};
use store::{PageHandle, ReadPage, StoreError, Submitted, Wait};
use translation::{Errno, MapError, Wake};
use wired::{Counter, PAGE};

/// How long a fault waits for a frame before its access fails.
const NO_FRAME: Duration = Duration::from_secs(30);

/// What became of contents that were to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    /// The object has the page.
    There,
    /// An event is unread.
    Later,
    /// No process maps the page.
    Nowhere,
}

/// Contents of a page.
#[derive(Clone, Copy)]
pub(super) enum Contents {
    Zeros,
    At(*const u8),
}

impl SharedPager {
    pub fn answer(&mut self, fault: &mut QueuedFault) -> Outcome {
        let at = fault.at;
        let Some(client) = self.clients.get(at.client) else {
            return Outcome::Answered;
        };
        let slot = client.slot;
        let Some((id, page)) = client.mappings.find(at.addr) else {
            // Unmapped by now, or memory that no object has.
            let _ = client.uffd.poison(at.addr, PAGE);
            return self.wake(at);
        };
        let Some(state) = self.objects.get(&id).map(|object| object.get(page)) else {
            return self.wake(at);
        };
        if fault.write_protected {
            return self.permit_stores(at, id, page);
        }
        if fault.waits_since.is_none() {
            self.frames.note_use();
            (self.count)(slot, Counter::Faults, 1);
        }
        let outcome = match state {
            PageState::Lost => self.poison(at),
            // Another process brought it in, or the program has punched a hole.
            _ if state.is_resident() => self.place_first(id, page, Contents::Zeros, at),
            PageState::Staged => self.take_back(id, page, at),
            PageState::Stored(copy) => self.bring_in(id, page, copy, at),
            _ => self.fill_with_zeros(id, page, at),
        };
        match outcome {
            Ok(outcome) => outcome,
            Err(NoFrame) => self.wait_for_frame(fault, slot),
        }
    }

    /// The process stores to a unit that an eviction has protected.
    fn permit_stores(&self, at: Waiter, id: ObjectId, page: usize) -> Outcome {
        let Some(client) = self.clients.get(at.client) else {
            return Outcome::Answered;
        };
        let first = page / UNIT * UNIT;
        for (addr, bytes) in client.mappings.places(id, first..first + UNIT) {
            match client.uffd.userfault().write_protect(addr, bytes, false) {
                Err(why) if why.errno == Errno::AGAIN => return Outcome::Deferred,
                _ => {}
            }
        }
        Outcome::Answered
    }

    fn wait_for_frame(&mut self, fault: &mut QueuedFault, slot: u16) -> Outcome {
        let since = *fault.waits_since.get_or_insert_with(|| {
            (self.count)(slot, Counter::FrameWaits, 1);
            Instant::now()
        });
        let has_evicted = self.evict();
        let has_none = !has_evicted && self.slots.staged_pages() == 0;
        self.frames.want(has_none);
        if since.elapsed() < NO_FRAME {
            return Outcome::Deferred;
        }
        tracing::error!(
            "shared memory: no frame came within {} s, and an access fails: give the program a larger --store \
             or more --frames",
            NO_FRAME.as_secs()
        );
        self.poison(fault.at).unwrap_or(Outcome::Answered)
    }

    /// Takes a frame. A careful tree goes without where none is free, as if the memory were not paged: nothing of
    /// it may be evicted.
    fn take_frame(&mut self) -> bool {
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

    /// Fills a page that has no contents, and those behind it while faults come in order.
    fn fill_with_zeros(
        &mut self,
        id: ObjectId,
        page: usize,
        at: Waiter,
    ) -> Result<Outcome, NoFrame> {
        let object = self.objects.get_mut(&id);
        let is_empty = |state| state == PageState::Zero;
        let window = object.map_or(1, |object| object.window(page, is_empty));
        let frames = (0..window).take_while(|_| self.take_frame()).count();
        if frames == 0 {
            return Err(NoFrame);
        }
        let client = self.clients.get(at.client);
        let userfault = client.map(|client| client.uffd.userfault());
        let filled = userfault.map_or(Err(MapError::Gone), |userfault| {
            userfault.zero(at.addr, frames * PAGE, Wake::Yes)
        });
        let there = match filled {
            Ok(()) => frames,
            Err(MapError::Again { done }) => done / PAGE,
            // Another mapping lies behind the window's first pages: one by one, by any mapping.
            Err(_) => {
                let mut pages = page..page + frames;
                let mut there = |page| self.place(id, page, Contents::Zeros, None) == Placed::There;
                pages.position(|page| !there(page)).unwrap_or(frames)
            }
        };
        (page..page + there).for_each(|page| self.set_resident(id, page));
        self.charge(at, Counter::ZeroFilled);
        self.frames.put((frames - there) as u32);
        Ok(match filled {
            _ if there > 0 => Outcome::Answered,
            Err(MapError::Again { .. } | MapError::NoMemory) => Outcome::Deferred,
            _ => self.wake(at),
        })
    }

    /// A page that the store does not have yet: its frame is still in use.
    fn take_back(&mut self, id: ObjectId, page: usize, at: Waiter) -> Result<Outcome, NoFrame> {
        let Some(place) = self.slots.staged(id, page) else {
            tracing::error!("shared memory: a staged page is in no slot");
            return self.poison(at);
        };
        let contents = Contents::At(self.slots.contents(place));
        let outcome = self.place_first(id, page, contents, at)?;
        if self.is_resident(id, page) {
            self.slots.release(place);
            self.order.refaulted(Key::new(id, page / UNIT));
            self.charge(at, Counter::StandbyHits);
        }
        Ok(outcome)
    }

    fn bring_in(
        &mut self,
        id: ObjectId,
        page: usize,
        copy: PageHandle,
        at: Waiter,
    ) -> Result<Outcome, NoFrame> {
        if let Some(fetch) = self.fetches.of(id, page) {
            fetch.waiters.push(at);
            return Ok(Outcome::Answered);
        }
        if !self.take_frame() {
            return Err(NoFrame);
        }
        if let Some(place) = self.slots.kept(id, page) {
            let contents = Contents::At(self.slots.contents(place));
            let outcome = self.place_first(id, page, contents, at)?;
            if self.is_resident(id, page) {
                self.slots.release(place);
                self.order.refaulted(Key::new(id, page / UNIT));
                self.charge(at, Counter::StandbyHits);
            } else {
                self.frames.put(1);
            }
            return Ok(outcome);
        }
        let Some(read) = self.begin_read(id, page, copy, Some(at)) else {
            self.frames.put(1);
            return Ok(Outcome::Deferred);
        };
        let mut reads = [read; WINDOW];
        let count = 1 + self.begin_readahead(id, page, &mut reads[1..]);
        let is_on_disk = self.store.is_on_disk(copy);
        let kind = match is_on_disk {
            true => Counter::DiskReads,
            false => Counter::CompressedHits,
        };
        self.charge(at, kind);
        self.submit_reads(&reads[..count]);
        Ok(Outcome::Answered)
    }

    fn begin_read(
        &mut self,
        id: ObjectId,
        page: usize,
        copy: PageHandle,
        waiter: Option<Waiter>,
    ) -> Option<ReadPage> {
        let fetch = self.fetches.begin(id, page, copy, waiter)?;
        Some(ReadPage {
            handle: copy,
            into: self.fetches.contents(fetch),
            token: TOKENS + fetch as u64,
        })
    }

    /// Begins to read the pages behind one that a stream of faults will want next, as far as there are frames.
    fn begin_readahead(&mut self, id: ObjectId, page: usize, reads: &mut [ReadPage]) -> usize {
        let object = self.objects.get_mut(&id);
        let is_stored = |state| matches!(state, PageState::Stored(_));
        let window = object.map_or(1, |object| object.window(page, is_stored));
        let mut count = 0;
        for page in page + 1..page + window {
            let state = self.objects.get(&id).map(|object| object.get(page));
            let Some(PageState::Stored(copy)) = state else {
                break;
            };
            let is_here =
                self.fetches.of(id, page).is_some() || self.slots.kept(id, page).is_some();
            if is_here || !self.frames.take() {
                break;
            }
            let Some(read) = self.begin_read(id, page, copy, None) else {
                self.frames.put(1);
                break;
            };
            reads[count] = read;
            count += 1;
        }
        (self.count)(0, Counter::Prefetched, count as u64);
        count
    }

    fn submit_reads(&mut self, reads: &[ReadPage]) {
        let fetch = |read: &ReadPage| (read.token - TOKENS) as usize;
        if let [read] = reads {
            match self.channel.submit_read(*read) {
                Ok(Submitted::Done) => self.on_read(fetch(read), Ok(())),
                Ok(Submitted::Pending) => {}
                Err(why) => self.on_read(fetch(read), Err(why)),
            }
        } else if let Err(why) = self.channel.submit_read_run(reads) {
            reads
                .iter()
                .for_each(|read| self.on_read(fetch(read), Err(why)));
        } else {
            // Those in compressed RAM are there.
            while let Some(completion) = self.channel.complete(Wait::No) {
                self.on_completion(completion);
            }
        }
    }

    /// A page has been read, or cannot be.
    pub fn on_read(&mut self, number: usize, result: Result<(), StoreError>) {
        let Some(fetch) = self.fetches.get_mut(number) else {
            return;
        };
        match result {
            Ok(()) => {
                fetch.has_arrived = true;
                self.place_fetched(number);
            }
            // Nothing was submitted: those that wait fault again.
            Err(StoreError::Busy) => {
                for waiter in std::mem::take(&mut fetch.waiters) {
                    self.wake(waiter);
                }
                self.fetches.end(number);
                self.frames.put(1);
            }
            Err(why) => {
                let (id, page, is_cancelled) = (fetch.object, fetch.page, fetch.is_cancelled);
                let waiters = std::mem::take(&mut fetch.waiters);
                if let Some(object) = self.objects.get_mut(&id).filter(|_| !is_cancelled) {
                    tracing::error!("a page of shared memory is lost: {why}");
                    object.set(page, PageState::Lost);
                }
                for waiter in waiters {
                    self.charge(waiter, Counter::UnreadablePages);
                    let _ = self.poison(waiter);
                }
                self.fetches.end(number);
                self.frames.put(1);
            }
        }
    }

    /// Places the contents that have arrived and could not be placed at once.
    pub fn place_arrived(&mut self) {
        for number in self.fetches.arrived() {
            self.place_fetched(number);
        }
    }

    fn place_fetched(&mut self, number: usize) {
        let contents = Contents::At(self.fetches.contents(number));
        let Some(fetch) = self.fetches.get_mut(number) else {
            return;
        };
        let (id, page, is_cancelled) = (fetch.object, fetch.page, fetch.is_cancelled);
        let first = fetch.waiters.first().copied();
        if is_cancelled {
            self.fetches.end(number);
            return self.frames.put(1);
        }
        match self.place(id, page, contents, first) {
            Placed::There => {}
            Placed::Later => return,
            Placed::Nowhere => self.frames.put(1),
        }
        let fetch = self.fetches.get_mut(number);
        let waiters = fetch
            .map(|fetch| std::mem::take(&mut fetch.waiters))
            .unwrap_or_default();
        // The first is awake.
        for waiter in waiters.into_iter().skip(1) {
            self.wake(waiter);
        }
        self.fetches.end(number);
    }

    /// Places contents for one fault.
    fn place_first(
        &mut self,
        id: ObjectId,
        page: usize,
        contents: Contents,
        at: Waiter,
    ) -> Result<Outcome, NoFrame> {
        Ok(match self.place(id, page, contents, Some(at)) {
            Placed::There => Outcome::Answered,
            Placed::Later => Outcome::Deferred,
            Placed::Nowhere => Outcome::Answered,
        })
    }

    /// Puts contents into an object, by the mapping of the fault or else of any process.
    pub fn place(
        &mut self,
        id: ObjectId,
        page: usize,
        contents: Contents,
        first: Option<Waiter>,
    ) -> Placed {
        let Some(object) = self.objects.get(&id) else {
            return Placed::Nowhere;
        };
        let clients = &self.clients;
        let others = object.users.iter().flat_map(|number| {
            let client = clients.get(*number).into_iter();
            client.flat_map(move |client| {
                let places = client.mappings.places(id, page..page + 1);
                places.map(|(addr, _)| Waiter {
                    client: *number,
                    addr,
                })
            })
        });
        let mut placed = Placed::Nowhere;
        for at in first.into_iter().chain(others) {
            let Some(client) = clients.get(at.client) else {
                continue;
            };
            let userfault = client.uffd.userfault();
            let result = match contents {
                Contents::Zeros => userfault.zero(at.addr, PAGE, Wake::Yes),
                Contents::At(from) => userfault.copy(at.addr, from, PAGE, Wake::Yes),
            };
            placed = match result {
                Ok(()) if first == Some(at) => Placed::There,
                Ok(()) | Err(MapError::Exists { .. }) => {
                    first.into_iter().for_each(|first| {
                        self.wake(first);
                    });
                    Placed::There
                }
                Err(MapError::Again { .. } | MapError::NoMemory) => Placed::Later,
                // Unmapped by now.
                Err(_) => continue,
            };
            break;
        }
        if placed == Placed::There {
            self.set_resident(id, page);
        }
        placed
    }

    fn set_resident(&mut self, id: ObjectId, page: usize) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let then = match object.get(page) {
            PageState::Stored(copy) | PageState::ResidentStored(copy) => {
                PageState::ResidentStored(copy)
            }
            _ => PageState::Resident,
        };
        object.set(page, then);
        self.order.filled(Key::new(id, page / UNIT));
    }

    fn is_resident(&self, id: ObjectId, page: usize) -> bool {
        let object = self.objects.get(&id);
        object.is_some_and(|object| object.get(page).is_resident())
    }

    fn charge(&self, at: Waiter, counter: Counter) {
        if let Some(client) = self.clients.get(at.client) {
            (self.count)(client.slot, counter, 1);
        }
    }

    /// The thread that waits at an address faults again.
    pub fn wake(&self, at: Waiter) -> Outcome {
        let client = self.clients.get(at.client);
        match client.map(|client| client.uffd.userfault().wake(at.addr, PAGE)) {
            Some(Err(why)) if why.errno == Errno::AGAIN => Outcome::Deferred,
            _ => Outcome::Answered,
        }
    }

    /// Makes an access fail.
    fn poison(&self, at: Waiter) -> Result<Outcome, NoFrame> {
        let Some(client) = self.clients.get(at.client) else {
            return Ok(Outcome::Answered);
        };
        // An eviction leaves a marker of its write protection, which the kernel takes for contents.
        let _ = client.uffd.userfault().write_protect(at.addr, PAGE, false);
        Ok(match client.uffd.poison(at.addr, PAGE) {
            Err(MapError::Again { .. }) => Outcome::Deferred,
            _ => self.wake(at),
        })
    }
}

/// No frame is free.
pub(super) struct NoFrame;
