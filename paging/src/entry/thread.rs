//! Faults as messages: handler threads, one on each processor, all reading one userfaultfd.
//!
//! A fault must be served on the processor that took it: an idle processor takes 20 us to
//! wake, and one unpinned handler makes 35 to 55 us of a fault that pinned ones serve in 11.
//! All handlers wait on the same descriptor; the one on the faulting processor runs first,
//! since the faulting thread has just gone to sleep there.
//!
//! The loop does what a notification handler may do, and leaves reads under way while it takes
//! further faults; if a fault finds no frame, the handler evicts, on the faulting thread's
//! processor.
//!
//! A fault whose task is past its limit sleeps ([`super::throttled`]) and is resumed when it
//! is due; the handler continues with other threads' faults.
//!
//! Rule: a handler that has reads under way, or threads to wake, never waits for anything else.

use crate::counters::Counter;
use crate::entry::crowd::Crowd;
use crate::entry::deferred::{DeferredFault, DeferredFaults};
use crate::entry::dispatch::{Settled, find_allocated};
use crate::entry::idle::IdleState;
use crate::entry::poll::PollResult;
use crate::entry::throttled::{ThrottledFault, ThrottledQueue};
use crate::fault_context::{DEPTH, FaultContext};
use crate::fault_outcome::{FaultError, FillOutcome};
use crate::freeze_gate::FreezeGuard;
use crate::pager::{Pager, page_base};
use crate::resolve::{PageFault, Resolution, Waiter};
use crate::throttle::{self, ThrottleDecision, ThrottleState};
use rate::TimeNs;
use rate::thread_counters::ThreadKey;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::Wait;
use wired::{AdaptivePoll, PAGE};

/// How often a handler checks for changed limits while faults sleep.
const LIMITS_POLL: Duration = Duration::from_millis(20);

/// How long a handler without faults keeps the memory that reads take.
const REST: Duration = Duration::from_millis(500);

/// How soon deferred faults are retried.
const RETRY: Duration = Duration::from_micros(200);

/// The state of one handler thread.
pub struct HandlerThread {
    pub(super) context: FaultContext,
    deferred: DeferredFaults,
    /// Faults of tasks past their limits.
    throttled: ThrottledQueue,
    /// The generation of the limits that they wait by.
    generation: u32,
    pub(super) cpu: usize,
    idle: IdleState,
    poll: AdaptivePoll,
    /// Whether the next fault is there when one has been resolved.
    pub(super) in_a_row: AdaptivePoll,
    pub(super) crowd: Crowd,
    /// Faults were served since the memory for reads was last given back.
    has_served: bool,
}

impl HandlerThread {
    pub(crate) fn new(pager: &Pager, cpu: usize) -> Result<Self, crate::DomainError> {
        Ok(Self {
            context: FaultContext::new(pager.store.get(), DEPTH)?,
            deferred: DeferredFaults::new(),
            throttled: ThrottledQueue::new().map_err(crate::DomainError::Memory)?,
            generation: 0,
            cpu,
            idle: IdleState::new(cpu).map_err(std::io::Error::from)?,
            poll: AdaptivePoll::default(),
            in_a_row: AdaptivePoll::default(),
            crowd: Crowd::new().map_err(crate::DomainError::Memory)?,
            has_served: false,
        })
    }

    /// Frees what a fork's child has of its parent's handler, but for descriptors, which are not of its table.
    pub fn free_inherited(self) {
        self.idle.forget_descriptors();
    }

    /// Serves faults until `stop` returns true. `also` is a second descriptor whose
    /// readability is a reason to call `stop`.
    pub(crate) fn serve(
        &mut self,
        pager: &Pager,
        also: Option<BorrowedFd<'_>>,
        stop: &mut dyn FnMut() -> bool,
    ) {
        let mut inside: Option<FreezeGuard<'_>> = None;
        self.idle.enter(&pager.faults.handlers);
        loop {
            if !self.under_way() {
                inside = None;
            }
            let leaving = pager.mm.gate.closing(self.cpu);
            let take_new = !(leaving && inside.is_some()) && self.has_room();
            let ready = self.wait(pager, also, take_new);
            if ready.also && stop() {
                self.idle.exit(&pager.faults.handlers);
                self.send_all_back(pager);
                return;
            }
            if ready.rung && inside.is_none() {
                let limit = self.throttled.first_due().map(left);
                self.idle.idle(&pager.faults.handlers, limit);
                self.resume_throttled(pager, &mut inside);
                continue;
            }
            self.resume_throttled(pager, &mut inside);
            if inside.is_none() {
                if !ready.faults {
                    self.release_idle(pager, &ready);
                    continue;
                }
                inside = Some(pager.mm.gate.enter(self.cpu));
            }
            self.complete_reads(pager);
            self.retry_deferred(pager);
            if ready.faults && take_new && self.take(pager) {
                self.take_those_there(pager);
            }
        }
    }

