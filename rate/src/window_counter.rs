//! The faults counted in a period: fault_count and the period it belongs to (figure 7).
//!
//! The paper restarts a timer at the first fault after it expired. Here the clock numbers the
//! periods, so that a counter is one word that shows by itself whether it has expired, and an
//! unused counter needs no attention.
//!
//! A fault counts in the period in which it is handled. (In the paper a suspended fault counts in
//! the period that it found full, and is handled in the next beyond its limit.) A fault that
//! finds its period full can be *booked* into the first with room: then waiting faults are
//! handled first come, first served, each within a bounded time.

use crate::units::TimeNs;

/// Divides time into periods of `length`, the first beginning up to a length before time 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodClock {
    length: TimeNs,
    reciprocal: u64,
    phase: TimeNs,
}

/// 2^64 over the length, rounded down: times are multiplied by it, since a division by the
/// length would take 7 ns of every fault's check.
pub fn reciprocal(length: TimeNs) -> u64 {
    u64::MAX / length.max(1)
}

impl PeriodClock {
    /// Periods that begin at multiples of their length.
    pub fn new(length: TimeNs) -> Self {
        Self::known(length, reciprocal(length))
    }

    /// As [`PeriodClock::new`], with the length's [`reciprocal`] given. A wrong reciprocal gives wrong periods,
    /// but never fails.
    pub fn known(length: TimeNs, reciprocal: u64) -> Self {
        Self {
            length: length.max(1),
            reciprocal,
            phase: 0,
        }
    }

    /// The same periods, begun earlier by a part of the length that depends on `number`: threads
    /// whose periods began together would all fault together.
    pub fn apart(self, number: u32) -> Self {
        let part = u64::from(number.wrapping_mul(0x9E37_79B1));
        Self {
            phase: ((u128::from(part) * u128::from(self.length)) >> 32) as TimeNs,
            ..self
        }
    }

    /// The period that contains a time.
    pub fn of(&self, now: TimeNs) -> u64 {
        let time = now + self.phase;
        // At most one too low: the reciprocal is low by less than 2 in 2^64, and a time is less
        // than 2^63.
        let least = ((u128::from(time) * u128::from(self.reciprocal)) >> 64) as u64;
        least + u64::from(time.wrapping_sub(least.wrapping_mul(self.length)) >= self.length)
    }

    /// The time at which a period begins.
    pub fn start(&self, period: u64) -> TimeNs {
        period
            .saturating_mul(self.length)
            .saturating_sub(self.phase)
    }
}

/// Faults of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounter {
    /// The counted period; where faults are booked ahead, the last with a booking.
    pub period: u64,
    /// fault_count.
    pub count: u32,
}

/// Most periods that a booking can be ahead: a counter further ahead is from another clock.
pub const MAX_BOOKED_AHEAD: u64 = 1 << 16;

impl WindowCounter {
    /// The counter in period `now`: empty where its own period has expired.
    pub fn at(self, now: u64) -> Self {
        if self.period >= now && self.period - now <= MAX_BOOKED_AHEAD {
            self
        } else {
            Self {
                period: now,
                count: 0,
            }
        }
    }

    /// Counts a fault in the first period from `now` on with fewer than `limit`, which becomes
    /// the counter's period. Each period has room for at least one fault.
    pub fn book(self, now: u64, limit: u32) -> Self {
        let at = self.at(now);
        if at.count < limit.max(1) {
            Self {
                period: at.period,
                count: at.count + 1,
            }
        } else {
            Self {
                period: at.period + 1,
                count: 1,
            }
        }
    }

    /// Counts up to `want` faults in period `now`, as many as `limit` leaves room for where no
    /// fault is booked ahead. Returns the number counted.
    pub fn take(self, now: u64, limit: u32, want: u32) -> (Self, u32) {
        let at = self.at(now);
        let room = if at.period == now {
            limit.saturating_sub(at.count)
        } else {
            0
        };
        let taken = want.min(room);
        let count = at.count + taken;
        (Self { count, ..at }, taken)
    }

    /// Takes back `count` faults of period `now` that were not handled after all.
    pub fn refund(self, now: u64, count: u32) -> Self {
        if self.period == now {
            Self {
                count: self.count.saturating_sub(count),
                ..self
            }
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_period_is_found_as_by_division(length in 1u64..10_000_000_000, now in 0u64..1 << 62, number: u32) {
            let periods = PeriodClock::new(length);
            prop_assert_eq!(periods.of(now), now / length);
            let apart = periods.apart(number);
            let period = apart.of(now);
            prop_assert!(apart.start(period) <= now && now < apart.start(period + 1));
        }

        #[test]
        fn a_period_begins_at_a_multiple_of_its_length(length in 1u64..10_000_000_000, period in 1u64..1 << 28) {
            let periods = PeriodClock::new(length);
            let start = periods.start(period);
            prop_assert_eq!((periods.of(start - 1), periods.of(start)), (period - 1, period));
        }
    }
}
