//! Reads of the store: for a fault, for what left together with its page, and ahead of a stream.
//!
//! A page that has a frame is placed when it has arrived, together with its neighbours. One that was read ahead has none, and stays
//! in its buffer until a fault takes it or another read needs the buffer: a wrong guess costs a read.

use super::UNIT;
use super::fetches::{QueuedFault, TOKENS, Waiter};
use super::frames::NoFrame;
use super::mapped_objects::FaultOutcome;
use super::mappings::ObjectId;
use super::object::Object;
use super::pager::SharedPager;
use super::pairs::Pairing;
use super::placement::{Contents, Placed};
use super::streams::WINDOW;
use crate::page_table::PageState;
use selfpage::{Key, Replacement};
use std::ops::Range;
use std::time::Instant;
use store::{PageHandle, ReadPage, StoreError, Submitted, Wait};
use wired::Counter;

/// Pages that come back together if they left together: a database's are of 8 KiB.
const PAIR: usize = 2;

/// The least window of a stream behind which is read ahead.
const STEADY: usize = 4;

impl SharedPager {
    /// A fault on a page that the store has.
    pub fn bring_in(
        &mut self,
        id: ObjectId,
        page: usize,
        copy: PageHandle,
        at: Waiter,
    ) -> Result<FaultOutcome, NoFrame> {
        if let Some(number) = self.fetches.number(id, page) {
            return self.await_fetch(number, at);
        }
        if !self.take_frame() {
            return Err(NoFrame);
        }
        if let Some(slot) = self.slots.kept(id, page) {
            let outcome = self.place_from_slot(slot, at);
            if !self.mapped.is_resident(id, page) {
                self.frames.put(1);
            }
            return Ok(outcome);
        }
        self.note_reuse(id, page);
        let window = self.window(id, page, is_stored);
        let pages = match window {
            0 | 1 => self.pair(id, page),
            _ => page..page + window,
        };
        let pages = self.fetchable(id, page, pages);
        if let Some(object) = self.mapped.objects.get_mut(&id) {
            object.streams.advance(page, pages.end - page);
        }
        if !self.fetch(id, pages.clone(), Some((page, at))) {
            self.frames.put(1);
            return Ok(FaultOutcome::Deferred);
        }
        let kind = match self.store.is_on_disk(copy) {
            true => Counter::DiskReads,
            false => Counter::CompressedHits,
        };
        self.charge(at, kind);
        if window >= STEADY {
            self.read_ahead(id, pages.end, window);
        }
        Ok(FaultOutcome::Answered)
    }

    /// A fault on a page that is under way, or was read ahead: then its neighbours come with it, and the next ones are
    /// read.
    fn await_fetch(&mut self, number: usize, at: Waiter) -> Result<FaultOutcome, NoFrame> {
        let Some(fetch) = self.fetches.get(number) else {
            return Ok(self.mapped.wake(at));
        };
        let (id, page, is_ahead) = (fetch.object, fetch.page, !fetch.has_frame);
        let is_trial = fetch.is_trial;
        if is_ahead && !self.take_frame() {
            return Err(NoFrame);
        }
        if let Some(fetch) = self.fetches.get_mut(number) {
            fetch.has_frame = true;
            fetch.waiters.push(at);
        }
        if is_ahead {
            self.charge(at, Counter::ReadaheadHits);
            self.note_reuse(id, page);
            if is_trial && let Some(object) = self.mapped.objects.get_mut(&id) {
                object.pairs.on_trial(true);
            }
            let window = self.window(id, page, is_stored);
            let mut end = page + 1;
            while end < page + window && self.claim_ahead(id, end) {
                end += 1;
            }
            if let Some(object) = self.mapped.objects.get_mut(&id) {
                object.streams.advance(page, end - page);
            }
            self.place_arrived();
            if window >= STEADY {
                self.read_ahead(id, end, window);
            }
        }
        Ok(FaultOutcome::Answered)
    }

    /// Gives a page that was read ahead a frame. Returns false if there is none, or no such page.
    fn claim_ahead(&mut self, id: ObjectId, page: usize) -> bool {
        let fetch = self.fetches.of(id, page);
        let is_ahead = fetch.is_some_and(|fetch| !fetch.has_frame);
        if !is_ahead || !self.frames.take() {
            return false;
        }
        if let Some(fetch) = self.fetches.of(id, page) {
            fetch.has_frame = true;
        }
        true
    }

    /// A page comes back from the store: its unit is in use if that is soon after it left.
    fn note_reuse(&mut self, id: ObjectId, page: usize) {
        let left = self.mapped.objects.get(&id).map(|object| object.left(page));
        if left.is_some_and(|left| self.clock.is_soon(left, self.frames.held())) {
            self.order.refaulted(Key::new(id, page / UNIT));
        }
    }

