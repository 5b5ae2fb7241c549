//! The limits in force, and the count they hold against, in words that processes share.
//!
//! One set for a tree of processes, whose owner changes it at any time (section 4.1: "we
//! adjust the system.fault_limit dynamically"); each fault reads it. A change has a number,
//! the *generation*, which the count carries too: a fault that read the old limits cannot
//! count by them any more, and one that sleeps by them is woken to be judged anew.

use crate::account::{Account, Periods, reciprocal};
use crate::quantities::Nanos;
use crate::unit::{self, Units};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The part of a measured limit by which another must differ to be put in force.
const NEWS: u32 = 16;

/// Whether a measured limit may stay as it `was`, since what it would be `now` is within a
/// 16th of it. What faults cost is measured anew all the time and never comes out quite the
/// same; each change of a limit wakes all who sleep by it. No limit is near none, which is zero.
pub fn is_near(now: u32, was: u32) -> bool {
    now.abs_diff(was) <= was / NEWS
}

/// What is in force. A limit of zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// task.fault_period and system.fault_period, in nanoseconds; zero where nothing is
    /// limited.
    pub fault_period: Nanos,
    /// task.fault_limit of each thread.
    pub task_limit: u32,
    /// fault_limit of all threads together: who comes after them sleeps.
    pub tree_limit: u32,
    /// What the tree has of system.fault_limit: past it the swapper is called.
    pub system_limit: u32,
}

impl Setting {
    /// Whether anything is limited.
    pub fn is_some(&self) -> bool {
        self.fault_period != 0
    }

    /// How many faults to count at once where counting each costs too much: an eighth of the
    /// lowest limit, so that what is not counted yet is little of it, and no more than
    /// `MOST_IN_BATCH`. A prime, so that one in so many is a fair sample of a program that
    /// takes turns between kinds of memory. None where nothing is limited.
    pub fn batch(&self) -> Option<u32> {
        let limits = [self.task_limit, self.tree_limit, self.system_limit];
        let lowest = limits.into_iter().filter(|limit| *limit != 0).min();
        let most = (lowest.filter(|_| self.is_some())? / IN_LIMIT).min(MOST_IN_BATCH);
        let prime = |n: &u32| (2..*n).all(|divisor| !n.is_multiple_of(divisor));
        (2..=most).rev().find(prime).or(Some(1))
    }

    /// Whether the tree's faults are counted together.
    fn counts_tree(&self) -> bool {
        self.tree_limit != 0 || self.system_limit != 0
    }
}

/// Batches in a limit, at least.
const IN_LIMIT: u32 = 8;

/// The most faults in a batch: beyond, the signal that comes with each batch is no longer
/// what a fault's counting costs (`cargo run --release -p translation --example fault_event`).
const MOST_IN_BATCH: u32 = 100;

const PERIOD: usize = 0;
const TASK: usize = 1;
const TREE: usize = 2;
const SYSTEM: usize = 3;
const COUNT: usize = 4;
const RECIPROCAL: usize = 5;
const UNITS: usize = 6;

/// Words that a set of limits takes.
pub const WORDS: usize = UNITS + unit::WORDS;

const PERIOD_BITS: u32 = 40;
const COUNT_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << (64 - PERIOD_BITS - COUNT_BITS);

/// A set of limits.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    generation: &'a AtomicU32,
    words: &'a [AtomicU64],
}

/// What a fault found in force.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The limits.
    pub setting: Setting,
    /// Their generation.
    pub generation: u32,
    /// Of the period's length.
    reciprocal: u64,
}

impl<'a> Limits<'a> {
    /// Limits in [`WORDS`] words, all zero at first: nothing is limited. The generation is a
    /// word of its own, so that one can sleep on it.
    ///
    /// # Panics
    /// Where there are fewer words.
    pub fn new(generation: &'a AtomicU32, words: &'a [AtomicU64]) -> Self {
        assert!(words.len() >= WORDS, "words for the limits");
        Self { generation, words }
    }

