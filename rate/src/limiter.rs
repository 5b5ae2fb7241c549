//! The page fault handler of figure 7: count, call the swapper, suspend.
//!
//! Two differences from the figure. A fault counts in the period in which it is handled (see
//! [`crate::window_counter`]). And all threads of a tree can be limited together, too: a fault that
//! finds the tree's period full is booked into the next with room, so that waiting faults are
//! handled in turn; where a period has at least as many faults as the tree has threads, every
//! thread makes progress in every period.
//!
//! Rule: a suspended fault holds nothing but its token. It may retry at any time, and must retry
//! before it is handled: at the time given, or when the limits change.

use crate::shared_limits::{SharedLimits, Snapshot};
use crate::thread_counters::{ThreadCounters, ThreadKey};
use crate::units::TimeNs;
use crate::window_counter::{MAX_BOOKED_AHEAD, WindowCounter};

/// Most attempts to check a fault while another process changes the limits.
const MAX_ATTEMPTS: u32 = 64;

/// The state of a suspended fault: its place among the waiting ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeToken {
    generation: u32,
    period: u64,
}

impl Default for ChargeToken {
    /// The token of a new fault.
    fn default() -> Self {
        Self {
            generation: 0,
            period: u64::MAX,
        }
    }
}

impl ChargeToken {
    /// As two words, for tables of atomics.
    pub fn words(self) -> [u64; 2] {
        [self.generation.into(), self.period]
    }

    /// From [`ChargeToken::words`].
    pub fn from_words([generation, period]: [u64; 2]) -> Self {
        Self {
            generation: generation as u32,
            period,
        }
    }
}

/// The outcome of a fault's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When the fault has to retry; `None` where it is handled now.
    pub until: Option<TimeNs>,
    /// The token to retry with.
    pub token: ChargeToken,
    /// True if the swapper is to be called: this fault is the first past the system's limit.
    pub call_swapper: bool,
    /// task.fault_count, where the fault is handled and its thread is limited.
    pub task_count: u32,
    /// fault_count of the tree, where the fault is handled and the tree is counted.
    pub tree_count: u32,
}

/// Pages that may come with a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraPages {
    /// How many.
    pub granted: u32,
    /// task.fault_count with them, where the thread is limited.
    pub task_count: u32,
    /// fault_count of the tree with them, where the tree is counted.
    pub tree_count: u32,
}

/// The outcome of counting a fault with those of the tree.
enum TreeCharge {
    /// Handle it now.
    Handle,
    /// Retry then.
    Wait(TimeNs),
    /// The limits changed meanwhile: check again.
    LimitsChanged,
}

/// The limiter of one process: limits that the tree shares, and the process's threads.
#[derive(Clone, Copy)]
pub struct Limiter<'a> {
    limits: SharedLimits<'a>,
    threads: ThreadCounters<'a>,
}

impl<'a> Limiter<'a> {
    /// A limiter that counts each fault before it is handled.
    pub fn new(limits: SharedLimits<'a>, threads: ThreadCounters<'a>) -> Self {
        Self { limits, threads }
    }

    /// Checks and counts a fault of a thread, new or with the token that it was suspended with.
    pub fn page_fault(&self, task: ThreadKey, now: TimeNs, token: ChargeToken) -> Decision {
        let mut decision = Decision {
            until: None,
            token,
            call_swapper: false,
            task_count: 0,
            tree_count: 0,
        };
        for _ in 0..MAX_ATTEMPTS {
            let snapshot = self.limits.snapshot();
            let length = snapshot.limits.fault_period;
            if length == 0 {
                return decision;
            }
            let limit = snapshot.limits.task_limit;
            let own = snapshot.periods().apart(task.number());
            let period = own.of(now);
            let suspended = Some(own.start(period + 1));
            if limit != 0 {
                let take = |counter: WindowCounter| counter.take(period, limit, 1);
                let (counter, taken) = self.threads.update(task, period, take);
                decision.task_count = counter.count;
                if taken == 0 {
                    decision.until = suspended;
                    return decision;
                }
            }
            if snapshot.counts_tree() {
                match self.charge_tree(&snapshot, now, &mut decision) {
                    TreeCharge::Handle => return decision,
                    TreeCharge::Wait(until) => decision.until = Some(until),
                    TreeCharge::LimitsChanged => {}
                }
                // A fault handled later counts later; no other fault uses the thread's counter.
                self.refund_thread(&snapshot, task, now, 1);
                decision.task_count = 0;
                if decision.until.is_none() {
                    continue;
                }
            }
            return decision;
        }
        // The process that changes the limits is stopped in the middle of it.
        let periods = self.limits.snapshot().periods();
        decision.until = Some(periods.start(periods.of(now) + 1));
        decision
    }

