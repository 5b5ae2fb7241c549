//! The factor by which the device is slower or faster than its cost model.
//!
//! A model is measured once; a device changes with its age, its temperature and its other users,
//! above all a virtual one. If charges stayed as modelled while the device became a tenth slower,
//! promises of all of its time could not be kept. So a charge is the modelled cost times a factor,
//! elapsed by modelled busy time, and all clients' slices buy a tenth less.
//!
//! Rule: only time in which the device is saturated counts, for else the observation does not
//! measure the model: one request alone takes longer than its share of the saturated device. The
//! factor moves slowly and between bounds: one odd second does not change all charges, and beyond
//! the bounds the device needs a new calibration. An idle device forgets the factor: clients whose charges are
//! too high would not saturate it again, and so never be measured again.

use crate::time::{Nanos, Time};

/// Busy time of one step of the factor: many times what is in flight at once, which bounds the
/// error at either end of the window.
const WINDOW: Nanos = Nanos::millis(20);
/// How long an idle device takes to forget half of the factor: many times what it takes to settle again.
const FORGET: Nanos = Nanos::seconds(1);
/// Weight of a window in a step: about a dozen windows settle the factor.
const SMOOTH: f64 = 0.25;
/// Bound of the factor: a device further from its model is another device.
const MAX_FACTOR: f64 = 4.0;

/// The factor: elapsed by modelled busy time.
#[derive(Clone, Debug)]
pub struct CostCorrection {
    factor: f64,
    /// The factor in 65536ths, for sums in whole numbers.
    scaled: u64,
    /// Busy time of transactions that had the device to themselves.
    alone: BusyTime,
    /// Busy time of transactions that shared the saturated device.
    shared: BusyTime,
    interval: Option<BusyInterval>,
    /// When the device was last saturated, or half of the factor forgotten.
    seen: Time,
}

/// An interval in which the device was saturated throughout.
#[derive(Clone, Copy, Debug)]
struct BusyInterval {
    from: Time,
    /// The first and the last completion of transactions that began in it; earlier ones began on a
    /// device with less to do and tell nothing about a saturated one.
    ends: Option<(Time, Time)>,
}

/// Elapsed and modelled busy time.
#[derive(Clone, Copy, Debug, Default)]
struct BusyTime {
    elapsed: Nanos,
    modelled: Nanos,
}

impl Default for CostCorrection {
    fn default() -> Self {
        Self {
            factor: 1.0,
            scaled: 1 << 16,
            alone: BusyTime::default(),
            shared: BusyTime::default(),
            interval: None,
            seen: Time(0),
        }
    }
}

impl CostCorrection {
    /// The factor of modelled costs: above 1 the device is slower than its model.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The corrected cost.
    pub(super) fn of(&self, cost: Nanos) -> Nanos {
        let corrected = (u128::from(cost.0) * u128::from(self.scaled)) >> 16;
        Nanos(u64::try_from(corrected).unwrap_or(u64::MAX).max(1))
    }

    /// The largest corrected cost that there may be.
    pub(super) fn most(cost: Nanos) -> Nanos {
        Nanos(cost.0.saturating_mul(MAX_FACTOR as u64))
    }

    /// Marks the device as saturated from `now` on.
    pub(super) fn saturated(&mut self, now: Time) {
        self.seen = now;
        self.interval.get_or_insert(BusyInterval {
            from: now,
            ends: None,
        });
    }

    /// Marks the device as not saturated.
    pub(super) fn unsaturated(&mut self) {
        self.interval = None;
    }

    /// Marks the device as idle.
    pub(super) fn idle(&mut self, now: Time) {
        self.unsaturated();
        let halves = (now - self.seen).0 / FORGET.0;
        if halves > 0 {
            self.seen = now;
            self.set(1.0 + (self.factor - 1.0) * 0.5f64.powi(halves.min(64) as i32));
        }
    }

    /// Records a completion of a transaction that shared the device since it started.
    pub(super) fn shared(&mut self, now: Time, started: Time, cost: Nanos) {
        let Some(interval) = self
            .interval
            .as_mut()
            .filter(|interval| interval.from < started)
        else {
            return;
        };
        let (first, last) = *interval.ends.get_or_insert((now, now));
        // The first completions do not count, as their time does not.
        if first == now {
            return;
        }
        interval.ends = Some((first, now));
        self.shared.elapsed += now - last;
        self.shared.modelled += cost;
        if self.step(self.shared) {
            self.shared = BusyTime::default();
        }
    }