    /// The word that changes with the limits: what sleepers sleep on.
    pub fn generation(&self) -> &'a AtomicU32 {
        self.generation
    }

    /// Whether anything is limited: the one look that a fault has where nothing is.
    pub fn is_some(&self) -> bool {
        self.words[PERIOD].load(Relaxed) != 0
    }

    /// What is in force.
    #[inline]
    pub fn seen(&self) -> Seen {
        let generation = self.generation.load(Acquire);
        let limit = |at: usize| self.words[at].load(Relaxed) as u32;
        Seen {
            setting: Setting {
                fault_period: self.words[PERIOD].load(Relaxed),
                task_limit: limit(TASK),
                tree_limit: limit(TREE),
                system_limit: limit(SYSTEM),
            },
            generation,
            reciprocal: self.words[RECIPROCAL].load(Relaxed),
        }
    }

    /// Puts other limits in force, from the tree's next period on; in what is left of this
    /// one nothing more is handled of what its limit holds. One caller at a time, who wakes
    /// everybody who sleeps on the generation. Whether they were others.
    pub fn set(&self, setting: Setting, now: Nanos) -> bool {
        let setting = Setting {
            task_limit: setting.task_limit.min(crate::tasks::MOST),
            tree_limit: setting.tree_limit.min((1 << COUNT_BITS) - 1),
            ..setting
        };
        if self.seen().setting == setting {
            return false;
        }
        self.words[TASK].store(setting.task_limit.into(), Relaxed);
        self.words[TREE].store(setting.tree_limit.into(), Relaxed);
        self.words[SYSTEM].store(setting.system_limit.into(), Relaxed);
        // Before the period: who sees the one under the other's generation is told so when it
        // counts, and who does not count then was judged by the wrong period once.
        self.words[RECIPROCAL].store(reciprocal(setting.fault_period), Relaxed);
        let was = self.words[PERIOD].swap(setting.fault_period, Relaxed);
        let generation = self.generation.load(Relaxed).wrapping_add(1);
        // The first limits have no past to answer for.
        let from = Periods::new(setting.fault_period).of(now) + u64::from(was != 0);
        let empty = Account {
            period: from,
            count: 0,
        };
        self.generation.store(generation, Release);
        self.words[COUNT].store(pack(generation, empty), Release);
        true
    }

    /// What the tree's period has counted, for who shows it.
    pub fn counted(&self) -> Account {
        unpack(self.words[COUNT].load(Relaxed))
    }

    /// What faults cost.
    pub fn units(&self) -> Units<'a> {
        Units::new(&self.words[UNITS..WORDS])
    }

    /// Changes the tree's account under the limits that were seen. None where they are not
    /// in force any more.
    pub fn update<T>(
        &self,
        seen: &Seen,
        change: impl Fn(Account) -> (Account, T),
    ) -> Option<(Account, T)> {
        let word = &self.words[COUNT];
        let mut now = word.load(Acquire);
        loop {
            if now >> (PERIOD_BITS + COUNT_BITS) != u64::from(seen.generation % GENERATIONS) {
                return None;
            }
            let (account, answer) = change(unpack(now));
            let changed = pack(seen.generation, account);
            if changed == now {
                return Some((account, answer));
            }
            match word.compare_exchange_weak(now, changed, Relaxed, Acquire) {
                Ok(_) => return Some((account, answer)),
                Err(other) => now = other,
            }
        }
    }
}

impl Seen {
    /// The periods in force, all tasks' alike.
    pub fn periods(&self) -> Periods {
        Periods::known(self.setting.fault_period, self.reciprocal)
    }

    /// Whether the tree's faults are counted together.
    pub fn counts_tree(&self) -> bool {
        self.setting.counts_tree()
    }
}

fn pack(generation: u32, account: Account) -> u64 {
    let generation = u64::from(generation % GENERATIONS) << (PERIOD_BITS + COUNT_BITS);
    let period = (account.period & ((1 << PERIOD_BITS) - 1)) << COUNT_BITS;
    generation | period | u64::from(account.count.min((1 << COUNT_BITS) - 1))
}

fn unpack(word: u64) -> Account {
    Account {
        period: (word >> COUNT_BITS) & ((1 << PERIOD_BITS) - 1),
        count: (word & ((1 << COUNT_BITS) - 1)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn a_limit_is_near_within_a_16th_of_what_it_was_either_way() {
        let near = |now| is_near(now, 160);
        assert_eq!(
            [149, 150, 160, 170, 171].map(near),
            [false, true, true, true, false]
        );
    }

    #[test]
    fn of_a_limit_below_16_any_other_is_news_and_of_none_any_at_all() {
        assert!(is_near(15, 15) && !is_near(14, 15) && !is_near(16, 15));
        assert!(is_near(0, 0) && !is_near(1, 0) && !is_near(0, 1000));
        assert!(!is_near(u32::MAX, 0) && !is_near(0, u32::MAX));
    }
}