    /// A page with the other half of its pair, if they left together and are used so.
    fn pair(&mut self, id: ObjectId, page: usize) -> Range<usize> {
        let first = page / PAIR * PAIR;
        let other = page ^ 1;
        let object = self.mapped.objects.get_mut(&id);
        let left_together = |object: &&mut Object| {
            other < object.pages()
                && is_stored(object.get(other))
                && object.left(other) == object.left(page)
        };
        let pairing = object.filter(left_together).map(|it| it.pairs.on_fault());
        match pairing.unwrap_or(Pairing::Alone) {
            Pairing::Together => return first..first + PAIR,
            Pairing::Trial => {
                self.read_ahead(id, other, 1);
                if let Some(fetch) = self.fetches.of(id, other) {
                    fetch.is_trial = true;
                }
            }
            Pairing::Alone => {}
        }
        page..page + 1
    }

    /// The pages around one, of a range, that can be read with it.
    fn fetchable(&self, id: ObjectId, page: usize, pages: Range<usize>) -> Range<usize> {
        let can_fetch = |page: &usize| {
            self.mapped.state(id, *page).is_some_and(is_stored)
                && self.fetches.number(id, *page).is_none()
                && self.slots.kept(id, *page).is_none()
        };
        let before = (pages.start..page).rev().take_while(can_fetch).count();
        let behind = (page + 1..pages.end).take_while(can_fetch).count();
        page - before..page + 1 + behind
    }

    /// Reads the pages behind a stream's window, if there is a buffer for each.
    fn read_ahead(&mut self, id: ObjectId, page: usize, window: usize) {
        let object = self.mapped.objects.get(&id);
        let end = object.map_or(0, |object| object.pages()).min(page + window);
        // The first may be read already.
        let is_here = |page: &usize| self.fetches.number(id, *page).is_some();
        let first = page + (page..end).take_while(is_here).count();
        let is_stored = first < end && self.mapped.state(id, first).is_some_and(is_stored);
        if !is_stored || self.slots.kept(id, first).is_some() {
            return;
        }
        let pages = self.fetchable(id, first, first..end);
        let count = pages.len() as u64;
        if self.fetch(id, pages, None) {
            (self.count)(0, Counter::ReadaheadPages, count);
        }
    }

    /// Begins to read pages side by side: for a fault on one of them, which has a frame already, with as many others as
    /// there are frames; or ahead. Returns false if there are no buffers.
    fn fetch(&mut self, id: ObjectId, pages: Range<usize>, fault: Option<(usize, Waiter)>) -> bool {
        let pages = match fault {
            Some((page, _)) => self.with_frames(page, &pages),
            None => pages,
        };
        let others = pages.len() as u32 - 1;
        let Some(numbers) = self.fetches.reserve(pages.len()) else {
            self.frames.put(if fault.is_some() { others } else { 0 });
            return false;
        };
        let mut reads = std::mem::take(&mut self.reads);
        for (number, page) in numbers.zip(pages) {
            self.drop_ahead(number);
            let Some(PageState::Stored(copy)) = self.mapped.state(id, page) else {
                unreachable!("the caller asks for stored pages");
            };
            self.fetches.begin(number, id, page);
            if let (Some((of, at)), Some(fetch)) = (fault, self.fetches.get_mut(number)) {
                fetch.has_frame = true;
                fetch.waiters.extend((of == page).then_some(at));
            }
            reads.push(ReadPage {
                handle: copy,
                into: self.fetches.contents(number),
                token: TOKENS + number as u64,
            });
        }
        if fault.is_some() {
            (self.count)(0, Counter::Prefetched, others.into());
        }
        self.submit_reads(&reads);
        reads.clear();
        self.reads = reads;
        true
    }

    /// The pages around one that has a frame, of a range, for which there are frames, too.
    fn with_frames(&mut self, page: usize, pages: &Range<usize>) -> Range<usize> {
        let mut framed = page..page + 1;
        while framed.start > pages.start && self.frames.take() {
            framed.start -= 1;
        }
        while framed.end < pages.end && self.frames.take() {
            framed.end += 1;
        }
        framed
    }

    /// The buffer of a page that was read ahead in vain is needed.
    fn drop_ahead(&mut self, number: usize) {
        let is_trial = self.fetches.get(number).is_some_and(|it| it.is_trial);
        if let Some((id, _)) = self.fetches.end(number) {
            (self.count)(0, Counter::ReadaheadUnused, 1);
            if is_trial && let Some(object) = self.mapped.objects.get_mut(&id) {
                object.pairs.on_trial(false);
            }
        }
    }

