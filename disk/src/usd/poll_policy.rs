//! How long the disk's thread polls before it sleeps.
//!
//! The longest of three times that applies:
//! - *the configured time*, after any activity: a client whose request completed may submit again;
//! - *the bound of what is in flight*, where that is reached: a transaction completes within a few
//!   microseconds then, and a processor that has to wake first leaves the disk with less to do
//!   meanwhile (`selfpage bench qos --only saturation`: 0.63 of the unscheduled disk where it
//!   slept, 0.79 where it did not, with half of a processor more);
//! - *a fast disk's latency*, where anything is in flight, as far as polling pays: a wake-up costs
//!   as much processor time as polling, and the client waits for it (`selfpage bench qos --only
//!   overhead` has both).
//!
//! It does not poll for a client that comes now and then, nor does the client then: between its
//! requests the processors halt, and where the thread wakes on the client's own, each of the two keeps
//! the other from it by polling. A read that was due every 2 ms took 129 to 158 us (p50) so, 311 to 359
//! with polling, 81 to 97 under kernel swap (`selfpage bench qos --only neighbour --arms system,swap`).
//! A request soon after a completion shows a client that works through its pages, for which
//! polling pays.
//!
//! Where other threads wait for processors it polls for one request alone, not beside several: it has the most weight of all ordinary threads,
//! so that it polls at their cost. Beside a neighbour whose pagers run in bursts, requests to redis-server had a p99 of 1.7 and 2.3 ms where
//! it polled for all, 1.0 so; a program without a contract that wakes each 2 ms had a processor 1.4 ms late (p99), and 0.9
//! (`selfpage bench qos --only redis --arms system`). Where it did not poll at all, a program that reads one page after the other
//! had 11,000 a second for 18,000 (`--only neighbour`).
//!
//! A thread with real-time priority keeps the processor from programs that compute, and has it for a
//! part of the time only ([`super::priority_window`]). It polls for two things: the next request of a
//! client whose last one completed, and what is in flight. Without the second, figure 7 of the paper had a tenth less of a quiet machine's bytes
//! beside eight threads that compute (`selfpage bench qos --only figure7 --busy`).
//!
//! Rule: a thread that is configured not to poll never does.

use crate::time::{Nanos, Time};
use wired::AdaptivePoll;

/// How long a client takes to submit its next request, in which it is charged laxity: 17 us where it
/// polls, 28 where it is woken beside threads that compute (`selfpage bench qos --only figure7`,
/// with `--busy` and without).
const TURNAROUND: Nanos = Nanos::micros(50);

/// The time from a completion to the next request of a client that works through its pages, with two
/// wake-ups of halted processors in it.
const WARM: Nanos = Nanos::micros(200);

pub(super) struct PollPolicy {
    min_spin: Nanos,
    poll: AdaptivePoll,
    /// Time of the last activity.
    since: Time,
    /// Time of the last idle iteration.
    seen: Time,
    /// Whether polling for a completion pays, once this was evaluated.
    pays: Option<bool>,
    /// Time of the last completion.
    completed: Time,
    /// Whether the last request came soon after a completion.
    warm: bool,
    /// Whether the thread has real-time priority.
    real_time: bool,
    /// Whether other threads wait for processors.
    crowded: bool,
}

impl PollPolicy {
    /// A policy that polls for `min_spin` after any activity.
    pub fn new(min_spin: Nanos) -> Self {
        Self {
            min_spin,
            poll: AdaptivePoll::default(),
            since: Time(0),
            seen: Time(0),
            pays: None,
            completed: Time(0),
            warm: false,
            real_time: false,
            crowded: false,
        }
    }

    /// Other threads wait for processors from now on, or no longer.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// The thread has real-time priority from now on, or no longer.
    pub fn set_real_time(&mut self, real_time: bool) {
        self.real_time = real_time;
    }

    /// Records a completion.
    pub fn on_completion(&mut self, now: Time) {
        self.completed = now;
        if self.pays.take() == Some(true) {
            self.poll.on_completed_in_time();
        }
    }

    /// Records activity, after its work is done: whether it `took` requests.
    pub fn on_activity(&mut self, now: Time, took: bool) {
        (self.since, self.seen) = (now, now);
        self.pays = None;
        if took {
            self.warm = now - self.completed < WARM;
        }
    }

