//! An eviction: one unit out of a memfd, under write protection.
//!
//! 1. The unit's resident pages are write-protected, so that no store is lost; a store waits as a fault.
//! 2. They are read into a standby slot, in runs.
//! 3. A page of zeros, one equal to its origin or to its stored copy needs no write; one whose discard may be under way
//!    stays ([`super::discards`]); the others go to the store, together.
//! 4. Holes are punched where pages left, in runs; pages that the store did not take stay, and their
//!    write protection ends. The pages' words name the copies before, so that a manager that is killed loses none.
//!
//! The client must reach its memfd through the mappings that it handed over: a store through another
//! one (by a vhost-user process, by a device) is not held up between 2 and 4.

use super::pager::{ClientPager, unit_of};
use super::saving::Saving;
use crate::client_memory::ClientMemory;
use crate::memory_object::WritableObject;
use crate::page_table::{PageState, PageTable, UNIT, bits, is_zero, runs};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl};
use selfpage::{Key, Replacement};
use std::ops::Range;
use store::{Checksum, StoreError, WritePage};
use wired::PAGE;

/// What is to become of a unit's pages.
struct Eviction {
    slot: usize,
    first: usize,
    /// The states after the eviction; `None` for pages that stay.
    then: [Option<PageState>; UNIT],
    writes: [usize; UNIT],
    count: usize,
    error: Option<StoreError>,
    /// Pages stay whose discards may be under way.
    waits: bool,
}

/// Units of such pages that an eviction passes over.
const MOST_MARKED: usize = 64;

impl ClientPager {
    /// Returns true if `pages` more frames are within the contract, evicting where they are not.
    pub(super) fn make_room(&mut self, pages: usize) -> bool {
        let mut marked = 0;
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
            let waits = self.evict(key.unit());
            if self.table.resident() == before {
                marked += 1;
                if !waits || marked == MOST_MARKED {
                    return false;
                }
            }
        }
    }

    fn warn_full(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_warned_of_room, true) {
            tracing::warn!(
                "faults of the client wait for a frame, until pages are discarded: {why}; --frames and --store have to \
                 hold what a guest changes"
            );
        }
    }

    /// Returns true if pages stay whose discards may be under way.
    fn evict(&mut self, unit: usize) -> bool {
        let pages = self.table.unit(unit);
        Saving::save_pages(self, pages.clone());
        let Some(slot) = self.contract.as_mut().map(|it| it.standby.reuse(unit)) else {
            return false;
        };
        let mut eviction = Eviction {
            slot,
            first: pages.start,
            then: [None; UNIT],
            writes: [0; UNIT],
            count: 0,
            error: None,
            waits: false,
        };
        for run in resident_runs(&self.table, pages.clone()) {
            eviction.read_run(self, run);
        }
        eviction.write_back(self);
        eviction.take_out(self, pages);
        if let Some(why) = eviction.error {
            match why {
                StoreError::Full => self.warn_full("the store is full"),
                other => self.warn_full(&other.to_string()),
            }
        }
        eviction.waits
    }
}

impl Eviction {
    /// Steps 1 to 3 for a run of pages: what is not to be written is decided here.
    fn read_run(&mut self, pager: &mut ClientPager, run: Range<usize>) {
        let (addr, len) = (pager.table.addr(run.start), run.len() * PAGE);
        if pager.uffd.write_protect(addr, len, true).is_err() {
            return;
        }
        let Some(contract) = &pager.contract else {
            return;
        };
        let into = contract.standby.page(self.slot, run.start);
        // SAFETY: pages of the slot, which only this thread uses; a run lies in one unit.
        let into = unsafe { std::slice::from_raw_parts_mut(into, len) };
        let offset = pager.table.offset(run.start);
        if let Err(errno) = pager.memory.read(addr, offset, into) {
            tracing::warn!("the client's memfd cannot be read at {offset:#x}: {errno}");
            return;
        }
        for page in run {
            let at = contract.standby.page(self.slot, page);
            // SAFETY: a page of the slot, which only this thread uses.
            let contents = unsafe { &*at.cast::<[u8; PAGE]>() };
            let is_marked = pager.table.is_moving(page);
            let then = match pager.table.get(page) {
                _ if is_zero(contents) => Some(PageState::Zero),
                _ if is_marked && pager.discards.may_be_under_way(page) => {
                    self.waits = true;
                    continue;
                }
                PageState::ResidentStored(copy) if contract.paging.is_copy(copy, contents) => {
                    Some(PageState::Stored(copy))
                }
                PageState::ResidentOrigin if is_origin(pager, page, contents) => {
                    Some(PageState::Origin)
                }
                _ => None,
            };
            self.then[page - self.first] = then;
            if then.is_none() {
                self.writes[self.count] = page;
                self.count += 1;
            }
        }
    }

