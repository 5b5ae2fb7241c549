//! Equations (1) to (4) of section 4.1.
//!
//! The paper's 1 is one processor. Here it is `total`: the processors times the part of them that
//! reservations and faults may use ([`crate::Utilization::of_processors`]).
//!
//! Rounding is to the safe side: the cost of a limit is rounded up, and a limit down, so that (2)
//! holds for every limit that (4) gives.

use crate::units::{Capacity, TimeNs};

/// (1): system.fault_pc, the capacity that `fault_limit` faults in each period use.
pub fn fault_pc(fault_limit: u64, fault_period: TimeNs, fault_unit: TimeNs) -> Capacity {
    let time = u128::from(fault_limit) * u128::from(fault_unit);
    let parts = (time * 1_000_000_000).div_ceil(u128::from(fault_period.max(1)));
    Capacity(u64::try_from(parts).unwrap_or(u64::MAX))
}

/// (2): returns true if the reservations and the faults fit together.
pub fn fits(tasks_pc: Capacity, fault_pc: Capacity, total: Capacity) -> bool {
    tasks_pc.plus(fault_pc) <= total
}

/// (3): the largest system.fault_pc beside the reservations.
pub fn max_fault_pc(tasks_pc: Capacity, total: Capacity) -> Capacity {
    total.less(tasks_pc)
}

/// (4): system.fault_limit, the faults in each period that fit beside the reservations.
pub fn fault_limit(
    tasks_pc: Capacity,
    total: Capacity,
    fault_period: TimeNs,
    fault_unit: TimeNs,
) -> u64 {
    let room = u128::from(max_fault_pc(tasks_pc, total).0) * u128::from(fault_period);
    let limit = room / (u128::from(fault_unit.max(1)) * 1_000_000_000);
    u64::try_from(limit).unwrap_or(u64::MAX)
}
