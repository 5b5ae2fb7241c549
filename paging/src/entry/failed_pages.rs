//! Pages whose access failed temporarily.
//!
//! A mark in the kernel's page table makes the faulting thread's access fail, and every later
//! access, too. If the contents may come at a later attempt (the store was busy, frames were
//! short), the mark is removed after a moment, and the next access is an ordinary fault.

use crate::evict::Stager;
use crate::log::Log;
use crate::mm::Mm;
use crate::page::State;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use translation::PoisonMethod;
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
    /// accesses it next. The caller is inside the domain's gate.
    pub(crate) fn mark(&self, page: usize) {
        if let Some(stretch) = self.mm.index.find(page) {
            // A discard passes over a unit that was never touched, and would leave the mark.
            let table = stretch.table();
            table.touch_only(table.unit_of(table.index(page)));
        }
        let oldest = {
            let mut marks = self.marks.lock();
            // Set before the mark is there: a fill that the mark stops reads it.
            self.any.store(true, Ordering::SeqCst);
            let method = match self.mm.userfault().poison(page, PAGE) {
                Ok(method) => method,
                Err(error) => {
                    return self.log.write(format_args!(
                        "cannot mark page {page:#x} as failed: {error}"
                    ));
                }
            };
            let full = marks.len() == MOST;
            let oldest = full.then(|| marks.pop_front()).flatten();
            marks.push_back(Mark {
                page,
                method,
                since: Instant::now(),
            });
            oldest
        };
        if let Some(oldest) = oldest {
            self.unmark(oldest);
        }
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
        let gate = table.gate(table.unit_of(index));
        let write_protect = self.mm.tracks_dirty();
        gate.close();
        match table.word(index).load().state() {
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
