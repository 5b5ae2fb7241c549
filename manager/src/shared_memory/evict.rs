//! An eviction: the pages of one unit out of their object.
//!
//! 1. The unit's resident pages are removed, with what they hold at that moment ([`removal`](super::removal)),
//!    into a slot each.
//! 2. A page of zeros, or one equal to its stored copy, needs no write and gives its frame back; the others wait until there
//!    are enough for one write of the disk, and give theirs back when the store has them.
//!
//! Both are one turn of the pager's loop, which answers no fault and lets no process join meanwhile.

use super::UNIT;
use super::mapped_objects::EndedObject;
use super::mappings::ObjectId;
use super::object::Object;
use super::pager::SharedPager;
use super::placement::{Contents, Placed};
use super::removal::NotRemoved;
use super::slots::SlotNumber;
use crate::page_table::{PageState, is_zero};
use selfpage::{Key, Replacement};
use std::io::IoSliceMut;
use std::time::Duration;
use store::{Checksum, PageHandle, Store, StoreError, WritePage};
use wired::{Counter, PAGE};

/// How long a page that cannot be put back now is left.
const PUT_BACK_PAUSE: Duration = Duration::from_micros(200);

/// Pages of one write: the most that one operation of the store's disk takes.
pub(super) const BATCH: usize = 32;

/// Pages of a unit that leave, and their slots.
#[derive(Clone, Copy, Default)]
struct Leaving {
    pages: [usize; UNIT],
    slots: [SlotNumber; UNIT],
    count: usize,
}

impl SharedPager {
    /// Evicts a unit, if slots are free and a unit has anything. Returns how many pages have left.
    pub fn evict(&mut self) -> usize {
        if self.slots.free().is_none() || (self.careful)() {
            return 0;
        }
        for key in self.mapped.take_unlocked() {
            self.order.filled(key);
        }
        let mapped = &self.mapped;
        let mut residents = |key: Key| mapped.evictable(key.stretch(), key.unit());
        let Some(key) = self.order.victim_by(&mut residents) else {
            return 0;
        };
        let (id, unit) = (key.stretch(), key.unit());
        let leaving = self.stage(id, unit);
        let count = self.take_out(id, &leaving);
        let object = self.mapped.objects.get(&id);
        if object.is_some_and(|object| object.residents(unit) > 0) {
            self.order.filled(key);
        }
        count
    }

    /// Finds slots for the resident pages of a unit; those for which there is none stay.
    fn stage(&mut self, id: ObjectId, unit: usize) -> Leaving {
        let mut leaving = Leaving::default();
        let object = self.mapped.objects.get(&id).into_iter();
        for page in object.flat_map(|object| object.resident_pages(unit)) {
            let Some(slot) = self.slots.stage(id, page) else {
                break;
            };
            leaving.pages[leaving.count] = page;
            leaving.slots[leaving.count] = slot;
            leaving.count += 1;
        }
        leaving
    }

    /// Removes pages. Returns how many have left.
    fn take_out(&mut self, id: ObjectId, leaving: &Leaving) -> usize {
        let Some(object) = self.mapped.objects.get(&id) else {
            return 0;
        };
        let pages = &leaving.pages[..leaving.count];
        let slots = &leaving.slots[..leaving.count];
        let mut into: [IoSliceMut<'_>; UNIT] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (slice, slot) in into.iter_mut().zip(slots) {
            // SAFETY: the page of a slot, which only this thread uses, and once here.
            let page = unsafe { std::slice::from_raw_parts_mut(self.slots.contents(*slot), PAGE) };
            *slice = IoSliceMut::new(page);
        }
        let into = &mut into[..pages.len()];
        let removed = self.removal.remove(object.memory(), pages, into);
        match removed {
            Ok(()) => {}
            Err(NotRemoved::Kept(why)) => {
                slots.iter().for_each(|slot| self.forget_slot(*slot));
                self.warn(&format!("its memfd fails: {why}"));
                return 0;
            }
            Err(NotRemoved::Lost(why)) => {
                let count = pages.len();
                tracing::error!("{count} pages of shared memory are lost: {why}");
                for (page, slot) in pages.iter().zip(slots) {
                    self.forget_slot(*slot);
                    self.set_state(id, *page, PageState::Lost);
                }
                self.frames.put(count as u32);
                return count;
            }
        }
        self.clock.advance(pages.len() as u64);
        (self.count)(0, Counter::Staged, pages.len() as u64);
        slots.iter().for_each(|slot| self.write_back(*slot));
        // Not before all have their states: a write that fails reads messages, by which the object may end.
        if self.outgoing.len() >= BATCH {
            self.flush();
        }
        pages.len()
    }

    /// A slot is not used after all.
    fn forget_slot(&mut self, slot: SlotNumber) {
        self.slots.release(slot);
        self.slots.complete(slot, false);
    }

