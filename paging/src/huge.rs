//! Huge frames: a stretch that requests them faults, pages and is evicted by 2 MiB.
//!
//! One fault claims a whole unit of 512 pages. Its contents are read straight into a huge page
//! of the pager's own, which is then moved into place: no copy, one ioctl, one entry in the
//! kernel's page table. (`UFFDIO_MOVE` splits it if the range has a page table, even an empty
//! one. So the stretch is advised that it may have huge pages: otherwise the fault itself
//! makes one.) Eviction takes a unit with one `mremap` anyway, and a huge page goes whole.
//!
//! Contents are still checked, written and read by 4 KiB: of 2 MiB in which one page changed,
//! one page is written. The frames are counted by 4 KiB, too, and come free with each piece
//! that is cleaned; the memory of a huge page goes with its last piece, or is kept for the
//! next huge fault. So up to 2 MiB more than is counted are in memory for each slot being
//! emptied, and for each buffer.
//!
//! A unit is split, that is filled page by page and in windows like any other, if that is
//! better: if it has contents and the program does not come to it in order (a fault at its
//! edge, after one in the unit before), if a part of it is resident or on the standby list, if
//! 512 frames are not available, or if a page of it cannot be read. A kernel that finds no
//! huge page provides small ones, and all of this still holds.

use crate::counters::Counter;
use crate::fault_context::FaultContext;
use crate::fault_outcome::FillOutcome;
use crate::page::{PageState, State};
use crate::page_in::Activation;
use crate::throttle::FaultSample;
use frames::Frame;
use rate::FaultClass;
use std::sync::OnceLock;
use store::ReadPage;
use translation::{MapError, Reservation, Wake};
use wired::{HUGE_RANGE, HUGE_RANGE_PAGES, Lock, PAGE, clock};

/// Huge faults that are resolved concurrently; further ones wait.
const BUFFERS: usize = 4;

/// Set in the token of a read for a huge page.
pub(crate) const HUGE: u64 = 1 << 62;

/// The buffers of one huge fault.
pub(crate) struct HugeBuffer {
    /// 2 MiB, where huge pages are made, with guards: what was staged comes here, too.
    buffer: Reservation,
    /// True if it holds a huge page that was used before, with its old contents.
    used: bool,
    frames: Vec<Frame>,
    seen: Vec<PageState>,
    batch: Vec<ReadPage>,
}

// SAFETY: the pointers in the batch are into the buffer, which it owns.
unsafe impl Send for HugeBuffer {}

impl HugeBuffer {
    fn new() -> Result<Self, translation::ReserveError> {
        let buffer = translation::reserve_staging(HUGE_RANGE)?;
        // Without huge pages small ones are moved, one by one.
        let _ = translation::advise_huge(buffer.addr, buffer.len);
        Ok(Self {
            buffer,
            used: false,
            frames: Vec::with_capacity(HUGE_RANGE_PAGES),
            seen: Vec::with_capacity(HUGE_RANGE_PAGES),
            batch: Vec::with_capacity(HUGE_RANGE_PAGES),
        })
    }

    fn page(&self, at: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.buffer.addr + at * PAGE)
    }

    /// Takes over a huge page that was staged at `slot` and is no longer needed. The kernel
    /// then need not zero another one, which takes it 200 us (`bench paging`'s arm of huge
    /// frames, by perf).
    fn take_over(&mut self, slot: usize) -> bool {
        // SAFETY: the buffer is the buffer's own, guarded, and empty; the contents of the
        // slot are no longer needed.
        self.used = unsafe { translation::stage(slot, HUGE_RANGE, self.buffer.addr) }.is_ok();
        self.used
    }

    /// Discards the buffer's contents: it is zeros again.
    fn clear(&mut self) {
        self.used = false;
        // SAFETY: the buffer is the buffer's own, and nothing in it is needed.
        let _ = unsafe { translation::discard(self.buffer.addr, self.buffer.len) };
    }
}

impl Drop for HugeBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer's own.
        let _ = unsafe { translation::unmap_staging(self.buffer) };
    }
}

/// The buffers of a domain, once a stretch has asked for huge frames.
#[derive(Default)]
pub(crate) struct HugeBuffers(OnceLock<[Lock<HugeBuffer>; BUFFERS]>);

