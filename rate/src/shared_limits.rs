//! The limits in force and the counter that they bound, in words that processes share.
//!
//! A tree of processes has one set, which its owner changes at any time (section 4.1: "we adjust
//! the system.fault_limit dynamically") and each fault reads. Each change has a number, the
//! *generation*, which the counter carries too: a fault that read the old limits can no longer
//! count by them, and a fault that sleeps by them is woken and checked again. When a process ends whose
//! faults are booked ahead, a new generation begins, too, since those bookings would stay.

use crate::fault_unit::{self, FaultUnits};
use crate::units::TimeNs;
use crate::window_counter::{PeriodClock, WindowCounter, reciprocal};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// One part in this many by which a measured limit must differ from the last to be put in force.
const NEAR_PARTS: u32 = 16;

/// Returns true if a measured limit `now` is within a 16th of what it `was`, which may then stay.
/// The cost of faults is measured all the time and never comes out quite the same; each change of
/// a limit wakes all faults that sleep by it. Zero means no limit, and is near zero only.
pub fn is_near(now: u32, was: u32) -> bool {
    now.abs_diff(was) <= was / NEAR_PARTS
}

/// Fault limits of a tree. Zero stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultLimits {
    /// task.fault_period and system.fault_period; zero where nothing is limited.
    pub fault_period: TimeNs,
    /// task.fault_limit of each thread.
    pub task_limit: u32,
    /// fault_limit of all threads together: further faults are suspended.
    pub tree_limit: u32,
    /// The tree's part of system.fault_limit: past it the swapper is called.
    pub system_limit: u32,
}

impl FaultLimits {
    /// Returns true if anything is limited.
    pub fn is_limited(&self) -> bool {
        self.fault_period != 0
    }

    /// Returns true if the tree's faults are counted together.
    fn counts_tree(&self) -> bool {
        self.tree_limit != 0 || self.system_limit != 0
    }
}

const PERIOD: usize = 0;
const TASK: usize = 1;
const TREE: usize = 2;
const SYSTEM: usize = 3;
const COUNT: usize = 4;
const RECIPROCAL: usize = 5;
const UNITS: usize = 6;

/// Number of words in a set of limits.
pub const WORDS: usize = UNITS + fault_unit::WORDS;

const PERIOD_BITS: u32 = 40;
const COUNT_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << (64 - PERIOD_BITS - COUNT_BITS);

/// A set of limits in shared words.
#[derive(Clone, Copy)]
pub struct SharedLimits<'a> {
    generation: &'a AtomicU32,
    words: &'a [AtomicU64],
}

/// The limits that one fault reads.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// The values of the limits.
    pub limits: FaultLimits,
    /// The generation of the limits.
    pub generation: u32,
    /// The [`reciprocal`] of the period's length.
    reciprocal: u64,
}

impl<'a> SharedLimits<'a> {
    /// Limits in [`WORDS`] words, all zero at first: nothing is limited. The generation is a
    /// word of its own, so that it can be a futex.
    ///
    /// # Panics
    /// Where there are fewer words.
    pub fn new(generation: &'a AtomicU32, words: &'a [AtomicU64]) -> Self {
        assert!(words.len() >= WORDS, "words for the limits");
        Self { generation, words }
    }

