//! The cost of a transaction to the device, known before it starts.
//!
//! A device that serves many requests at once is not busy with any one of them for as long as it
//! takes. A request uses the share of the saturated device that it takes away from others: one
//! second divided by the rate of its kind on the saturated device, plus the time of its bytes.
//! Section 6.7 of *Self-Paging* charges elapsed time instead; at one request at a time the two are
//! the same.
//!
//! Rule: a model is figures and a sum. [`crate::calibrate`] measures it, a file may keep it, and
//! [`crate::atropos::CostCorrection`] corrects it in use.

use crate::atropos::Utilization;
use crate::time::Nanos;
use serde::{Deserialize, Serialize};

/// The kind of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Device to memory.
    #[default]
    Read,
    /// Memory to device.
    Write,
}

/// The cost of one kind of transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpCost {
    /// Cost of any transaction, however small.
    pub base: Nanos,
    /// Additional cost of each KiB.
    pub per_kib: Nanos,
}

/// One saturated measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatePoint {
    /// Size of every transaction.
    pub bytes: u32,
    /// Transactions a second with the device saturated.
    pub rate: f64,
}

/// A device's costs, and how much of it may be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Cost of reads.
    pub read: OpCost,
    /// Cost of writes.
    pub write: OpCost,
    /// Modelled cost that may be in flight at once: more gives no higher rate.
    pub bound: Nanos,
    /// The largest sum of all contracts' shares.
    pub capacity: Utilization,
}

impl CostModel {
    /// The cost of a transaction, at least a nanosecond.
    pub fn cost(&self, op: Op, bytes: u32) -> Nanos {
        match op {
            Op::Read => self.read.cost(bytes),
            Op::Write => self.write.cost(bytes),
        }
    }
}

impl OpCost {
    /// The cost of a transaction of that size, at least a nanosecond.
    pub fn cost(&self, bytes: u32) -> Nanos {
        let moving = u128::from(self.per_kib.0) * u128::from(bytes) / 1024;
        let moving = u64::try_from(moving).unwrap_or(u64::MAX);
        Nanos(self.base.0.saturating_add(moving).max(1))
    }

    /// Fits the costs to measurements by least squares of relative error: a page must be right as
    /// well as a megabyte. `None` without a usable point.
    pub fn fit(points: &[RatePoint]) -> Option<Self> {
        // Minimises the sum of (base/y + slope * x/y - 1)^2, where y is the cost of one
        // transaction.
        let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
        let mut cheapest = f64::INFINITY;
        for point in points {
            if !(point.rate.is_finite() && point.rate > 0.0) {
                continue;
            }
            let each = 1e9 / point.rate;
            let (u, v) = (1.0 / each, f64::from(point.bytes) / 1024.0 / each);
            aa += u * u;
            ab += u * v;
            bb += v * v;
            a += u;
            b += v;
            cheapest = f64::min(cheapest, each);
        }
        if !cheapest.is_finite() {
            return None;
        }
        let det = aa * bb - ab * ab;
        let (base, slope) = match det > 1e-9 * aa * bb {
            true => ((a * bb - b * ab) / det, (b * aa - a * ab) / det),
            // One size only: bytes and transactions cannot be separated.
            false => (a / aa, 0.0),
        };
        // Neither part can be negative: the other then explains everything.
        let (base, slope) = match (base < 0.0, slope < 0.0) {
            (true, _) => (0.0, b / bb),
            (_, true) => (a / aa, 0.0),
            _ => (base, slope),
        };
        Some(Self {
            base: Nanos(base.round() as u64),
            per_kib: Nanos(slope.round() as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_transaction_costs_its_class_and_its_bytes() {
        let class = OpCost {
            base: Nanos::micros(10),
            per_kib: Nanos(1024),
        };
        assert_eq!(class.cost(0), Nanos(10_000));
        assert_eq!(class.cost(4096), Nanos(14_096));
        assert_eq!(OpCost::default().cost(4096), Nanos(1));
    }

    #[test]
    fn one_measured_size_gives_its_own_cost() {
        let point = RatePoint {
            bytes: 4096,
            rate: 50_000.0,
        };
        let class = OpCost::fit(&[point]).unwrap();
        assert_eq!(class.cost(4096), Nanos::micros(20));
        assert_eq!(OpCost::fit(&[]), None);
        assert_eq!(
            OpCost::fit(&[RatePoint {
                bytes: 1,
                rate: 0.0
            }]),
            None
        );
    }

    #[test]
    fn a_model_survives_serialization() {
        let model = CostModel {
            read: OpCost {
                base: Nanos(1),
                per_kib: Nanos(2),
            },
            write: OpCost::default(),
            bound: Nanos::millis(1),
            capacity: Utilization::WHOLE,
        };
        let text = serde_json::to_string(&model).unwrap();
        assert_eq!(serde_json::from_str::<CostModel>(&text).unwrap(), model);
    }

    proptest! {
        #[test]
        fn fitting_recovers_the_costs_that_made_the_points(base in 1_000u64..1_000_000, per_kib in 20u64..100_000) {
            let made = OpCost { base: Nanos(base), per_kib: Nanos(per_kib) };
            let points: Vec<_> = [4096u32, 32 << 10, 128 << 10]
                .map(|bytes| RatePoint { bytes, rate: 1e9 / made.cost(bytes).0 as f64 })
                .into();
            let class = OpCost::fit(&points).unwrap();
            for bytes in [4096u32, 16 << 10, 64 << 10] {
                let (is, was) = (class.cost(bytes).0 as f64, made.cost(bytes).0 as f64);
                prop_assert!((is / was - 1.0).abs() < 0.02, "{is} for {was}");
            }
        }

        #[test]
        fn no_measurement_gives_a_negative_cost(rates in prop::collection::vec(1.0f64..1e6, 1..5)) {
            let points: Vec<_> = rates.iter().enumerate()
                .map(|(i, &rate)| RatePoint { bytes: 4096 << i, rate })
                .collect();
            let class = OpCost::fit(&points).unwrap();
            prop_assert!(class.cost(4096) <= class.cost(8192));
        }
    }
}
