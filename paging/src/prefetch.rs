//! What the application says of its next accesses, carried out by a thread of the domain.
//!
//! Two kinds of hint: a range that will be used soon, and a set that was recorded in an
//! earlier run (see [`PageSet`]). Both are brought in in windows, read ahead like a
//! stream's, while the program goes on; both are hints: what cannot be had is left for the
//! program's own fault to report, and no request takes more than three quarters of the
//! frames, so that what it brings first is not gone before it is used.

use crate::page::State;
use crate::pager::Pager;
use crate::populate::{NotBrought, Wanted};
use crate::throttle::{self, Standing, Told};
use crate::working_set::PageSet;
use rate::thread_counters::ThreadKey;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wired::WiredMemory;

/// Requests that may wait; those beyond are dropped, they would come too late.
const WAITING: usize = 256;

/// Tells this thread's reading from that of the program's threads: the first of [`TRACKS`]
/// numbers.
const CALLER: u32 = 0x7072_6560;

/// What this thread counts its pages as.
const TASK: ThreadKey = ThreadKey::LAST;

/// Sequences of requests that are told apart: a program that asks for the next of each of
/// its arrays in turn goes through each of them in order.
const TRACKS: usize = 4;

/// The sequences of requests.
#[derive(Default)]
struct Tracks {
    /// Where each has come to: stretch, page.
    ends: [(u32, usize); TRACKS],
    /// The one begun last.
    newest: usize,
}

impl Tracks {
    /// The sequence that a run of pages continues, or a new one in the place of the oldest.
    fn follow(&mut self, stretch: u32, run: &Range<usize>) -> usize {
        let continues = |(of, page): &(u32, usize)| {
            *of == stretch && (run.start..=run.start + 1).contains(page)
        };
        let track = self.ends.iter().position(continues).unwrap_or_else(|| {
            self.newest = (self.newest + 1) % TRACKS;
            self.newest
        });
        self.ends[track] = (stretch, run.end);
        track
    }
}

/// Pages of one stretch, in the order they are wanted.
struct Request {
    stretch: u32,
    runs: Vec<Range<usize>>,
}

/// The requests of a domain.
#[derive(Default)]
pub(crate) struct Prefetcher {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// The stretch of the request that is being carried out.
    current: Option<u32>,
    /// That one is not wanted any more.
    cancelled: bool,
    stop: bool,
}

impl Prefetcher {
    /// Leaves a request. False where too many wait.
    pub(crate) fn ask(&self, stretch: u32, runs: Vec<Range<usize>>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.requests.len() >= WAITING {
            return false;
        }
        waiting.requests.push_back(Request { stretch, runs });
        self.changed.notify_all();
        true
    }

