//! How long the threads that move a tenant's pages may run before all other work: pure, time in,
//! decisions out.
//!
//! Rules:
//! - A slice of the disk comes with as much processor time in the same period. Time that is used
//!   beyond is taken off the next periods, as Atropos does with disk time; unused time is lost.
//! - The time that a pager's threads run without priority shows whether a tenant pages little; it is not taken off the budget.

use std::time::Duration;

/// The shortest period of a budget: several times the interval at which use is measured.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// The longest period of a budget: a slice of seconds would keep all other threads from a processor for as long.
const MAX_PERIOD: Duration = Duration::from_millis(250);

/// A tenant pages little while its pager's threads run for less than a slice divided by this, in the current period and in the last.
const LIGHT_DIVISOR: u32 = 4;

/// When threads wait for processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Now and then: the processors have spare time between.
    Bursts,
    /// The processors have no spare time.
    Always,
}

/// The processor time of one contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorBudget {
    slice: Duration,
    period: Duration,
    /// When the current period ends.
    ends: Duration,
    /// The time used in the current period, with the excess of earlier ones.
    used: RunTime,
    /// The time used at the end of the last period.
    used_before: Duration,
}

/// How long threads ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RunTime {
    /// With priority, before all other work.
    pub first: Duration,
    /// Without priority: threads that submit requests.
    pub ordinary: Duration,
}

impl RunTime {
    pub fn plus(self, other: Self) -> Self {
        Self {
            first: self.first + other.first,
            ordinary: self.ordinary + other.ordinary,
        }
    }

    fn sum(self) -> Duration {
        self.first + self.ordinary
    }
}

impl ProcessorBudget {
    /// The budget for a slice of the disk in every period, from `now` on. Periods shorter than [`MIN_PERIOD`] are taken
    /// together, periods longer than [`MAX_PERIOD`] in parts.
    pub fn new(slice: Duration, period: Duration, now: Duration) -> Self {
        let periods = match period < MIN_PERIOD {
            true => MIN_PERIOD.div_duration_f64(period).ceil(),
            false => MAX_PERIOD.div_duration_f64(period).min(1.0),
        };
        let (slice, period) = (slice.mul_f64(periods), period.mul_f64(periods));
        Self {
            slice,
            period,
            ends: now + period,
            used: RunTime::default(),
            // A new tenant first has to show that it pages little: else each new contract would come with an interval of priority.
            used_before: slice,
        }
    }

    /// Takes over the terms of a changed contract; used time stays used.
    pub fn set_terms(&mut self, slice: Duration, period: Duration, now: Duration) {
        let new = Self::new(slice, period, now);
        if (new.slice, new.period) != (self.slice, self.period) {
            *self = Self {
                used: self.used,
                used_before: self.used_before,
                ..new
            };
        }
    }

    /// Charges the time that threads ran since the last call.
    pub fn charge(&mut self, ran: RunTime, now: Duration) {
        self.used = self.used.plus(ran);
        while self.ends <= now {
            let left = now - self.ends;
            let periods = (left.div_duration_f64(self.period) as u32).saturating_add(1);
            self.ends += self.period * periods;
            self.used_before = self.used.sum();
            let due = self.slice.saturating_mul(periods);
            self.used = RunTime {
                first: self.used.first.saturating_sub(due),
                ordinary: Duration::ZERO,
            };
        }
    }

