//! A transport with a paging file beside it.
//!
//! | what happens | reads | writes |
//! |---|---|---|
//! | the inner transport fails a part | its error | go to the file |
//! | it does not complete a part by its deadline (`late`) | wait, and delay nothing else | the write is given up there, and goes to the file |
//! | writes are diverted (`health`) | | go to the file at once |
//! | the inner transport has its part of the space | | of other bloks go to the file |
//! | the file has no free slot | | go to, or stay at, the inner transport, and have its error |
//! | the file fails a page | `EIO` | `EIO`; the blok keeps its place |
//!
//! A write that was given up is in the file only after the inner transport has let go of its memory, so there is no copy
//! of a page that its program still has.

use super::health::WriteHealth;
use super::late::LateReads;
use super::page_file::PageFile;
use super::part::Part;
use super::places::{BlokPlace, Places, PlacesSize};
use super::readers::SlotReaders;
use super::{PARTS, SPARE_SLOTS};
use crate::time::{Nanos, Time};
use crate::usd::background::BackgroundWork;
use crate::usd::transport::{PartId, Transport};
use iochannel::{IoVec, Op};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use wired::{PAGE, WiredMemory};

/// The pause before the kernel gets what it did not take, short of memory.
const SUBMIT_PAUSE: Nanos = Nanos::millis(1);
/// Pages that wait for the file's ring without an allocation: those of a window, and of as many reads.
const WAITING: usize = 2 * SPARE_SLOTS as usize;

/// The transport.
pub struct LastResort {
    pub(super) inner: Box<dyn Transport>,
    file: PageFile,
    places: Places,
    pub(super) health: WriteHealth,
    pub(super) parts: Box<[Option<Part>]>,
    in_use: usize,
    /// No part is late before this time.
    pub(super) late_at: Time,
    pub(super) late_reads: LateReads,
    /// When the file's ring is submitted again, since the kernel did not take all.
    submit_at: Time,
    /// Pages that wait for room in the file's ring.
    waiting: VecDeque<(usize, usize)>,
    readers: SlotReaders,
    space: u32,
    done: VecDeque<(PartId, i32)>,
    epoll: OwnedFd,
}

impl LastResort {
    /// A transport for one space, whose bloks' places are in a table that begins at a place in memory, with a file of
    /// [`LastResort::file_bytes`]. It waits until no write of an earlier process to the file is left.
    pub fn new(
        inner: Box<dyn Transport>,
        file: BorrowedFd<'_>,
        table: (Arc<WiredMemory>, usize),
        size: PlacesSize,
    ) -> Result<Self, Errno> {
        let file = PageFile::new(file)?;
        let places = Places::at(table, size);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [inner.poll_fd(), file.poll_fd()] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        let mut made = Self {
            inner,
            file,
            health: WriteHealth::default(),
            parts: (0..PARTS).map(|_| None).collect(),
            in_use: 0,
            late_at: Time::NEVER,
            late_reads: LateReads::default(),
            submit_at: Time::NEVER,
            waiting: VecDeque::with_capacity(WAITING),
            readers: SlotReaders::new(size.slots()),
            space: 0,
            done: VecDeque::with_capacity(PARTS),
            epoll,
            places,
        };
        // The process before may have ended in between.
        for blok in 0..size.bloks() {
            if matches!(made.places.place(blok), BlokPlace::File(_)) {
                made.forget(blok);
            }
        }
        Ok(made)
    }

    /// Bytes of a file for so many bytes of pages.
    pub fn file_bytes(bytes: u64) -> u64 {
        bytes + u64::from(SPARE_SLOTS) * PAGE as u64
    }

    /// Starts a run of a part's pages at the inner transport.
    fn start_inner(&mut self, now: Time, at: usize, first: usize, count: usize) {
        let Some(part) = &mut self.parts[at] else {
            return;
        };
        part.runs[first] = count as u8;
        part.left += 1;
        let id = PartId {
            client: at as u32,
            transaction: first as u32,
        };
        let pieces = &part.pages[first..first + count];
        let offset = (part.blok + first) as u64 * PAGE as u64;
        // SAFETY: the pieces are the part's, which does not move until it has ended; their memory stays likewise.
        unsafe {
            self.inner
                .start(now, id, part.op, self.space, pieces, offset)
        };
    }

