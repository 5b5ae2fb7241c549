//! By how much the device is slower or faster than its model says.
//!
//! A model is measured once; a device changes with its age, its temperature and its other
//! users, above all a virtual one. If charges stayed as modelled while the device became a
//! tenth slower, promises of all of its time could not be kept by anybody's slice. So charges
//! are what the model says times a factor, elapsed by modelled busy time, and all clients'
//! slices buy a tenth less.
//!
//! Rule: only time in which the device was as busy as it may be counts, for else the model
//! is not what is measured: one request alone takes longer than its share of the saturated
//! device. The factor moves slowly and between bounds: one odd second does not change what
//! everybody is charged, and beyond the bounds the device needs measuring again.

use crate::time::{Nanos, Time};

/// Busy time that one step of the factor is taken from: many times what is in flight at
/// once, which is what the two ends of it may be wrong by.
const WINDOW: Nanos = Nanos::millis(20);
/// How much of what was seen a step takes on: about a dozen windows settle it.
const SMOOTH: f64 = 0.25;
/// Further from its model than this a device is another one.
const MOST: f64 = 4.0;

/// Elapsed by modelled busy time.
#[derive(Clone, Debug)]
pub struct Correction {
    factor: f64,
    /// The factor in 65536ths, for sums in whole numbers.
    scaled: u64,
    /// Of transactions that had the device to themselves.
    alone: Busy,
    saturated: bool,
    /// Since the first transaction that ended on the saturated device, which is not counted,
    /// as some of its time was before.
    shared: Option<(Time, Nanos)>,
}

/// How long the device was busy, and how long it should have been.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    elapsed: Nanos,
    modelled: Nanos,
}

impl Default for Correction {
    fn default() -> Self {
        Self {
            factor: 1.0,
            scaled: 1 << 16,
            alone: Busy::default(),
            saturated: false,
            shared: None,
        }
    }
}

impl Correction {
    /// What modelled costs are multiplied by: above 1 the device is slower than its model.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// A modelled cost, corrected.
    pub(super) fn of(&self, cost: Nanos) -> Nanos {
        let corrected = (u128::from(cost.0) * u128::from(self.scaled)) >> 16;
        Nanos(u64::try_from(corrected).unwrap_or(u64::MAX).max(1))
    }

    /// From now on the device has as much as it may have.
    pub(super) fn saturated(&mut self) {
        self.saturated = true;
    }

    /// From now on it has not.
    pub(super) fn unsaturated(&mut self) {
        self.saturated = false;
        self.shared = None;
    }

    /// A transaction ended on a device that several share.
    pub(super) fn shared(&mut self, now: Time, cost: Nanos) {
        if !self.saturated {
            return;
        }
        let Some((since, before)) = self.shared else {
            self.shared = Some((now, Nanos::ZERO));
            return;
        };
        let modelled = before + cost;
        let elapsed = now - since;
        self.shared = match self.step(Busy { elapsed, modelled }) {
            true => Some((now, Nanos::ZERO)),
            false => Some((since, modelled)),
        };
    }

    /// A transaction ended that had the device to itself.
    pub(super) fn alone(&mut self, elapsed: Nanos, cost: Nanos) {
        self.alone.modelled += cost;
        self.alone.elapsed += elapsed;
        if self.step(self.alone) {
            self.alone = Busy::default();
        }
    }

    /// Takes a full window on.
    fn step(&mut self, busy: Busy) -> bool {
        if busy.elapsed < WINDOW {
            return false;
        }
        let seen = busy.elapsed.0 as f64 / busy.modelled.0.max(1) as f64;
        // Bounded before it is taken on: else one stall of a second would count for all of it.
        let seen = seen.clamp(1.0 / MOST, MOST);
        self.factor += (seen - self.factor) * SMOOTH;
        self.scaled = (self.factor * 65536.0).round() as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_slower_than_its_model_is_found_out() {
        let mut correction = Correction::default();
        for _ in 0..2000 {
            correction.alone(Nanos::micros(1300), Nanos::millis(1));
        }
        assert!((correction.factor() - 1.3).abs() < 0.01);
        assert_eq!(correction.of(Nanos::millis(10)).0 / 100_000, 130);
    }

    #[test]
    fn only_a_saturated_device_is_compared_with_its_model() {
        let mut correction = Correction::default();
        for turn in 0..1000 {
            correction.shared(Time(turn * 1_000_000), Nanos::micros(10));
        }
        assert_eq!(correction.factor(), 1.0);
        correction.saturated();
        for turn in 1..1000 {
            correction.shared(Time(turn * 1_000_000), Nanos::micros(800));
        }
        assert!((correction.factor() - 1.25).abs() < 0.01);
    }

    #[test]
    fn the_factor_stays_within_its_bounds_and_one_stall_hardly_moves_it() {
        let mut correction = Correction::default();
        correction.alone(Nanos::seconds(10), Nanos(1));
        assert!(correction.factor() < 2.0);
        for _ in 0..100 {
            correction.alone(Nanos::seconds(10), Nanos(1));
        }
        assert!(correction.factor() <= MOST);
        for _ in 0..100 {
            correction.alone(Nanos::seconds(1), Nanos::seconds(1000));
        }
        assert!(correction.factor() >= 1.0 / MOST);
    }
}
