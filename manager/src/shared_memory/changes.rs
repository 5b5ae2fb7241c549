//! Changes of shared memory that a process asks for, since the kernel does not report them.

use super::UNIT;
use super::clients::{ClientId, SlotIndex};
use super::mappings::ObjectId;
use super::pager::{MODES, SharedPager};
use super::requests::Change;
use crate::page_table::PageState;
use selfpage::{Key, Replacement};
use std::ops::Range;
use wired::PAGE;

impl SharedPager {
    /// Makes a change for the process in a slot; what is not paged is left as it is.
    pub fn change(&mut self, slot: SlotIndex, change: Change) -> Result<(), String> {
        let Some(id) = self.clients.in_slot(slot) else {
            return Ok(());
        };
        // What the process has unmapped before.
        self.receive(id);
        match change {
            Change::Discard(range) => {
                for (object, pages) in self.pages_in(id, &range) {
                    pages.for_each(|page| self.forget_page(object, page));
                }
                Ok(())
            }
            Change::Extend { from, offset, to } => self.extend(id, from, offset, to),
            Change::Lock(range) => self.lock(id, &range),
            Change::Unlock(range) => {
                self.unlock(id, &range);
                Ok(())
            }
        }
    }

    pub fn pages_in(&self, id: ClientId, range: &Range<usize>) -> Vec<(ObjectId, Range<usize>)> {
        let client = self.clients.get(id).into_iter();
        let parts = client.flat_map(|client| client.mappings.pages_in(range.start, range.len()));
        parts.collect()
    }

    /// A page's contents end.
    fn forget_page(&mut self, id: ObjectId, page: usize) {
        if let Some(fetch) = self.fetches.of(id, page) {
            fetch.is_cancelled = true;
            // Those that wait fault again.
            for waiter in std::mem::take(&mut fetch.waiters) {
                self.wake(waiter);
            }
        }
        let Some(object) = self.objects.get_mut(&id) else {
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

    fn extend(
        &mut self,
        id: ClientId,
        from: usize,
        offset: usize,
        to: Range<usize>,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(id) else {
            return Ok(());
        };
        let Some((number, page)) = client.mappings.find(from) else {
            return Ok(());
        };
        let Some(object) = self.objects.get_mut(&number) else {
            return Ok(());
        };
        let first = page + offset / PAGE;
        // Beyond the object's end an access fails, as natively.
        let bytes = to.len().min(object.pages().saturating_sub(first) * PAGE);
        if bytes == 0 || !to.start.is_multiple_of(PAGE) {
            return Ok(());
        }
        let registered = client.uffd.register(to.start, bytes, MODES);
        registered.map_err(|why| why.to_string())?;
        client.mappings.insert(to.start, bytes, number, first);
        if !object.users.contains(&id) {
            object.users.push(id);
        }
        Ok(())
    }

    fn lock(&mut self, id: ClientId, range: &Range<usize>) -> Result<(), String> {
        let parts = self.pages_in(id, range);
        let wanted: usize = parts.iter().map(|(_, pages)| pages.len()).sum();
        let locked: usize = self.objects.values().map(|object| object.locked()).sum();
        let most = self.frames.most_locked();
        if wanted > 0 && locked + wanted > most {
            return Err(format!(
                "{wanted} pages of shared memory cannot be locked beside {locked}: {most} fit into the frames"
            ));
        }
        for (object, pages) in parts {
            if let Some(object) = self.objects.get_mut(&object) {
                object.lock(id, pages);
            }
        }
        Ok(())
    }

    fn unlock(&mut self, id: ClientId, range: &Range<usize>) {
        for (number, pages) in self.pages_in(id, range) {
            if let Some(object) = self.objects.get_mut(&number) {
                object.unlock(id, &pages);
                for unit in pages.start / UNIT..pages.end.div_ceil(UNIT) {
                    if object.residents(unit) > 0 {
                        self.order.filled(Key::new(number, unit));
                    }
                }
            }
        }
    }
}
