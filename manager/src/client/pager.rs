//! The state of one client's memory, which its handler thread owns.

use super::ClientParts;
use super::discards::Discards;
use super::saving::Saving;
use crate::client_memory::ClientMemory;
use crate::client_record::ClientRecord;
use crate::counters::{Counters, RecordedCounters};
use crate::memory_object::WritableObject;
use crate::page_table::{PageState, PageTable, UNIT};
use crate::paging_object::PagingObject;
use crate::recording::Recording;
use crate::snapshot::Snapshot;
use crate::standby::Standby;
use crate::unreadable::UnreadablePages;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SeekFrom};
use selfpage::{Key, ScanResistant};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use translation::{ForeignUserfault, MessageSlot};
use wired::{PAGE, WiredMemory};

/// Frames, and where pages go that have none.
pub(super) struct Contract {
    /// Frames for resident pages: those of the contract without the standby slots.
    pub frames: usize,
    pub paging: PagingObject,
    pub order: ScanResistant,
    pub standby: Standby,
}

/// A client's pages, where they are and may be.
pub(super) struct ClientPager {
    pub uffd: ForeignUserfault,
    pub memory: ClientMemory,
    pub table: PageTable,
    pub discards: Discards,
    pub origin: Option<Snapshot>,
    pub contract: Option<Contract>,
    pub recording: Option<Recording>,
    pub counters: RecordedCounters,
    /// What outlives this manager.
    pub record: Arc<ClientRecord>,
    pub saving: Option<Saving>,
    /// A page of zeros, of the client's page size.
    pub zeros: WiredMemory,
    /// The huge page that the kernel has refused last, and when.
    pub refused_huge_page: Option<Instant>,
    pub unreadable: UnreadablePages<usize>,
    /// A warning of a fault is given once.
    pub has_warned: bool,
    /// So is one of an eviction.
    pub has_warned_of_room: bool,
}

impl ClientPager {
    /// Allocates all that faults need.
    pub fn new(parts: ClientParts) -> io::Result<Self> {
        let table = PageTable::new(&parts.record);
        let counters = RecordedCounters::of(&parts.record);
        let contract = match parts.contract {
            Some((frames, paging)) => Some(Contract::new(frames, paging)?),
            None => None,
        };
        let frames = contract
            .as_ref()
            .map_or(0, |it| it.frames + it.standby.frames());
        counters.frames.set(frames);
        Ok(Self {
            zeros: WiredMemory::private(table.page_size())?,
            uffd: parts.uffd,
            memory: parts.memory,
            discards: Discards::new(table.units()),
            table,
            origin: parts.origin,
            contract,
            recording: parts.recording,
            counters,
            record: parts.record,
            saving: None,
            refused_huge_page: None,
            unreadable: UnreadablePages::default(),
            has_warned: false,
            has_warned_of_room: false,
        })
    }

    pub fn uffd(&self) -> &ForeignUserfault {
        &self.uffd
    }

    /// A place for a message.
    pub fn slot(&self, at: usize) -> &MessageSlot {
        &self.record.messages()[at]
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn count_resident(&self) {
        self.counters.resident_pages.set(self.table.resident());
    }

    pub fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// What was recorded, and what the client made.
    pub fn into_received(self) -> (Option<Recording>, ForeignUserfault, ClientMemory) {
        (self.recording, self.uffd, self.memory)
    }

    /// Ends the write protection of all memory.
    pub fn unprotect(&self) {
        for (addr, len) in self.ranges() {
            let _ = self.uffd.write_protect(addr, len, false);
        }
    }

    /// Wakes all threads that wait for a page.
    pub fn wake_all(&self) {
        for (addr, len) in self.ranges() {
            let _ = self.uffd.wake(addr, len);
        }
    }

    /// Address and bytes of each mapping.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let (table, size) = (&self.table, self.table.page_size());
        (table.mapped()).map(move |pages| (table.addr(pages.start), pages.len() * size))
    }

