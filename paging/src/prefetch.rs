//! The application's hints about its next accesses, carried out by a thread of the domain.
//!
//! Two kinds of hint: a range that will be used soon, and a set that was recorded in an
//! earlier run (see [`WorkingSet`]). Both are brought in in windows, read ahead like a stream's,
//! while the program continues. Both are hints: a page that cannot be brought in is left for
//! the program's own fault to report, and no request takes more than three quarters of the
//! frames, so that the pages it brings first are not evicted before they are used.

use crate::page::State;
use crate::pager::Pager;
use crate::populate::{PopulateError, PopulateTarget};
use crate::throttle::{self, ThrottleDecision, ThrottleState};
use crate::working_set::WorkingSet;
use rate::thread_counters::ThreadKey;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wired::WiredMemory;

/// Requests that may wait; further ones are dropped, since they would come too late.
const WAITING: usize = 256;

/// Distinguishes this thread's reads from those of the program's threads: the first of
/// [`TRACKS`] numbers.
const CALLER: u32 = 0x7072_6560;

/// The task that this thread's pages are counted for.
const TASK: ThreadKey = ThreadKey::LAST;

/// Sequences of requests that are distinguished: a program that requests the next part of each
/// of its arrays in turn goes through each of them in order.
const TRACKS: usize = 4;

/// The sequences of requests.
#[derive(Default)]
struct SequenceDetector {
    /// The end of each so far: stretch, page.
    ends: [(u32, usize); TRACKS],
    /// The one begun last.
    newest: usize,
}

impl SequenceDetector {
    /// The sequence that a run of pages continues, or a new one that replaces the oldest.
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
struct PrefetchRequest {
    stretch: u32,
    runs: Vec<Range<usize>>,
}

/// The requests of a domain.
#[derive(Default)]
pub(crate) struct Prefetcher {
    waiting: Mutex<PrefetchQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct PrefetchQueue {
    requests: VecDeque<PrefetchRequest>,
    /// The stretch of the request that is being carried out.
    current: Option<u32>,
    /// True if that request is cancelled.
    cancelled: bool,
    stop: bool,
}

impl Prefetcher {
    fn lock(&self) -> MutexGuard<'_, PrefetchQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, waiting: MutexGuard<'a, PrefetchQueue>) -> MutexGuard<'a, PrefetchQueue> {
        let waited = self.changed.wait(waiting);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request. Returns false if too many wait.
    pub(crate) fn submit(&self, stretch: u32, runs: Vec<Range<usize>>) -> bool {
        let mut waiting = self.lock();
        if waiting.requests.len() >= WAITING {
            return false;
        }
        waiting
            .requests
            .push_back(PrefetchRequest { stretch, runs });
        self.changed.notify_all();
        true
    }

    /// Waits until every request has been tried.
    pub(crate) fn drain(&self) {
        let mut waiting = self.lock();
        while (waiting.current.is_some() || !waiting.requests.is_empty()) && !waiting.stop {
            waiting = self.wait(waiting);
        }
    }

    /// Drops the requests of a stretch that is being removed, and waits until none of its
    /// pages is being brought in.
    pub(crate) fn cancel(&self, stretch: u32) {
        let mut waiting = self.lock();
        waiting
            .requests
            .retain(|request| request.stretch != stretch);
        while waiting.current == Some(stretch) && !waiting.stop {
            waiting.cancelled = true;
            self.changed.notify_all();
            waiting = self.wait(waiting);
        }
    }

    /// Ends the thread; waiting requests are dropped.
    pub(crate) fn stop(&self) {
        let mut waiting = self.lock();
        waiting.stop = true;
        self.changed.notify_all();
    }

    /// The thread's work.
    pub(crate) fn serve(self: &Arc<Self>, pager: &Pager) {
        let mut tracks = SequenceDetector::default();
        while let Some(request) = self.next() {
            self.run(pager, &request, &mut tracks);
        }
    }

    fn next(&self) -> Option<PrefetchRequest> {
        let mut waiting = self.lock();
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
            waiting = self.wait(waiting);
        }
    }

    fn is_cancelled(&self) -> bool {
        let waiting = self.lock();
        waiting.stop || waiting.cancelled
    }

    /// The next page counts as a fault: waits while the limits have no room for it. Returns
    /// false if the page is no longer wanted. Holds nothing meanwhile.
    fn throttle(&self, pager: &Pager) -> bool {
        let throttle = &pager.faults.throttle;
        let mut state = ThrottleState::default();
        while let ThrottleDecision::RetryAt(delay) = throttle.check(TASK, &mut state) {
            let waiting = self.lock();
            if waiting.stop || waiting.cancelled {
                return false;
            }
            let left = delay.until.saturating_sub(throttle::now());
            let ended = self
                .changed
                .wait_timeout(waiting, Duration::from_nanos(left));
            drop(ended.unwrap_or_else(PoisonError::into_inner));
        }
        true
    }

