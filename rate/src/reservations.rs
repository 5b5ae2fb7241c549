//! The resource manager and admission controller (section 4.1, figure 6): the reservations, and
//! the fault_limit that they leave each task.
//!
//! A task here is what is limited as one: a tree of processes, or a program. Equation (4) gives
//! system.fault_limit beside the reservations; the tasks share it by weight, with a floor for
//! each, so that the sum of their limits is the system's and each makes progress in every period.
//! Admission keeps the floors.
//!
//! The faults of a task with a reservation are handled in its own processor time, which task.pc
//! includes already: it has no share of the system's limit, and no limit.
//!
//! fault_unit is measured and may rise after tasks were admitted by it. The floors are kept even
//! then, since a task that makes no progress frees nothing;
//! [`ReservationTable::is_overcommitted`] reports it.

use crate::equations::{fault_limit, fault_pc, fits};
use crate::units::{Capacity, TimeNs};
use std::collections::BTreeMap;
use std::time::Duration;

/// A task's number in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// A task as it was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// task.pc: zero without a reservation.
    pub pc: Capacity,
    /// Its weight in the division of system.fault_limit; at least 1.
    pub weight: u32,
}

/// Faults in a period that each task without a reservation is promised.
pub const FAULT_FLOOR: u32 = 8;

/// Why a task is refused, with the quantities of equation (3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverCommitted {
    /// The reservation would leave the faults less than their promised floor.
    #[error(
        "cannot reserve {asked}: {there} can be reserved; of the {total} for reservations and faults, {reserved} are \
         reserved and {faults} are kept for page faults (the larger of {floor} faults in every {period:?} for each of {tasks}, at \
         {unit} ns a fault, and the processor time that comes with disk time); ask for less, or end a program with a reservation",
        unit = fault_unit, period = Duration::from_nanos(*fault_period)
    )]
    Reservation {
        /// The task.pc that was requested.
        asked: Capacity,
        /// What is left for reservations.
        there: Capacity,
        /// The capacity for reservations and faults: the 1 of the equations.
        total: Capacity,
        /// The sum of task.pc so far.
        reserved: Capacity,
        /// The least system.fault_pc.
        faults: Capacity,
        /// Faults in a period that each task is promised.
        floor: u32,
        /// Tasks with that promise.
        tasks: u32,
        /// fault_unit as measured.
        fault_unit: TimeNs,
        /// system.fault_period.
        fault_period: TimeNs,
    },
    /// The processor time that comes with disk time does not fit beside the reservations.
    #[error(
        "cannot promise {asked} with disk time: {there} are left; of the {total} for reservations and faults, {reserved} are \
         reserved and {paging} come with disk time already; ask for less, or end a program with a reservation"
    )]
    Paging {
        /// The processor time that was requested.
        asked: Capacity,
        /// What is left.
        there: Capacity,
        /// The capacity for reservations and faults.
        total: Capacity,
        /// The sum of task.pc.
        reserved: Capacity,
        /// Processor time that comes with disk time already.
        paging: Capacity,
    },
    /// The floors of one more task would not fit.
    #[error(
        "cannot promise page faults to one more program: {there} in every {period:?} fit beside the {reserved} reserved of \
         {total}, at {unit} ns a fault, and {tasks} programs are promised {floor} each; end one, or a reservation",
        unit = fault_unit, period = Duration::from_nanos(*fault_period)
    )]
    Faults {
        /// system.fault_limit.
        there: u64,
        /// The capacity for reservations and faults.
        total: Capacity,
        /// The sum of task.pc.
        reserved: Capacity,
        /// Faults in a period that each task is promised.
        floor: u32,
        /// Tasks with that promise so far.
        tasks: u32,
        /// fault_unit as measured.
        fault_unit: TimeNs,
        /// system.fault_period.
        fault_period: TimeNs,
    },
}

/// The admitted tasks.
#[derive(Clone, Debug)]
pub struct ReservationTable {
    total: Capacity,
    fault_period: TimeNs,
    fault_unit: TimeNs,
    tasks: BTreeMap<TaskId, Task>,
    next: u64,
    /// Processor time that comes with disk time, for the faults that use the disk: a part of system.fault_pc.
    paging: Capacity,
}

impl ReservationTable {
    /// An empty table. `total` is the capacity for reservations and faults, the 1 of the
    /// equations; `fault_unit` is the assumed cost of a fault until one is measured.
    pub fn new(total: Capacity, fault_period: TimeNs, fault_unit: TimeNs) -> Self {
        Self {
            total,
            fault_period: fault_period.max(1),
            fault_unit: fault_unit.max(1),
            tasks: BTreeMap::new(),
            next: 1,
            paging: Capacity::ZERO,
        }
    }

    /// The sum of task.pc.
    pub fn pc(&self) -> Capacity {
        let pcs = self.tasks.values().map(|task| task.pc);
        pcs.fold(Capacity::ZERO, Capacity::plus)
    }

    /// The capacity for reservations and faults: the 1 of the equations.
    pub fn total(&self) -> Capacity {
        self.total
    }