    fn start_reads(&mut self, now: Time, at: usize, blok: usize, count: usize) {
        let mut first = 0;
        for page in 0..count {
            if let BlokPlace::File(slot) = self.places.place(blok + page) {
                self.readers.on_begun(slot);
                if let Some(part) = &mut self.parts[at] {
                    part.slots[page] = slot;
                    part.left += 1;
                }
                self.waiting.push_back((at, page));
                if first < page {
                    self.start_inner(now, at, first, page - first);
                }
                first = page + 1;
            }
        }
        if first < count {
            self.start_inner(now, at, first, count - first);
        }
        let part = self.parts[at].as_ref();
        if part.is_some_and(|part| part.runs.iter().any(|run| *run > 0)) {
            self.begin_waiting(now, at);
        }
    }

    fn start_write(&mut self, now: Time, at: usize, blok: usize, count: usize) {
        let new = self.places.new_at_inner(blok..blok + count);
        let has_room = new == 0 || self.places.has_inner_room(new);
        let is_admitted = has_room && self.health.of(new).admit(now);
        if !is_admitted && self.claim_all(at) {
            return self.write_to_file(at);
        }
        self.places.on_inner_begun(new);
        if let Some(part) = &mut self.parts[at] {
            part.new_at_inner = new;
        }
        self.begin_waiting(now, at);
        self.start_inner(now, at, 0, count);
    }

    /// Claims a slot for each page of a write. Returns false, and claims none, where the file is full.
    pub(super) fn claim_all(&mut self, at: usize) -> bool {
        let Some(part) = &mut self.parts[at] else {
            return false;
        };
        for page in 0..part.count {
            let Some(slot) = self.places.claim(part.blok + page) else {
                let claimed = part.slots[..page].iter();
                claimed.for_each(|slot| self.places.release(*slot));
                return false;
            };
            part.slots[page] = slot;
        }
        true
    }

    fn write_to_file(&mut self, at: usize) {
        if let Some(part) = &mut self.parts[at] {
            part.left += part.count;
            let pages = 0..part.count;
            self.waiting.extend(pages.map(|page| (at, page)));
        }
    }

    /// Hands waiting pages to the file.
    fn start_waiting(&mut self, now: Time) {
        while self.file.has_room()
            && let Some((at, page)) = self.waiting.pop_front()
        {
            let Some(part) = &self.parts[at] else {
                continue;
            };
            let (op, slot, memory) = (part.op, part.slots[page], part.pages[page]);
            let word = (at as u64) << 8 | page as u64;
            // SAFETY: the memory stays until the part was reaped, which it is after this page.
            if let Err(errno) = unsafe { self.file.start(op, slot, memory, word) } {
                self.on_page(word, Err(errno));
            }
        }
        self.submit_at = match self.file.submit() {
            true => Time::NEVER,
            false => now + SUBMIT_PAUSE,
        };
    }

    fn on_inner(&mut self, now: Time, id: PartId, result: i32) {
        let (at, first) = (id.client as usize, id.transaction as usize);
        let Some(part) = &mut self.parts[at] else {
            return;
        };
        self.late_reads.on_inner_ended(result);
        let is_whole = result == (part.end_run(first) * PAGE) as i32;
        let failed = match result {
            result if result < 0 => Errno::from_raw_os_error(-result),
            _ => Errno::IO,
        };
        if part.op == Op::Read {
            part.error = part.error.or((!is_whole).then_some(failed));
            part.has_some |= is_whole;
            return self.end_if_over(at);
        }
        let was_given_up = std::mem::take(&mut part.is_given_up);
        let new = part.new_at_inner;
        self.places.on_inner_ended(new);
        if is_whole {
            return self.on_inner_written(at, was_given_up, new);
        }
        if !was_given_up {
            self.health.on_failed(new, now, failed);
        }
        if was_given_up || self.claim_all(at) {
            return self.write_to_file(at);
        }
        if let Some(part) = &mut self.parts[at] {
            part.error = Some(failed);
        }
        self.end_if_over(at);
    }

