//! Windows: the pages around a fault that its stream will want next, brought in with it.
//!
//! A fault by itself costs more than the page it brings (a signal or two switches, an ioctl, a
//! look at every table). All pages of a window but the one faulted on cost no more than their
//! contents: they are claimed one by one, like any other fill, and one ioctl maps a run of
//! neighbours. A window never waits for a frame and never leaves the unit of its fault. It
//! leaves out a page that is not at hand or that another thread is filling: the program faults
//! on that page later.

use crate::counters::Counter;
use crate::page::{PageState, State};
use crate::page_in::{Activation, Failure, Outcome};
use crate::readahead::{Ahead, Place};
use crate::stream_detector::Advice;
use crate::throttle::Handled;
use frames::Frame;
use rate::FaultClass;
use store::PageHandle;
use translation::{MapError, Wake};
use wired::{Guard, PAGE};

/// A page of a window that this fault has claimed.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    index: usize,
    seen: PageState,
    frame: u32,
    /// Its contents; None for zeros.
    from: Option<*const u8>,
}

// SAFETY: the pointer is into a reader's buffers. Only the thread that filled in the part
// follows it, while it holds that reader.
unsafe impl Send for Part {}

/// A reader, at the position of a stream's fault.
struct Reading<'a> {
    reader: Guard<'a, Ahead>,
    place: Place,
}

/// Result of mapping a run of pages: how many are mapped, and what stopped it.
struct Mapped {
    pages: usize,
    again: bool,
    failure: Option<Failure>,
}

