//! When a keeper starts another process after the end of one.
//!
//! A keeper holds what must outlive a process, and is its parent. It starts another one at once, waits longer after
//! each of several early ends, and gives up where a process ends at each start.

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};
use std::time::Duration;

/// The policy, and its counts of ended processes.
#[derive(Clone, Debug)]
pub struct RestartPolicy {
    /// An end before this time counts as early.
    pub early: Duration,
    /// Consecutive early ends after which no other process is started.
    pub most_early: u32,
    /// Consecutive ends of processes that never served after which no other process is started.
    pub most_unserved: u32,
    /// The pause after an early end, times the number of consecutive early ends before it.
    pub pause: Duration,
    early_ends: u32,
    unserved_ends: u32,
}

impl Default for RestartPolicy {
    /// As many early ends as take, with their pauses, half a minute: so long programs wait for a page. Fewer ends of
    /// processes that never served are enough.
    fn default() -> Self {
        Self {
            early: Duration::from_secs(2),
            most_early: 24,
            most_unserved: 5,
            pause: Duration::from_millis(100),
            early_ends: 0,
            unserved_ends: 0,
        }
    }
}

impl RestartPolicy {
    /// A process has ended that ran for `run_time`. Returns the pause before the next is started, or `None` if none is.
    pub fn on_end(&mut self, run_time: Duration, has_served: bool) -> Option<Duration> {
        self.unserved_ends = match has_served {
            true => 0,
            false => self.unserved_ends + 1,
        };
        self.early_ends = match run_time < self.early {
            true => self.early_ends + 1,
            false => 0,
        };
        let may_restart =
            self.unserved_ends < self.most_unserved && self.early_ends < self.most_early;
        // After the first early end the next process starts at once.
        may_restart.then(|| self.pause * self.early_ends.saturating_sub(1))
    }
}

/// Waits for a child's end.
pub fn wait_for_child(child: Pid) -> Option<WaitStatus> {
    let waited = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
    waited.ok().flatten().map(|(_, status)| status)
}

/// The cause of a child's end, for a message.
pub fn describe_end(status: Option<WaitStatus>) -> String {
    let signal = status.and_then(|status| status.terminating_signal());
    match (signal, status.and_then(|status| status.exit_status())) {
        (Some(signal), _) => format!("signal {signal}"),
        (_, Some(code)) => format!("exit status {code}"),
        _ => "no status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn early_ends_have_longer_and_longer_pauses_and_then_no_restart() {
        let mut policy = RestartPolicy::default();
        let pauses: Vec<_> = std::iter::from_fn(|| policy.on_end(SHORT, true)).collect();
        assert_eq!(pauses.len(), 23);
        assert_eq!(pauses[0], Duration::ZERO);
        assert!(pauses.is_sorted() && pauses[22] > Duration::from_secs(2));
    }

    #[test]
    fn a_process_that_ran_long_resets_the_count() {
        let mut policy = RestartPolicy::default();
        for _ in 0..100 {
            (0..20).for_each(|_| assert!(policy.on_end(SHORT, true).is_some()));
            assert_eq!(policy.on_end(LONG, true), Some(Duration::ZERO));
        }
    }

    #[test]
    fn processes_that_never_serve_are_given_up_sooner() {
        let mut policy = RestartPolicy::default();
        assert!((0..4).all(|_| policy.on_end(LONG, false).is_some()));
        assert_eq!(policy.on_end(LONG, false), None);
    }
}
