//! How long the threads that move a tenant's pages may run before all other work: pure, time in,
//! decisions out.
//!
//! Rule: a slice of the disk comes with as much processor time in the same period. What is used
//! beyond is taken off the next periods, as Atropos does with disk time; what is not used is lost.

use std::time::Duration;

/// The shortest period: several times the interval at which use is measured.
const SHORTEST: Duration = Duration::from_millis(100);

/// The processor time of one contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorBudget {
    slice: Duration,
    period: Duration,
    /// When the current period ends.
    ends: Duration,
    /// Used in the current period, or owed to it.
    used: Duration,
}

impl ProcessorBudget {
    /// For a slice of the disk in every period, from `now` on.
    pub fn new(slice: Duration, period: Duration, now: Duration) -> Self {
        let periods = SHORTEST.div_duration_f64(period).ceil().max(1.0) as u32;
        let period = period * periods;
        Self {
            slice: slice * periods,
            period,
            ends: now + period,
            used: Duration::ZERO,
        }
    }

    /// Takes over the terms of a changed contract; what was used stays used.
    pub fn set_terms(&mut self, slice: Duration, period: Duration, now: Duration) {
        let new = Self::new(slice, period, now);
        if (new.slice, new.period) != (self.slice, self.period) {
            *self = Self {
                used: self.used,
                ..new
            };
        }
    }

    /// Charges the time that threads ran with priority since the last call.
    pub fn charge(&mut self, ran: Duration, now: Duration) {
        self.used += ran;
        while self.ends <= now {
            let left = now - self.ends;
            let periods = (left.div_duration_f64(self.period) as u32).saturating_add(1);
            self.ends += self.period * periods;
            self.used = self.used.saturating_sub(self.slice.saturating_mul(periods));
        }
    }

    /// Whether threads of the pager's, and those that submit requests themselves, run first.
    pub fn covers_pager(&self) -> bool {
        self.used < self.slice
    }

    /// Whether the program's threads that faulted run first until their next access: half of the
    /// time is the pager's alone, since a program that computes uses all it gets.
    pub fn covers_program(&self) -> bool {
        self.used < self.slice / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_slice_of_the_disk_comes_with_as_much_processor_time() {
        let mut budget = ProcessorBudget::new(ms(25), ms(250), ms(1000));
        assert!(budget.covers_program() && budget.covers_pager());
        budget.charge(ms(13), ms(1010));
        assert!(!budget.covers_program() && budget.covers_pager());
        budget.charge(ms(12), ms(1100));
        assert!(!budget.covers_pager());
        budget.charge(ms(0), ms(1250));
        assert!(budget.covers_program());
    }

    #[test]
    fn what_was_used_beyond_is_taken_off_the_next_periods() {
        let mut budget = ProcessorBudget::new(ms(25), ms(250), ms(0));
        budget.charge(ms(60), ms(100));
        budget.charge(ms(0), ms(250));
        assert!(!budget.covers_pager());
        budget.charge(ms(0), ms(500));
        assert!(budget.covers_program());
    }

    #[test]
    fn short_periods_are_taken_together() {
        let mut budget = ProcessorBudget::new(ms(1), ms(10), ms(0));
        budget.charge(ms(9), ms(99));
        assert!(budget.covers_pager());
        budget.charge(ms(1), ms(99));
        assert!(!budget.covers_pager());
    }

    #[test]
    fn a_contract_of_slack_alone_comes_with_none() {
        let budget = ProcessorBudget::new(ms(0), ms(250), ms(0));
        assert!(!budget.covers_pager() && !budget.covers_program());
    }

    proptest! {
        /// Threads that run all the time while they come first, measured at any intervals.
        #[test]
        fn no_tenant_has_more_than_its_slices_and_one_interval(
            slice in 1u64..100, more in 0u64..400, ticks in prop::collection::vec(1u64..30, 1..400),
        ) {
            let period = slice + more;
            let mut budget = ProcessorBudget::new(ms(slice), ms(period), ms(0));
            let (mut now, mut ran) = (ms(0), ms(0));
            for tick in ticks {
                let ran_now = if budget.covers_pager() { ms(tick) } else { ms(0) };
                (now, ran) = (now + ms(tick), ran + ran_now);
                budget.charge(ran_now, now);
                let periods = now.div_duration_f64(budget.period).floor() as u32 + 1;
                prop_assert!(ran <= budget.slice * periods + ms(30));
            }
        }
    }
}