impl Activation<'_> {
    /// Fills the page of the fault, which is claimed, and the pages that its stream accesses
    /// next.
    pub(crate) fn fill_window(&mut self, seen: PageState, frame: Frame, advice: Advice) -> Outcome {
        let before = self.pager.log.counters();
        let pager = self.pager;
        // No more pages than the period has room for: the program faults on the rest later.
        let whole = advice;
        let (granted, when) =
            pager
                .faults
                .throttle
                .more(self.fault.task, advice.window - 1, before);
        let advice = Advice {
            window: 1 + granted,
            ..advice
        };
        let mut class = FaultClass::ZeroFill;
        let mut reading = None;
        let mut from = None;
        if let Some(handle) = seen.handle().filter(|_| seen.state() == State::Stored) {
            // Another stream's thread may have the reader.
            reading = pager
                .faults
                .streams
                .reader(&advice)
                .map(|reader| self.read_ahead(reader, handle, &advice));
            from = reading
                .as_mut()
                .and_then(|reading| self.verified(reading, self.index, handle));
            if from.is_none() {
                // The prediction was wrong, or the store cannot read it: an ordinary fill
                // reports why.
                drop(reading);
                self.alone(&whole);
                pager
                    .faults
                    .throttle
                    .give_back(self.fault.task, when, granted);
                return self.fetch(seen, frame);
            }
            class = FaultClass::Memory;
            before.add(Counter::from_ahead, 1);
        } else {
            before.add(Counter::zero_filled, 1);
        }
        self.context.parts.clear();
        self.context.parts.push(Part {
            index: self.index,
            seen,
            frame: frame.0,
            from,
        });
        let reached = self.claim_around(&advice, reading.as_mut());
        if reached < whole.window && !self.at_bind() {
            self.pager.faults.streams.detector.brought(&whole, reached);
        }
        let brought = self.context.parts.len() as u64 - 1;
        if advice.stride < 0 {
            self.context.parts.reverse();
        }
        let outcome = self.publish_parts();
        before.add(Counter::prefetched, brought);
        let brought = brought as u32;
        pager
            .faults
            .throttle
            .give_back(self.fault.task, when, granted - brought);
        self.fault.handled = Handled {
            class,
            pages: 1 + brought,
        };
        if let Some(reading) = reading {
            self.read_on(reading, &advice);
        }
        outcome
    }

    /// Records that the page of the fault comes without the rest of its window.
    pub(crate) fn alone(&self, advice: &Advice) {
        if !self.at_bind() {
            self.pager.faults.streams.detector.brought(advice, 1);
        }
    }

    /// Submits reads for the window's stored pages and waits for the page of the fault.
    fn read_ahead<'a>(
        &self,
        mut reader: Guard<'a, Ahead>,
        handle: PageHandle,
        advice: &Advice,
    ) -> Reading<'a> {
        let table = self.stretch.table();
        let place = reader.place(advice, self.stretch.id(), self.index);
        // A page that cannot be read ahead is read on demand.
        let _ = reader.read(place, advice.window, table, Some(handle));
        reader.wait_for(place, || self.pager.faults.handlers.call());
        Reading { reader, place }
    }

    /// Continues reading where the window ended.
    fn read_on(&self, mut reading: Reading<'_>, advice: &Advice) {
        let table = self.stretch.table();
        let reader = &mut reading.reader;
        let _ = reader.read_on(reading.place, advice.window, table);
        let tally = reader.take_tally();
        let counters = self.pager.log.counters();
        counters.add(Counter::read_ahead, tally.read);
        counters.add(Counter::read_ahead_unused, tally.unused);
    }

    /// The contents read ahead for page `index`, if they match the handle. The page is
    /// claimed: its handle cannot become another page's.
    fn verified(
        &self,
        reading: &mut Reading<'_>,
        index: usize,
        handle: PageHandle,
    ) -> Option<*const u8> {
        let from = reading
            .reader
            .contents(reading.place, index, Some(handle))?;
        reading.reader.release(reading.place, index);
        // SAFETY: a page of the lane's buffers. Only the reader's holder requests another read
        // into it, and until then no thread writes it.
        let page = unsafe { &*from.cast::<[u8; PAGE]>() };
        self.pager
            .store
            .get()
            .is_some_and(|store| store.verify(handle, page))
            .then_some(from)
    }

    /// Claims the other pages of the window whose contents are at hand. Returns how many
    /// accesses of the stream remain until the next fault.
    fn claim_around(&mut self, advice: &Advice, mut reading: Option<&mut Reading<'_>>) -> u32 {
        let table = self.stretch.table();
        let unit = table.unit_pages(table.unit_of(self.index));
        let mut reached = advice.window;
        for step in 1..advice.window as isize {
            let index = self.index.wrapping_add_signed(advice.stride * step);
            if !unit.contains(&index) {
                reached = step as u32;
                break;
            }
            let word = table.word(index);
            let seen = word.load();
            let at_hand = match (seen.state(), &reading) {
                (State::Empty, _) => self.pager.hooks.allocated(table.address(index)),
                (State::Stored, Some(reading)) => reading
                    .reader
                    .contents(reading.place, index, seen.handle())
                    .is_some(),
                _ => false,
            };
            if !at_hand {
                let there = seen.state() == State::Resident;
                if !there {
                    reached = reached.min(step as u32);
                }
                continue;
            }
            let Some(frame) = self.pager.frames.take(seen.state()) else {
                reached = reached.min(step as u32);
                break;
            };
            if !word.begin_fill(seen) {
                self.give_back(frame);
                continue;
            }
            let from = match (seen.handle(), &mut reading) {
                (Some(handle), Some(reading)) if seen.state() == State::Stored => {
                    match self.verified(reading, index, handle) {
                        Some(from) => Some(from),
                        None => {
                            word.abort_fill(seen);
                            self.give_back(frame);
                            continue;
                        }
                    }
                }
                _ => None,
            };
            self.context.parts.push(Part {
                index,
                seen,
                frame: frame.0,
                from,
            });
        }
        self.pager.frames.wake_evictor_if_low();
        reached
    }

    /// Maps the parts in the order of their addresses and updates their words.
    fn publish_parts(&mut self) -> Outcome {
        let table = self.stretch.table();
        let unit = table.unit_of(self.index);
        let gate = table.gate(unit);
        let parts = std::mem::take(&mut self.context.parts);
        let mut outcome = Outcome::Success;
        let mut came = 0;
        let mut at = 0;
        gate.enter();
        // Before the program can continue: see `publish`.
        table.touch_only(unit);
        while at < parts.len() {
            let run = run_length(&parts[at..]);
            let mut mapped = self.map_run(&parts[at..at + run]);
            if mapped.failure.is_some() && run > 1 {
                // A mapping may end within the run: map the pages one by one.
                mapped = self.map_run(&parts[at..at + 1]);
            }
            for part in &parts[at..at + mapped.pages] {
                self.pager
                    .standby
                    .places
                    .set_home(part.frame, table.address(part.index));
                let word = table.word(part.index);
                match part.index == self.index {
                    true => word.finish_fill(part.frame),
                    false => word.finish_ahead(part.frame),
                };
                self.stretch.log().note(part.index);
            }
            came += mapped.pages as u32;
            at += mapped.pages;
            if let Some(failure) = mapped.failure {
                let part = parts[at];
                self.give_back(Frame(part.frame));
                table.word(part.index).abort_fill(part.seen);
                if part.index == self.index {
                    outcome = Outcome::Failure(failure);
                }
                at += 1;
            } else if mapped.again {
                // A call that changes the address space may be waiting for the gate.
                table.came_by(unit, std::mem::take(&mut came));
                gate.leave();
                std::hint::spin_loop();
                gate.enter();
                table.touch_only(unit);
            }
        }
        table.came_by(unit, came);
        let queue = table.touch(unit);
        gate.leave();
        if queue {
            self.pager
                .standby
                .queues
                .note_filled(self.stretch, unit, true, false);
        }
        self.pager.frames.note_resident();
        self.context.parts = parts;
        outcome
    }

    /// Maps a run of neighbours with one ioctl.
    fn map_run(&self, run: &[Part]) -> Mapped {
        let userfault = self.pager.mm.userfault();
        let addr = self.stretch.table().address(run[0].index);
        let len = run.len() * PAGE;
        let mapped = match run[0].from {
            Some(from) => userfault.copy(addr, from, len, Wake::Yes),
            // As in `publish`: a page that MOVE can tell from a pinned one.
            None if self.write || self.pager.mm.is_careful() => {
                userfault.copy(addr, self.pager.faults.zeros.as_ptr(), len, Wake::Yes)
            }
            None => userfault.zero(addr, len, Wake::Yes),
        };
        let (pages, again, failure) = match mapped {
            Ok(()) => (run.len(), false, None),
            // A raw `mmap` of the program mapped it: the page is there, and occupies the
            // frame.
            Err(MapError::Exists { done }) => {
                let _ = userfault.wake(addr + done, PAGE);
                (done / PAGE + 1, false, None)
            }
            Err(MapError::Again { done }) => (done / PAGE, true, None),
            Err(error) => (error.done() / PAGE, false, Some(unmappable(&error))),
        };
        Mapped {
            pages,
            again,
            failure,
        }
    }
}

/// Why a page cannot be mapped, for the fault that reports it.
pub(crate) fn unmappable(error: &MapError) -> Failure {
    Failure::Unmappable(match error {
        MapError::Gone => 2,
        MapError::NoMemory => 12,
        MapError::Pinned { .. } => 16,
        MapError::Again { .. } => 11,
        MapError::Exists { .. } => 17,
        MapError::Other(errno) => errno.raw_os_error(),
    })
}

/// How many of the parts one ioctl can map: neighbours whose contents are neighbours, too.
fn run_length(parts: &[Part]) -> usize {
    let follows = |pair: &[Part]| {
        let from = match (pair[0].from, pair[1].from) {
            (Some(one), Some(next)) => one.addr() + PAGE == next.addr(),
            (None, None) => true,
            _ => false,
        };
        from && pair[0].index + 1 == pair[1].index
    };
    1 + parts.windows(2).take_while(|pair| follows(pair)).count()
}
