//! The resource manager (section 4.1, figure 6): who has reserved what, and what each task's
//! fault_limit is in consequence.
//!
//! A task here is whatever is limited as one: a tree of processes, or a program. Equation (4)
//! gives system.fault_limit beside the reservations; the tasks have it among them, by weight
//! and with a floor for each, so that the sum of their limits is the system's and each makes
//! progress in every period. Admission keeps the floors.
//!
//! A task with a reservation has its faults handled in its own processor time, which task.pc
//! counts already: it has no share of the system's limit, and no limit.
//!
//! fault_unit is measured and may rise after tasks were admitted by it. The floors are kept
//! even then, since a task that cannot go on frees nothing; [`Roster::is_over`] says so.

use crate::admission::Refused;
use crate::equations::{fault_limit, fault_pc, fits};
use crate::quantities::{Capacity, Nanos};
use std::collections::BTreeMap;

/// Names a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// A task as it was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// task.pc: zero without a reservation.
    pub pc: Capacity,
    /// Its part of system.fault_limit against the others'; at least 1.
    pub weight: u32,
}

/// The faults in a period that every task without a reservation is promised.
pub const FLOOR: u32 = 8;

/// Who there is.
#[derive(Clone, Debug)]
pub struct Roster {
    whole: Capacity,
    fault_period: Nanos,
    fault_unit: Nanos,
    floor: u32,
    tasks: BTreeMap<TaskId, Task>,
    next: u64,
}

impl Roster {
    /// Nobody yet. `whole` is the 1 of the equations, `fault_unit` what a fault is taken to
    /// cost until it is measured.
    pub fn new(whole: Capacity, fault_period: Nanos, fault_unit: Nanos) -> Self {
        Self {
            whole,
            fault_period: fault_period.max(1),
            fault_unit: fault_unit.max(1),
            floor: FLOOR,
            tasks: BTreeMap::new(),
            next: 1,
        }
    }

    /// Another floor.
    pub fn with_floor(mut self, floor: u32) -> Self {
        self.floor = floor.max(1);
        self
    }

    /// The sum of task.pc.
    pub fn pc(&self) -> Capacity {
        let pcs = self.tasks.values().map(|task| task.pc);
        pcs.fold(Capacity::ZERO, Capacity::plus)
    }

    /// The 1 of the equations.
    pub fn whole(&self) -> Capacity {
        self.whole
    }

    /// system.fault_period.
    pub fn fault_period(&self) -> Nanos {
        self.fault_period
    }

    /// What a fault costs.
    pub fn fault_unit(&self) -> Nanos {
        self.fault_unit
    }

    /// What a fault costs by now.
    pub fn measure(&mut self, fault_unit: Nanos) {
        self.fault_unit = fault_unit.max(1);
    }

    /// system.fault_limit, by equation (4).
    pub fn fault_limit(&self) -> u64 {
        fault_limit(self.pc(), self.whole, self.fault_period, self.fault_unit)
    }

    /// Tasks that share the limit.
    fn sharing(&self) -> u32 {
        self.tasks
            .values()
            .filter(|task| task.pc == Capacity::ZERO)
            .count() as u32
    }

    /// system.fault_pc at the least: what the floors of so many tasks take.
    fn least_fault_pc(&self, tasks: u32) -> Capacity {
        let faults = u64::from(tasks) * u64::from(self.floor);
        fault_pc(faults, self.fault_period, self.fault_unit)
    }

    /// Whether a task fits, and why not.
    ///
    /// # Errors
    /// [`Refused`] with equation (3)'s figures.
    pub fn check(&self, task: Task) -> Result<(), Refused> {
        let tasks = self.sharing();
        let reserved = self.pc();
        if task.pc == Capacity::ZERO {
            let least = self.least_fault_pc(tasks + 1);
            return match fits(reserved, least, self.whole) {
                true => Ok(()),
                false => Err(Refused::Faults {
                    there: self.fault_limit(),
                    whole: self.whole,
                    reserved,
                    floor: self.floor,
                    tasks,
                    fault_unit: self.fault_unit,
                    fault_period: self.fault_period,
                }),
            };
        }
        // Whoever comes next has to fault, too.
        let tasks = tasks.max(1);
        let faults = self.least_fault_pc(tasks);
        match fits(reserved.plus(task.pc), faults, self.whole) {
            true => Ok(()),
            false => Err(Refused::Reservation {
                asked: task.pc,
                there: self.whole.less(reserved).less(faults),
                whole: self.whole,
                reserved,
                faults,
                floor: self.floor,
                tasks,
                fault_unit: self.fault_unit,
                fault_period: self.fault_period,
            }),
        }
    }

    /// Admits a task.
    ///
    /// # Errors
    /// As [`Roster::check`].
    pub fn admit(&mut self, task: Task) -> Result<TaskId, Refused> {
        self.check(task)?;
        Ok(self.restore(task))
    }

    /// A task that was admitted before and is there still.
    pub fn restore(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.next);
        self.next += 1;
        let weight = task.weight.max(1);
        self.tasks.insert(id, Task { weight, ..task });
        id
    }

    /// A task has ended. Whether it was there.
    pub fn leave(&mut self, id: TaskId) -> bool {
        self.tasks.remove(&id).is_some()
    }

    /// Whether the floors alone take more than there is.
    pub fn is_over(&self) -> bool {
        let least = self.least_fault_pc(self.sharing());
        !fits(self.pc(), least, self.whole)
    }

    /// task.fault_limit of a task. None for one that has none: it has a reservation, or is
    /// not there.
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
        let floors = u64::from(self.sharing()) * u64::from(self.floor);
        let beyond = self.fault_limit().saturating_sub(floors);
        // Rounded down: the sum is never more than the system's.
        let part = u128::from(beyond) * u128::from(task.weight) / weights;
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        Some(self.floor.saturating_add(part))
    }

    /// A task that is there.
    pub fn task(&self, id: TaskId) -> Option<Task> {
        self.tasks.get(&id).copied()
    }

    /// The tasks there are.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, Task)> + '_ {
        self.tasks.iter().map(|(id, task)| (*id, *task))
    }
}
