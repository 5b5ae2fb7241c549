//! Resolving a fault: attempts, and what is waited for between them.
//!
//! Nemesis, section 6.5: a notification handler makes a first attempt where waiting is not
//! possible; what it cannot do, a worker thread does. Here one thread makes all attempts: a
//! handler thread, or the faulting thread. A retry has a frame in hand that a wait brought. All
//! are attempts at one [`PageFault`]; its [`Waiter`] decides what is waited for, and where.

use crate::evict::NoFrame;
use crate::fault_context::FaultContext;
use crate::fault_outcome::{FaultError, FillOutcome, FillPhase};
use crate::freeze_gate::FreezeGuard;
use crate::page::State;
use crate::page_in::Activation;
use crate::pager::Pager;
use crate::stream_detector::Prediction;
use crate::stretch::StretchState;
use crate::throttle::FaultSample;
use frames::{Frame, Millis};
use rate::thread_counters::ThreadKey;
use wired::clock;

/// A fault on one page, until it is resolved.
#[derive(Default)]
pub(crate) struct PageFault {
    /// The faulting address.
    pub(crate) addr: usize,
    /// Whether the access was a write.
    pub(crate) write: bool,
    /// True if the fault may leave a read under way and return `Pending`.
    pub(crate) detached: bool,
    /// The predicted next faults.
    pub(crate) prediction: Option<Prediction>,
    /// True if the fault may fill a whole unit, if the stretch has huge frames.
    pub(crate) whole: bool,
    /// True if the program goes through the stretch's units in order.
    pub(crate) in_order: bool,
    /// True if the program has not accessed the page: it is brought in on request.
    pub(crate) at_bind: bool,
    /// When it began, of [`wired::clock`]; 0 before its first attempt.
    pub(crate) began: u64,
    /// The thread whose fault it is; None if the fault is not counted.
    pub(crate) task: Option<ThreadKey>,
    /// A frame that a wait brought.
    pub(crate) held: Option<Frame>,
    /// Frames that the last attempt needed and could not get at once, if more than one.
    pub(crate) wanted: u32,
    /// How the last attempt was handled.
    pub(crate) handled: FaultSample,
}

/// The thread that resolves a fault: what it uses, and how it waits.
pub(crate) enum Waiter<'a> {
    /// A handler thread, inside the domain's gate, with a context of its own. While it has
    /// reads under way, or threads to wake, it waits for nothing else.
    Handler(&'a mut FaultContext),
    /// Any other thread, by a number that differs between threads. It enters the gate and
    /// borrows a context for each attempt, and waits for frames with neither.
    Thread(usize),
}

/// How a fault was resolved.
pub(crate) enum Resolution {
    /// The page is mapped.
    Mapped,
    /// No frame was found, and the page is mapped in the frame that it had on the standby
    /// list.
    PutBack,
    /// A read is under way.
    Reading,
    /// It waits for a thread or a frame that a handler thread does not wait for.
    Deferred,
    /// The access cannot be satisfied.
    Failed(FaultError),
}

