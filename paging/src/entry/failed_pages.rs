//! Pages whose access failed temporarily.
//!
//! A mark in the kernel's page table makes the faulting thread's access fail, and every later
//! access, too. If the contents may come at a later attempt (the store was busy, frames were
//! short), the mark is removed after a moment, and the next access is an ordinary fault.

use crate::evict::Stager;
use crate::log::Log;
use crate::mm::Mm;
use crate::page::State;
use crate::stretch::StretchState;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use translation::{PoisonMethod, TranslationError};
use wired::{Lock, PAGE};

/// How long a mark stays: a thread that it woke takes microseconds to meet it. A slower thread
/// faults again, and the page is marked again if it still cannot be brought in.
const STAYS: Duration = Duration::from_millis(100);

/// Marks at once. A further mark removes the oldest.
const MOST: usize = 4096;

/// A page that is marked.
#[derive(Clone, Copy)]
struct Mark {
    page: usize,
    method: PoisonMethod,
    since: Instant,
}

/// The pages that are marked.
pub(crate) struct FailedPages {
    mm: Arc<Mm>,
    log: Arc<Log>,
    /// Oldest first.
    marks: Lock<VecDeque<Mark>>,
    /// There are marks, or one is about to be.
    any: AtomicBool,
}

impl FailedPages {
    pub(crate) fn new(mm: Arc<Mm>, log: Arc<Log>) -> Self {
        Self {
            mm,
            log,
            marks: Lock::new(VecDeque::with_capacity(MOST)),
            any: AtomicBool::new(false),
        }
    }

    /// Makes the access fail in the threads that wait for a page, and in any thread that
    /// accesses it next. Where the page has come meanwhile, or is the kernel's, or the kernel
    /// refuses the mark, the threads that wait repeat their access. The caller is inside the
    /// domain's gate.
    pub(crate) fn mark(&self, page: usize) {
        let stretch = self.mm.index.find(page);
        let marked = stretch.is_some_and(|stretch| self.mark_in(stretch, page));
        if !marked {
            let _ = self.mm.userfault().wake(page, PAGE);
        }
    }

    /// Marks a page of a stretch as a fill maps one: claimed, and inside the unit's gate. So no
    /// other thread fills it meanwhile, nor puts it back from the standby list.
    fn mark_in(&self, stretch: &StretchState, page: usize) -> bool {
        let table = stretch.table();
        let index = table.index(page);
        let (unit, word) = (table.unit_of(index), table.word(index));
        let gate = table.gate(unit);
        gate.enter_for(&table.places_in_unit(&(index..index + 1)));
        // A discard passes over a unit that was never touched, and would leave the mark.
        table.touch_only(unit);
        let seen = word.load();
        let claimed = !table.is_surrendered(unit) && word.begin_fill(seen);
        let marked = (claimed || seen.state() == State::Poisoned).then(|| self.poison(page));
        if claimed {
            word.abort_fill(seen);
        }
        gate.leave();
        match marked {
            None => false,
            Some(Ok(oldest)) => {
                oldest.into_iter().for_each(|oldest| self.unmark(oldest));
                true
            }
            Some(Err(error)) => {
                self.log.write(format_args!(
                    "cannot mark page {page:#x} as failed: {error}"
                ));
                false
            }
        }
    }

    /// Marks a page that the caller has claimed, or that is lost, and records that. Returns the oldest mark where there are too
    /// many.
    fn poison(&self, page: usize) -> Result<Option<Mark>, TranslationError> {
        let mut marks = self.marks.lock();
        // Set before the mark is there: a fill that the mark stops reads it.
        self.any.store(true, Ordering::SeqCst);
        // SAFETY: the caller has claimed the page, or its contents are lost: it has no frame.
        let method = unsafe { self.mm.userfault().poison(page, PAGE) }?;
        let oldest = (marks.len() == MOST).then(|| marks.pop_front()).flatten();
        marks.push_back(Mark {
            page,
            method,
            since: Instant::now(),
        });
        Ok(oldest)
    }

    /// Returns true if pages are marked: [`FailedPages::unmark_due`] is to be called soon.
    pub(crate) fn any(&self) -> bool {
        // Not by the lock: a fork's child would copy it while the evictor's thread holds it.
        self.any.load(Ordering::Acquire)
    }

    /// Removes the marks whose time is over. The stager keeps the stretches in place.
    pub(crate) fn unmark_due(&self, _stager: &Stager) {
        loop {
            let due = {
                let mut marks = self.marks.lock();
                let due = marks
                    .front()
                    .is_some_and(|mark| mark.since.elapsed() > STAYS);
                self.any.store(!marks.is_empty(), Ordering::Release);
                due.then(|| marks.pop_front()).flatten()
            };
            match due {
                Some(mark) => self.unmark(mark),
                None => return,
            }
        }
    }

    fn unmark(&self, mark: Mark) {
        let Some(stretch) = self.mm.index.find(mark.page) else {
            return;
        };
        let table = stretch.table();
        let index = table.index(mark.page);
        let unit = table.unit_of(index);
        let gate = table.gate(unit);
        let write_protect = self.mm.tracks_dirty();
        gate.close();
        match table.word(index).load().state() {
            // Of a stretch that was made anew there, and given up whole.
            _ if table.is_surrendered(unit) => {}
            // Resolved by another fault; lost for good; or foreign.
            State::Resident | State::Poisoned | State::Foreign => {}
            State::Empty | State::Filling | State::Staged | State::Stored => {
                // SAFETY: marked by this method; behind the closed gate it stays missing.
                let unmarked = unsafe {
                    self.mm
                        .userfault()
                        .unpoison(mark.page, PAGE, mark.method, write_protect)
                };
                if let Err(error) = unmarked {
                    self.log.write(format_args!("{error}"));
                }
            }
        }
        gate.open();
    }
}