    /// Sets the measured cost of a fault.
    pub fn set_fault_unit(&mut self, fault_unit: TimeNs) {
        self.fault_unit = fault_unit.max(1);
    }

    /// system.fault_limit, by equation (4).
    pub fn fault_limit(&self) -> u64 {
        fault_limit(self.pc(), self.total, self.fault_period, self.fault_unit)
    }

    /// Number of tasks that share the limit.
    fn sharing(&self) -> u32 {
        self.tasks
            .values()
            .filter(|task| task.pc == Capacity::ZERO)
            .count() as u32
    }

    /// The least system.fault_pc: the cost of the floors of `tasks` tasks, or the time that comes with disk time.
    fn min_fault_pc(&self, tasks: u32) -> Capacity {
        let faults = u64::from(tasks) * u64::from(FAULT_FLOOR);
        fault_pc(faults, self.fault_period, self.fault_unit).max(self.paging)
    }

    /// Sets the processor time that is promised with disk time.
    pub fn set_paging(&mut self, paging: Capacity) {
        self.paging = paging;
    }

    /// Checks that more processor time can be promised with disk time.
    ///
    /// # Errors
    /// [`OverCommitted::Paging`].
    pub fn check_paging(&self, asked: Capacity) -> Result<(), OverCommitted> {
        let (total, reserved, paging) = (self.total, self.pc(), self.paging);
        match fits(reserved, paging.plus(asked), total) {
            true => Ok(()),
            false => Err(OverCommitted::Paging {
                asked,
                there: total.less(reserved).less(paging),
                total,
                reserved,
                paging,
            }),
        }
    }

    /// Checks that a task fits.
    ///
    /// # Errors
    /// [`OverCommitted`] with the quantities of equation (3).
    pub fn check(&self, task: Task) -> Result<(), OverCommitted> {
        let tasks = self.sharing();
        let reserved = self.pc();
        if task.pc == Capacity::ZERO {
            let least = self.min_fault_pc(tasks + 1);
            return if fits(reserved, least, self.total) {
                Ok(())
            } else {
                Err(OverCommitted::Faults {
                    there: self.fault_limit(),
                    total: self.total,
                    reserved,
                    floor: FAULT_FLOOR,
                    tasks,
                    fault_unit: self.fault_unit,
                    fault_period: self.fault_period,
                })
            };
        }
        // Room for the floor of at least one task, which may be admitted later.
        let tasks = tasks.max(1);
        let faults = self.min_fault_pc(tasks);
        if fits(reserved.plus(task.pc), faults, self.total) {
            Ok(())
        } else {
            Err(OverCommitted::Reservation {
                asked: task.pc,
                there: self.total.less(reserved).less(faults),
                total: self.total,
                reserved,
                faults,
                floor: FAULT_FLOOR,
                tasks,
                fault_unit: self.fault_unit,
                fault_period: self.fault_period,
            })
        }
    }

    /// Admits a task.
    ///
    /// # Errors
    /// As [`ReservationTable::check`].
    pub fn admit(&mut self, task: Task) -> Result<TaskId, OverCommitted> {
        self.check(task)?;
        Ok(self.restore(task))
    }

    /// Adds a task that was admitted before, without a check.
    pub fn restore(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.next);
        self.next += 1;
        let weight = task.weight.max(1);
        self.tasks.insert(id, Task { weight, ..task });
        id
    }

    /// Removes a task. Returns true if it was in the table.
    pub fn remove(&mut self, id: TaskId) -> bool {
        self.tasks.remove(&id).is_some()
    }

    /// Returns true if reservations and floors take more than the total.
    pub fn is_overcommitted(&self) -> bool {
        let least = self.min_fault_pc(self.sharing());
        !fits(self.pc(), least, self.total)
    }

    /// task.fault_limit of a task; `None` where the task has a reservation, or is not in the table.
    pub fn limit_of(&self, id: TaskId) -> Option<u32> {
        let task = self.tasks.get(&id)?;
        if task.pc != Capacity::ZERO {
            return None;
        }
        let sharing = |task: &&Task| task.pc == Capacity::ZERO;
        let weights: u128 = self
            .tasks
            .values()
            .filter(sharing)
            .map(|task| u128::from(task.weight))
            .sum();
        let floors = u64::from(self.sharing()) * u64::from(FAULT_FLOOR);
        let beyond = self.fault_limit().saturating_sub(floors);
        // Rounded down: the sum never exceeds the system's limit.
        let part = u128::from(beyond) * u128::from(task.weight) / weights;
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        Some(FAULT_FLOOR.saturating_add(part))
    }

    /// Changes a task's weight.
    pub fn set_weight(&mut self, id: TaskId, weight: u32) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.weight = weight.max(1);
        }
    }

    /// A task of the table.
    pub fn task(&self, id: TaskId) -> Option<Task> {
        self.tasks.get(&id).copied()
    }

    /// All tasks of the table.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, Task)> + '_ {
        self.tasks.iter().map(|(id, task)| (*id, *task))
    }
}
