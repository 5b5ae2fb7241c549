//! Crowds: so many threads that fault at once that to wake each costs more than to resolve its fault.
//!
//! The kernel has one list of the threads that wait for pages of a userfaultfd, and each wake walks all of it. So a
//! handler that meets a crowd reads the faults of all, maps their pages, and wakes all threads at once
//! ([`DeferredWake`](crate::deferred_wake::DeferredWake)). One handler at a time does: its wake would send the threads
//! of another's crowd back to fault again.

use crate::entry::thread::HandlerThread;
use crate::pager::Pager;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use translation::{Fault, Userfault};
use wired::WiredMemory;

/// Faults taken without waiting between them, at most. A thread that is woken on this processor
/// mostly runs before the handler that woke it goes to sleep, and has faulted again when the
/// handler goes on: a wait in between would return at once. One that is woken on another processor
/// has not (`perf stat -e syscalls:sys_enter_read` counts two reads a fault then, one of them in
/// vain), so a handler tries as often as that pays.
const IN_A_ROW: u32 = 64;

/// Faults of one crowd, at most.
const MOST: usize = 2048;

/// Faults from which on wakes are put off: fewer threads are woken one by one in less time than one of them would wait
/// for the others.
const CROWD: usize = 64;

/// Faults read in one call.
const BATCH: usize = 16;

const WORDS: usize = 2;

/// Faults that were read and not resolved yet, in memory that is never paged.
pub(super) struct Crowd {
    words: WiredMemory,
    /// The next that is resolved.
    first: usize,
    end: usize,
}

impl Crowd {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            words: WiredMemory::private(MOST * WORDS * size_of::<AtomicU64>())?,
            first: 0,
            end: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all faults that are there. Those read before are resolved.
    pub(super) fn gather(&mut self, userfault: &Userfault) {
        (self.first, self.end) = (0, 0);
        while self.end + BATCH <= MOST {
            let mut faults = [Fault::default(); BATCH];
            let count = userfault.read_faults(&mut faults).unwrap_or(0);
            faults[..count].iter().for_each(|fault| self.put(fault));
            if count < BATCH {
                return;
            }
        }
    }

    fn put(&mut self, fault: &Fault) {
        let slot = self.slot(self.end);
        slot[0].store(
            fault.addr as u64 | u64::from(fault.write),
            Ordering::Relaxed,
        );
        slot[1].store(fault.thread.into(), Ordering::Relaxed);
        self.end += 1;
    }

    /// The next fault.
    pub(super) fn take(&mut self) -> Option<Fault> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.first);
        let [place, thread] = [0, 1].map(|at| slot[at].load(Ordering::Relaxed));
        self.first += 1;
        Some(Fault {
            addr: place as usize & !1,
            write: place & 1 != 0,
            thread: thread as u32,
            ..Fault::default()
        })
    }

    fn slot(&self, at: usize) -> &[AtomicU64] {
        self.words.slice(at * WORDS * size_of::<AtomicU64>(), WORDS)
    }
}

/// The handlers' turn to put wakes off.
#[derive(Default)]
pub(crate) struct CrowdTurn(AtomicBool);

/// A handler's turn, until it is dropped.
pub(super) struct CrowdTurnGuard<'a>(&'a CrowdTurn);

impl CrowdTurn {
    /// None if another handler has it.
    pub(super) fn try_take(&self) -> Option<CrowdTurnGuard<'_>> {
        let is_taken = self.0.swap(true, Ordering::Acquire);
        (!is_taken).then_some(CrowdTurnGuard(self))
    }
}

impl Drop for CrowdTurnGuard<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl HandlerThread {
    /// Takes the faults that have arrived by now.
    pub(super) fn take_those_there(&mut self, pager: &Pager) {
        for _ in 0..IN_A_ROW {
            if !self.may_take_next(pager) || !self.in_a_row.should_poll() {
                return;
            }
            if !self.take(pager) {
                return self.in_a_row.on_timeout();
            }
            self.in_a_row.on_completed_in_time();
        }
        self.take_crowd(pager);
    }

    /// Takes all faults that are there by now, and wakes no thread before the last if they are a crowd's.
    fn take_crowd(&mut self, pager: &Pager) {
        // A thread that is throttled would be woken with the others.
        let is_limited = pager.faults.throttle.limits().is_limited();
        let Some(_turn) = pager.faults.crowd.try_take().filter(|_| !is_limited) else {
            return;
        };
        if self.crowd.is_empty() {
            self.crowd.gather(pager.mm.userfault());
        }
        if self.crowd.len() >= CROWD {
            self.context.wakes.begin();
        }
        while self.may_take_next(pager) && !self.crowd.is_empty() {
            self.take(pager);
        }
        self.context.wakes.end(pager.mm.userfault());
    }

    /// Returns true if a further fault may be taken without a wait before it.
    fn may_take_next(&self, pager: &Pager) -> bool {
        !self.under_way() && !pager.mm.gate.closing(self.cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_taken_in_the_order_in_which_they_were_read() {
        let mut crowd = Crowd::new().unwrap();
        let fault = |n: usize| Fault {
            addr: n * wired::PAGE,
            write: n.is_multiple_of(3),
            thread: 7 + n as u32,
            ..Fault::default()
        };
        (0..MOST).for_each(|n| crowd.put(&fault(n)));
        assert_eq!(crowd.len(), MOST);
        for n in 0..MOST {
            assert_eq!(crowd.take(), Some(fault(n)));
        }
        assert!(crowd.is_empty() && crowd.take().is_none());
    }

    #[test]
    fn one_handler_at_a_time_puts_wakes_off() {
        let turn = CrowdTurn::default();
        let held = turn.try_take();
        assert!(held.is_some() && turn.try_take().is_none());
        drop(held);
        assert!(turn.try_take().is_some());
    }
}