    /// The client discards contents. Pages of a memfd may still be there, if only a mapping of them is discarded: these stay
    /// for now ([`Discards`]), and a hole is found at its next fault.
    pub fn on_removed(&mut self, addr: usize, len: usize) {
        let keeps_residents = self.memory.can_evict();
        // By index: the table changes meanwhile, and no list of ranges may be allocated.
        for part in 0.. {
            let Some(pages) = self.table.pages_in(addr, len).nth(part) else {
                break;
            };
            Saving::on_discard(self, pages.clone());
            for page in pages {
                let state = self.table.get(page);
                let is_moving = self.table.is_moving(page);
                if keeps_residents && state.is_resident() {
                    self.table.set_moving(page, PageState::Resident);
                    self.release(state);
                    self.discards.note(page);
                    continue;
                }
                // What a manager was bringing in when it was killed may be there, as a resident is.
                match keeps_residents && is_moving {
                    true => self.table.set_moving(page, PageState::Zero),
                    false => self.table.set(page, PageState::Zero),
                };
                self.release(state);
                self.counters.removed_pages.add(1);
            }
        }
    }

    /// Releases a page's stored copy.
    pub fn release(&mut self, state: PageState) {
        if let (Some(contract), Some(copy)) = (&mut self.contract, state.handle()) {
            contract.paging.release(copy);
        }
    }
}

/// The data of a file between two offsets. By a descriptor of its own, since a seek moves the position of all that share
/// one; by the shared one, whose position comes back, where the file is another user's or no descriptor is free.
fn data_ranges(file: &OwnedFd, offset: u64, end: u64) -> Vec<Range<u64>> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    if let Ok(own) = rustix::fs::open(path, how, Mode::empty()) {
        return data_between(&own, offset, end);
    }
    let position = rustix::fs::tell(file);
    let ranges = data_between(file, offset, end);
    if let Ok(position) = position {
        let _ = rustix::fs::seek(file, SeekFrom::Start(position));
    }
    ranges
}

fn data_between(file: &OwnedFd, offset: u64, end: u64) -> Vec<Range<u64>> {
    let seek = |from| rustix::fs::seek(file, from).ok();
    let (mut ranges, mut at) = (Vec::new(), offset);
    while let Some(start) = seek(SeekFrom::Data(at)).filter(|start| *start < end) {
        at = seek(SeekFrom::Hole(start)).map_or(end, |hole| hole.min(end));
        ranges.push(start..at);
    }
    ranges
}

impl Contract {
    fn new(frames: usize, paging: PagingObject) -> io::Result<Self> {
        let standby = Standby::new(frames)?;
        let frames = frames.saturating_sub(standby.frames()).max(UNIT);
        Ok(Self {
            frames,
            paging,
            order: ScanResistant::new(frames),
            standby,
        })
    }
}

/// Notes the pages that a memfd has when it is handed over, such as those of a kernel that the VMM has loaded.
pub(crate) fn note_present(record: &Arc<ClientRecord>, memory: &ClientMemory) {
    let mut table = PageTable::new(record);
    let is_small = table.page_size() == PAGE;
    let Some(memfd) = memory.memfd().filter(|_| is_small) else {
        return;
    };
    let mappings: Vec<_> = table.mapped().collect();
    for pages in mappings {
        let offset = table.offset(pages.start);
        let end = offset + (pages.len() * PAGE) as u64;
        let number = |at: u64| pages.start + ((at - offset) / PAGE as u64) as usize;
        for data in data_ranges(memfd, offset, end) {
            for page in number(data.start)..number(data.end.next_multiple_of(PAGE as u64)) {
                table.set(page, PageState::Resident);
            }
        }
    }
}

/// The key of a page's unit.
pub(super) fn unit_of(page: usize) -> Key {
    Key::new(0, page / UNIT)
}