    fn on_inner_written(&mut self, at: usize, was_given_up: bool, new: u32) {
        let Some(part) = &self.parts[at] else {
            return;
        };
        let (blok, count, slots) = (part.blok, part.count, part.slots);
        if was_given_up {
            let claimed = slots[..count].iter();
            claimed.for_each(|slot| self.places.release(*slot));
        }
        for page in blok..blok + count {
            self.readers.leave(self.places.on_inner_written(page));
        }
        self.health.on_written(new, self.places.in_file());
        self.end_if_over(at);
    }

    fn on_page(&mut self, word: u64, result: Result<(), Errno>) {
        let (at, page) = ((word >> 8) as usize, (word & 0xff) as usize);
        let Some(part) = &mut self.parts[at] else {
            return;
        };
        part.left -= 1;
        if let Err(errno) = result {
            part.error = Some(match errno {
                Errno::AGAIN => errno,
                _ => Errno::IO,
            });
        }
        let slot = part.slots[page];
        part.has_some |= part.op == Op::Read && result.is_ok();
        match (part.op, result) {
            (Op::Read, _) => self.readers.on_ended(slot),
            (Op::Write, Ok(())) => {
                let blok = part.blok + page;
                let before = self.places.on_file_written(blok, slot);
                self.readers.leave(before);
                self.forget(blok);
            }
            (Op::Write, Err(_)) => self.places.release(slot),
        }
        self.end_if_over(at);
    }

    /// Has the inner transport forget a blok whose contents are in the file.
    fn forget(&mut self, blok: usize) {
        if self.inner.forget(self.space, blok as u64) {
            self.places.on_forgotten(blok);
        }
    }

    fn end_if_over(&mut self, at: usize) {
        if let Some(part) = self.parts[at].take_if(|part| part.left == 0) {
            self.late_reads.untold -= usize::from(part.is_late);
            self.done.push_back((part.id, part.result()));
            self.in_use -= 1;
        }
        self.readers.release_unread(&mut self.places);
    }
}

impl Transport for LastResort {
    unsafe fn start(
        &mut self,
        now: Time,
        id: PartId,
        op: Op,
        space: u32,
        pieces: &[IoVec],
        at: u64,
    ) {
        let part = Part::new(id, op, pieces, at);
        let fits = |part: &Part| part.blok + part.count <= self.places.size().bloks();
        let Some(part) = part.filter(fits) else {
            return self.done.push_back((id, -Errno::INVAL.raw_os_error()));
        };
        let Some(free) = self.parts.iter().position(Option::is_none) else {
            return self.done.push_back((id, -Errno::AGAIN.raw_os_error()));
        };
        let (blok, count) = (part.blok, part.count);
        self.space = space;
        self.parts[free] = Some(part);
        self.in_use += 1;
        match op {
            Op::Read => self.start_reads(now, free, blok, count),
            Op::Write => self.start_write(now, free, blok, count),
        }
    }

    fn flush(&mut self, now: Time) {
        self.check_late(now);
        self.start_waiting(now);
        self.inner.flush(now);
    }

    fn reap(&mut self, now: Time) -> Option<(PartId, i32)> {
        if self.done.is_empty() {
            while let Some((id, result)) = self.inner.reap(now) {
                self.on_inner(now, id, result);
            }
            while let Some((word, result)) = self.file.reap() {
                self.on_page(word, result);
            }
        }
        self.done.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.in_use + self.done.len()
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn next_due(&self) -> Option<Time> {
        if !self.done.is_empty()
            || self.late_reads.untold > 0
            || (!self.waiting.is_empty() && self.file.has_room())
        {
            return Some(Time(0));
        }
        let own = [self.late_at, self.submit_at].into_iter();
        let own = own.filter(|at| *at != Time::NEVER);
        own.chain(self.inner.next_due()).min()
    }

    fn next_waiting(&mut self) -> Option<PartId> {
        self.next_late()
    }

    fn background(&mut self) -> Option<BackgroundWork> {
        self.inner.background()
    }

    fn start_background(&mut self, now: Time) {
        self.inner.start_background(now);
    }

    fn is_background_in_flight(&mut self) -> bool {
        self.inner.is_background_in_flight()
    }
}