    /// Sets a page's state, and releases the copy that it had.
    fn set_state(&mut self, id: ObjectId, page: usize, state: PageState) {
        if let Some(object) = self.mapped.objects.get_mut(&id) {
            let was = object.set(page, state);
            self.release_copy(was);
        }
    }

    /// Step 2, of one page.
    fn write_back(&mut self, slot: SlotNumber) {
        let (id, page) = self.slots.page(slot);
        // SAFETY: a page of the slots, which only this thread uses.
        let contents = unsafe { &*self.slots.contents(slot).cast::<[u8; PAGE]>() };
        let now = self.clock.now();
        let Some(object) = self.mapped.objects.get_mut(&id) else {
            return;
        };
        object.set_left(page, now);
        let sum = Checksum::of(contents);
        let is_copy = |copy: PageHandle| self.store.checksum(copy) == sum;
        match object.get(page).handle() {
            // What is zero comes back as a fresh page, which the program changes: nothing may be kept of it.
            _ if is_zero(contents) => {
                self.set_state(id, page, PageState::Zero);
                (self.count)(0, Counter::DroppedZero, 1);
                self.slots.complete(slot, false);
                self.frames.put(1);
            }
            Some(copy) if is_copy(copy) => {
                object.set(page, PageState::Stored(copy));
                (self.count)(0, Counter::DroppedClean, 1);
                self.slots.complete(slot, true);
                self.frames.put(1);
            }
            _ => {
                self.set_state(id, page, PageState::Staged);
                self.outgoing.push(WritePage {
                    from: contents.as_ptr(),
                    sum,
                    token: slot as u64,
                });
            }
        }
    }

    /// Has the store write what waits for it.
    pub fn flush(&mut self) {
        let mut writes = std::mem::take(&mut self.outgoing);
        if !writes.is_empty()
            && let Err(why) = self.channel.submit_write(&writes)
        {
            for write in &writes {
                self.on_written(write.token as SlotNumber, Err(why));
            }
        }
        writes.clear();
        self.outgoing = writes;
    }

    /// The store has a page, or does not take it.
    pub fn on_written(&mut self, slot: SlotNumber, stored: Result<PageHandle, StoreError>) {
        let (id, page) = self.slots.page(slot);
        let contents = self.slots.contents(slot);
        let is_staged = self.slots.complete(slot, stored.is_ok());
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
        // Those that wait fault again.
        for waiter in self.fetches.cancel(id, page) {
            self.mapped.wake(waiter);
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
        if was.is_resident() && object.residents(page / UNIT) == 0 {
            self.order.emptied(Key::new(id, page / UNIT));
        }
        let staged = self.slots.staged(id, page);
        let place = staged.or_else(|| self.slots.kept(id, page));
        place.into_iter().for_each(|at| self.slots.release(at));
        self.frames
            .put(u32::from(was.is_resident() || staged.is_some()));
        self.release_copy(was);
    }

    /// No process maps these any more.
    pub fn end_objects(&mut self, ended: Vec<EndedObject>) {
        for (id, object) in ended {
            self.end_object(id, &object);
        }
    }

    fn end_object(&mut self, id: ObjectId, object: &Object) {
        // They fault again, at what is mapped there now.
        for waiter in self.fetches.cancel_all(id) {
            self.mapped.wake(waiter);
        }
        let all = 0..object.pages();
        for unit in object.used_units(all.clone()) {
            self.order.emptied(Key::new(id, unit));
        }
        let mut frames = self.slots.forget(id);
        for page in object.used_pages(all) {
            let state = object.get(page);
            frames += u32::from(state.is_resident());
            self.release_copy(state);
        }
        self.frames.put(frames);
    }

    /// Releases a page's stored copy.
    pub fn release_copy(&self, state: PageState) {
        if let Some(copy) = state.handle() {
            self.store.discard(self.store.holder(), &[copy]);
        }
    }

    /// A page that the store does not take keeps its frame.
    fn put_back(&mut self, id: ObjectId, page: usize, from: *const u8) {
        let contents = Contents::At(from);
        let mut placed = self.place(id, page, contents, None);
        while placed == Placed::Later {
            // An event is unread: nothing else may use the slot meanwhile.
            let object = self.mapped.objects.get(&id);
            let users = object.map(|object| object.users.clone());
            users
                .into_iter()
                .flatten()
                .for_each(|user| self.receive(user));
            // Or the kernel has no memory for it.
            std::thread::sleep(PUT_BACK_PAUSE);
            placed = self.place(id, page, contents, None);
        }
        // No process maps it: a child inherits it, or it is mapped again.
        let object = self.mapped.objects.get(&id);
        match object.filter(|_| placed == Placed::Nowhere) {
            Some(object) if object.write(page, from).is_ok() => self.set_resident(id, page),
            Some(_) => {
                tracing::error!(
                    "a page of shared memory is lost: the store is full, and no process maps it"
                );
                self.set_state(id, page, PageState::Lost);
                self.frames.put(1);
            }
            None => {}
        }
    }

    pub fn warn(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!("shared memory: {why}");
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
}
