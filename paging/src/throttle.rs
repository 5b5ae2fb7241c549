//! The rate at which faults are handled: the pager's side of [`rate`].
//!
//! RAPHA (Ko and Yoo), section 4.2: a task past its limit is suspended in its own fault until
//! its next period; past the system's limit the swapper is called. The logic is
//! [`rate::Limiter`]; this module has the clock, the words of this process's tasks, the
//! statistics, and the measured cost of faults.
//!
//! What counts: each fault once, however often it is retried, and each page that comes with
//! another, in a window or a huge frame. A window takes what the period has left, and never
//! waits. Pages that a program requests by a call (pinning, binding) do not count: it waits
//! for them as it would for any work. Nor do faults that the kernel handles by itself, on files and
//! on memory that is not paged.
//!
//! A fault's cost is the processor time of the thread that handles it, measured for one in
//! [`SAMPLED`] of them, eviction included if that thread evicts. The kernel's own time to
//! deliver the fault is not visible.
//!
//! Rules: a task that must wait is outside the domain's gate and holds no frame, lock or
//! context. If nothing is limited, a fault costs one load.

use crate::counters::Counter;
use crate::log::Log;
use rate::thread_counters::{ThreadCounters, ThreadKey};
use rate::{
    Bookings, ChargeToken, FaultClass, FaultLimits, FaultUnits, Limiter, SharedLimits, TimeNs,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use wired::clock::thread_time;
use wired::{WiredMemory, futex};

/// The current time, on the clock of the limits' periods.
pub(crate) use wired::clock::now;

/// Words for tasks: threads that fault within one period. Further threads share words.
const TASKS: usize = 4096;

/// One fault in so many has its cost measured: reading a thread's time is a system call.
const SAMPLED: TimeNs = 32;

/// Bits of the clock below those that choose: clocks may step by some tens of nanoseconds.
const COARSE: u32 = 6;

/// The limits that a domain's faults pass.
pub(crate) struct FaultThrottle {
    limits: SharedLimits<'static>,
    log: Arc<Log>,
    tasks: WiredMemory,
    /// The periods that tasks wait for.
    bookings: WiredMemory,
    /// Frames to free, since the swapper was called.
    swap: AtomicU32,
}

/// The state of a fault with respect to the limits.
#[derive(Clone, Copy, Default)]
pub(crate) struct ThrottleState {
    token: ChargeToken,
    /// When it was first suspended; zero if it never was.
    since: TimeNs,
}

/// Throttle decision.
pub(crate) enum ThrottleDecision {
    /// Proceed. The time, if anything is limited.
    Proceed(Option<TimeNs>),
    /// Retry at that time.
    RetryAt(Delay),
    /// A later fault of the task has its place: a signal has interrupted this one.
    Stale,
}

/// A delayed fault.
#[derive(Clone, Copy)]
pub(crate) struct Delay {
    /// When to retry.
    pub(crate) until: TimeNs,
    generation: u32,
}

#[cfg(test)]
impl Delay {
    pub(crate) fn until(until: TimeNs) -> Self {
        Self {
            until,
            generation: 0,
        }
    }
}

/// How a fault was handled, for its cost.
#[derive(Clone, Copy)]
pub(crate) struct FaultSample {
    /// The source of the page.
    pub(crate) class: FaultClass,
    /// Pages brought in.
    pub(crate) pages: u32,
}

impl Default for FaultSample {
    fn default() -> Self {
        Self {
            class: FaultClass::ZeroFill,
            pages: 1,
        }
    }
}

impl FaultThrottle {
    pub(crate) fn new(limits: SharedLimits<'static>, log: Arc<Log>) -> rustix::io::Result<Self> {
        Ok(Self {
            limits,
            log,
            tasks: WiredMemory::private(TASKS * size_of::<AtomicU64>())?,
            bookings: WiredMemory::private(TASKS * size_of::<AtomicU64>())?,
            swap: AtomicU32::new(0),
        })
    }

    /// Sets new limits, and wakes the threads that sleep by the old ones. One caller at a time.
    pub(crate) fn set_limits(&self, setting: FaultLimits) {
        if self.limits.set(setting, now()) {
            futex::wake_all(self.limits.generation());
        }
    }

    /// Raises a maximum to what a period has counted by now.
    fn raise(&self, task: u32, tree: u32) {
        let counters = self.log.counters();
        for (counter, count) in [
            (Counter::PeakTaskFaults, task),
            (Counter::PeakTreeFaults, tree),
        ] {
            if u64::from(count) > counters.get(counter) {
                counters.raise(counter, count.into());
            }
        }
    }

    fn limiter(&self) -> Limiter<'_> {
        Limiter::new(self.limits, ThreadCounters::new(self.tasks.slice(0, TASKS)))
    }

    /// The limits.
    pub(crate) fn limits(&self) -> SharedLimits<'static> {
        self.limits
    }

    /// The measured cost of faults.
    pub(crate) fn units(&self) -> FaultUnits<'static> {
        self.limits.units()
    }

    /// Decides whether a fault of a task may be handled now.
    pub(crate) fn check(&self, task: ThreadKey, state: &mut ThrottleState) -> ThrottleDecision {
        let before = state.since;
        let was_booked = before != 0 || self.take_over(task, state);
        let decision = self.decide(task, state);
        match &decision {
            ThrottleDecision::RetryAt(_) if !was_booked => {
                self.log.add(Counter::ThrottledFaults, 1)
            }
            ThrottleDecision::Proceed(Some(now)) if before != 0 => {
                self.log.add(Counter::ThrottledUs, state.slept_us(*now));
            }
            _ => {}
        }
        decision
    }

    fn bookings(&self) -> Bookings<'_> {
        Bookings::new(self.bookings.slice(0, TASKS))
    }

    /// Has a new fault take over the booking of its task's last one, if a signal has interrupted that in its sleep.
    fn take_over(&self, task: ThreadKey, state: &mut ThrottleState) -> bool {
        if !self.limits.is_limited() {
            return false;
        }
        let generation = self.limits.generation().load(Ordering::Acquire);
        let booked = self.bookings().token(task, generation);
        booked.is_some_and(|token| {
            state.token = token;
            true
        })
    }

    fn decide(&self, task: ThreadKey, state: &mut ThrottleState) -> ThrottleDecision {
        if !self.limits.is_limited() && state.since == 0 {
            return ThrottleDecision::Proceed(None);
        }
        let is_booked = state.token != ChargeToken::default();
        if is_booked && self.bookings().is_stale(task, state.token) {
            return ThrottleDecision::Stale;
        }
        let now = now();
        let answer = self.limiter().page_fault(task, now, state.token);
        state.token = answer.token;
        if answer.call_swapper {
            let setting = self.limits.snapshot().limits;
            self.swap
                .store(setting.system_limit.max(1), Ordering::Release);
        }
        if let Some(until) = answer.until {
            self.log.counters().note_throttled_until(until);
            if state.token != ChargeToken::default() {
                let period = self.limits.snapshot().periods().of(now);
                self.bookings().book(task, state.token, period);
            }
            if state.since == 0 {
                state.since = now;
            }
            return ThrottleDecision::RetryAt(Delay {
                until,
                generation: self.limits.generation().load(Ordering::Acquire),
            });
        }
        if is_booked {
            self.bookings().end(task);
        }
        self.raise(answer.task_count, answer.tree_count);
        ThrottleDecision::Proceed(Some(now))
    }

    /// How many of `want` further pages may come with a task's fault, and the time of the
    /// decision.
    pub(crate) fn grant(&self, task: Option<ThreadKey>, want: u32) -> (u32, TimeNs) {
        let Some(task) = task.filter(|_| self.limits.is_limited()) else {
            return (want, 0);
        };
        let now = now();
        let more = self.limiter().charge_extra(task, now, want);
        self.log
            .add(Counter::ReadaheadTrimmed, u64::from(want - more.granted));
        self.raise(more.task_count, more.tree_count);
        (more.granted, now)
    }

    /// Returns pages granted by [`FaultThrottle::grant`] that were not brought in.
    pub(crate) fn refund(&self, task: Option<ThreadKey>, when: TimeNs, count: u32) {
        if let Some(task) = task.filter(|_| when != 0 && count != 0) {
            self.limiter().refund(task, when, count);
        }
    }

    /// The thread's time so far, if the fault that begins is one whose cost is measured.
    /// `came` is the time in [`ThrottleDecision::Proceed`].
    pub(crate) fn begin_sample(&self, came: Option<TimeNs>) -> Option<TimeNs> {
        let chosen = |came: TimeNs| (came >> COARSE).is_multiple_of(SAMPLED);
        came.filter(|came| chosen(*came))
            .and_then(|_| thread_time())
    }

    /// The time that the thread has used since [`FaultThrottle::begin_sample`].
    pub(crate) fn used_since(&self, begin: TimeNs) -> TimeNs {
        thread_time().map_or(0, |now| now.saturating_sub(begin))
    }

    /// Records the processor time of a fault.
    pub(crate) fn sample(&self, handled: FaultSample, used: TimeNs) {
        let pages = TimeNs::from(handled.pages.max(1));
        self.units().sample(handled.class, used / pages);
    }

    /// Takes the swapper's call since the last query: the number of frames it wants.
    pub(crate) fn swapper_called(&self) -> Option<u32> {
        // A load first: the query is frequent.
        let called = self.swap.load(Ordering::Relaxed) != 0;
        let frames = called.then(|| self.swap.swap(0, Ordering::Acquire));
        frames.filter(|frames| *frames != 0)
    }

    /// Returns true if a call of the swapper is pending.
    pub(crate) fn calls_swapper(&self) -> bool {
        self.swap.load(Ordering::Relaxed) != 0
    }
}

impl ThrottleState {
    /// Microseconds since it was delay.
    fn slept_us(&self, now: TimeNs) -> u64 {
        now.saturating_sub(self.since) / 1000
    }

    /// As words, for tables of atomics.
    pub(crate) fn words(self) -> [u64; 3] {
        let [generation, period] = self.token.words();
        [generation, period, self.since]
    }

    /// From [`ThrottleState::words`].
    pub(crate) fn from_words([generation, period, since]: [u64; 3]) -> Self {
        Self {
            token: ChargeToken::from_words([generation, period]),
            since,
        }
    }
}

impl Delay {
    /// Sleeps until the fault is due, or the limits change, or a signal comes; the caller then
    /// asks again. Holds nothing but the words of the limits, which outlive every domain.
    pub(crate) fn sleep(&self, limits: SharedLimits<'static>) {
        let left = self.until.saturating_sub(now());
        if left > 0 {
            let left = Some(Duration::from_nanos(left));
            futex::wait(limits.generation(), self.generation, left);
        }
    }
}
