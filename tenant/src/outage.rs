//! The time between two daemons, for a program that has no contract yet.

use std::time::{Duration, Instant};

/// How long it may take until a daemon that ends before it replies is started again.
pub(crate) const MAX_OUTAGE: Duration = Duration::from_secs(10);

/// A daemon that ends this long after it received the request was working on it: scrubbing a swap file may take minutes.
const MIN_WORK: Duration = Duration::from_secs(1);

/// A sequence of daemons that end before they reply to a request.
pub(crate) struct Outage {
    requested: Instant,
    /// When the last daemon ended that had worked on the request.
    since: Option<Instant>,
}

impl Outage {
    /// Before any daemon has ended.
    pub fn new() -> Self {
        Self {
            requested: Instant::now(),
            since: None,
        }
    }

    /// The request is sent to a daemon.
    pub fn on_request(&mut self, now: Instant) {
        self.requested = now;
    }

    /// The daemon has ended. Returns the time since which no daemon works on the request; `None` if that is too long ago.
    pub fn on_end(&mut self, now: Instant) -> Option<Instant> {
        let worked = now.saturating_duration_since(self.requested) >= MIN_WORK;
        let since = self.since.filter(|_| !worked).unwrap_or(now);
        self.since = Some(since);
        Some(since).filter(|since| now.saturating_duration_since(*since) < MAX_OUTAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_successor_begins_at_the_end_of_the_last_daemon_that_worked_on_the_request() {
        let begin = Instant::now();
        let mut outage = Outage::new();
        outage.on_request(begin);
        let ended = begin + Duration::from_secs(300);
        assert_eq!(outage.on_end(ended), Some(ended));
        // A daemon that ends at once does not restart the wait.
        for second in 1..10 {
            let now = ended + Duration::from_secs(second);
            outage.on_request(now);
            assert_eq!(outage.on_end(now), Some(ended));
        }
        let late = ended + MAX_OUTAGE;
        outage.on_request(late);
        assert_eq!(outage.on_end(late), None);
    }
}
