//! An eviction: one unit out of a memfd, under write protection.
//!
//! 1. The unit's resident pages are write-protected, so that no store is lost; a store waits as a fault.
//! 2. They are read into a standby slot, in runs.
//! 3. A page of zeros, one equal to its origin or to its stored copy needs no write; the others go to
//!    the store, together.
//! 4. Holes are punched where pages left, in runs; pages that the store did not take stay, and their
//!    write protection ends.
//!
//! The client must reach its memfd through the mappings that it handed over: a store through another
//! one is not held up between 2 and 4.

use super::{Client, unit_of};
use crate::client_memory::ClientMemory;
use crate::memory_object::WritableObject;
use crate::page_table::{PageState, UNIT};
use selfpage::{Key, Replacement};
use std::ops::Range;
use store::{Checksum, StoreError, WritePage};
use wired::PAGE;

/// What is to become of a unit's pages.
struct Batch {
    slot: usize,
    first: usize,
    /// The states after the eviction; `None` for pages that stay.
    then: [Option<PageState>; UNIT],
    writes: [usize; UNIT],
    count: usize,
    error: Option<StoreError>,
}

impl Client {
    /// Returns true if `pages` more frames are within the contract, evicting where they are not.
    pub(super) fn make_room(&mut self, pages: usize) -> bool {
        loop {
            let Some(contract) = &mut self.contract else {
                return true;
            };
            if self.table.resident() + pages <= contract.frames {
                return true;
            }
            let table = &self.table;
            let mut resident = |key: Key| table.resident_in(key.unit());
            let Some(key) = contract.order.victim_by(&mut resident) else {
                self.warn_full("no page of the client can be evicted");
                return false;
            };
            let before = self.table.resident();
            self.evict(key.unit());
            if self.table.resident() == before {
                return false;
            }
        }
    }