    fn submit_reads(&mut self, reads: &[ReadPage]) {
        let number = |read: &ReadPage| (read.token - TOKENS) as usize;
        if let [read] = reads {
            match self.channel.submit_read(*read) {
                Ok(Submitted::Done) => self.on_read(number(read), Ok(())),
                Ok(Submitted::Pending) => {}
                Err(why) => self.on_read(number(read), Err(why)),
            }
        } else if let Err(why) = self.channel.submit_read_run(reads) {
            reads
                .iter()
                .for_each(|read| self.on_read(number(read), Err(why)));
        } else {
            // Those in compressed RAM are there.
            while let Some(completion) = self.channel.complete(Wait::No) {
                self.on_completion(completion);
            }
        }
        self.place_arrived();
    }

    /// A page was read, and [`SharedPager::place_arrived`] places it, or cannot be. Threads whose page was not asked for fault again.
    pub fn on_read(&mut self, number: usize, result: Result<(), StoreError>) {
        let Some(fetch) = self.fetches.get_mut(number) else {
            return;
        };
        let (id, page) = (fetch.object, fetch.page);
        let Err(why) = result else {
            fetch.has_arrived = true;
            return self.unreadable.forget((id, page));
        };
        let (has_frame, is_cancelled) = (fetch.has_frame, fetch.is_cancelled);
        let waiters = std::mem::take(&mut fetch.waiters);
        let is_failure = has_frame && !is_cancelled && why != StoreError::Busy;
        let is_lost = is_failure
            && (why.is_final()
                || !waiters.is_empty() && !self.unreadable.on_failed((id, page), Instant::now()));
        if is_lost && let Some(object) = self.mapped.objects.get_mut(&id) {
            tracing::error!("a page of shared memory is lost: {why}");
            let was = object.set(page, PageState::Lost);
            self.release_copy(was);
            self.unreadable.forget((id, page));
        }
        for at in waiters {
            let outcome = if is_lost {
                self.charge(at, Counter::UnreadablePages);
                self.mapped.poison(at)
            } else if is_failure {
                FaultOutcome::Deferred
            } else {
                self.mapped.wake(at)
            };
            if outcome == FaultOutcome::Deferred {
                let waits_since = Some(Instant::now());
                self.queue.push_back(QueuedFault { at, waits_since });
            }
        }
        self.fetches.end(number);
        self.frames.put(has_frame.into());
    }

    /// Places the contents that have arrived, neighbours at once.
    pub fn place_arrived(&mut self) {
        let mut from = 0;
        while let Some(number) = self.fetches.arrived(from) {
            let count = self.run_of_arrived(number);
            let placed = match count {
                1 => 0,
                _ => self.place_run(number..number + count),
            };
            if placed == 0 {
                self.place_fetched(number);
            }
            from = number + placed.max(1);
        }
    }

    /// How many fetches from one on are to be placed and are of pages side by side.
    fn run_of_arrived(&self, number: usize) -> usize {
        let page = |number: usize| {
            let fetch = self.fetches.get(number)?;
            let is_due = fetch.has_arrived && fetch.has_frame && !fetch.is_cancelled;
            is_due.then_some((fetch.object, fetch.page))
        };
        let Some((id, first)) = page(number) else {
            return 1;
        };
        let behind = 1..WINDOW;
        let is_next = |count: &usize| page(number + count) == Some((id, first + count));
        1 + behind.take_while(is_next).count()
    }

    /// Places neighbours by one mapping. Returns how many of the first are there.
    fn place_run(&mut self, numbers: Range<usize>) -> usize {
        let Some(first) = self.fetches.get(numbers.start) else {
            return 0;
        };
        let (id, pages) = (first.object, first.page..first.page + numbers.len());
        let mut fetches = numbers.clone().filter_map(|it| self.fetches.get(it));
        let waiter = fetches.find_map(|fetch| fetch.waiters.first()).copied();
        let from = self.fetches.contents(numbers.start);
        let (placed, by) = self.mapped.place_run(id, &pages, from, waiter);
        for (number, page) in numbers.zip(pages).take(placed) {
            self.set_resident(id, page);
            let fetch = self.fetches.get_mut(number);
            let waiters = fetch.map(|fetch| std::mem::take(&mut fetch.waiters));
            // Those of the mapping are awake.
            for waiter in waiters.into_iter().flatten() {
                if !by.as_ref().is_some_and(|(client, range)| {
                    *client == waiter.client && range.contains(&waiter.addr)
                }) {
                    self.mapped.wake(waiter);
                }
            }
            self.fetches.end(number);
        }
        placed
    }

    fn place_fetched(&mut self, number: usize) {
        let contents = Contents::At(self.fetches.contents(number));
        let Some(fetch) = self.fetches.get_mut(number) else {
            return;
        };
        let (id, page) = (fetch.object, fetch.page);
        let first = fetch.waiters.first().copied();
        if fetch.is_cancelled {
            let has_frame = fetch.has_frame;
            self.fetches.end(number);
            return self.frames.put(has_frame.into());
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
            self.mapped.wake(waiter);
        }
        self.fetches.end(number);
    }
}

fn is_stored(state: PageState) -> bool {
    matches!(state, PageState::Stored(_))
}
