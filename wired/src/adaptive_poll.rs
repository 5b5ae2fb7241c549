//! Polling for a completion before sleeping, as long as polling pays.
//!
//! A sleeper has to be woken, mostly on another processor. Where the wake-up must take that processor
//! out of a halt, above all in a virtual machine, it costs as much as a fast disk's read of a
//! page: a read through a server took 107 us where both sides slept and 67 us where they polled
//! (`selfpage bench qos --only overhead`). So a client with one request in flight polls for its
//! completion while the server is awake, on the faulting thread's time. (The server polls for
//! the device's completions by the same state, under its own policy.)
//!
//! Rules:
//! - A poller yields the processor between two probes. Sixteen threads that read a disk at once
//!   on two processors had half of the pages without the yield (`selfpage bench paging --arms
//!   linked-disk,device --passes random-read --threads 16`).
//! - Only a thread of an ordinary scheduling class polls, or one that has real-time priority lent
//!   ([`REAL_TIME`]). A thread with a reservation would give up the rest of it by yielding; one with
//!   a priority of its own choice would keep the processor from the server that it waits for.
//! - Polling backs off when it gains nothing. After a poll that timed out, or during which
//!   another thread took the processor, the next waits sleep at once: twice as many after each
//!   such poll, half as many after each poll that succeeded.

use crate::sched_class::{REAL_TIME, class_of, is_ordinary};
use rustix::thread::sched_yield;
use std::time::{Duration, Instant};

/// Most consecutive waits without a poll.
const MAX_SKIPPED: u32 = 4095;

/// Adaptive polling state of one waiter.
#[derive(Debug, Default)]
pub struct AdaptivePoll {
    /// Waits to skip after the next poll that times out.
    backoff: u32,
    /// Waits still to skip.
    skips_left: u32,
}

impl AdaptivePoll {
    /// Longest poll: a fast disk completes a read in that time.
    pub const MAX_POLL: Duration = Duration::from_micros(200);

    /// A gap between two probes that shows that another thread had the processor: longer than an
    /// interrupt takes in a virtual machine.
    pub const PREEMPTED: Duration = Duration::from_micros(50);

    /// Calls `probe` on `waiter` until it returns a completion, if the waiter's `state` decides that
    /// polling pays, and as long as `may_come` returns true. A wait is not counted if `may_come` returns
    /// false at its start.
    pub fn poll<S, T>(
        waiter: &mut S,
        state: impl Fn(&mut S) -> &mut Self,
        probe: impl Fn(&mut S) -> Option<T>,
        may_come: impl Fn(&S) -> bool,
    ) -> Option<T> {
        if !may_come(waiter) || !state(waiter).should_poll() || !is_class_that_polls() {
            return None;
        }
        let begin = Instant::now();
        let mut last = begin;
        loop {
            if let Some(completion) = probe(waiter) {
                state(waiter).on_completed_in_time();
                return Some(completion);
            }
            // Checked after a probe, so that each gap is followed by one more probe.
            let now = Instant::now();
            let preempted = now.saturating_duration_since(last) > Self::PREEMPTED;
            let expired = now.saturating_duration_since(begin) > Self::MAX_POLL;
            if preempted || expired || !may_come(waiter) {
                break;
            }
            last = now;
            sched_yield();
        }
        state(waiter).on_timeout();
        None
    }

    /// Counts a wait. Returns true if it should poll before it sleeps.
    pub fn should_poll(&mut self) -> bool {
        let poll = self.skips_left == 0;
        self.skips_left = self.skips_left.saturating_sub(1);
        poll
    }

    /// A poll found its completion.
    pub fn on_completed_in_time(&mut self) {
        self.backoff /= 2;
    }

    /// A poll ended without its completion.
    pub fn on_timeout(&mut self) {
        self.backoff = (self.backoff * 2 + 1).min(MAX_SKIPPED);
        self.skips_left = self.backoff;
    }
}

fn is_class_that_polls() -> bool {
    let polls = |class| class == REAL_TIME || is_ordinary(class & !libc::SCHED_RESET_ON_FORK);
    class_of(0).is_some_and(polls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched_class::set_real_time;
    use proptest::prelude::*;

    /// Polls among `waits` waits that complete in time where `completes` says so: successful
    /// ones and timeouts.
    fn polls(poll: &mut AdaptivePoll, waits: u32, completes: impl Fn(u32) -> bool) -> [u32; 2] {
        let mut polls = [0; 2];
        for wait in 0..waits {
            if !poll.should_poll() {
                continue;
            }
            if completes(wait) {
                poll.on_completed_in_time();
            } else {
                poll.on_timeout();
            }
            polls[usize::from(!completes(wait))] += 1;
        }
        polls
    }

    #[test]
    fn a_thread_with_real_time_priority_of_its_own_does_not_poll() {
        let poll =
            || AdaptivePoll::poll(&mut AdaptivePoll::default(), |p| p, |_| Some(()), |_| true);
        assert_eq!(poll(), Some(()));
        // A thread of its own, since its class stays changed.
        let real_time = std::thread::spawn(move || {
            let parameters = libc::sched_param { sched_priority: 1 };
            // SAFETY: changes the class of this thread.
            let changed = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
            let of_its_own = (changed == 0).then(poll)?;
            set_real_time(0, 1).ok().map(|()| (of_its_own, poll()))
        });
        match real_time.join().expect("it does not panic") {
            Some(found) => assert_eq!(found, (None, Some(()))),
            None => eprintln!("skipped: real-time priority is not permitted here"),
        }
    }

    #[test]
    fn polling_goes_on_while_completions_come_in_time() {
        let mut poll = AdaptivePoll::default();
        assert_eq!(polls(&mut poll, 1000, |_| true), [1000, 0]);
    }

    #[test]
    fn polling_decays_when_nothing_completes_in_time_and_recovers() {
        let mut poll = AdaptivePoll::default();
        assert_eq!(polls(&mut poll, 1 << 13, |_| false), [0, 13]);
        assert!(polls(&mut poll, 2 * MAX_SKIPPED, |_| true)[0] > MAX_SKIPPED / 2);
        assert_eq!(polls(&mut poll, 1000, |_| true), [1000, 0]);
    }

    proptest! {
        #[test]
        fn timeouts_are_at_most_a_few_more_than_successes(
            answers in prop::collection::vec(any::<bool>(), 1..20_000),
            every in 1u32..20,
        ) {
            let any = |wait: u32| answers[wait as usize];
            let seldom = |wait: u32| wait.is_multiple_of(every);
            let waits = answers.len() as u32;
            for completes in [&any as &dyn Fn(u32) -> bool, &seldom] {
                let [successes, timeouts] = polls(&mut AdaptivePoll::default(), waits, completes);
                let few = 13 + waits / MAX_SKIPPED;
                prop_assert!(timeouts <= successes + few, "{timeouts} beside {successes}");
            }
        }
    }
}
