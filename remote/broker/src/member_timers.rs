//! What the membership is to do later.
//!
//! Rule: a member has one place among those to be forgotten, however often datagrams say that it is down.

use crate::protocol::Member;
use foca::Timer;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// The timers.
#[derive(Default)]
pub struct MemberTimers {
    /// What is due when; the second number keeps the order of what is due at once.
    queue: BinaryHeap<Reverse<(Instant, u64, QueuedTimer)>>,
    submitted: u64,
    /// Members that are down, by their addresses, and when they are forgotten.
    down: BTreeMap<SocketAddr, (Instant, Member)>,
}

/// A timer of foca's, ordered by what it is due at alone.
struct QueuedTimer(Timer<Member>);

impl PartialEq for QueuedTimer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for QueuedTimer {}

impl PartialOrd for QueuedTimer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedTimer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl MemberTimers {
    /// Adds a timer.
    pub fn push(&mut self, after: Duration, timer: Timer<Member>) {
        let due = Instant::now() + after;
        match timer {
            Timer::RemoveDown(member) => _ = self.down.insert(member.control, (due, member)),
            timer => {
                self.submitted += 1;
                let queued = (due, self.submitted, QueuedTimer(timer));
                self.queue.push(Reverse(queued));
            }
        }
    }

    /// When the next one is due. Members that are down wait for the one after.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((due, ..))| *due)
    }

    /// The next one that is due.
    pub fn pop_due(&mut self) -> Option<Timer<Member>> {
        let now = Instant::now();
        if self.next_due().is_some_and(|due| due <= now) {
            let queued = self.queue.pop();
            return queued.map(|Reverse((_, _, QueuedTimer(timer)))| timer);
        }
        self.forget_down(|due| due <= now)
    }

    /// The timer of the member that is down and is to be forgotten first, ahead of its time.
    pub fn pop_down(&mut self) -> Option<Timer<Member>> {
        let first = self.down.values().map(|(due, _)| *due).min()?;
        self.forget_down(|due| due == first)
    }

    fn forget_down(&mut self, is_it: impl Fn(Instant) -> bool) -> Option<Timer<Member>> {
        let found = self.down.iter().find(|(_, (due, _))| is_it(*due));
        let address = *found?.0;
        let (_, member) = self.down.remove(&address)?;
        Some(Timer::RemoveDown(member))
    }
}
