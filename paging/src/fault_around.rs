//! Windows: the pages around a fault that its stream will want next, brought in with it.
//!
//! A fault by itself costs more than the page it brings (a signal or two switches, an ioctl, a
//! look at every table). All pages of a window but the one faulted on cost no more than their
//! contents: they are claimed one by one, like any other fill, and one ioctl maps a run of
//! neighbours. A window never waits for a frame and never leaves the unit of its fault. It
//! leaves out a page that is not at hand or that another thread is filling: the program faults
//! on that page later.

use crate::counters::Counter;
use crate::fault_outcome::{FaultError, FillOutcome};
use crate::page::{PageState, State};
use crate::page_in::Activation;
use crate::readahead::{LaneCursor, Readahead};
use crate::stream_detector::Prediction;
use crate::throttle::FaultSample;
use frames::Frame;
use rate::FaultClass;
use store::PageHandle;
use translation::MapError;
use wired::{Guard, PAGE, clock};

/// A page of a window that this fault has claimed.
#[derive(Clone, Copy)]
pub(crate) struct WindowPage {
    index: usize,
    seen: PageState,
    frame: u32,
    /// Its contents; None for zeros.
    from: Option<*const u8>,
}

// SAFETY: the pointer is into a reader's buffers. Only the thread that filled in the page
// follows it, while it holds that reader.
unsafe impl Send for WindowPage {}

/// A reader, at the position of a stream's fault.
struct StreamRead<'a> {
    reader: Guard<'a, Readahead>,
    place: LaneCursor,
}

/// Result of mapping a run of pages: how many are mapped, and what stopped it.
struct MapOutcome {
    pages: usize,
    again: bool,
    failure: Option<MapError>,
}

