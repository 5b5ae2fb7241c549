//! Page-in: the part of a fault that all stretch drivers share.
//!
//! A page in transit is `Filling`, and its owner publishes it under the unit's gate: the ioctl
//! that maps the page and the update of its word are one step for every thread that takes
//! pages away.

use crate::counters::Counter;
use crate::fault_context::FaultContext;
use crate::fault_outcome::{FaultError, FillOutcome, FillPhase};
use crate::page::{PageState, State};
use crate::pager::Pager;
use crate::resolve::PageFault;
use crate::stretch::StretchState;
use crate::throttle::FaultSample;
use frames::Frame;
use rate::FaultClass;
use store::{ReadPage, StoreError, Submitted};
use translation::{MapError, Wake};
use wired::{PAGE, Stage, clock};

/// One fault on one page, as its stretch driver sees it (Nemesis, section 6.6).
pub struct Activation<'a> {
    pub(crate) pager: &'a Pager,
    pub(crate) stretch: &'a StretchState,
    pub(crate) index: usize,
    /// Whether the access was a write.
    pub write: bool,
    /// What the driver may do.
    pub phase: FillPhase,
    pub(crate) fault: &'a mut PageFault,
    pub(crate) context: &'a mut FaultContext,
}

impl Activation<'_> {
    /// The address of the page.
    pub fn address(&self) -> usize {
        self.stretch.table().address(self.index)
    }

    /// The page's number in its stretch.
    pub fn page(&self) -> usize {
        self.index
    }

    pub(crate) fn word(&self) -> &crate::page::PageWord {
        self.stretch.table().word(self.index)
    }

    /// The state of the page.
    pub fn state(&self) -> PageState {
        self.word().load()
    }

    /// The frame that a retry has in hand, or an unused one. If there is none, the driver returns
    /// `Retry`, and is called again with a frame, unless no frame can be found.
    pub fn frame(&mut self) -> Option<Frame> {
        if let Some(frame) = self.fault.held.take() {
            return Some(frame);
        }
        let frame = self.pager.frames.take(self.state().state());
        self.pager.frames.wake_evictor_if_low();
        frame
    }

    /// Returns true if the program has not accessed the page: a binding brings it in.
    pub fn at_bind(&self) -> bool {
        self.phase == FillPhase::Bind
    }

    /// Releases a frame that was not used after all.
    pub fn return_frame(&self, frame: Frame) {
        self.pager.frames.put(frame);
    }

    /// Returns true if pages never touched may be filled with zeros, without the driver.
    pub(crate) fn zero_is_empty(&self) -> bool {
        let driver = self.stretch.driver();
        driver.is_none_or(crate::driver::StretchDriver::zero_is_empty)
    }

    /// Demand zero, staged and stored pages: what the physical and paged drivers do.
    pub(crate) fn fill(&mut self) -> FillOutcome {
        self.fault.handled = FaultSample {
            class: FaultClass::Memory,
            pages: 1,
        };
        loop {
            let seen = self.state();
            match seen.state() {
                State::Resident => return self.recheck(),
                State::Filling => return FillOutcome::Busy,
                State::Poisoned => return FillOutcome::Failure(FaultError::Lost),
                State::Foreign => return self.leave_to_kernel(),
                // It was evicted since its driver looked; only the driver has its contents.
                State::Empty if !self.zero_is_empty() => return FillOutcome::Busy,
                State::Empty | State::Staged | State::Stored => {}
            }
            if self.fault.whole
                && self.stretch.huge()
                && let Some(outcome) = self.fill_huge_if_limits_allow()
            {
                return outcome;
            }
            let Some(frame) = self.frame() else {
                return FillOutcome::Retry;
            };
            if !self.word().begin_fill(seen) {
                self.return_frame(frame);
                continue;
            }
            match self.fault.prediction {
                Some(prediction) if seen.state() == State::Staged => {
                    self.note_single_page(&prediction)
                }
                Some(prediction) => return self.fill_window(seen, frame, prediction),
                None => {}
            }
            self.fault.handled = FaultSample::default();
            return match seen.state() {
                State::Empty => {
                    self.pager.log.add(Counter::ZeroFilled, 1);
                    self.publish(seen, frame, None)
                }
                State::Staged => {
                    self.fault.handled.class = FaultClass::Memory;
                    self.pager.log.add(Counter::StandbyHits, 1);
                    self.publish(seen, frame, None)
                }
                _ => self.fetch(seen, frame),
            };
        }
    }

    /// The page is no longer the pager's: the kernel handles the access when it is repeated. A
    /// thread whose fault was reported before that is woken here; a new mapping over its page
    /// does not wake it.
    pub(crate) fn leave_to_kernel(&self) -> FillOutcome {
        let _ = self.pager.mm.userfault().wake(self.address(), PAGE);
        FillOutcome::Success
    }

    /// Fills an empty page with what `read` writes to the given buffer: for drivers with a
    /// backing of their own.
    pub fn fill_with(
        &mut self,
        read: impl FnOnce(usize, &mut [u8; PAGE]) -> Result<(), FaultError>,
    ) -> FillOutcome {
        let seen = self.state();
        if seen.state() != State::Empty {
            return self.fill();
        }
        let Some(frame) = self.frame() else {
            return FillOutcome::Retry;
        };
        let flight = self.context.take_flight();
        let Some(flight) = flight.filter(|_| self.word().begin_fill(seen)) else {
            flight.into_iter().for_each(|f| self.context.end_flight(f));
            self.return_frame(frame);
            return FillOutcome::Busy;
        };
        self.fault.handled = FaultSample {
            class: FaultClass::File,
            pages: 1,
        };
        let buffer = self.context.buffer(flight);
        // SAFETY: the flight's buffer is a page, and this flight's alone.
        let outcome = match read(self.index, unsafe { &mut *buffer.cast::<[u8; PAGE]>() }) {
            Ok(()) => {
                self.pager.log.add(Counter::DiskReads, 1);
                self.publish(seen, frame, Some(buffer.cast_const()))
            }
            Err(failure) => {
                self.return_frame(frame);
                self.word().abort_fill(seen);
                FillOutcome::Failure(failure)
            }
        };
        self.context.end_flight(flight);
        outcome
    }

    /// Fills a page with zeros although the store has a copy of it, which is never read again:
    /// for drivers whose pages only go out (Nemesis, section 7.2.2). The next write of the
    /// page frees the copy's room.
    pub fn fill_zero(&mut self) -> FillOutcome {
        let seen = self.state();
        if seen.state() != State::Stored {
            return self.fill();
        }
        let Some(frame) = self.frame() else {
            return FillOutcome::Retry;
        };
        if !self.word().begin_fill(seen) {
            self.return_frame(frame);
            return FillOutcome::Busy;
        }
        self.fault.handled = FaultSample::default();
        self.pager.log.add(Counter::ZeroFilled, 1);
        self.publish(seen, frame, None)
    }

    pub(crate) fn fetch(&mut self, seen: PageState, frame: Frame) -> FillOutcome {
        let Some(handle) = seen.handle() else {
            unreachable!("a stored page has a handle: the word's transitions keep it");
        };
        let Some(flight) = self.context.take_flight() else {
            self.return_frame(frame);
            self.word().abort_fill(seen);
            return FillOutcome::Busy;
        };
        let into = self.context.buffer(flight);
        self.context.flights[flight].addr = self.address();
        self.context.flights[flight].frame = frame.0;
        self.context.flights[flight].used = 0;
        self.context.pending = flight;
        self.fault.handled = FaultSample {
            class: FaultClass::Disk,
            pages: 1,
        };
        let Some(channel) = self.context.channel.as_mut() else {
            unreachable!("a page is stored only where there is a store");
        };
        let page = ReadPage {
            handle,
            into,
            token: flight as u64,
        };
        let mut submitted = channel.submit_read(page);
        if self.pager.standby.is_without_mappings(&submitted) {
            submitted = channel.submit_read(page);
        }
        let mut result = match submitted {
            Ok(Submitted::Done) => {
                self.fault.handled.class = FaultClass::Compressed;
                self.pager.log.add(Counter::CompressedHits, 1);
                Ok(())
            }
            Ok(Submitted::Pending) if self.fault.detached => {
                self.context.flights[flight].submitted = clock::now();
                self.context.flights[flight].began = self.fault.began;
                return FillOutcome::Pending;
            }
            Ok(Submitted::Pending) => {
                let counters = self.pager.log.counters();
                let read = self.context.await_read(counters);
                read.unwrap_or(Err(StoreError::NoSuchPage { handle }))
            }
            Err(error) => Err(error),
        };
        let outcome = self.finish_read(seen, frame, flight, &mut result);
        self.context.end_flight(flight);
        outcome
    }

    /// Publishes a page that was read: the contents are in its buffer, or the read failed.
    pub(crate) fn finish_read(
        &mut self,
        seen: PageState,
        frame: Frame,
        flight: usize,
        result: &mut Result<(), StoreError>,
    ) -> FillOutcome {
        match *result {
            Ok(()) => {
                let from = self.context.buffer(flight).cast_const();
                let begin = clock::now();
                let outcome = self.publish(seen, frame, Some(from));
                self.pager.log.counters().end_stage(Stage::Placement, begin);
                outcome
            }
            Err(error) => {
                self.return_frame(frame);
                // What was written is lost for good, or a later attempt may read it.
                match error.is_final() {
                    true => {
                        if let Some(handle) = self.word().poison_fill() {
                            self.pager.store.release(handle);
                        }
                    }
                    false => _ = self.word().abort_fill(seen),
                }
                FillOutcome::Failure(FaultError::Unreadable(error))
            }
        }
    }

    /// Maps the page with its contents and updates its word. `from` is None if the page is
    /// staged, or zeros.
    pub(crate) fn publish(
        &mut self,
        seen: PageState,
        frame: Frame,
        from: Option<*const u8>,
    ) -> FillOutcome {
        let addr = self.address();
        let table = self.stretch.table();
        let unit = table.unit_of(self.index);
        let userfault = self.pager.mm.userfault();
        loop {
            table.gate(unit).enter_for(&self.place());
            // Before the program can continue: it may discard the page at once, and a discard
            // skips a unit that was never touched.
            table.touch_only(unit);
            // The location of a staged page is stable inside the gate only.
            let staged = (seen.state() == State::Staged)
                .then(|| self.pager.standby.places.staged(seen.frame()) as *const u8);
            let mapped = self.map(addr, from.or(staged), PAGE);
            match mapped {
                Ok(()) => {}
                // A raw `mmap` over the stretch mapped it, or the kernel kept the page: it is
                // there, and occupies the frame.
                Err(MapError::Exists { .. }) => {
                    let _ = userfault.wake(addr, PAGE);
                }
                Err(MapError::Again { .. }) => {
                    table.gate(unit).leave();
                    std::hint::spin_loop();
                    continue;
                }
                Err(error) => {
                    table.gate(unit).leave();
                    self.return_frame(frame);
                    self.word().abort_fill(seen);
                    return self.outcome_of(&error);
                }
            }
            self.pager.standby.places.set_home(frame.0, addr);
            self.word().finish_fill(frame.0);
            self.stretch.log().note(self.index);
            table.add_resident(unit, 1);
            self.leave_filled(unit, seen.state() == State::Staged && !seen.ahead());
            return FillOutcome::Success;
        }
    }

    /// Maps `len` bytes with these contents, or zeros. In careful mode every page must be one
    /// that MOVE can distinguish from a pinned one, and MOVE cannot take the shared zero page
    /// on all kernels. Where pages are marked as failed the zeros are a copy, too: it replaces a
    /// mark, for which the shared zero page finds that the page is there.
    pub(crate) fn map(
        &self,
        addr: usize,
        from: Option<*const u8>,
        len: usize,
    ) -> Result<(), MapError> {
        let table = self.stretch.table();
        if table.is_surrendered(table.unit_of(self.index)) {
            return Err(MapError::Gone);
        }
        let (mm, zeros) = (&self.pager.mm, &self.pager.faults.zeros);
        let has_marks = || self.pager.faults.failed.any();
        let own = self.write || mm.is_careful() || has_marks();
        let wake = self.context.wakes.for_pages(addr..addr + len);
        match from.or(own.then(|| zeros.as_ptr().cast_const())) {
            Some(from) => mm.userfault().copy(addr, from, len, wake),
            None => match mm.userfault().zero(addr, len, wake) {
                // Marked meanwhile: the next attempt is a copy.
                Err(MapError::Exists { done }) if has_marks() => Err(MapError::Again { done }),
                mapped => mapped,
            },
        }
    }

    /// Leaves the gate of a unit that has been filled, and queues the unit. `again` if pages of
    /// it came back from the standby list.
    pub(crate) fn leave_filled(&self, unit: usize, again: bool) {
        let table = self.stretch.table();
        let queue = table.touch(unit);
        table.gate(unit).leave();
        if queue || again {
            let queues = &self.pager.standby.queues;
            queues.note_filled(self.stretch, unit, queue, again);
        }
        self.pager.frames.note_resident();
    }

    /// The word is `Resident`, yet there was a fault: another thread resolved it, or the page
    /// was dropped without the pager's knowledge and is zeros by the kernel's rules.
    fn recheck(&mut self) -> FillOutcome {
        let table = self.stretch.table();
        let unit = table.unit_of(self.index);
        let addr = self.address();
        table.gate(unit).enter_for(&self.place());
        if self.state().state() == State::Resident {
            self.pager.log.add(Counter::Spurious, 1);
            let userfault = self.pager.mm.userfault();
            if userfault.zero(addr, PAGE, Wake::Yes).is_err() {
                let _ = userfault.wake(addr, PAGE);
            }
        }
        let settled = self.state().state() == State::Resident;
        table.gate(unit).leave();
        match settled {
            true => FillOutcome::Success,
            false => FillOutcome::Busy,
        }
    }
}
