//! The time between two daemons, for a program that has no contract yet.

use std::time::{Duration, Instant};

/// How long a daemon that ends before it has answered may take to be started again.
pub(crate) const RETURN: Duration = Duration::from_secs(10);

/// A daemon that had a request for so long was at work: what it was doing, to scrub a swap file, may take minutes.
const AT_WORK: Duration = Duration::from_secs(1);

/// The daemons that end one after another before they reply to a request.
pub(crate) struct Outage {
    requested: Instant,
    /// When the last one ended that was at work.
    since: Option<Instant>,
}

impl Outage {
    /// None has ended.
    pub fn new() -> Self {
        Self {
            requested: Instant::now(),
            since: None,
        }
    }

    /// A daemon has the request.
    pub fn on_request(&mut self, now: Instant) {
        self.requested = now;
    }

    /// It has ended. Returns since when none is at work; `None` where that is too long.
    pub fn on_end(&mut self, now: Instant) -> Option<Instant> {
        let worked = now.saturating_duration_since(self.requested) >= AT_WORK;
        let since = self.since.filter(|_| !worked).unwrap_or(now);
        self.since = Some(since);
        Some(since).filter(|since| now.saturating_duration_since(*since) < RETURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_successor_is_waited_for_from_its_end_on_however_long_it_was_at_work() {
        let begin = Instant::now();
        let mut outage = Outage::new();
        outage.on_request(begin);
        let ended = begin + Duration::from_secs(300);
        assert_eq!(outage.on_end(ended), Some(ended));
        // Those that end at once are no successors.
        for second in 1..10 {
            let now = ended + Duration::from_secs(second);
            outage.on_request(now);
            assert_eq!(outage.on_end(now), Some(ended));
        }
        let late = ended + RETURN;
        outage.on_request(late);
        assert_eq!(outage.on_end(late), None);
    }
}