    /// Counts a fault with those of the tree, unless its token shows that it is counted.
    fn charge_tree(&self, snapshot: &Snapshot, now: TimeNs, decision: &mut Decision) -> TreeCharge {
        let periods = snapshot.periods();
        let period = periods.of(now);
        let token = decision.token;
        if token.generation == snapshot.generation && token.period >= period {
            match token.period - period {
                0 => return TreeCharge::Handle,
                1..=MAX_BOOKED_AHEAD => return TreeCharge::Wait(periods.start(token.period)),
                _ => {}
            }
        }
        let limit = match snapshot.limits.tree_limit {
            0 => u32::MAX,
            limit => limit,
        };
        let book = |counter: WindowCounter| (counter.book(period, limit), ());
        let Some((counter, ())) = self.limits.update(snapshot, book) else {
            return TreeCharge::LimitsChanged;
        };
        let system = snapshot.limits.system_limit;
        decision.call_swapper |= system != 0 && counter.count == system.saturating_add(1);
        // Where the tree's limit is the lower one no fault passes the system's; the first that
        // waits calls the swapper instead.
        decision.call_swapper |= system != 0 && counter.period > period && counter.count == 1;
        decision.token = ChargeToken {
            generation: snapshot.generation,
            period: counter.period,
        };
        decision.tree_count = counter.count;
        if counter.period > period {
            TreeCharge::Wait(periods.start(counter.period))
        } else {
            TreeCharge::Handle
        }
    }

    /// Counts up to `want` more pages that a thread's fault at `now` brings in. Each page counts as a
    /// fault of its own; pages beyond the limit are not granted, and never wait.
    pub fn charge_extra(&self, task: ThreadKey, now: TimeNs, want: u32) -> ExtraPages {
        let snapshot = self.limits.snapshot();
        let length = snapshot.limits.fault_period;
        let mut more = ExtraPages {
            granted: want,
            ..ExtraPages::default()
        };
        if length == 0 || want == 0 {
            return more;
        }
        let limit = snapshot.limits.task_limit;
        if limit != 0 {
            let period = snapshot.periods().apart(task.number()).of(now);
            let take = |counter: WindowCounter| counter.take(period, limit, want);
            let (counter, granted) = self.threads.update(task, period, take);
            (more.task_count, more.granted) = (counter.count, granted);
        }
        if more.granted != 0 && snapshot.counts_tree() {
            let limit = match snapshot.limits.tree_limit {
                0 => u32::MAX,
                limit => limit,
            };
            let period = snapshot.periods().of(now);
            let own = more.granted;
            let take = |counter: WindowCounter| counter.take(period, limit, own);
            let taken = self.limits.update(&snapshot, take);
            let (count, granted) = taken.map_or((0, 0), |(counter, taken)| (counter.count, taken));
            self.refund_thread(&snapshot, task, now, own - granted);
            more.task_count = more.task_count.saturating_sub(own - granted);
            (more.tree_count, more.granted) = (count, granted);
        }
        more
    }

    /// Takes back pages of [`Limiter::charge_extra`], counted at `now`, that the fault did not bring in.
    pub fn refund(&self, task: ThreadKey, now: TimeNs, count: u32) {
        let snapshot = self.limits.snapshot();
        if !snapshot.limits.is_limited() || count == 0 {
            return;
        }
        self.refund_thread(&snapshot, task, now, count);
        if snapshot.counts_tree() {
            let period = snapshot.periods().of(now);
            let back = |counter: WindowCounter| (counter.refund(period, count), ());
            let _ = self.limits.update(&snapshot, back);
        }
    }

    fn refund_thread(&self, snapshot: &Snapshot, task: ThreadKey, now: TimeNs, count: u32) {
        if snapshot.limits.task_limit != 0 && count != 0 {
            let period = snapshot.periods().apart(task.number()).of(now);
            let back = |counter: WindowCounter| (counter.refund(period, count), ());
            self.threads.update(task, period, back);
        }
    }
}