    /// Waits for a fault, a read's completion, or time. While a read is under way it polls for a
    /// moment first, if that pays ([`AdaptivePoll`]): nothing else runs on this processor then,
    /// since the thread that faulted waits for the read.
    fn wait(&mut self, pager: &Pager, also: Option<BorrowedFd<'_>>, take_new: bool) -> PollResult {
        let is_ready = |thread: &Self| {
            let channel = thread.context.channel.as_ref();
            thread.context.flights() > 0 && channel.is_some_and(|channel| channel.is_ready())
        };
        let retry = match is_ready(self) || take_new && !self.crowd.is_empty() {
            true => Some(Duration::ZERO),
            false => (!self.deferred.is_empty() || !take_new).then_some(RETRY),
        };
        // Raised limits are noticed by then.
        let due = self.throttled.first_due();
        let due = due.map(|due| left(due).min(LIMITS_POLL));
        let rest = (self.has_served && !self.under_way()).then_some(REST);
        let limit = retry.into_iter().chain(due).chain(rest).min();
        if limit.is_none() && self.context.flights() > 0 {
            let probe = |thread: &mut Self| match is_ready(thread) {
                true => Some(PollResult::default()),
                false => {
                    let found = thread.look(pager, also, take_new, Some(Duration::ZERO));
                    found.any().then_some(found)
                }
            };
            let may_poll = |thread: &Self| {
                let channel = thread.context.channel.as_ref();
                channel.is_none_or(|channel| channel.may_poll())
            };
            if let Some(found) =
                AdaptivePoll::poll(self, |thread| &mut thread.poll, probe, may_poll)
            {
                return found;
            }
        }
        self.look(pager, also, take_new, limit)
    }

    /// Gives back the memory for reads after a wait without a fault.
    fn release_idle(&mut self, pager: &Pager, ready: &PollResult) {
        if self.has_served && self.throttled.is_empty() && !ready.any() {
            // A fork waits for it.
            let _inside = pager.mm.gate.enter(self.cpu);
            self.has_served = false;
            self.context.release_idle();
        }
    }

    /// Waits up to `limit`.
    fn look(
        &self,
        pager: &Pager,
        also: Option<BorrowedFd<'_>>,
        take_new: bool,
        limit: Option<Duration>,
    ) -> PollResult {
        use rustix::fd::AsFd;
        let userfault = pager.mm.userfault();
        let channel = self.context.channel.as_ref();
        let channel = channel.filter(|_| self.context.flights() > 0);
        let ring = channel.and_then(|channel| channel.poll_fd());
        let is_idle = !self.under_way() && self.crowd.is_empty();
        let bell = is_idle.then(|| self.idle.bell());
        let mut found = PollResult::wait(userfault.as_fd(), take_new, ring, bell, also, limit);
        found.faults |= take_new && !self.crowd.is_empty();
        found
    }

    /// Takes a fault, unless another handler has. Returns true if there was one.
    pub(super) fn take(&mut self, pager: &Pager) -> bool {
        // One at a time if reads are slow to complete: another handler may take the next.
        let mut taken = [translation::Fault::default()];
        let fault = match self.crowd.take() {
            Some(fault) => fault,
            None => match pager.mm.userfault().read_faults(&mut taken) {
                Ok(1) => taken[0],
                _ => return false,
            },
        };
        self.has_served = true;
        let known = pager.hooks.processor_of(fault.thread);
        self.idle
            .note_served(&pager.faults.handlers, fault.thread, known);
        pager.log.add(Counter::Faults, 1);
        self.throttle_or_resolve(
            pager,
            ThrottledFault {
                addr: fault.addr,
                write: fault.write,
                thread: fault.thread,
                state: ThrottleState::default(),
            },
        );
        true
    }

    /// Resolves a fault, or throttles it where its task, its tree or the system is past its limit.
    fn throttle_or_resolve(&mut self, pager: &Pager, mut fault: ThrottledFault) {
        let task = ThreadKey::new(fault.thread);
        let throttle = &pager.faults.throttle;
        let decision = throttle.check(task, &mut fault.state);
        if throttle.calls_swapper() {
            pager.frames.wake_evictor();
        }
        let came = match decision {
            ThrottleDecision::Proceed(came) => came,
            ThrottleDecision::RetryAt(delay) if self.throttled.put(fault, &delay) => return,
            // The thread faults again.
            ThrottleDecision::RetryAt(_) | ThrottleDecision::Stale => {
                let _ = pager.mm.userfault().wake(page_base(fault.addr), PAGE);
                return;
            }
        };
        let sample = throttle.begin_sample(came);
        let widest = pager.widest_window();
        let streams = &pager.faults.streams;
        let predict = |stretch| streams.predict(stretch, fault.thread as usize, fault.addr, widest);
        let deferred = DeferredFault {
            addr: fault.addr,
            write: fault.write,
            prediction: pager.mm.index.find(fault.addr).and_then(predict),
            thread: fault.thread,
            began: 0,
        };
        let ended = self.resolve(pager, deferred);
        let Some(begin) = sample else { return };
        let used = throttle.used_since(begin);
        match ended {
            FaultOutcome::Resolved(handled) => throttle.sample(handled, used),
            FaultOutcome::Reading => self.context.flights[self.context.pending].used = used,
            FaultOutcome::Other => {}
        }
    }