    /// Writes what has to be, in one request.
    fn write_back(&mut self, pager: &mut ClientPager) {
        let Some(contract) = &mut pager.contract else {
            return;
        };
        if self.count == 0 {
            // It needs no turn of the disk.
            return;
        }
        let mut requests = [WritePage {
            from: std::ptr::null(),
            sum: Checksum(0),
            token: 0,
        }; UNIT];
        for (number, page) in self.writes[..self.count].iter().enumerate() {
            let from = contract.standby.page(self.slot, *page);
            // SAFETY: a page of the slot, which only this thread uses.
            let sum = Checksum::of(unsafe { &*from.cast() });
            requests[number] = WritePage {
                from,
                sum,
                token: number as u64,
            };
        }
        let (then, writes, error) = (&mut self.then, &self.writes, &mut self.error);
        let (first, counters) = (self.first, &pager.counters);
        contract.paging.data_write(
            &requests[..self.count],
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
    fn take_out(&self, pager: &mut ClientPager, pages: Range<usize>) {
        let mut has_stayed = false;
        for run in resident_runs(&pager.table, pages.clone()) {
            let mut start = run.start;
            while start < run.end {
                let leaves = |page: &usize| self.then[page - self.first].is_some();
                let len = (start..run.end).take_while(leaves).count();
                if len == 0 {
                    has_stayed = true;
                    start += 1;
                    continue;
                }
                self.take_out_run(pager, start..start + len);
                start += len;
            }
        }
        if has_stayed {
            Self::keep(pager, pages);
        }
    }

    /// Pages of a unit stay: their write protection ends, and another eviction may take them.
    fn keep(pager: &mut ClientPager, pages: Range<usize>) {
        let (addr, len) = (pager.table.addr(pages.start), pages.len() * PAGE);
        let _ = pager.uffd.write_protect(addr, len, false);
        if let Some(contract) = &mut pager.contract {
            contract.order.filled(unit_of(pages.start));
        }
    }

    /// The kernel clears a part of a huge page in place, and keeps it, where something holds the page: the contents come back.
    fn put_back(&self, pager: &ClientPager, run: &Range<usize>) -> Result<(), String> {
        let contract = pager.contract.iter();
        for (page, contract) in contract.flat_map(|it| run.clone().map(move |page| (page, it))) {
            let from = contract.standby.page(self.slot, page);
            // SAFETY: a page of the slot, which only this thread uses.
            let contents = unsafe { std::slice::from_raw_parts(from, PAGE) };
            let written = pager.memory.write(pager.table.offset(page), contents);
            written.map_err(|errno| format!("its memfd cannot be written: {errno}"))?;
        }
        Err("its memfd has a huge page that a device or a pipe holds; advise the memory against huge pages".into())
    }

    fn take_out_run(&self, pager: &mut ClientPager, run: Range<usize>) {
        let offset = pager.table.offset(run.start);
        let mut before = [PageState::Origin; UNIT];
        for page in run.clone() {
            if let Some(then) = self.then[page - self.first] {
                before[page - self.first] = pager.table.set_moving(page, then);
            }
        }
        let len = run.len() * PAGE;
        let punched = match pager.memory.punch(offset, len) {
            Ok(()) if pager.memory.has_pages(offset, len) => self.put_back(pager, &run),
            punched => {
                punched.map_err(|errno| format!("no hole can be punched into its memfd: {errno}"))
            }
        };
        if let Err(why) = punched {
            pager.warn_full(&why);
            for page in run.clone() {
                let copy = pager.table.set(page, before[page - self.first]);
                if copy.handle() != before[page - self.first].handle() {
                    pager.release(copy);
                }
            }
            Self::keep(pager, run);
            return;
        }
        pager.counters.evicted_pages.add(run.len());
        for page in run {
            pager.table.end_move(page);
            let was = before[page - self.first];
            if was.handle() != pager.table.get(page).handle() {
                pager.release(was);
            }
            if let Some(contract) = &mut pager.contract {
                contract.standby.keep(self.slot, page);
            }
        }
    }
}

/// Runs of neighbouring resident pages.
fn resident_runs(
    table: &PageTable,
    pages: Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    runs(
        pages.start,
        bits(pages, |page| table.get(page).is_resident()),
    )
}

/// Returns true if a page still has the snapshot's contents.
fn is_origin(pager: &ClientPager, page: usize, contents: &[u8; PAGE]) -> bool {
    let mut original = [0; PAGE];
    let Some(origin) = &pager.origin else {
        return false;
    };
    let read = origin.read(pager.table.offset(page), &mut original);
    read.is_ok() && original == *contents
}

/// Why no hole can be punched into a memfd, if so.
fn refuses_holes(memfd: &OwnedFd) -> Option<String> {
    let is_writable = fcntl_getfl(memfd).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    let seals = fcntl_get_seals(memfd).unwrap_or(SealFlags::empty());
    let why = if !is_writable {
        "the memfd was handed over for reading alone, and no page of it can be evicted; open it for writing, too"
    } else if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        "the memfd is sealed against writes, and no page of it can be evicted; hand it over without F_SEAL_FUTURE_WRITE"
    } else {
        return None;
    };
    Some(why.to_owned())
}

impl ClientMemory {
    /// Why a contract of `frames` cannot be kept for memory of `pages` pages of this kind, if so.
    pub fn refuses(&self, frames: usize, pages: usize, page_size: usize) -> Option<String> {
        let why = match self {
            _ if pages * (page_size / PAGE) <= frames => return None,
            Self::Memfd(memfd) if page_size == PAGE => return refuses_holes(memfd),
            Self::Memfd(_) => "pages of 2 MiB are not evicted",
            Self::Private(_) => {
                "private memory cannot be evicted from another process (the kernel permits no \
                 MADV_DONTNEED there); hand over a memfd as the second descriptor"
            }
            Self::Cache(..) => "what a clone wrote is private memory, which cannot be evicted",
        };
        Some(why.to_owned())
    }
}
