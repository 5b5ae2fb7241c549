//! Which entry threads wait for faults.
//!
//! Every fault wakes all that wait on the userfaultfd, and waking a thread on an idle
//! processor costs the faulting thread several microseconds. So an entry that keeps being
//! woken for nothing, because no program thread runs on its processor, *dozes*: it waits
//! elsewhere for a moment, and comes back to see whether that has changed. One is always
//! awake, and one that is about to wait for a device calls the others.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wired::futex;

/// Empty wakes in a row after which an entry that has been of use dozes.
const EMPTY: u32 = 3;

/// The first doze, and the longest: how long a thread that has moved to another processor
/// is answered from its old one at most.
const FIRST: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(4);

/// The entries of a pager.
#[derive(Default)]
pub(crate) struct Entries {
    awake: AtomicU32,
    /// Counts calls: what those who doze sleep on.
    calls: AtomicU32,
    dozing: AtomicU32,
}

impl Entries {
    /// An entry begins to wait for faults.
    pub(crate) fn come(&self) {
        self.awake.fetch_add(1, Ordering::SeqCst);
    }

    /// An entry ends.
    pub(crate) fn go(&self) {
        self.awake.fetch_sub(1, Ordering::SeqCst);
    }

    /// In the child of a fork: there is none.
    pub(crate) fn forget(&self) {
        self.awake.store(0, Ordering::SeqCst);
        self.dozing.store(0, Ordering::SeqCst);
    }

    /// Wakes those who doze: the caller may not be back soon.
    pub(crate) fn call(&self) {
        if self.dozing.load(Ordering::SeqCst) > 0 {
            self.calls.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.calls);
        }
    }

    /// Dozes, unless nobody else is awake.
    fn doze(&self, time: Duration) {
        let calls = self.calls.load(Ordering::SeqCst);
        let others = |awake: u32| (awake > 1).then(|| awake - 1);
        let left = self
            .awake
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, others);
        if left.is_ok() {
            self.dozing.fetch_add(1, Ordering::SeqCst);
            futex::wait(&self.calls, calls, Some(time));
            self.dozing.fetch_sub(1, Ordering::SeqCst);
            self.come();
        }
    }
}

/// What one entry knows of its own use.
pub(crate) struct Alertness {
    /// Wakes in a row for nothing.
    empty: u32,
    /// How many of them are too many.
    most: u32,
    next: Duration,
}

impl Default for Alertness {
    fn default() -> Self {
        Self {
            empty: 0,
            most: EMPTY,
            next: FIRST,
        }
    }
}

impl Alertness {
    /// The entry was woken, and there was a fault for it.
    pub(crate) fn of_use(&mut self) {
        *self = Self::default();
    }

    /// The entry was woken for nothing. It has nothing under way.
    pub(crate) fn for_nothing(&mut self, entries: &Entries) {
        self.empty += 1;
        if self.empty < self.most {
            return;
        }
        entries.doze(self.next);
        // Still on trial: once more for nothing, and it dozes again, longer.
        (self.empty, self.most) = (0, 1);
        self.next = (self.next * 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_stays_awake() {
        let entries = Entries::default();
        entries.come();
        let mut alertness = Alertness::default();
        for _ in 0..100 {
            alertness.for_nothing(&entries);
        }
        assert_eq!(entries.awake.load(Ordering::SeqCst), 1);
        assert_eq!(alertness.next, LONGEST);
        alertness.of_use();
        assert_eq!((alertness.empty, alertness.most), (0, EMPTY));
    }

    #[test]
    fn one_that_dozes_is_called() {
        let entries = Entries::default();
        (0..2).for_each(|_| entries.come());
        std::thread::scope(|scope| {
            scope.spawn(|| entries.doze(Duration::from_secs(100)));
            while entries.dozing.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            entries.call();
        });
        assert_eq!(entries.awake.load(Ordering::SeqCst), 2);
        assert_eq!(entries.dozing.load(Ordering::SeqCst), 0);
    }
}
