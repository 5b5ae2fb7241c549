//! The time that the daemon's loop spends on tenants' messages and bells.
//!
//! The loop has a high priority, and no contract is charged for its time. Rule: a person's tenants
//! have a fifth of it, however many they are and whatever they send. A connection or bell of a person
//! that has used more is not polled until that time has passed; before the loop kills a tenant for a
//! missed deadline, it reads a batch of that tenant's messages. The daemon charges the verification of a thread that a tenant names
//! likewise ([`crate::processor_time`]). The other work of a turn of the loop (to wait, to
//! count stalls, to send shares) is charged to the person whose connection or bell woke the loop: with short
//! messages it is more than half of the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use wired::clock::thread_time;

/// Microseconds of a person's time that each microsecond of service takes: a fifth of the loop's time is served.
const BACKOFF: u32 = 5;

/// The time that a person may use in advance: a burst of messages is served at once.
const BURST: Duration = Duration::from_millis(20);

/// The most that is charged for one service: in a longer one the loop waited for a processor, or for the disk.
const MAX_CHARGE: Duration = Duration::from_millis(5);

/// The time that the loop has spent since it charged a person last.
#[derive(Default)]
pub(crate) struct TurnClock {
    /// The loop's processor time at that charge.
    charged: Duration,
}

impl TurnClock {
    /// The time to charge for a service that took `service`, where the loop has had `processor` time in all: a
    /// service that blocks the loop is charged for that time as well.
    pub fn lap(&mut self, service: Duration, processor: Duration) -> Duration {
        let before = std::mem::replace(&mut self.charged, processor);
        service.max(processor.saturating_sub(before))
    }

    /// Charges no person for the processor time until now.
    pub fn skip(&mut self, processor: Duration) {
        self.charged = processor;
    }
}

/// The processor time of the calling thread.
pub(crate) fn processor_time() -> Duration {
    Duration::from_nanos(thread_time().unwrap_or(0))
}

/// The time that persons have used, and the tokens that are not polled.
#[derive(Default)]
pub(crate) struct LoopTime {
    /// The time until which each person has used its part.
    used: BTreeMap<u32, Instant>,
    /// When each suspended token is polled again.
    suspended: BTreeMap<u64, Instant>,
}

impl LoopTime {
    /// Charges a person for the service of a token. Returns true if the token is suspended.
    pub fn charge(&mut self, person: u32, token: u64, took: Duration, now: Instant) -> bool {
        // Decided by what was used before this service: a bell is never read, so it is reported again once it is polled.
        let is_over = self.is_over(person, now);
        let used = self.charge_work(person, took, now);
        if is_over {
            self.suspended.insert(token, used - BURST);
        }
        is_over
    }

    /// Charges a person for work that no token of the person's began. Returns the time until which its part is used.
    pub fn charge_work(&mut self, person: u32, took: Duration, now: Instant) -> Instant {
        let used = self.used.entry(person).or_insert(now);
        *used = (*used).max(now) + took.min(MAX_CHARGE) * BACKOFF;
        *used
    }

    /// Returns true if a person has used its part.
    pub fn is_over(&self, person: u32, now: Instant) -> bool {
        self.used
            .get(&person)
            .is_some_and(|used| *used > now + BURST)
    }

    /// Time until a token is to be polled again.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        let next = self.suspended.values().min()?;
        Some(next.saturating_duration_since(now))
    }

    /// The tokens that are to be polled again.
    pub fn take_due(&mut self, now: Instant) -> Vec<u64> {
        if self.timeout(now) != Some(Duration::ZERO) {
            return Vec::new();
        }
        self.used.retain(|_, until| *until > now);
        let due = self.suspended.iter().filter(|(_, until)| **until <= now);
        let due: Vec<_> = due.map(|(token, _)| *token).collect();
        self.suspended.retain(|_, until| *until > now);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_charged_the_whole_turn_of_the_loop() {
        let us = Duration::from_micros;
        let mut turn = TurnClock::default();
        assert_eq!(turn.lap(us(3), us(10)), us(10));
        assert_eq!(turn.lap(us(3), us(12)), us(3), "it waited for the disk");
        turn.skip(us(500));
        assert_eq!(turn.lap(us(3), us(510)), us(10));
    }

    #[test]
    fn work_for_the_tenants_of_one_person_has_a_fifth_of_the_time_however_many_they_are() {
        let (begin, work) = (Instant::now(), Duration::from_millis(3));
        let mut time = LoopTime::default();
        let (mut now, mut took) = (begin, Duration::ZERO);
        while now < begin + Duration::from_secs(1) {
            let next = now + Duration::from_millis(10);
            for _tenant in 0..14 {
                if !time.is_over(7, now) {
                    (now, took) = (now + work, took + work);
                    time.charge_work(7, work, now);
                }
                assert!(!time.is_over(8, now));
            }
            now = now.max(next);
        }
        let fifth = Duration::from_millis(200);
        assert!(took >= fifth && took <= fifth + BURST, "{took:?}");
    }

    #[test]
    fn a_person_that_floods_has_a_fifth_of_the_time_and_delays_no_other() {
        let (begin, turn) = (Instant::now(), Duration::from_micros(100));
        let mut time = LoopTime::default();
        let (mut now, mut served) = (begin, 0);
        let mut is_suspended = false;
        while now < begin + Duration::from_secs(1) {
            is_suspended &= time.take_due(now).is_empty();
            if !is_suspended {
                served += 1;
                now += turn;
                is_suspended = time.charge(7, 1, turn, now);
            } else {
                now += time.timeout(now).unwrap();
            }
            assert!(!time.charge(8, 2, turn / 10, now));
        }
        let took = turn * served;
        let fifth = Duration::from_millis(200);
        assert!(took >= fifth && took <= fifth + BURST, "{took:?}");
    }
}
