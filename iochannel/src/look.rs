//! Whether to look for an answer before one sleeps.
//!
//! Who sleeps has to be woken, across processors mostly. Where one must leave a halt for that,
//! in a virtual machine above all, it takes as long as a fast disk takes for a page: a read
//! through a server took 107 us where both slept and 67 where they looked (`selfpage bench qos
//! --only overhead`). So a client with one request under way looks for the answer as long as
//! the server is awake, in the time of who faults. (The server looks for the device's by what
//! it has learned here, on its own terms.)
//!
//! Rules:
//! - Who looks gives way between two looks. Sixteen threads that read a disk at once on two
//!   processors had half of the pages where they did not (`selfpage bench paging --arms
//!   linked-disk,device --passes random-read --threads 16`).
//! - Only a thread of an ordinary class looks. One with a reservation would give up what is left
//!   of it when it gives way, and one with real-time priority would keep the processor from the
//!   server that it waits for.
//! - Looking is for what it gains. Where nothing came in time, or another wanted the
//!   processor, the next waits begin with sleep, twice as many for each look in vain, half as
//!   many for each that was not.

use rustix::thread::sched_yield;
use std::time::{Duration, Instant};

/// Waits in a row without a look, at most.
const MOST: u32 = 4095;

/// What one has learned of looking.
#[derive(Debug, Default)]
pub struct Look {
    /// Waits without a look after the next in vain.
    pause: u32,
    /// How many of them are left.
    left: u32,
}

impl Look {
    /// How long it is looked: a fast disk's answer, which takes less than one from a sleep.
    pub const LONGEST: Duration = Duration::from_micros(200);

    /// From one look to the next, by which it is seen that another had the processor: longer
    /// than an interrupt takes in a virtual machine.
    pub const DISTURBED: Duration = Duration::from_micros(50);

    /// Looks `at` something until it gives an answer, if that is worth it by its `own` look, and
    /// as long as it may still come.
    pub fn for_one<S, T>(
        at: &mut S,
        own: impl Fn(&mut S) -> &mut Self,
        hear: impl Fn(&mut S) -> Option<T>,
        may_come: impl Fn(&S) -> bool,
    ) -> Option<T> {
        if !own(at).is_worth_it() || !is_ordinary() {
            return None;
        }
        let begin = Instant::now();
        let mut last = begin;
        loop {
            if let Some(answer) = hear(at) {
                own(at).came();
                return Some(answer);
            }
            // Heard once more, whatever came in between.
            let now = Instant::now();
            let disturbed = now.saturating_duration_since(last) > Self::DISTURBED;
            if disturbed || now.saturating_duration_since(begin) > Self::LONGEST || !may_come(at) {
                break;
            }
            last = now;
            sched_yield();
        }
        own(at).in_vain();
        None
    }

    /// Whether to look this time.
    pub fn is_worth_it(&mut self) -> bool {
        let worth = self.left == 0;
        self.left = self.left.saturating_sub(1);
        worth
    }

    /// The answer came.
    pub fn came(&mut self) {
        self.pause /= 2;
    }

    /// It did not come in time.
    pub fn in_vain(&mut self) {
        self.pause = (self.pause * 2 + 1).min(MOST);
        self.left = self.pause;
    }
}

/// Whether this thread is of an ordinary scheduling class.
fn is_ordinary() -> bool {
    // SAFETY: asks about this thread. It fails, and touches `errno`, only where a filter
    // forbids asking.
    let class = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    matches!(class, libc::SCHED_OTHER | libc::SCHED_BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Looks of so many waits that were answered in time, as `answer` says, and that were not.
    fn looks(look: &mut Look, waits: u32, answer: impl Fn(u32) -> bool) -> [u32; 2] {
        let mut looks = [0; 2];
        for wait in 0..waits {
            if !look.is_worth_it() {
                continue;
            }
            match answer(wait) {
                true => look.came(),
                false => look.in_vain(),
            }
            looks[usize::from(!answer(wait))] += 1;
        }
        looks
    }

    #[test]
    fn a_thread_with_real_time_priority_does_not_look() {
        let looked = || Look::for_one(&mut Look::default(), |look| look, |_| Some(()), |_| true);
        assert_eq!(looked(), Some(()));
        // A thread of its own, since its class stays changed.
        let real_time = std::thread::spawn(move || {
            let parameters = libc::sched_param { sched_priority: 1 };
            // SAFETY: changes the class of this thread.
            let changed = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
            (changed == 0).then(looked)
        });
        match real_time.join().expect("it does not panic") {
            Some(found) => assert_eq!(found, None),
            None => eprintln!("skipped: real-time priority is not permitted here"),
        }
    }

    #[test]
    fn who_is_answered_in_time_always_looks() {
        assert_eq!(looks(&mut Look::default(), 1000, |_| true), [1000, 0]);
    }

    #[test]
    fn who_never_is_looks_less_and_less_and_begins_again_when_that_changes() {
        let mut look = Look::default();
        assert_eq!(looks(&mut look, 1 << 13, |_| false), [0, 13]);
        assert!(looks(&mut look, 2 * MOST, |_| true)[0] > MOST / 2);
        assert_eq!(looks(&mut look, 1000, |_| true), [1000, 0]);
    }

    proptest! {
        #[test]
        fn no_more_looks_are_in_vain_than_answered_but_for_few(
            answers in prop::collection::vec(any::<bool>(), 1..20_000),
            every in 1u32..20,
        ) {
            let any = |wait: u32| answers[wait as usize];
            let seldom = |wait: u32| wait.is_multiple_of(every);
            let waits = answers.len() as u32;
            for answer in [&any as &dyn Fn(u32) -> bool, &seldom] {
                let [came, in_vain] = looks(&mut Look::default(), waits, answer);
                let few = 13 + waits / MOST;
                prop_assert!(in_vain <= came + few, "{in_vain} beside {came}");
            }
        }
    }
}
