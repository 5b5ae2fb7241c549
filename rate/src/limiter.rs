//! The page fault handler of figure 7: count, call the swapper, suspend.
//!
//! Two differences from the figure. A fault counts in the period in which it is handled (see
//! [`crate::account`]). And tasks can be limited together, too: who finds the period of all
//! full is booked into the next that has room, so that each of them is handled in its turn
//! though all wait; with no fewer faults a period than tasks, every task makes progress in
//! every period.
//!
//! Rule: who is suspended holds nothing but its ticket. It may come back at any time, and
//! must before its fault is handled: at the time said, or when the limits change.

use crate::account::{Account, FARTHEST};
use crate::limits::{Limits, Seen, Setting};
use crate::quantities::Nanos;
use crate::tasks::{Key, Tasks};

/// Looks at limits that change meanwhile, at most.
const TRIES: u32 = 64;

/// What a suspended fault keeps: its place among all that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    generation: u32,
    period: u64,
}

impl Default for Ticket {
    /// Of a fault that has just come.
    fn default() -> Self {
        Self {
            generation: 0,
            period: u64::MAX,
        }
    }
}

impl Ticket {
    /// As two words, for tables of atomics.
    pub fn words(self) -> [u64; 2] {
        [self.generation.into(), self.period]
    }

    /// From [`Ticket::words`].
    pub fn from_words([generation, period]: [u64; 2]) -> Self {
        Self {
            generation: generation as u32,
            period,
        }
    }
}

/// What is to be done with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When it is to come again; none where it is to be handled now.
    pub until: Option<Nanos>,
    /// What it is to bring then.
    pub ticket: Ticket,
    /// Whether the swapper is to be called: this fault is the first past the system's limit.
    pub call_swapper: bool,
    /// task.fault_count, where the fault is handled and its task is limited.
    pub task_count: u32,
    /// fault_count of all, where the fault is handled and they are counted.
    pub tree_count: u32,
}

/// What may come with a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// Pages.
    pub granted: u32,
    /// task.fault_count with them, where the task is limited.
    pub task_count: u32,
    /// fault_count of all with them, where they are counted.
    pub tree_count: u32,
}

/// The handler of one process: limits that the tree shares, and the process's tasks.
#[derive(Clone, Copy)]
pub struct Handler<'a> {
    limits: Limits<'a>,
    tasks: Tasks<'a>,
    leave: u32,
}

impl<'a> Handler<'a> {
    /// A handler.
    pub fn new(limits: Limits<'a>, tasks: Tasks<'a>) -> Self {
        Self {
            limits,
            tasks,
            leave: 0,
        }
    }

    /// The same for faults that are counted after they were handled, in batches of `batch`: it
    /// leaves that much of a task's limit for those of the next batch, which come before
    /// anybody can say no.
    pub fn after(self, batch: u32) -> Self {
        Self {
            leave: batch,
            ..self
        }
    }

    /// What a task may have of its limit; zero is no limit.
    fn task_limit(&self, setting: &Setting) -> u32 {
        match setting.task_limit {
            0 => 0,
            limit => limit.saturating_sub(self.leave).max(1),
        }
    }