    /// Records a completion of a transaction that had the device to itself.
    pub(super) fn alone(&mut self, elapsed: Nanos, cost: Nanos) {
        self.alone.modelled += cost;
        self.alone.elapsed += elapsed;
        if self.step(self.alone) {
            self.alone = BusyTime::default();
        }
    }

    /// Moves the factor if the window is full. Returns true if it did.
    fn step(&mut self, busy: BusyTime) -> bool {
        if busy.elapsed < WINDOW {
            return false;
        }
        let seen = busy.elapsed.0 as f64 / busy.modelled.0.max(1) as f64;
        // Clamps the observation first: else one stall of a second would count in full.
        let seen = seen.clamp(1.0 / MAX_FACTOR, MAX_FACTOR);
        self.set(self.factor + (seen - self.factor) * SMOOTH);
        true
    }

    fn set(&mut self, factor: f64) {
        self.factor = factor;
        self.scaled = (factor * 65536.0).round() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_converges_on_a_slower_device() {
        let mut correction = CostCorrection::default();
        for _ in 0..2000 {
            correction.alone(Nanos::micros(1300), Nanos::millis(1));
        }
        assert!((correction.factor() - 1.3).abs() < 0.01);
        assert_eq!(correction.of(Nanos::millis(10)).0 / 100_000, 130);
    }

    /// Two in flight of 800 us each as modelled, one of which completes every millisecond.
    fn ended(correction: &mut CostCorrection, now: Time) {
        let started = Time(now.0.saturating_sub(2_000_000));
        correction.shared(now, started, Nanos::micros(800));
    }

    #[test]
    fn only_a_saturated_device_is_compared_with_its_model() {
        let mut correction = CostCorrection::default();
        let mut now = Time(0);
        for turn in 0..2000 {
            now = now + Nanos::millis(1);
            ended(&mut correction, now);
            if turn == 1000 {
                assert_eq!(correction.factor(), 1.0);
                correction.saturated(now);
            }
        }
        assert!((correction.factor() - 1.25).abs() < 0.01);
    }

    #[test]
    fn saturated_intervals_add_up_and_earlier_transactions_do_not_count() {
        let mut correction = CostCorrection::default();
        let mut now = Time(0);
        for _ in 0..1000 {
            let from = now;
            correction.saturated(now);
            (0..8).for_each(|_| correction.shared(now, from, Nanos::micros(800)));
            for _ in 0..7 {
                now = now + Nanos::millis(1);
                ended(&mut correction, now);
            }
            correction.unsaturated();
            now = now + Nanos::millis(7);
            ended(&mut correction, now);
        }
        assert!((correction.factor() - 1.25).abs() < 0.01);
    }

    #[test]
    fn the_factor_stays_within_its_bounds_and_one_stall_hardly_moves_it() {
        let mut correction = CostCorrection::default();
        correction.alone(Nanos::seconds(10), Nanos(1));
        assert!(correction.factor() < 2.0);
        for _ in 0..100 {
            correction.alone(Nanos::seconds(10), Nanos(1));
        }
        assert!(correction.factor() <= MAX_FACTOR);
        for _ in 0..100 {
            correction.alone(Nanos::seconds(1), Nanos::seconds(1000));
        }
        assert!(correction.factor() >= 1.0 / MAX_FACTOR);
    }

    #[test]
    fn an_idle_device_forgets_what_a_saturated_one_was() {
        let mut correction = CostCorrection::default();
        for _ in 0..2000 {
            correction.alone(Nanos::millis(3), Nanos::millis(1));
        }
        correction.saturated(Time(0));
        correction.idle(Time(999_000_000));
        assert!(correction.factor() > 2.9, "a pause between two slices");
        for millis in 1..10_000 {
            correction.idle(Time(millis * 1_000_000));
        }
        assert!((correction.factor() - 1.0).abs() < 0.01);
        assert_eq!(correction.of(Nanos::millis(10)).0 / 100_000, 100);
    }
}
