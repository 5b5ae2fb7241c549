//! What a pager reports: counters, and lines of text for the operator.
//!
//! A line is formatted on the stack: the page path allocates nothing.

use crate::counters::{Counter, Counters};
use crate::fork_cell::ForkCell;
use crate::pager::Hooks;

/// Room for a line.
const ROOM: usize = 512;

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
        let mut line = LogLine::new();
        let _ = std::fmt::Write::write_fmt(&mut line, format_args!("selfpage: {text}\n"));
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

/// A line being written; what does not fit is left out.
pub(crate) struct LogLine {
    bytes: [u8; ROOM],
    used: usize,
}

impl LogLine {
    /// An empty line.
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; ROOM],
            used: 0,
        }
    }

    /// What was written.
    pub(crate) fn as_str(&self) -> &str {
        // Cut at a character's boundary by `write_str`.
        std::str::from_utf8(&self.bytes[..self.used]).unwrap_or("")
    }
}

impl std::fmt::Write for LogLine {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = ROOM - self.used;
        let mut cut = text.len().min(room);
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        self.bytes[self.used..self.used + cut].copy_from_slice(&text.as_bytes()[..cut]);
        self.used += cut;
        Ok(())
    }
}