    /// Resumes the faults that are due, or all if the limits have changed. None is resumed
    /// while the domain's gate closes: they have waited already, and a fork must not.
    fn resume_throttled<'a>(&mut self, pager: &'a Pager, inside: &mut Option<FreezeGuard<'a>>) {
        if self.throttled.is_empty() {
            return;
        }
        let limits = pager.faults.throttle.limits();
        let generation = limits.generation().load(Ordering::Acquire);
        let all = std::mem::replace(&mut self.generation, generation) != generation;
        let now = throttle::now();
        let mut left = match all {
            true => self.throttled.len(),
            false => usize::MAX,
        };
        while left > 0
            && self.has_room()
            && !(inside.is_some() && pager.mm.gate.closing(self.cpu))
            && let Some(fault) = self.throttled.take_due(now, all)
        {
            left -= 1;
            if inside.is_none() {
                *inside = Some(pager.mm.gate.enter(self.cpu));
            }
            self.throttle_or_resolve(pager, fault);
        }
    }

    /// Sends sleeping faults back: their threads fault again.
    fn send_all_back(&mut self, pager: &Pager) {
        while let Some(fault) = self.throttled.take_due(0, true) {
            let _ = pager.mm.userfault().wake(page_base(fault.addr), PAGE);
        }
        while let Some(fault) = self.crowd.take() {
            let _ = pager.mm.userfault().wake(page_base(fault.addr), PAGE);
        }
    }

    /// Returns true if a further fault may be taken: it can be deferred, or its page be read.
    fn has_room(&self) -> bool {
        self.deferred.has_room() && self.context.has_flight()
    }

    /// Returns true if a fault that was taken is not resolved yet.
    pub(super) fn under_way(&self) -> bool {
        self.context.flights() > 0 || !self.deferred.is_empty()
    }

    fn resolve(&mut self, pager: &Pager, fault: DeferredFault) -> FaultOutcome {
        let DeferredFault { addr, thread, .. } = fault;
        let task = Some(ThreadKey::new(thread));
        if let Some(channel) = &mut self.context.channel {
            channel.set_waiter(thread);
        }
        let mut attempted = PageFault {
            addr,
            write: fault.write,
            detached: self.context.channel.is_some(),
            prediction: fault.prediction,
            whole: self.context.flights() == 0,
            task,
            began: fault.began,
            ..PageFault::default()
        };
        let mut waiter = Waiter::Handler(&mut self.context);
        let streams = &pager.faults.streams;
        let resolved = attempted.resolve(pager, &mut waiter, |fault| {
            let stretch = find_allocated(pager, fault)?;
            fault.in_order =
                fault.in_order || streams.in_order(stretch, thread as usize, fault.addr);
            Ok(stretch)
        });
        match resolved {
            // The thread that resolves a fault wakes all threads that wait for the page.
            Ok(Resolution::Mapped) => return FaultOutcome::Resolved(attempted.handled),
            Ok(Resolution::Reading) => return FaultOutcome::Reading,
            // The thread that fills the page wakes the faulting thread by mapping it; if it
            // fails, this fault must be retried.
            Ok(Resolution::Deferred) => {
                let began = attempted.began;
                self.deferred.put(DeferredFault { began, ..fault });
            }
            Ok(Resolution::Failed(failure)) => self.fail(pager, addr, &failure),
            Ok(Resolution::PutBack) | Err(Settled) => {}
        }
        FaultOutcome::Other
    }

    fn retry_deferred(&mut self, pager: &Pager) {
        for fault in self.deferred.take() {
            self.resolve(pager, fault);
        }
    }

    fn complete_reads(&mut self, pager: &Pager) {
        while self.context.flights() > 0 {
            let Some(completion) = self.context.complete(Wait::No) else {
                return;
            };
            let flight = completion.token as usize;
            let (addr, outcome) = self.context.complete_read(pager, flight, completion.result);
            if let FillOutcome::Failure(failure) = outcome {
                self.fail(pager, addr, &failure);
            }
        }
    }

    fn fail(&self, pager: &Pager, addr: usize, failure: &FaultError) {
        pager.log_failure(addr, failure);
        pager.faults.failed.mark(page_base(addr));
        // It removes the mark in time.
        pager.frames.wake_evictor();
    }
}

/// Result of a fault.
enum FaultOutcome {
    /// Its page is resident.
    Resolved(throttle::FaultSample),
    /// Its page is being read.
    Reading,
    /// It is deferred, or its thread's access fails.
    Other,
}

/// The time from now until `due`.
fn left(due: TimeNs) -> Duration {
    Duration::from_nanos(due.saturating_sub(throttle::now()))
}
