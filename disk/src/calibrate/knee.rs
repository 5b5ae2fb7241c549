//! From counts to a model.
//!
//! Rule: pure, so that what is promised of a disk can be tested without one.

use super::{SIZES, Sample};
use crate::atropos::Utilization;
use crate::cost_model::{CostModel, Op, OpCost, RatePoint};
use crate::time::Nanos;

/// How much of its highest rate a class must have with the bound in flight. A twentieth is less
/// than a doubled depth costs everybody who waits.
const KNEE_FRACTION: f64 = 0.95;

/// Transactions in flight at most, whatever more would give: everybody who waits waits for them.
const MAX_DEPTH: u32 = 64;

/// What may be promised of the disk as it was measured. The rest is what it loses while clients
/// are slow to ask again; those with x have it otherwise. Where the disk is slower than it was,
/// charges are corrected, and all slices buy as much less.
const CAPACITY: Utilization = Utilization::percent(95);

/// Where more in flight gives hardly more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Knee {
    /// Transactions in flight.
    pub depth: u32,
    /// The highest rate at any depth.
    pub saturated: f64,
}

/// The samples of one kind of transaction, by depth.
pub(super) fn class(samples: &[Sample], op: Op, bytes: u32) -> Vec<Sample> {
    let of_class = |sample: &&Sample| {
        (sample.op, sample.bytes) == (op, bytes) && sample.rate.is_finite() && sample.rate > 0.0
    };
    let mut class: Vec<Sample> = samples.iter().filter(of_class).copied().collect();
    class.sort_by_key(|sample| sample.depth);
    class
}

/// The least depth with enough of the highest rate.
pub(super) fn knee(class: &[Sample]) -> Option<Knee> {
    let saturated = class.iter().map(|sample| sample.rate).reduce(f64::max)?;
    let enough = |sample: &&Sample| sample.rate >= KNEE_FRACTION * saturated;
    let depth = class.iter().find(enough)?.depth;
    Some(Knee { depth, saturated })
}

/// What follows from the samples; nothing without reads and writes of a page among them.
///
/// A transaction costs what it takes of the disk with as much in flight as its class needs, but
/// no more than clients keep in flight: what only more than that would give cannot be promised.
/// The cost in flight is bounded so that reads of a page, which is what pagers wait for, have
/// that.
pub(super) fn model(samples: &[Sample]) -> Option<CostModel> {
    let full = |op, bytes| {
        let class = class(samples, op, bytes);
        let depth = knee(&class)?.depth.min(MAX_DEPTH);
        let within = class.into_iter().filter(|sample| sample.depth <= depth);
        within.max_by(|a, b| a.rate.total_cmp(&b.rate))
    };
    let fit = |op| {
        let full = SIZES.into_iter().filter_map(|bytes| full(op, bytes));
        let points = full.map(|Sample { bytes, rate, .. }| RatePoint { bytes, rate });
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

    /// A disk of `servers`, each of which takes `latency` for one: the rate grows with the
    /// depth until all are busy.
    fn samples(op: Op, bytes: u32, latency: f64, servers: u32) -> impl Iterator<Item = Sample> {
        DEPTHS.into_iter().map(move |depth| Sample {
            op,
            bytes,
            depth,
            rate: f64::from(depth.min(servers)) * 1e9 / latency,
            latency: Nanos(latency as u64 * u64::from(depth.max(servers) / servers)),
        })
    }

    fn disk(latency: f64, per_kib: f64, servers: u32) -> Vec<Sample> {
        let both = [Op::Read, Op::Write].into_iter();
        both.flat_map(|op| SIZES.map(|bytes| (op, bytes)))
            .flat_map(|(op, bytes)| {
                let latency = latency + per_kib * f64::from(bytes >> 10) * f64::from(servers);
                samples(op, bytes, latency, servers)
            })
            .collect()
    }

    #[test]
    fn the_knee_is_where_more_in_flight_gives_no_more() {
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
        fn a_disks_own_costs_come_back_out(
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