impl HugeBuffers {
    /// Makes the buffers, unless they exist.
    pub(crate) fn prepare(&self) -> Result<(), translation::ReserveError> {
        if self.0.get().is_none() {
            let made = (0..BUFFERS).map(|_| HugeBuffer::new().map(Lock::new));
            let made: Vec<_> = made.collect::<Result<_, _>>()?;
            let Ok(made) = made.try_into() else {
                unreachable!("as many as there are");
            };
            // If another thread was first, its buffers serve as well.
            let _ = self.0.set(made);
        }
        Ok(())
    }

    /// The buffer for a unit; None if no stretch has huge frames.
    fn get(&self, unit: usize) -> Option<&Lock<HugeBuffer>> {
        self.0.get().map(|buffers| &buffers[unit % BUFFERS])
    }

    /// Keeps the memory of a slot, a huge page that was emptied, for a later huge fault.
    pub(crate) fn reuse(&self, slot: usize) -> bool {
        let buffers = self.0.get().into_iter().flatten();
        let mut idle = buffers.filter_map(Lock::try_lock);
        match idle.find(|buffer| !buffer.used) {
            Some(mut buffer) => buffer.take_over(slot),
            None => false,
        }
    }
}

impl Activation<'_> {
    /// As [`Activation::fill_huge`], if the period has room for all its pages: each counts as
    /// a fault. Otherwise the unit is split.
    pub(crate) fn fill_huge_if_limits_allow(&mut self) -> Option<FillOutcome> {
        let pager = self.pager;
        let rest = HUGE_RANGE_PAGES as u32 - 1;
        let throttle = &pager.faults.throttle;
        let (granted, when) = throttle.grant(self.fault.task, rest);
        let outcome = match granted == rest {
            true => self.fill_huge(),
            false => None,
        };
        match outcome {
            Some(FillOutcome::Success) => {
                self.fault.handled = FaultSample {
                    class: FaultClass::ZeroFill,
                    pages: HUGE_RANGE_PAGES as u32,
                }
            }
            _ => throttle.refund(self.fault.task, when, granted),
        }
        outcome
    }

    /// Fills the whole unit of the fault with a huge frame. None if it is to be split.
    fn fill_huge(&mut self) -> Option<FillOutcome> {
        let table = self.stretch.table();
        let unit = table.unit_of(self.index);
        let first = table.unit_pages(unit).start;
        let in_order = self.fault.in_order || self.at_bind();
        // Only the driver has the contents of its pages that were never touched.
        let empty = self.zero_is_empty();
        if table.unit_pages(unit).len() != HUGE_RANGE_PAGES
            || !table.fillable_whole(unit, in_order, empty)
        {
            return None;
        }
        let mut buffer = self.pager.faults.huge.get(first / HUGE_RANGE_PAGES)?.lock();
        let buffer = &mut *buffer;
        buffer.frames.clear();
        buffer.frames.extend(self.fault.held.take());
        while buffer.frames.len() < HUGE_RANGE_PAGES {
            let Some(frame) = self.pager.frames.take(State::Empty) else {
                self.pager.frames.put_all(&buffer.frames);
                self.fault.wanted = HUGE_RANGE_PAGES as u32;
                return Some(FillOutcome::Retry);
            };
            buffer.frames.push(frame);
        }
        self.pager.frames.wake_evictor_if_low();
        buffer.seen.clear();
        for index in first..first + HUGE_RANGE_PAGES {
            let word = table.word(index);
            let seen = word.load();
            let fillable = match seen.state() {
                State::Empty => empty,
                state => state == State::Stored,
            };
            if !fillable || !word.begin_fill(seen) {
                return self.split(first, buffer);
            }
            buffer.seen.push(seen);
        }
        if !self.read_whole(buffer) {
            buffer.clear();
            return self.split(first, buffer);
        }
        Some(self.publish_huge(unit, first, buffer))
    }

    /// Releases what was claimed: each page is filled by itself.
    fn split(&self, first: usize, buffer: &HugeBuffer) -> Option<FillOutcome> {
        let table = self.stretch.table();
        for (at, seen) in buffer.seen.iter().enumerate() {
            table.word(first + at).abort_fill(*seen);
        }
        self.pager.frames.put_all(&buffer.frames);
        None
    }

    /// Reads what is stored into the buffer. Returns false if a page cannot be read.
    fn read_whole(&mut self, buffer: &mut HugeBuffer) -> bool {
        buffer.batch.clear();
        for at in 0..HUGE_RANGE_PAGES {
            let into = buffer.page(at);
            match buffer.seen[at].handle() {
                Some(handle) => buffer.batch.push(ReadPage {
                    handle,
                    into,
                    token: HUGE,
                }),
                // SAFETY: a page of the buffer, which is this fault's.
                None if buffer.used => unsafe { into.write_bytes(0, PAGE) },
                // SAFETY: as above. Touched, so that it is present and can be moved if there
                // are no huge pages.
                None => unsafe { into.write_volatile(0) },
            }
        }
        let counters = self.pager.log.counters();
        counters.add(Counter::HugeFaults, 1);
        if buffer.batch.is_empty() {
            counters.add(Counter::ZeroFilled, 1);
            return true;
        }
        let FaultContext { channel, .. } = &mut *self.context;
        let Some(channel) = channel else { return false };
        let later = match channel.submit_read_run(&buffer.batch) {
            Ok(later) => later,
            Err(_) => return false,
        };
        counters.add(
            match later {
                0 => Counter::CompressedHits,
                _ => Counter::DiskReads,
            },
            1,
        );
        let begin = clock::now();
        let mut good = true;
        for _ in 0..buffer.batch.len() {
            good &= self.context.complete_huge();
        }
        if later > 0 {
            counters.add_since(Counter::DiskWaitUs, begin);
        }
        good
    }

    /// Moves the buffer into place, and updates the words of its pages.
    fn publish_huge(&self, unit: usize, first: usize, buffer: &mut HugeBuffer) -> FillOutcome {
        let table = self.stretch.table();
        let userfault = self.pager.mm.userfault();
        let gate = table.gate(unit);
        let mut outcome = FillOutcome::Success;
        let mut came = 0;
        gate.enter();
        // Before the program can continue: see `publish`.
        table.touch_only(unit);
        // A page table that small pages left behind, though empty, would make the kernel split
        // the huge page. Nothing is mapped there: every page of the unit is this fault's to
        // fill.
        // SAFETY: as said, and behind the gate no other thread fills.
        let _ = unsafe { translation::discard(table.address(first), HUGE_RANGE) };
        // SAFETY: no other code refers to the buffer's contents.
        let moved = unsafe {
            userfault.move_pages(
                table.address(first),
                buffer.buffer.addr,
                HUGE_RANGE,
                Wake::Yes,
            )
        };
        let done = match moved {
            Ok(()) => HUGE_RANGE_PAGES,
            Err(error) => error.done() / PAGE,
        };
        for (at, (frame, seen)) in buffer.frames.iter().zip(&buffer.seen).enumerate() {
            let index = first + at;
            let addr = table.address(index);
            let there = match at < done {
                true => Ok(()),
                false => self.copy_one(addr, buffer.page(at)),
            };
            match there {
                Ok(()) => {
                    self.pager.standby.places.set_home(frame.0, addr);
                    table.word(index).finish_fill(frame.0);
                    self.stretch.log().note(index);
                    came += 1;
                }
                Err(failure) => {
                    self.return_frame(*frame);
                    table.word(index).abort_fill(*seen);
                    if index == self.index {
                        outcome = self.outcome_of(&failure);
                    }
                }
            }
        }
        table.add_resident(unit, came);
        self.leave_filled(unit, false);
        // Also its page table, if it got one: otherwise it would get no huge page again.
        buffer.clear();
        outcome
    }

    /// Copies a page that could not be moved.
    fn copy_one(&self, addr: usize, from: *const u8) -> Result<(), MapError> {
        loop {
            match self.pager.mm.userfault().copy(addr, from, PAGE, Wake::Yes) {
                Ok(()) | Err(MapError::Exists { .. }) => return Ok(()),
                Err(MapError::Again { .. }) => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
    }
}