    /// The word that changes with the limits, the futex of suspended faults.
    pub fn generation(&self) -> &'a AtomicU32 {
        self.generation
    }

    /// Returns true if anything is limited. Where nothing is, a fault reads only this word.
    pub fn is_limited(&self) -> bool {
        self.words[PERIOD].load(Relaxed) != 0
    }

    /// Reads the limits in force.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        let generation = self.generation.load(Acquire);
        let limit = |at: usize| self.words[at].load(Relaxed) as u32;
        Snapshot {
            limits: FaultLimits {
                fault_period: self.words[PERIOD].load(Relaxed),
                task_limit: limit(TASK),
                tree_limit: limit(TREE),
                system_limit: limit(SYSTEM),
            },
            generation,
            reciprocal: self.words[RECIPROCAL].load(Relaxed),
        }
    }

    /// Puts limits in force. Faults handled in the current period count towards them, so that a raised limit has room at
    /// once, and a lowered one only where it is not reached. (After another period length, those of the period that it cuts
    /// short.) The caller holds off others, and wakes all sleepers on the generation afterwards. Returns true if the limits changed.
    pub fn set(&self, limits: FaultLimits, now: TimeNs) -> bool {
        let limits = FaultLimits {
            task_limit: limits.task_limit.min(crate::thread_counters::MAX_COUNT),
            tree_limit: limits.tree_limit.min((1 << COUNT_BITS) - 1),
            ..limits
        };
        let before = self.snapshot();
        if before.limits == limits {
            return false;
        }
        let periods = PeriodClock::new(limits.fault_period);
        self.close_generation(|counted| WindowCounter {
            period: periods.of(now),
            count: before.handled(counted, now),
        });
        self.words[TASK].store(limits.task_limit.into(), Relaxed);
        self.words[TREE].store(limits.tree_limit.into(), Relaxed);
        self.words[SYSTEM].store(limits.system_limit.into(), Relaxed);
        // Stored before the period. A fault that reads the new reciprocal under the old
        // generation fails when it counts; one that is not counted uses one wrong period.
        self.words[RECIPROCAL].store(reciprocal(limits.fault_period), Relaxed);
        self.words[PERIOD].store(limits.fault_period, Relaxed);
        self.open_generation();
        true
    }

    /// Ends all bookings, where faults are booked ahead: the faults that still wait are booked again from
    /// the next period on. This frees the bookings of faults that are never handled, since their process
    /// has ended. The current period stays full, since only a full period has faults booked ahead. Callers
    /// as of [`SharedLimits::set`]. Returns true if there were bookings.
    pub fn end_bookings(&self, now: TimeNs) -> bool {
        let snapshot = self.snapshot();
        if !snapshot.limits.is_limited() || !snapshot.counts_tree() {
            return false;
        }
        let period = snapshot.periods().of(now);
        let is_booked = self.counted().period > period;
        if is_booked {
            let period = period + 1;
            self.close_generation(|_| WindowCounter { period, count: 0 });
            self.open_generation();
        }
        is_booked
    }

    /// Ends the generation in force: no fault that read its limits counts any more. The next generation starts with the
    /// count that `carry` returns.
    fn close_generation(&self, carry: impl Fn(WindowCounter) -> WindowCounter) {
        let next = self.generation.load(Relaxed).wrapping_add(1);
        let word = &self.words[COUNT];
        let mut now = word.load(Acquire);
        while let Err(other) =
            word.compare_exchange_weak(now, pack(next, carry(unpack(now))), Release, Acquire)
        {
            now = other;
        }
    }

    /// Begins the next generation, by the limits stored since the last one ended.
    fn open_generation(&self) {
        let next = self.generation.load(Relaxed).wrapping_add(1);
        self.generation.store(next, Release);
    }

    /// The count of the tree's period, for display.
    pub fn counted(&self) -> WindowCounter {
        unpack(self.words[COUNT].load(Relaxed))
    }

    /// The measured costs of faults.
    pub fn units(&self) -> FaultUnits<'a> {
        FaultUnits::new(&self.words[UNITS..WORDS])
    }

    /// Changes the tree's counter under a snapshot's limits. Returns `None` where these are no longer in
    /// force.
    pub fn update<T>(
        &self,
        seen: &Snapshot,
        change: impl Fn(WindowCounter) -> (WindowCounter, T),
    ) -> Option<(WindowCounter, T)> {
        let word = &self.words[COUNT];
        let mut now = word.load(Acquire);
        loop {
            if now >> (PERIOD_BITS + COUNT_BITS) != u64::from(seen.generation % GENERATIONS) {
                return None;
            }
            let (counter, decision) = change(unpack(now));
            let changed = pack(seen.generation, counter);
            if changed == now {
                return Some((counter, decision));
            }
            match word.compare_exchange_weak(now, changed, Relaxed, Acquire) {
                Ok(_) => return Some((counter, decision)),
                Err(other) => now = other,
            }
        }
    }
}

impl Snapshot {
    /// The periods in force, before each thread's own phase.
    pub fn periods(&self) -> PeriodClock {
        PeriodClock::known(self.limits.fault_period, self.reciprocal)
    }

    /// Returns true if the tree's faults are counted together.
    pub fn counts_tree(&self) -> bool {
        self.limits.counts_tree()
    }

    /// Faults handled in the current period of these limits, by the tree's counter. Where faults are booked ahead the
    /// period is full.
    fn handled(&self, counted: WindowCounter, now: TimeNs) -> u32 {
        if !self.limits.is_limited() || !self.counts_tree() {
            return 0;
        }
        let period = self.periods().of(now);
        let at = counted.at(period);
        if at.period > period {
            self.limits.tree_limit
        } else {
            at.count
        }
    }
}

fn pack(generation: u32, counter: WindowCounter) -> u64 {
    let generation = u64::from(generation % GENERATIONS) << (PERIOD_BITS + COUNT_BITS);
    let period = (counter.period & ((1 << PERIOD_BITS) - 1)) << COUNT_BITS;
    generation | period | u64::from(counter.count.min((1 << COUNT_BITS) - 1))
}

fn unpack(word: u64) -> WindowCounter {
    WindowCounter {
        period: (word >> COUNT_BITS) & ((1 << PERIOD_BITS) - 1),
        count: (word & ((1 << COUNT_BITS) - 1)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn limits_within_a_16th_either_way_are_near() {
        let near = |now| is_near(now, 160);
        assert_eq!(
            [149, 150, 160, 170, 171].map(near),
            [false, true, true, true, false]
        );
    }

    #[test]
    fn a_limit_below_16_is_near_itself_only_and_zero_is_near_zero_only() {
        assert!(is_near(15, 15) && !is_near(14, 15) && !is_near(16, 15));
        assert!(is_near(0, 0) && !is_near(1, 0) && !is_near(0, 1000));
        assert!(!is_near(u32::MAX, 0) && !is_near(0, u32::MAX));
    }
}
