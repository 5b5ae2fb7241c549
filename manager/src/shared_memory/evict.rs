//! An eviction: one unit out of its object, under write protection in every mapping.
//!
//! 1. The unit is write-protected in every mapping, whether or not its pages are there: the
//!    kernel leaves a marker where they are not, so no process can store to a page that another one maps later.
//!    A store waits as a fault.
//! 2. Its resident pages are read into a slot, in runs.
//! 3. Holes are punched, in runs: the pages leave the page cache, and every process.
//! 4. A page of zeros, or one equal to its stored copy, needs no write and gives its frame back; the others are
//!    written, and give theirs back when the store has them.
//!
//! The protection stays until a process stores to the unit: to end it at once would take another call for each
//! mapping, and most are not stored to before the next eviction.
//!
//! Steps 1 to 3 are one turn of the pager's loop, which answers no fault and lets no process join
//! meanwhile.

use super::UNIT;
use super::mapped_objects::{Contents, Placed};
use super::mappings::ObjectId;
use super::object::Object;
use super::pager::SharedPager;
use super::slots::SlotPage;
use crate::page_table::{PageState, is_zero};
use selfpage::{Key, Replacement};
use std::ops::Range;
use store::{Checksum, PageHandle, Store, StoreError, WritePage};
use wired::{Counter, PAGE};

impl SharedPager {
    /// Evicts a unit, if a slot is free and a unit has anything. Returns true if pages have left.
    pub fn evict(&mut self) -> bool {
        if self.slots.free().is_none() || (self.careful)() {
            return false;
        }
        let mapped = &self.mapped;
        let mut residents = |key: Key| mapped.evictable(key.stretch(), key.unit());
        let Some(key) = self.order.victim_by(&mut residents) else {
            return false;
        };
        let (id, unit) = (key.stretch(), key.unit());
        let Some(pages) = self.mapped.objects.get(&id).map(|object| object.unit(unit)) else {
            return false;
        };
        let slot = match self.mapped.protect(id, &pages) {
            Ok(()) => self.slots.take(id, unit),
            Err(_) => None,
        };
        let count = slot.map_or(0, |slot| self.take_out(id, &pages, slot));
        if let (Some(slot), true) = (slot, count > 0) {
            self.write_back(id, &pages, slot);
        }
        let object = self.mapped.objects.get(&id);
        if object.is_some_and(|object| object.residents(unit) > 0) {
            self.order.filled(key);
        }
        count > 0
    }

    /// Steps 2 and 3. Returns how many pages have left.
    fn take_out(&mut self, id: ObjectId, pages: &Range<usize>, slot: usize) -> usize {
        let Some(object) = self.mapped.objects.get(&id) else {
            return 0;
        };
        let (mut count, mut failure) = (0, None);
        for run in object.resident_runs(pages.clone()) {
            let first = SlotPage {
                slot,
                index: run.start % UNIT,
            };
            let into = self.slots.contents(first);
            // SAFETY: pages of the slot, which only this thread uses; a run lies in one unit.
            let into = unsafe { std::slice::from_raw_parts_mut(into, run.len() * PAGE) };
            let outcome = object
                .read(run.start, into)
                .and_then(|()| object.punch(&run));
            if let Err(why) = outcome {
                failure = Some(why);
                continue;
            }
            count += run.len();
            // Their states follow in step 4; until then no fault is answered.
            for page in run {
                let index = page % UNIT;
                self.slots.stage(SlotPage { slot, index });
            }
        }
        if let Some(why) = failure {
            self.warn(&format!("its memfd fails: {why}"));
        }
        count
    }