    fn run(&self, pager: &Pager, request: &PrefetchRequest, tracks: &mut SequenceDetector) {
        let frames = pager.frames.client().contract().x as usize;
        let mut budget = frames - frames / 4;
        let locate = || pager.mm.index.by_id(request.stretch);
        for run in &request.runs {
            let track = tracks.follow(request.stretch, run);
            let mut page = run.start;
            while page < run.end {
                if budget == 0 || self.is_cancelled() {
                    return;
                }
                let known = {
                    let _inside = pager.mm.gate.enter(CALLER as usize);
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
                if !self.throttle(pager) {
                    return;
                }
                let target = PopulateTarget {
                    task: Some(TASK),
                    page,
                    nail: false,
                    window: (run.end - page).min(budget),
                    caller: CALLER + track as u32,
                };
                match target.populate(pager, &locate) {
                    Ok(()) => budget -= 1,
                    Err(PopulateError::Gone) => return,
                    // No later page would find a frame either.
                    Err(PopulateError::Failed(why)) if why.is_for_lack_of_frames() => return,
                    // The program's own access reports it, if it ever comes.
                    Err(PopulateError::Failed(_)) => {}
                }
                page += 1;
            }
        }
    }
}

/// Pages of a stretch that are recorded at most: the first 16 GiB.
const MOST_RECORDED: usize = 1 << 22;

/// The pages of a stretch in the order they came in, while they are recorded.
pub(crate) struct AccessLog {
    pages: WiredMemory,
    /// A bit for each page of the stretch that is in the log: it comes once, however often it comes in.
    noted: WiredMemory,
    room: usize,
    count: AtomicUsize,
}

impl AccessLog {
    /// For a stretch of so many pages.
    pub(crate) fn new(pages: usize) -> rustix::io::Result<Self> {
        let room = pages.min(MOST_RECORDED);
        let words = room.div_ceil(u32::BITS as usize);
        Ok(Self {
            pages: WiredMemory::private(room * size_of::<AtomicU32>())?,
            noted: WiredMemory::private(words * size_of::<AtomicU32>())?,
            room,
            count: AtomicUsize::new(0),
        })
    }

    /// Records a page; on the page path.
    pub(crate) fn note(&self, page: usize) {
        if page >= self.room {
            return;
        }
        let word = page / u32::BITS as usize * size_of::<AtomicU32>();
        let (word, bit) = (&self.noted.slice::<AtomicU32>(word, 1)[0], 1 << (page % 32));
        if word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let at = self.count.fetch_add(1, Ordering::Relaxed);
        let slots: &[AtomicU32] = self.pages.slice(0, self.room);
        // Plus one: a slot taken and not yet written is 0.
        slots[at].store(page as u32 + 1, Ordering::Release);
    }

    fn set(&self) -> WorkingSet {
        let count = self.count.load(Ordering::Acquire).min(self.room);
        let slots: &[AtomicU32] = self.pages.slice(0, self.room);
        WorkingSet::from_pages(
            slots[..count]
                .iter()
                .map(|slot| slot.load(Ordering::Acquire) as usize)
                .filter(|page| *page != 0)
                .map(|page| page - 1),
        )
    }
}

/// The log of a stretch's recording, if there is one.
#[derive(Default)]
pub(crate) struct AccessLogSlot(AtomicPtr<AccessLog>);

impl AccessLogSlot {
    /// Records a page that came in; on the page path, inside the domain's gate.
    pub(crate) fn note(&self, page: usize) {
        // SAFETY: freed only after the gate was closed once since the pointer was cleared.
        if let Some(log) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            log.note(page);
        }
    }

    /// Starts a recording. Returns false if there is one.
    pub(crate) fn start(&self, log: AccessLog) -> bool {
        let log = Box::into_raw(Box::new(log));
        let none = std::ptr::null_mut();
        let started = self
            .0
            .compare_exchange(none, log, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if !started {
            // SAFETY: no other code has seen the pointer.
            drop(unsafe { Box::from_raw(log) });
        }
        started
    }

    /// Ends the recording. `quiesce` returns once every thread that was inside the domain's
    /// gate at the call has left it.
    pub(crate) fn finish(&self, quiesce: impl FnOnce()) -> Option<WorkingSet> {
        let log = self.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if log.is_null() {
            return None;
        }
        quiesce();
        // SAFETY: made by `start`, taken once, and any thread that used it has left.
        let log = unsafe { Box::from_raw(log) };
        Some(log.set())
    }
}

impl Drop for AccessLogSlot {
    fn drop(&mut self) {
        self.finish(|| {});
    }
}
