//! What was counted in a period: fault_count, and the period it belongs to (figure 7).
//!
//! The paper sets a timer anew at the first fault after it expired. Here periods are
//! numbered by the clock, so that an account is one word that says by itself whether it has
//! expired, and nobody needs to look at an account that nobody uses.
//!
//! A fault counts in the period in which it is handled. (In the paper the one that is
//! suspended counts in the period that it found full, and is handled in the next beyond its
//! limit.) A fault that finds its period full can be *booked* into the first that has room:
//! then those who wait are handled first come, first served, and each of them in time.

use crate::quantities::Nanos;

/// How periods follow each other: `length` apart, the first a little before time 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    length: Nanos,
    reciprocal: u64,
    phase: Nanos,
}

/// What a time is multiplied by where it would be divided by a length, which takes 7 ns of
/// every fault's check: 2^64 over the length, rounded down.
pub fn reciprocal(length: Nanos) -> u64 {
    u64::MAX / length.max(1)
}

impl Periods {
    /// Periods that begin at multiples of their length.
    pub fn new(length: Nanos) -> Self {
        Self::known(length, reciprocal(length))
    }

    /// The same, where [`reciprocal`] of the length is known. With another's the periods are
    /// wrong, but there are some.
    pub fn known(length: Nanos, reciprocal: u64) -> Self {
        Self {
            length: length.max(1),
            reciprocal,
            phase: 0,
        }
    }

    /// The same, begun earlier by a part of the length that a number chooses: tasks whose
    /// periods began at one time would all fault at that time.
    pub fn apart(self, number: u32) -> Self {
        let part = u64::from(number.wrapping_mul(0x9E37_79B1));
        Self {
            phase: ((u128::from(part) * u128::from(self.length)) >> 32) as Nanos,
            ..self
        }
    }

    /// The period of a time.
    pub fn of(&self, now: Nanos) -> u64 {
        let time = now + self.phase;
        // One too little at most: what the reciprocal lacks is less than 2 of 2^64, and a time
        // is less than 2^63.
        let least = ((u128::from(time) * u128::from(self.reciprocal)) >> 64) as u64;
        least + u64::from(time.wrapping_sub(least.wrapping_mul(self.length)) >= self.length)
    }

    /// When a period begins.
    pub fn start(&self, period: u64) -> Nanos {
        period
            .saturating_mul(self.length)
            .saturating_sub(self.phase)
    }
}

/// Faults of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The period; where faults are booked ahead, the last that has any.
    pub period: u64,
    /// fault_count.
    pub count: u32,
}

/// A booking further ahead than this is none: the clock is another's.
pub const FARTHEST: u64 = 1 << 16;

impl Account {
    /// As it is in period `now`: emptied where its own has expired.
    pub fn at(self, now: u64) -> Self {
        match self.period >= now && self.period - now <= FARTHEST {
            true => self,
            false => Self {
                period: now,
                count: 0,
            },
        }
    }

    /// Counts a fault in the first period, from `now` on, in which fewer than `limit` are;
    /// that period is the account's afterwards. At least one fault fits into each.
    pub fn book(self, now: u64, limit: u32) -> Self {
        let at = self.at(now);
        match at.count < limit.max(1) {
            true => Self {
                period: at.period,
                count: at.count + 1,
            },
            false => Self {
                period: at.period + 1,
                count: 1,
            },
        }
    }

    /// Counts up to `want` faults in period `now`, as many as `limit` leaves room for and
    /// nobody else waits for. How many.
    pub fn take(self, now: u64, limit: u32, want: u32) -> (Self, u32) {
        let at = self.at(now);
        let room = match at.period == now {
            true => limit.saturating_sub(at.count),
            false => 0,
        };
        let taken = want.min(room);
        let count = at.count + taken;
        (Self { count, ..at }, taken)
    }

    /// `count` faults of period `now` were not handled after all.
    pub fn give_back(self, now: u64, count: u32) -> Self {
        match self.period == now {
            true => Self {
                count: self.count.saturating_sub(count),
                ..self
            },
            false => self,
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
            let periods = Periods::new(length);
            prop_assert_eq!(periods.of(now), now / length);
            let apart = periods.apart(number);
            let period = apart.of(now);
            prop_assert!(apart.start(period) <= now && now < apart.start(period + 1));
        }

        #[test]
        fn a_period_begins_where_its_length_says(length in 1u64..10_000_000_000, period in 1u64..1 << 28) {
            let periods = Periods::new(length);
            let start = periods.start(period);
            prop_assert_eq!((periods.of(start - 1), periods.of(start)), (period - 1, period));
        }
    }
}