    /// The limits.
    pub fn limits(&self) -> Limits<'a> {
        self.limits
    }

    /// A fault of a task, new or with the ticket that it was suspended with.
    pub fn page_fault(&self, task: Key, now: Nanos, ticket: Ticket) -> Answer {
        let mut answer = Answer {
            until: None,
            ticket,
            call_swapper: false,
            task_count: 0,
            tree_count: 0,
        };
        for _ in 0..TRIES {
            let seen = self.limits.seen();
            let length = seen.setting.fault_period;
            if length == 0 {
                return answer;
            }
            let limit = self.task_limit(&seen.setting);
            let own = seen.periods().apart(task.number());
            let period = own.of(now);
            let suspended = Some(own.start(period + 1));
            if limit != 0 {
                let take = |account: Account| account.take(period, limit, 1);
                let (account, taken) = self.tasks.update(task, period, take);
                answer.task_count = account.count;
                if taken == 0 {
                    answer.until = suspended;
                    return answer;
                }
            }
            if seen.counts_tree() {
                let waits = self.count(&seen, now, &mut answer);
                // Handled later, it counts later: nobody else uses the task's account.
                if !matches!(waits, Some(None)) {
                    self.give_back_own(&seen, task, now, 1);
                    answer.task_count = 0;
                }
                match waits {
                    Some(until) => answer.until = until,
                    None => continue,
                }
            }
            return answer;
        }
        // Who changes the limits was stopped in between.
        let periods = self.limits.seen().periods();
        answer.until = Some(periods.start(periods.of(now) + 1));
        answer
    }

    /// Counts a fault with those of all tasks, unless its ticket says that it was. Until when
    /// it is to wait, if it is; none where the limits have changed.
    fn count(&self, seen: &Seen, now: Nanos, answer: &mut Answer) -> Option<Option<Nanos>> {
        let periods = seen.periods();
        let period = periods.of(now);
        let ticket = answer.ticket;
        if ticket.generation == seen.generation && ticket.period >= period {
            match ticket.period - period {
                0 => return Some(None),
                1..=FARTHEST => return Some(Some(periods.start(ticket.period))),
                _ => {}
            }
        }
        let limit = match seen.setting.tree_limit {
            0 => u32::MAX,
            limit => limit,
        };
        let book = |account: Account| (account.book(period, limit), ());
        let (account, ()) = self.limits.update(seen, book)?;
        let system = seen.setting.system_limit;
        answer.call_swapper |= system != 0 && account.count == system.saturating_add(1);
        // Sleeping at the limit, nobody gets past it; the swapper is to be called even so.
        answer.call_swapper |= system != 0 && account.period > period && account.count == 1;
        answer.ticket = Ticket {
            generation: seen.generation,
            period: account.period,
        };
        answer.tree_count = account.count;
        Some((account.period > period).then(|| periods.start(account.period)))
    }

    /// How many more pages than one may come with a task's fault now, of `want`: each counts
    /// as a fault of its own, and none is waited for.
    pub fn take_more(&self, task: Key, now: Nanos, want: u32) -> More {
        let seen = self.limits.seen();
        let length = seen.setting.fault_period;
        let mut more = More {
            granted: want,
            ..More::default()
        };
        if length == 0 || want == 0 {
            return more;
        }
        let limit = self.task_limit(&seen.setting);
        if limit != 0 {
            let period = seen.periods().apart(task.number()).of(now);
            let take = |account: Account| account.take(period, limit, want);
            let (account, granted) = self.tasks.update(task, period, take);
            (more.task_count, more.granted) = (account.count, granted);
        }
        if more.granted != 0 && seen.counts_tree() {
            let limit = match seen.setting.tree_limit {
                0 => u32::MAX,
                limit => limit,
            };
            let period = seen.periods().of(now);
            let own = more.granted;
            let take = |account: Account| account.take(period, limit, own);
            let taken = self.limits.update(&seen, take);
            let (count, granted) = taken.map_or((0, 0), |(account, taken)| (account.count, taken));
            self.give_back_own(&seen, task, now, own - granted);
            more.task_count = more.task_count.saturating_sub(own - granted);
            (more.tree_count, more.granted) = (count, granted);
        }
        more
    }

    /// Pages of [`Handler::take_more`], taken at `now`, that did not come.
    pub fn give_back(&self, task: Key, now: Nanos, count: u32) {
        let seen = self.limits.seen();
        if !seen.setting.is_some() || count == 0 {
            return;
        }
        self.give_back_own(&seen, task, now, count);
        if seen.counts_tree() {
            let period = seen.periods().of(now);
            let back = |account: Account| (account.give_back(period, count), ());
            let _ = self.limits.update(&seen, back);
        }
    }

    fn give_back_own(&self, seen: &Seen, task: Key, now: Nanos, count: u32) {
        if seen.setting.task_limit != 0 && count != 0 {
            let period = seen.periods().apart(task.number()).of(now);
            let back = |account: Account| (account.give_back(period, count), ());
            self.tasks.update(task, period, back);
        }
    }
}