    /// Called after an idle iteration. Returns true to keep polling; `in_flight` is how many requests are,
    /// `full` is the bound where it is reached.
    pub fn should_poll(&mut self, now: Time, in_flight: usize, full: Option<Nanos>) -> bool {
        let is_bulk = in_flight > 1;
        if self.min_spin == Nanos::ZERO || self.crowded && is_bulk && !self.real_time {
            return false;
        }
        let seen = std::mem::replace(&mut self.seen, now);
        let disturbed = now - seen > AdaptivePoll::PREEMPTED.into();
        let passed = now - self.since;
        let spin = match self.real_time {
            true => self.min_spin.min(TURNAROUND),
            false => self.min_spin.max(full.unwrap_or(Nanos::ZERO)),
        };
        if !self.warm && full.is_none() && !self.real_time {
            return false;
        }
        if passed < spin {
            return true;
        }
        let poll = &mut self.poll;
        if in_flight == 0 || !*self.pays.get_or_insert_with(|| poll.should_poll()) {
            return false;
        }
        if passed < AdaptivePoll::MAX_POLL.into() && !disturbed {
            return true;
        }
        self.poll.on_timeout();
        self.pays = Some(false);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Nanos = Nanos::micros(20);

    /// Microseconds of polling after activity at `at`, at one poll each.
    fn looked(poll_policy: &mut PollPolicy, at: u64, in_flight: usize, full: Option<Nanos>) -> u64 {
        let begin = Time(0) + Nanos::micros(at);
        poll_policy.completed = begin;
        poll_policy.on_activity(begin, true);
        let again = |us: &u64| poll_policy.should_poll(begin + Nanos::micros(*us), in_flight, full);
        (1..).take_while(again).count() as u64
    }

    #[test]
    fn with_real_time_priority_it_polls_for_the_next_request_or_what_is_in_flight() {
        let mut poll_policy = PollPolicy::new(Nanos::micros(1000));
        poll_policy.set_real_time(true);
        let turnaround = TURNAROUND.0 / 1000 - 1;
        assert_eq!(looked(&mut poll_policy, 0, 0, None), turnaround);
        assert!(looked(&mut poll_policy, 5000, 1, None) > 100);
        poll_policy.set_real_time(false);
        assert!(looked(&mut poll_policy, 10_000, 0, None) > 900);
    }

    #[test]
    fn where_others_wait_for_processors_it_polls_for_one_request_alone() {
        let mut poll_policy = PollPolicy::new(Nanos::micros(1000));
        poll_policy.set_crowded(true);
        assert_eq!(looked(&mut poll_policy, 0, 2, Some(TOLD)), 0);
        assert!(looked(&mut poll_policy, 5000, 1, None) > 900);
        poll_policy.set_real_time(true);
        assert!(looked(&mut poll_policy, 10_000, 2, None) > 0);
        poll_policy.set_real_time(false);
        poll_policy.set_crowded(false);
        assert!(looked(&mut poll_policy, 15_000, 2, Some(TOLD)) > 900);
    }

    #[test]
    fn it_polls_for_the_configured_time_and_longer_while_transactions_are_in_flight() {
        let mut poll_policy = PollPolicy::new(TOLD);
        assert_eq!(looked(&mut poll_policy, 0, 0, None), 19);
        assert_eq!(
            looked(&mut poll_policy, 500, 0, Some(Nanos::micros(90))),
            89
        );
        let longest = AdaptivePoll::MAX_POLL.as_micros() as u64;
        assert_eq!(looked(&mut poll_policy, 1000, 1, None), longest - 1);
        // That was in vain: no poll the next time, and then again.
        assert_eq!(looked(&mut poll_policy, 2000, 1, None), 19);
        assert_eq!(looked(&mut poll_policy, 3000, 1, None), longest - 1);
    }

    #[test]
    fn it_does_not_poll_for_a_client_that_comes_now_and_then() {
        let mut poll_policy = PollPolicy::new(TOLD);
        let second = Time(0) + WARM;
        poll_policy.on_completion(Time(0));
        poll_policy.on_activity(second, true);
        assert!(!poll_policy.should_poll(second, 1, None));
        // Where the disk is full of work it polls all the same.
        assert!(poll_policy.should_poll(second, 1, Some(TOLD)));
        poll_policy.on_completion(second + Nanos::micros(90));
        let third = second + Nanos::micros(150);
        poll_policy.on_activity(third, true);
        assert!(poll_policy.should_poll(third, 1, None));
    }

    #[test]
    fn what_ends_while_it_looks_makes_up_for_looks_in_vain() {
        let mut poll_policy = PollPolicy::new(TOLD);
        let longest = AdaptivePoll::MAX_POLL.as_micros() as u64 - 1;
        let three =
            |poll_policy: &mut PollPolicy| [(); 3].map(|()| looked(poll_policy, 0, 1, None));
        assert_eq!(three(&mut poll_policy)[..2], [longest, 19]);
        // The third was in vain, too: none of the next three is worth it.
        assert_eq!(three(&mut poll_policy), [19, 19, 19]);
        for _ in 0..4 {
            poll_policy.on_activity(Time(0), true);
            assert!(poll_policy.should_poll(Time(0) + TOLD, 1, None));
            poll_policy.on_completion(Time(0));
        }
        assert_eq!(three(&mut poll_policy), [longest, 19, longest]);
    }

    #[test]
    fn a_thread_configured_not_to_poll_never_polls() {
        let mut poll_policy = PollPolicy::new(Nanos::ZERO);
        assert_eq!(looked(&mut poll_policy, 0, 1, Some(Nanos::micros(90))), 0);
    }

    #[test]
    fn it_stops_where_another_has_the_processor() {
        let mut poll_policy = PollPolicy::new(TOLD);
        poll_policy.on_activity(Time(0), true);
        let late = Time(0) + TOLD + AdaptivePoll::PREEMPTED.into() + Nanos::micros(1);
        assert!(!poll_policy.should_poll(late, 1, None));
        // The configured time applies all the same.
        poll_policy.on_activity(Time(0), true);
        assert!(poll_policy.should_poll(Time(0) + Nanos::micros(1), 1, None));
    }
}