impl Activation<'_> {
    /// Fills the page of the fault, which is claimed, and the pages that its stream accesses
    /// next.
    pub(crate) fn fill_window(
        &mut self,
        seen: PageState,
        frame: Frame,
        prediction: Prediction,
    ) -> FillOutcome {
        let pager = self.pager;
        let (before, throttle) = (pager.log.counters(), &pager.faults.throttle);
        // No more pages than the period has room for: the program faults on the rest later.
        let whole = prediction;
        let (granted, when) = throttle.grant(self.fault.task, prediction.window - 1);
        let prediction = Prediction {
            window: 1 + granted,
            ..prediction
        };
        let mut class = FaultClass::ZeroFill;
        let mut reading = None;
        let mut from = None;
        if let Some(handle) = seen.handle().filter(|_| seen.state() == State::Stored) {
            // Another stream's thread may have the reader.
            reading = pager
                .faults
                .streams
                .reader(&prediction)
                .map(|reader| self.read_ahead(reader, handle, &prediction));
            from = reading
                .as_mut()
                .and_then(|reading| self.verified(reading, self.index, handle));
            if from.is_none() {
                // The prediction was wrong, or the store cannot read it: an ordinary fill
                // reports why.
                drop(reading);
                self.note_single_page(&whole);
                throttle.refund(self.fault.task, when, granted);
                return self.fetch(seen, frame);
            }
            class = FaultClass::Memory;
            before.add(Counter::ReadaheadHits, 1);
        } else {
            before.add(Counter::ZeroFilled, 1);
        }
        self.context.window.clear();
        self.context.window.push(WindowPage {
            index: self.index,
            seen,
            frame: frame.0,
            from,
        });
        let reached = self.claim_around(&prediction, reading.as_mut());
        if reached < whole.window && !self.at_bind() {
            self.pager.faults.streams.detector.brought(&whole, reached);
        }
        let brought = self.context.window.len() as u64 - 1;
        if prediction.stride < 0 {
            self.context.window.reverse();
        }
        let outcome = self.publish_window();
        before.add(Counter::Prefetched, brought);
        let brought = brought as u32;
        throttle.refund(self.fault.task, when, granted - brought);
        self.fault.handled = FaultSample {
            class,
            pages: 1 + brought,
        };
        if let Some(reading) = reading {
            self.read_on(reading, &prediction);
        }
        outcome
    }

    /// Records that the page of the fault comes without the rest of its window.
    pub(crate) fn note_single_page(&self, prediction: &Prediction) {
        if !self.at_bind() {
            self.pager.faults.streams.detector.brought(prediction, 1);
        }
    }

    /// Submits reads for the window's stored pages and waits for the page of the fault.
    fn read_ahead<'a>(
        &self,
        mut reader: Guard<'a, Readahead>,
        handle: PageHandle,
        prediction: &Prediction,
    ) -> StreamRead<'a> {
        let table = self.stretch.table();
        let widest = self.pager.widest_window();
        let place = reader.place(prediction, widest, self.stretch.id(), self.index);
        // A page that cannot be read ahead is read on demand.
        let _ = reader.read(place, prediction, table, Some(handle));
        let begin = clock::now();
        reader.wait_for(place, || self.pager.faults.handlers.wake());
        let counters = self.pager.log.counters();
        counters.add_since(Counter::DiskWaitUs, begin);
        StreamRead { reader, place }
    }

    /// Continues reading where the window ended.
    fn read_on(&self, mut reading: StreamRead<'_>, prediction: &Prediction) {
        let table = self.stretch.table();
        let reader = &mut reading.reader;
        let _ = reader.read_on(reading.place, prediction, table);
        let stats = reader.take_stats();
        let counters = self.pager.log.counters();
        counters.add(Counter::ReadaheadPages, stats.read);
        counters.add(Counter::ReadaheadUnused, stats.unused);
    }

    /// The contents read ahead for page `index`, if they match the handle. The page is
    /// claimed: its handle cannot become another page's.
    fn verified(
        &self,
        reading: &mut StreamRead<'_>,
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
            .is_some_and(|store| store.verify_checksum(handle, page))
            .then_some(from)
    }

    /// Claims the other pages of the window whose contents are at hand. Returns how many
    /// accesses of the stream remain until the next fault.
    fn claim_around(
        &mut self,
        prediction: &Prediction,
        mut reading: Option<&mut StreamRead<'_>>,
    ) -> u32 {
        let table = self.stretch.table();
        let unit = table.unit_pages(table.unit_of(self.index));
        let mut reached = prediction.window;
        let zero_is_empty = self.zero_is_empty();
        for step in 1..prediction.window as isize {
            let index = self.index.wrapping_add_signed(prediction.stride * step);
            if !unit.contains(&index) {
                reached = step as u32;
                break;
            }
            let word = table.word(index);
            let seen = word.load();
            let at_hand = match (seen.state(), &reading) {
                (State::Empty, _) => {
                    zero_is_empty && self.pager.hooks.allocated(table.address(index))
                }
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
                self.return_frame(frame);
                continue;
            }
            let from = match (seen.handle(), &mut reading) {
                (Some(handle), Some(reading)) if seen.state() == State::Stored => {
                    match self.verified(reading, index, handle) {
                        Some(from) => Some(from),
                        None => {
                            word.abort_fill(seen);
                            self.return_frame(frame);
                            continue;
                        }
                    }
                }
                _ => None,
            };
            self.context.window.push(WindowPage {
                index,
                seen,
                frame: frame.0,
                from,
            });
        }
        self.pager.frames.wake_evictor_if_low();
        reached
    }

    /// The place of the page in its unit.
    pub(crate) fn place(&self) -> std::ops::Range<usize> {
        let table = self.stretch.table();
        table.places_in_unit(&(self.index..self.index + 1))
    }

    /// Gives a page's frame back and leaves the page as it was.
    fn give_back(&self, page: &WindowPage) {
        self.return_frame(Frame(page.frame));
        self.stretch.table().word(page.index).abort_fill(page.seen);
    }

    /// Enters the unit's gate for the pages of a window from `at` on. Where the others wait for a thread that may be
    /// stopped, they are given back, and the faulting page alone is published.
    fn enter_for_window(&self, pages: &mut Vec<WindowPage>, at: usize) {
        let table = self.stretch.table();
        let unit = table.unit_of(self.index);
        let index = |page: Option<&WindowPage>| page.map_or(self.index, |page| page.index);
        let rest = index(pages.get(at))..index(pages[at..].last()) + 1;
        let places = table.places_in_unit(&rest);
        if !table.gate(unit).enter_for_all_or(&places, &self.place()) {
            let mut seen = 0;
            pages.retain(|page| {
                seen += 1;
                let stays = seen <= at || page.index == self.index;
                if !stays {
                    self.give_back(page);
                }
                stays
            });
        }
        // Before the program can continue: see `publish`.
        table.touch_only(unit);
    }

    /// Maps the pages in the order of their addresses and updates their words.
    fn publish_window(&mut self) -> FillOutcome {
        let places = &self.pager.standby.places;
        let table = self.stretch.table();
        let unit = table.unit_of(self.index);
        let mut pages = std::mem::take(&mut self.context.window);
        let mut outcome = FillOutcome::Success;
        let mut came = 0;
        let mut at = 0;
        self.enter_for_window(&mut pages, at);
        while at < pages.len() {
            let run = run_length(&pages[at..]);
            let mut mapped = self.map_run(&pages[at..at + run]);
            if mapped.failure.is_some() && run > 1 {
                // A mapping may end within the run: map the pages one by one.
                mapped = self.map_run(&pages[at..at + 1]);
            }
            for page in &pages[at..at + mapped.pages] {
                places.set_home(page.frame, table.address(page.index));
                let word = table.word(page.index);
                match page.index == self.index {
                    true => word.finish_fill(page.frame),
                    false => word.finish_ahead(page.frame),
                };
                self.stretch.log().note(page.index);
            }
            came += mapped.pages as u32;
            at += mapped.pages;
            if let Some(failure) = mapped.failure {
                let page = pages[at];
                self.give_back(&page);
                if page.index == self.index {
                    outcome = self.outcome_of(&failure);
                }
                at += 1;
            } else if mapped.again {
                // A call that changes the address space may be waiting for the gate.
                table.add_resident(unit, std::mem::take(&mut came));
                table.gate(unit).leave();
                std::hint::spin_loop();
                self.enter_for_window(&mut pages, at);
            }
        }
        table.add_resident(unit, came);
        self.leave_filled(unit, false);
        self.context.window = pages;
        outcome
    }

    /// Maps a run of neighbours with one ioctl.
    fn map_run(&self, run: &[WindowPage]) -> MapOutcome {
        let userfault = self.pager.mm.userfault();
        let addr = self.stretch.table().address(run[0].index);
        let len = run.len() * PAGE;
        let (pages, again, failure) = match self.map(addr, run[0].from, len) {
            Ok(()) => (run.len(), false, None),
            // A raw `mmap` of the program mapped it: the page is there, and occupies the
            // frame.
            Err(MapError::Exists { done }) => {
                let _ = userfault.wake(addr + done, PAGE);
                (done / PAGE + 1, false, None)
            }
            Err(MapError::Again { done }) => (done / PAGE, true, None),
            Err(error) => (error.done() / PAGE, false, Some(error)),
        };
        MapOutcome {
            pages,
            again,
            failure,
        }
    }

    /// What becomes of a fault whose page cannot be mapped. Memory that is not registered now is the kernel's, or is being
    /// mapped anew: the thread faults again there, and no page has failed.
    pub(crate) fn outcome_of(&self, error: &MapError) -> FillOutcome {
        let errno = match error {
            MapError::Gone => return self.leave_to_kernel(),
            MapError::NoMemory => 12,
            MapError::Pinned { .. } => 16,
            MapError::Again { .. } => 11,
            MapError::Exists { .. } => 17,
            MapError::Other(errno) => errno.raw_os_error(),
        };
        FillOutcome::Failure(FaultError::Unmappable(errno))
    }
}

/// How many of the pages one ioctl can map: neighbours whose contents are neighbours, too.
fn run_length(pages: &[WindowPage]) -> usize {
    let follows = |pair: &[WindowPage]| {
        let from = match (pair[0].from, pair[1].from) {
            (Some(one), Some(next)) => one.addr() + PAGE == next.addr(),
            (None, None) => true,
            _ => false,
        };
        from && pair[0].index + 1 == pair[1].index
    };
    1 + pages.windows(2).take_while(|pair| follows(pair)).count()
}
