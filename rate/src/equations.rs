//! Equations (1) to (4) of section 4.1.
//!
//! The paper's 1 is one processor. Here it is `whole`: the processors times the part of them
//! that reservations and faults may use ([`crate::Share::of_processors`]).
//!
//! Rounding is to the safe side: what a limit costs is rounded up, and a limit down, so that
//! (2) holds of every limit that (4) gives.

use crate::quantities::{Capacity, Nanos};

/// (1): system.fault_pc, the capacity that `fault_limit` faults in each period take.
pub fn fault_pc(fault_limit: u64, fault_period: Nanos, fault_unit: Nanos) -> Capacity {
    let time = u128::from(fault_limit) * u128::from(fault_unit);
    let parts = (time * 1_000_000_000).div_ceil(u128::from(fault_period.max(1)));
    Capacity(u64::try_from(parts).unwrap_or(u64::MAX))
}

/// (2): whether the tasks' reservations and the faults' fit.
pub fn fits(tasks_pc: Capacity, fault_pc: Capacity, whole: Capacity) -> bool {
    tasks_pc.plus(fault_pc) <= whole
}

/// (3): the most that system.fault_pc may be beside the tasks' reservations.
pub fn most_fault_pc(tasks_pc: Capacity, whole: Capacity) -> Capacity {
    whole.less(tasks_pc)
}

/// (4): system.fault_limit, the faults in each period that fit beside the tasks'
/// reservations.
pub fn fault_limit(
    tasks_pc: Capacity,
    whole: Capacity,
    fault_period: Nanos,
    fault_unit: Nanos,
) -> u64 {
    let room = u128::from(most_fault_pc(tasks_pc, whole).0) * u128::from(fault_period);
    let limit = room / (u128::from(fault_unit.max(1)) * 1_000_000_000);
    u64::try_from(limit).unwrap_or(u64::MAX)
}