    fn warn_full(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "faults of the client wait for a frame: {why}; give it a larger --store or more --frames"
            );
        }
    }

    fn evict(&mut self, unit: usize) {
        let pages = self.table.unit(unit);
        let Some(slot) = self.contract.as_mut().map(|it| it.standby.reuse(unit)) else {
            return;
        };
        let mut batch = Batch {
            slot,
            first: pages.start,
            then: [None; UNIT],
            writes: [0; UNIT],
            count: 0,
            error: None,
        };
        for run in self.resident_runs(pages.clone()) {
            self.read_run(&mut batch, run);
        }
        self.write_batch(&mut batch);
        self.take_out(&batch, pages);
        if let Some(why) = batch.error {
            self.warn_full(&why.to_string());
        }
    }

    /// Runs of neighbouring resident pages.
    fn resident_runs(&self, pages: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let first = pages.start;
        let bits = pages
            .clone()
            .filter(|page| self.table.get(*page).is_resident());
        let mut bits = bits.fold(0u64, |bits, page| bits | 1 << (page - first));
        std::iter::from_fn(move || {
            let start = bits.trailing_zeros() as usize;
            if bits == 0 {
                return None;
            }
            let len = (!(bits >> start)).trailing_zeros() as usize;
            let mask = u64::MAX >> (64 - len) << start;
            bits &= !mask;
            Some(first + start..first + start + len)
        })
    }

    /// Steps 1 to 3 for a run of pages: what is not to be written is decided here.
    fn read_run(&mut self, batch: &mut Batch, run: Range<usize>) {
        let (addr, len) = (self.table.addr(run.start), run.len() * PAGE);
        let userfault = self.uffd.userfault();
        if userfault.write_protect(addr, len, true).is_err() {
            return;
        }
        let Some(contract) = &self.contract else {
            return;
        };
        let into = contract.standby.page(batch.slot, run.start);
        let offset = self.table.offset(run.start);
        if let Err(errno) = self.memory.read(offset, into, len) {
            tracing::warn!("the client's memfd cannot be read at {offset:#x}: {errno}");
            return;
        }
        for page in run {
            let at = contract.standby.page(batch.slot, page);
            // SAFETY: a page of the slot, which only this thread uses.
            let contents = unsafe { &*at.cast::<[u8; PAGE]>() };
            let then = match self.table.get(page) {
                _ if is_zero(contents) => Some(PageState::Zero),
                PageState::ResidentStored(copy) if contract.paging.is_copy(copy, contents) => {
                    Some(PageState::Stored(copy))
                }
                PageState::ResidentOrigin if self.is_origin(page, contents) => {
                    Some(PageState::Origin)
                }
                _ => None,
            };
            batch.then[page - batch.first] = then;
            if then.is_none() {
                batch.writes[batch.count] = page;
                batch.count += 1;
            }
        }
    }

    /// Returns true if a page still has the snapshot's contents.
    fn is_origin(&self, page: usize, contents: &[u8; PAGE]) -> bool {
        let mut original = [0; PAGE];
        let Some(origin) = &self.origin else {
            return false;
        };
        let read = origin.read(self.table.offset(page), &mut original);
        read.is_ok() && original == *contents
    }

    /// Writes what has to be, in one request.
    fn write_batch(&mut self, batch: &mut Batch) {
        let Some(contract) = &mut self.contract else {
            return;
        };
        let mut requests = [WritePage {
            from: std::ptr::null(),
            sum: Checksum(0),
            token: 0,
        }; UNIT];
        for (number, page) in batch.writes[..batch.count].iter().enumerate() {
            let from = contract.standby.page(batch.slot, *page);
            // SAFETY: a page of the slot, which only this thread uses.
            let sum = Checksum::of(unsafe { &*from.cast() });
            requests[number] = WritePage {
                from,
                sum,
                token: number as u64,
            };
        }
        let (then, writes, error) = (&mut batch.then, &batch.writes, &mut batch.error);
        let (first, counters) = (batch.first, &self.counters);
        contract.paging.data_write(
            &requests[..batch.count],
            &mut |number, result| match result {
                Ok(copy) => {
                    counters.written_pages.add(1);
                    then[writes[number] - first] = Some(PageState::Stored(copy));
                }
                Err(why) => *error = Some(why),
            },
        );
    }

    /// Step 4.
    fn take_out(&mut self, batch: &Batch, pages: Range<usize>) {
        let mut has_stayed = false;
        for run in self.resident_runs(pages.clone()) {
            let mut start = run.start;
            while start < run.end {
                let leaves = |page: &usize| batch.then[page - batch.first].is_some();
                let len = (start..run.end).take_while(leaves).count();
                if len == 0 {
                    has_stayed = true;
                    start += 1;
                    continue;
                }
                self.take_out_run(batch, start..start + len);
                start += len;
            }
        }
        if has_stayed {
            let (addr, len) = (self.table.addr(pages.start), pages.len() * PAGE);
            let _ = self.uffd.userfault().write_protect(addr, len, false);
            if let Some(contract) = &mut self.contract {
                contract.order.filled(unit_of(pages.start));
            }
        }
    }

    fn take_out_run(&mut self, batch: &Batch, run: Range<usize>) {
        let offset = self.table.offset(run.start);
        if let Err(errno) = self.memory.punch(offset, run.len() * PAGE) {
            tracing::warn!("no hole can be punched into the client's memfd: {errno}");
            return;
        }
        self.counters.evicted_pages.add(run.len());
        for page in run {
            let Some(then) = batch.then[page - batch.first] else {
                continue;
            };
            let was = self.table.set(page, then);
            if was.handle() != then.handle() {
                self.release(was);
            }
            if let Some(contract) = &mut self.contract {
                contract.standby.keep(batch.slot, page);
            }
        }
    }
}

impl ClientMemory {
    /// Why a contract of `frames` cannot be kept for memory of `pages` pages of this kind, if so.
    pub fn refuses(&self, frames: usize, pages: usize, page_size: usize) -> Option<String> {
        let why = match self {
            _ if pages * (page_size / PAGE) <= frames => return None,
            Self::Memfd(_) if page_size == PAGE => return None,
            Self::Memfd(_) => "pages of 2 MiB are not evicted",
            Self::Private => {
                "private memory cannot be evicted from another process (the kernel permits no \
                 MADV_DONTNEED there); hand over a memfd as the second descriptor"
            }
            Self::Cache(_) => "what a clone wrote is private memory, which cannot be evicted",
        };
        Some(why.to_owned())
    }
}

fn is_zero(page: &[u8; PAGE]) -> bool {
    // SAFETY: the words of the page.
    let (head, words, tail) = unsafe { page.align_to::<u64>() };
    head.iter().all(|it| *it == 0)
        && words.iter().all(|it| *it == 0)
        && tail.iter().all(|it| *it == 0)
}
