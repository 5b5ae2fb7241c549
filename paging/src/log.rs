//! What a pager reports: counters, and lines of text for the operator.
//!
//! A line is formatted on the stack: the page path allocates nothing.

use crate::counters::{Counter, Counters};
use crate::fork_cell::ForkCell;
use crate::pager::Hooks;
use wired::LogLine;

/// The reports of one pager.
pub(crate) struct Log {
    hooks: &'static dyn Hooks,
    counters: ForkCell<Counters>,
}

impl Log {
    pub(crate) fn new(hooks: &'static dyn Hooks, counters: Counters) -> Self {
        Self {
            hooks,
            counters: ForkCell::new(counters),
        }
    }

    /// The counters.
    pub(crate) fn counters(&self) -> Counters {
        *self.counters.get()
    }

    /// Adds to a counter.
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        self.counters().add(counter, by);
    }

    /// Logs a message to the host.
    pub(crate) fn write(&self, text: std::fmt::Arguments<'_>) {
        let line = LogLine::new(text);
        self.hooks.notice(line.as_str());
    }

    /// Switches to the counters of the child process, which has the parent's stretches.
    ///
    /// # Safety
    /// For the only thread of a fork's child.
    pub(crate) unsafe fn become_child(&self, counters: Counters) {
        let bytes = self.counters().get(Counter::StretchBytes);
        // SAFETY: the caller's promise.
        unsafe { self.counters.replace(counters) };
        counters.set(Counter::StretchBytes, bytes);
    }
}