    /// Step 4.
    fn write_back(&mut self, id: ObjectId, pages: &Range<usize>, slot: usize) {
        let (mut writes, mut count, mut clean) = ([NO_WRITE; UNIT], 0, 0);
        for page in pages.clone() {
            let at = SlotPage {
                slot,
                index: page % UNIT,
            };
            if !self.slots.is_staged(at) {
                continue;
            }
            (self.count)(0, Counter::Staged, 1);
            // SAFETY: a page of the slot, which only this thread uses.
            let contents = unsafe { &*self.slots.contents(at).cast::<[u8; PAGE]>() };
            let Some(object) = self.mapped.objects.get_mut(&id) else {
                return;
            };
            let was = object.get(page);
            let sum = Checksum::of(contents);
            let is_copy = |copy: PageHandle| self.store.checksum(copy) == sum;
            let is_kept = match was.handle() {
                _ if is_zero(contents) => {
                    object.set(page, PageState::Zero);
                    self.release_copy(was);
                    (self.count)(0, Counter::DroppedZero, 1);
                    false
                }
                Some(copy) if is_copy(copy) => {
                    object.set(page, PageState::Stored(copy));
                    (self.count)(0, Counter::DroppedClean, 1);
                    true
                }
                _ => {
                    object.set(page, PageState::Staged);
                    self.release_copy(was);
                    writes[count] = WritePage {
                        from: contents.as_ptr(),
                        sum,
                        token: at.token(),
                    };
                    count += 1;
                    continue;
                }
            };
            // What is zero comes back as a fresh page, which the program changes: nothing may be kept of it.
            self.slots.complete(at, is_kept);
            clean += 1;
        }
        self.frames.put(clean);
        let writes = &writes[..count];
        if let Err(why) = self.channel.submit_write(writes) {
            for write in writes {
                self.on_written(SlotPage::from_token(write.token), Err(why));
            }
        }
    }

    /// The store has a page, or does not take it.
    pub fn on_written(&mut self, at: SlotPage, stored: Result<PageHandle, StoreError>) {
        let (id, page) = self.slots.page(at);
        let is_stored = stored.is_ok();
        let contents = Contents::At(self.slots.contents(at));
        let is_staged = self.slots.complete(at, is_stored);
        let object = self.mapped.objects.get_mut(&id).filter(|_| is_staged);
        match (stored, object) {
            (Ok(copy), Some(object)) => {
                object.set(page, PageState::Stored(copy));
                self.frames.put(1);
                (self.count)(0, Counter::Written, 1);
            }
            // It was taken back, or its object has ended.
            (Ok(copy), None) => self.store.discard(self.store.holder(), &[copy]),
            (Err(_), None) => {}
            (Err(why), Some(_)) => {
                (self.count)(0, Counter::WriteFailures, 1);
                self.warn(&format!("a page stays in memory: {why}"));
                self.put_back(id, page, contents);
            }
        }
    }

    /// A page's contents end.
    pub fn forget_page(&mut self, id: ObjectId, page: usize) {
        if let Some(fetch) = self.fetches.of(id, page) {
            fetch.is_cancelled = true;
            // Those that wait fault again.
            for waiter in std::mem::take(&mut fetch.waiters) {
                self.mapped.wake(waiter);
            }
        }
        let Some(object) = self.mapped.objects.get_mut(&id) else {
            return;
        };
        if object.get(page).is_resident()
            && let Err(why) = object.punch(&(page..page + 1))
        {
            return self.warn(&format!("a page cannot be discarded: {why}"));
        }
        let was = object.set(page, PageState::Zero);
        let staged = self.slots.staged(id, page);
        let place = staged.or_else(|| self.slots.kept(id, page));
        place.into_iter().for_each(|at| self.slots.release(at));
        self.frames
            .put(u32::from(was.is_resident() || staged.is_some()));
        self.release_copy(was);
    }

    /// No process maps the object any more.
    pub fn end_object(&mut self, id: ObjectId, object: &Object) {
        self.fetches.cancel(id);
        let mut frames = self.slots.forget(id);
        for page in 0..object.pages() {
            let state = object.get(page);
            frames += u32::from(state.is_resident());
            self.release_copy(state);
        }
        self.frames.put(frames);
    }

    /// Releases a page's stored copy.
    fn release_copy(&self, state: PageState) {
        if let Some(copy) = state.handle() {
            self.store.discard(self.store.holder(), &[copy]);
        }
    }

    /// A page that the store does not take keeps its frame.
    fn put_back(&mut self, id: ObjectId, page: usize, contents: Contents) {
        while self.place(id, page, contents, None) == Placed::Later {
            // An event is unread: nothing else may use the slot meanwhile.
            let users = self
                .mapped
                .objects
                .get(&id)
                .map(|object| object.users.clone());
            users
                .into_iter()
                .flatten()
                .for_each(|user| self.receive(user));
        }
    }

    pub fn warn(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!("shared memory: {why}");
        }
    }
}

const NO_WRITE: WritePage = WritePage {
    from: std::ptr::null(),
    sum: Checksum(0),
    token: 0,
};
