//! Lines about peers, as many as do not fill the log.

use remote_server::LogLimit;
use std::fmt::Arguments;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Logs lines about peers.
pub struct PeerLog {
    began: Instant,
    limit: Mutex<LogLimit>,
}

impl Default for PeerLog {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            limit: Mutex::default(),
        }
    }
}

impl PeerLog {
    /// Logs a line, unless there were too many lately.
    pub fn warn(&self, line: Arguments<'_>) {
        // Nothing panics while it is held.
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.warn(self.began.elapsed(), line);
    }
}