impl PageFault {
    /// Attempts a fault until it is resolved. `locate` finds its stretch for each attempt,
    /// inside the domain's gate: no reference keeps the stretch alive while this waits. If it
    /// fails, so does this.
    pub(crate) fn resolve<'p, E>(
        &mut self,
        pager: &'p Pager,
        waiter: &mut Waiter<'_>,
        mut locate: impl FnMut(&mut Self) -> Result<&'p StretchState, E>,
    ) -> Result<Resolution, E> {
        let mut asked = false;
        let now = clock::now();
        pager.frames.client().note_use(Millis::of(now));
        if self.began == 0 {
            self.began = now;
        }
        loop {
            let inside = waiter.enter(pager);
            let stretch = locate(self).inspect_err(|_| self.release_held(pager))?;
            let word = stretch.table().word(stretch.table().index(self.addr));
            match waiter.attempt(pager, stretch, self) {
                FillOutcome::Success => {
                    if self.task.is_some() {
                        pager.log.counters().end_fault(self.began);
                    }
                    return Ok(Resolution::Mapped);
                }
                FillOutcome::Pending if self.detached => return Ok(Resolution::Reading),
                FillOutcome::Failure(failure) => return Ok(Resolution::Failed(failure)),
                FillOutcome::Busy => match waiter {
                    Waiter::Handler(_) => return Ok(Resolution::Deferred),
                    Waiter::Thread(_) => {
                        word.wait_settled();
                        continue;
                    }
                },
                FillOutcome::Retry | FillOutcome::Pending => {}
            }
            // What is brought in before an access leaves the reserve to faults.
            let wanted_by = match self.at_bind {
                true => State::Empty,
                false => word.load().state(),
            };
            drop(inside);
            if self.wanted > 0 {
                // Once only: the second attempt splits the unit.
                pager.evictor.reserve_frames(self.wanted);
                self.whole = !std::mem::replace(&mut asked, true);
                continue;
            }
            let busy = waiter.is_awaited();
            match pager.evictor.obtain_frame(wanted_by, busy, self.at_bind) {
                Ok(frame) => self.held = Some(frame),
                Err(NoFrame::Busy) => return Ok(Resolution::Deferred),
                Err(NoFrame::Never(failure)) => {
                    let _inside = waiter.enter(pager);
                    let stretch = pager.mm.index.find(self.addr);
                    let index = stretch.map(|stretch| stretch.table().index(self.addr));
                    let Some((stretch, index)) = stretch.zip(index) else {
                        return Ok(Resolution::Failed(failure));
                    };
                    if pager.standby.unstage(stretch, index) {
                        return Ok(Resolution::PutBack);
                    }
                    // Cleaners that the store refuses put pages back while the search goes on.
                    if stretch.table().word(index).load().state() == State::Resident {
                        continue;
                    }
                    return Ok(Resolution::Failed(failure));
                }
            }
        }
    }

    /// One attempt: the first with no frame in hand, a retry with one, or that of a binding. A
    /// frame that was not used is released.
    pub(crate) fn attempt(
        &mut self,
        pager: &Pager,
        stretch: &StretchState,
        context: &mut FaultContext,
    ) -> FillOutcome {
        (self.wanted, self.handled) = (0, FaultSample::default());
        let mut activation = Activation {
            pager,
            stretch,
            index: stretch.table().index(self.addr),
            write: self.write,
            phase: match self.held {
                _ if self.at_bind => FillPhase::Bind,
                Some(_) => FillPhase::Retry,
                None => FillPhase::Activation,
            },
            fault: self,
            context,
        };
        let outcome = stretch.fault(&mut activation);
        self.release_held(pager);
        outcome
    }

    fn release_held(&mut self, pager: &Pager) {
        if let Some(frame) = self.held.take() {
            pager.frames.put(frame);
        }
    }
}

impl Waiter<'_> {
    fn enter<'p>(&self, pager: &'p Pager) -> Option<FreezeGuard<'p>> {
        match self {
            Self::Handler(_) => None,
            Self::Thread(hint) => Some(pager.mm.gate.enter(*hint)),
        }
    }

    fn attempt(
        &mut self,
        pager: &Pager,
        stretch: &StretchState,
        fault: &mut PageFault,
    ) -> FillOutcome {
        match self {
            Self::Handler(context) => fault.attempt(pager, stretch, context),
            Self::Thread(hint) => {
                let mut context = pager.faults.contexts.borrow(*hint);
                fault.attempt(pager, stretch, &mut context)
            }
        }
    }

    /// Returns true if other threads wait for this one, for reads under way or to be woken, so that it must not wait for
    /// others.
    fn is_awaited(&self) -> bool {
        match self {
            Self::Handler(context) => context.flights() > 0 || context.wakes.are_put_off(),
            Self::Thread(_) => false,
        }
    }
}