    /// Returns true if threads run with priority: those that submit requests, or the program's threads that faulted.
    pub fn covers(&self, submits: bool, demand: Demand) -> bool {
        let first = self.used.first;
        match (demand, submits) {
            (Demand::Bursts, _) => {
                self.used.sum().max(self.used_before) < self.slice / LIGHT_DIVISOR
            }
            (Demand::Always, true) => first < self.slice,
            // Half of the time is for the pager alone, since a program that computes uses all that it gets.
            (Demand::Always, false) => first < self.slice / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Demand::{Always, Bursts};
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn first(first: Duration) -> RunTime {
        let ordinary = Duration::ZERO;
        RunTime { first, ordinary }
    }

    fn ordinary(ordinary: Duration) -> RunTime {
        let first = Duration::ZERO;
        RunTime { first, ordinary }
    }

    #[test]
    fn a_slice_of_the_disk_comes_with_as_much_processor_time() {
        let mut budget = ProcessorBudget::new(ms(25), ms(250), ms(1000));
        assert!(budget.covers(false, Always) && budget.covers(true, Always));
        budget.charge(first(ms(13)), ms(1010));
        assert!(!budget.covers(false, Always) && budget.covers(true, Always));
        budget.charge(first(ms(12)), ms(1100));
        assert!(!budget.covers(true, Always));
        budget.charge(first(ms(0)), ms(1250));
        assert!(budget.covers(false, Always));
    }

    #[test]
    fn what_was_used_beyond_is_taken_off_the_next_periods() {
        let mut budget = ProcessorBudget::new(ms(25), ms(250), ms(0));
        budget.charge(first(ms(60)), ms(100));
        budget.charge(first(ms(0)), ms(250));
        assert!(!budget.covers(true, Always));
        budget.charge(first(ms(0)), ms(500));
        assert!(budget.covers(false, Always));
    }

    #[test]
    fn short_periods_are_taken_together() {
        let mut budget = ProcessorBudget::new(ms(1), ms(10), ms(0));
        budget.charge(first(ms(9)), ms(99));
        assert!(budget.covers(true, Always));
        budget.charge(first(ms(1)), ms(99));
        assert!(!budget.covers(true, Always));
    }

    #[test]
    fn time_without_priority_is_not_taken_off() {
        let mut budget = ProcessorBudget::new(ms(100), ms(250), ms(0));
        for now in (10..=2000).step_by(10) {
            budget.charge(ordinary(ms(1)), ms(now));
            assert!(budget.covers(false, Always), "at {now} ms");
        }
    }

    #[test]
    fn where_processor_time_is_spare_a_tenant_that_pages_little_has_priority() {
        let mut busy = ProcessorBudget::new(ms(100), ms(250), ms(0));
        let mut light = busy;
        for now in (10..=2000).step_by(10) {
            busy.charge(ordinary(ms(2)), ms(now));
            light.charge(ordinary(ms(now % 20 / 10)), ms(now));
            assert!(
                busy.covers(true, Always) && !busy.covers(true, Bursts),
                "at {now} ms"
            );
            assert_eq!(light.covers(false, Bursts), now >= 250, "at {now} ms");
        }
    }

    #[test]
    fn a_long_period_is_taken_in_parts() {
        let mut budget = ProcessorBudget::new(ms(5_000), ms(10_000), ms(0));
        budget.charge(first(ms(126)), ms(200));
        assert!(!budget.covers(true, Always));
        budget.charge(first(ms(0)), ms(250));
        assert!(budget.covers(true, Always));
    }

    #[test]
    fn a_contract_of_slack_alone_comes_with_no_processor_time() {
        let budget = ProcessorBudget::new(ms(0), ms(250), ms(0));
        assert!(!budget.covers(true, Always) && !budget.covers(false, Always));
    }

    proptest! {
        /// The threads run whenever they have priority, and are measured at any intervals.
        #[test]
        fn no_tenant_has_more_than_its_slices_and_one_interval(
            slice in 1u64..100, more in 0u64..400, ticks in prop::collection::vec(1u64..30, 1..400),
        ) {
            let period = slice + more;
            let mut budget = ProcessorBudget::new(ms(slice), ms(period), ms(0));
            let (mut now, mut ran) = (ms(0), ms(0));
            for tick in ticks {
                let ran_now = if budget.covers(true, Always) { ms(tick) } else { ms(0) };
                (now, ran) = (now + ms(tick), ran + ran_now);
                budget.charge(first(ran_now), now);
                let periods = now.div_duration_f64(budget.period).floor() as u32 + 1;
                prop_assert!(ran <= budget.slice * periods + ms(30));
            }
        }
    }
}