    /// Waits until everything asked for was tried.
    pub(crate) fn settle(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while (waiting.current.is_some() || !waiting.requests.is_empty()) && !waiting.stop {
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The stretch goes: drops what was asked for of it, and waits until nothing of it is
    /// being brought in.
    pub(crate) fn forget(&self, stretch: u32) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting
            .requests
            .retain(|request| request.stretch != stretch);
        while waiting.current == Some(stretch) && !waiting.stop {
            waiting.cancelled = true;
            self.changed.notify_all();
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the thread; what waits is dropped.
    pub(crate) fn stop(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.stop = true;
        self.changed.notify_all();
    }

    /// The thread's work.
    pub(crate) fn serve(self: &Arc<Self>, pager: &Pager) {
        let mut tracks = Tracks::default();
        while let Some(request) = self.next() {
            self.carry_out(pager, &request, &mut tracks);
        }
    }

    fn next(&self) -> Option<Request> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        (waiting.current, waiting.cancelled) = (None, false);
        self.changed.notify_all();
        loop {
            if waiting.stop {
                return None;
            }
            if let Some(request) = waiting.requests.pop_front() {
                waiting.current = Some(request.stretch);
                return Some(request);
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_cancelled(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.stop || waiting.cancelled
    }

    /// The next page counts as a fault: waits while the limits have no room for it. False
    /// where it is not wanted any more. Holds nothing meanwhile.
    fn wait_for_its_turn(&self, pager: &Pager) -> bool {
        let mut standing = Standing::default();
        while let Told::Suspend(suspended) = pager.pace.ask(TASK, &mut standing, pager.counters()) {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.stop || waiting.cancelled {
                return false;
            }
            let left = suspended.until.saturating_sub(throttle::now());
            let ended = self
                .changed
                .wait_timeout(waiting, Duration::from_nanos(left));
            drop(ended.unwrap_or_else(PoisonError::into_inner));
        }
        true
    }

    fn carry_out(&self, pager: &Pager, request: &Request, tracks: &mut Tracks) {
        let frames = pager.frames().contract().x as usize;
        let mut budget = frames - frames / 4;
        let locate = || pager.directory.by_id(request.stretch);
        for run in &request.runs {
            let track = tracks.follow(request.stretch, run);
            let mut page = run.start;
            while page < run.end {
                if budget == 0 || self.is_cancelled() {
                    return;
                }
                let known = {
                    let _inside = pager.gate.enter(CALLER as usize);
                    let Some(stretch) = locate() else { return };
                    if page >= stretch.table().pages() {
                        break;
                    }
                    stretch.table().word(page).load().state()
                };
                if matches!(known, State::Resident | State::Foreign | State::Poisoned) {
                    page += 1;
                    continue;
                }
                if !self.wait_for_its_turn(pager) {
                    return;
                }
                let wanted = Wanted {
                    task: Some(TASK),
                    page,
                    nail: false,
                    window: (run.end - page).min(budget),
                    caller: CALLER + track as u32,
                };
                match pager.bring(&locate, wanted) {
                    Ok(()) => budget -= 1,
                    Err(NotBrought::Gone) => return,
                    // The program's own access is told, if it ever comes.
                    Err(NotBrought::Failed(_)) => {}
                }
                page += 1;
            }
        }
    }
}

/// The pages of a stretch in the order they came in, while they are recorded.
pub(crate) struct Log {
    pages: WiredMemory,
    room: usize,
    count: AtomicUsize,
}

impl Log {
    /// Room for `room` pages.
    pub(crate) fn new(room: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            pages: WiredMemory::private(room * size_of::<AtomicU32>())?,
            room,
            count: AtomicUsize::new(0),
        })
    }

    /// Notes a page; on the page path.
    pub(crate) fn note(&self, page: usize) {
        let at = self.count.fetch_add(1, Ordering::Relaxed);
        if at < self.room {
            let slots: &[AtomicU32] = self.pages.slice(0, self.room);
            // Plus one: a slot taken and not yet written is 0.
            slots[at].store(page as u32 + 1, Ordering::Release);
        }
    }

    fn set(&self) -> PageSet {
        let count = self.count.load(Ordering::Acquire).min(self.room);
        let slots: &[AtomicU32] = self.pages.slice(0, self.room);
        PageSet::from_pages(
            slots[..count]
                .iter()
                .map(|slot| slot.load(Ordering::Acquire) as usize)
                .filter(|page| *page != 0)
                .map(|page| page - 1),
        )
    }
}

/// Where a stretch keeps the log of its recording, if there is one.
#[derive(Default)]
pub(crate) struct LogSlot(AtomicPtr<Log>);

impl LogSlot {
    /// Notes a page that came in; on the page path, inside the domain's gate.
    pub(crate) fn note(&self, page: usize) {
        // SAFETY: freed only after the gate was closed once since the pointer went.
        if let Some(log) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            log.note(page);
        }
    }

    /// Starts a recording. False where there is one.
    pub(crate) fn start(&self, log: Log) -> bool {
        let log = Box::into_raw(Box::new(log));
        let none = std::ptr::null_mut();
        let started = self
            .0
            .compare_exchange(none, log, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if !started {
            // SAFETY: nobody was shown it.
            drop(unsafe { Box::from_raw(log) });
        }
        started
    }

    /// Ends the recording. `quiesce` returns once nobody is inside the domain's gate who
    /// was when it was called.
    pub(crate) fn finish(&self, quiesce: impl FnOnce()) -> Option<PageSet> {
        let log = self.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if log.is_null() {
            return None;
        }
        quiesce();
        // SAFETY: made by `start`, taken once, and whoever used it has left.
        let log = unsafe { Box::from_raw(log) };
        Some(log.set())
    }
}

impl Drop for LogSlot {
    fn drop(&mut self) {
        self.finish(|| {});
    }
}
