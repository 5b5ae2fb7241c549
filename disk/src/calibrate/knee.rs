//! Derives a cost model from samples.
//!
//! Rule: pure, so that the capacity promised of a disk can be tested without one.

use super::{CalibrationSample, SIZES};
use crate::atropos::Utilization;
use crate::cost_model::{CostModel, Op, OpCost, RatePoint};
use crate::time::Nanos;

/// Fraction of its highest rate that a class must reach with the bound in flight. The missing
/// twentieth costs less than a doubled depth costs every waiting client.
const KNEE_FRACTION: f64 = 0.95;

/// Maximum transactions in flight: every waiting client waits for them.
const MAX_DEPTH: u32 = 64;

/// Part of the measured disk that may be promised. The rest is lost while clients are slow to
/// submit again; clients with x use it otherwise. Where the disk is slower than measured, charges
/// are corrected, and all slices buy as much less.
pub const CAPACITY: Utilization = Utilization::percent(95);

/// The depth beyond which the rate hardly grows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Knee {
    /// Transactions in flight.
    pub depth: u32,
    /// The highest rate at any depth.
    pub saturated: f64,
}

/// The samples of one kind of transaction, by depth.
pub(super) fn class(samples: &[CalibrationSample], op: Op, bytes: u32) -> Vec<CalibrationSample> {
    let of_class = |sample: &&CalibrationSample| {
        (sample.op, sample.bytes) == (op, bytes) && sample.rate.is_finite() && sample.rate > 0.0
    };
    let mut class: Vec<CalibrationSample> = samples.iter().filter(of_class).copied().collect();
    class.sort_by_key(|sample| sample.depth);
    class
}

/// The least depth with [`KNEE_FRACTION`] of the highest rate.
pub(super) fn knee(class: &[CalibrationSample]) -> Option<Knee> {
    let saturated = class.iter().map(|sample| sample.rate).reduce(f64::max)?;
    let enough = |sample: &&CalibrationSample| sample.rate >= KNEE_FRACTION * saturated;
    let depth = class.iter().find(enough)?.depth;
    Some(Knee { depth, saturated })
}

/// Derives the model; `None` without reads and writes of a page among the samples.
///
/// A transaction costs its part of the disk with as much in flight as its class needs, but no more
/// than clients keep in flight: a rate that only greater depths reach cannot be promised. The bound
/// of the cost in flight gives that depth to reads of a page, which pagers wait for.
pub(super) fn model(samples: &[CalibrationSample]) -> Option<CostModel> {
    let full = |op, bytes| {
        let class = class(samples, op, bytes);
        let depth = knee(&class)?.depth.min(MAX_DEPTH);
        let within = class.into_iter().filter(|sample| sample.depth <= depth);
        within.max_by(|a, b| a.rate.total_cmp(&b.rate))
    };
    let fit = |op| {
        let full = SIZES.into_iter().filter_map(|bytes| full(op, bytes));
        let points = full.map(|CalibrationSample { bytes, rate, .. }| RatePoint { bytes, rate });
        OpCost::fit(&points.collect::<Vec<_>>())
    };
    let page = SIZES[0];
    let (read, write) = (fit(Op::Read)?, fit(Op::Write)?);
    Some(CostModel {
        read,
        write,
        bound: Nanos(u64::from(full(Op::Read, page)?.depth) * read.cost(page).0),
        capacity: CAPACITY,
    })
}

#[cfg(test)]
mod tests {
    use super::super::DEPTHS;
    use super::*;
    use proptest::prelude::*;

    /// A disk of `servers`, each of which takes `latency` for one transaction: the rate grows with
    /// the depth until all are busy.
    fn samples(
        op: Op,
        bytes: u32,
        latency: f64,
        servers: u32,
    ) -> impl Iterator<Item = CalibrationSample> {
        DEPTHS.into_iter().map(move |depth| CalibrationSample {
            op,
            bytes,
            depth,
            rate: f64::from(depth.min(servers)) * 1e9 / latency,
            latency: Nanos(latency as u64 * u64::from(depth.max(servers) / servers)),
        })
    }

    fn disk(latency: f64, per_kib: f64, servers: u32) -> Vec<CalibrationSample> {
        let both = [Op::Read, Op::Write].into_iter();
        both.flat_map(|op| SIZES.map(|bytes| (op, bytes)))
            .flat_map(|(op, bytes)| {
                let latency = latency + per_kib * f64::from(bytes >> 10) * f64::from(servers);
                samples(op, bytes, latency, servers)
            })
            .collect()
    }

    #[test]
    fn the_knee_is_the_depth_where_the_rate_stops_growing() {
        let samples = disk(50_000.0, 100.0, 8);
        for bytes in SIZES {
            let knee = knee(&class(&samples, Op::Read, bytes)).unwrap();
            assert_eq!(knee.depth, 8);
        }
        assert_eq!(class(&samples, Op::Read, 5), []);
        assert_eq!(knee(&[]), None);
    }

    #[test]
    fn samples_of_nothing_make_no_model() {
        assert_eq!(model(&[]), None);
        let reads: Vec<_> = samples(Op::Read, 4096, 1e5, 4).collect();
        assert_eq!(model(&reads), None);
        let mut broken = disk(50_000.0, 100.0, 8);
        broken.iter_mut().for_each(|sample| sample.rate = f64::NAN);
        assert_eq!(model(&broken), None);
    }

    proptest! {
        #[test]
        fn the_model_recovers_the_disks_costs(
            latency in 10_000.0f64..10_000_000.0,
            per_kib in 10.0f64..10_000.0,
            servers in 0u32..5,
        ) {
            let servers = 1 << servers;
            let model = model(&disk(latency, per_kib, servers)).unwrap();
            for bytes in SIZES {
                let cost = latency / f64::from(servers) + per_kib * f64::from(bytes >> 10);
                for op in [Op::Read, Op::Write] {
                    let is = model.cost(op, bytes).0 as f64;
                    prop_assert!((is / cost - 1.0).abs() < 0.02, "{is} for {cost}");
                    // Reads of a page keep all servers busy within the bound.
                    prop_assert!(op == Op::Write || bytes > SIZES[0]
                        || model.bound.0 as f64 >= 0.95 * cost * f64::from(servers));
                }
            }
            prop_assert_eq!(model.capacity, CAPACITY);
        }
    }
}
