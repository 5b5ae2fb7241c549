//! Keeps a peer from filling the log.

use std::time::Duration;

/// Lines in a window.
const LINES: u32 = 20;
/// The window.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts lines about peers.
#[derive(Default)]
pub struct LogLimit {
    began: Duration,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    /// Logs a line at a time since any fixed point, unless there were too many lately.
    pub fn warn(&mut self, now: Duration, line: std::fmt::Arguments<'_>) {
        if now.saturating_sub(self.began) >= WINDOW {
            if self.left_out > 0 {
                tracing::warn!("{} lines about peers are left out here", self.left_out);
            }
            *self = Self {
                began: now,
                ..Self::default()
            };
        }
        match self.lines < LINES {
            true => {
                self.lines += 1;
                tracing::warn!("{line}");
            }
            false => self.left_out += 1,
        }
    }
}
