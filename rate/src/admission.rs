//! The admission controller (section 4.1): what does not fit is refused, with the figures.

use crate::quantities::{Capacity, Nanos};
use std::time::Duration;

/// Why a task is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A reservation that leaves the faults less than they are promised: equation (3).
    #[error(
        "{asked} are asked for and {there} can be reserved: of the {whole} for reservations and faults, {reserved} are \
         reserved, and page faults keep {faults} ({floor} faults in every {period:?} for each of {tasks}, at {unit} ns a \
         fault); ask for less, or end a program with a reservation",
        unit = fault_unit, period = Duration::from_nanos(*fault_period)
    )]
    Reservation {
        /// Its task.pc.
        asked: Capacity,
        /// What is left for reservations.
        there: Capacity,
        /// The 1 of the equations.
        whole: Capacity,
        /// The sum of task.pc so far.
        reserved: Capacity,
        /// The least system.fault_pc.
        faults: Capacity,
        /// Faults in a period that each task is promised.
        floor: u32,
        /// Tasks with that promise.
        tasks: u32,
        /// fault_unit as measured.
        fault_unit: Nanos,
        /// system.fault_period.
        fault_period: Nanos,
    },
    /// One more task whose faults are promised something.
    #[error(
        "a share of the page faults for one more program cannot be had: {there} in every {period:?} fit beside the {reserved} \
         reserved of {whole}, at {unit} ns a fault, and {tasks} programs are promised {floor} each; end one, or a reservation",
        unit = fault_unit, period = Duration::from_nanos(*fault_period)
    )]
    Faults {
        /// system.fault_limit.
        there: u64,
        /// The 1 of the equations.
        whole: Capacity,
        /// The sum of task.pc.
        reserved: Capacity,
        /// Faults in a period that each task is promised.
        floor: u32,
        /// Tasks with that promise so far.
        tasks: u32,
        /// fault_unit as measured.
        fault_unit: Nanos,
        /// system.fault_period.
        fault_period: Nanos,
    },
}
