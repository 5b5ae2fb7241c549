//! Which page is accessed when: the same in every arm, for every thread, from a seed.
//!
//! In order, a thread has a block of pages to itself, as programs split their data. Out of
//! order it has every page whose number leaves its remainder: threads then meet in every
//! part of the memory, but never write the same page.

use super::pass::Pass;
use crate::prelude::*;
use crate::zipf::Zipf;
use std::ops::Range;

/// How much work there is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Amount {
    /// Pages of memory.
    pub pages: u64,
    /// Pages that fit.
    pub frames: u64,
    /// Accesses of a pass that is not in order, by all threads.
    pub accesses: u64,
    /// Threads.
    pub threads: u64,
    /// Makes the random schedule.
    pub seed: u64,
}

/// Pages from one access of a strided pass to the next: 64 KiB, beyond the kernel's
/// read-ahead of 8 pages for swap.
const STRIDE: u64 = 16;

/// One in this many accesses by zipf writes.
const WRITES: u64 = 20;

/// Spreads popular pages over the memory; a prime, so that no two ranks meet.
const SPREAD: u64 = 2_654_435_761;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which page.
    pub page: u64,
    /// Whether it is changed.
    pub write: bool,
}

/// One thread's accesses in a pass.
pub struct Schedule {
    pass: Pass,
    amount: Amount,
    thread: u64,
    block: Range<u64>,
    own: u64,
    zipf: Zipf,
    seed: u64,
}

impl Schedule {
    /// Of thread number `thread`.
    pub fn new(pass: Pass, amount: Amount, thread: u64) -> Self {
        let own = (amount.pages + amount.threads - 1 - thread) / amount.threads;
        let edge = |thread| amount.pages * thread / amount.threads;
        Self {
            pass,
            amount,
            thread,
            block: edge(thread)..edge(thread + 1),
            own,
            zipf: Zipf::new(own),
            seed: mix(amount.seed ^ thread << 32 ^ (pass as u64) << 40),
        }
    }

    /// Accesses there are in all.
    pub fn count(&self) -> u64 {
        if self.pass.in_order() {
            self.block.end - self.block.start
        } else {
            self.amount.accesses / self.amount.threads
        }
    }

    /// Accesses before the clock starts.
    pub fn warm_up(&self) -> u64 {
        if self.pass.warms_up() {
            self.amount.frames / self.amount.threads
        } else {
            0
        }
    }

    /// The pages of this thread in a pass in schedule.
    pub fn block(&self) -> Range<u64> {
        self.block.clone()
    }

    /// Access number `i`, below [`Schedule::count`].
    pub fn step(&self, i: u64) -> Step {
        let random = mix(self.seed ^ i);
        let page = match self.pass {
            Pass::Fill | Pass::SequentialRead | Pass::SequentialRmw => self.block.start + i,
            Pass::StridedRead => self.shared(strided(i, self.own)),
            Pass::RandomRead | Pass::RandomRmw => self.shared(random % self.own),
            Pass::Zipf => self.shared(self.zipf.rank(random) * SPREAD % self.own),
        };
        let write = match self.pass {
            Pass::Fill | Pass::SequentialRmw | Pass::RandomRmw => true,
            Pass::SequentialRead | Pass::StridedRead | Pass::RandomRead => false,
            Pass::Zipf => mix(random).is_multiple_of(WRITES),
        };
        Step { page, write }
    }

    /// Access number `i` of the warm-up: as the pass's own, but others.
    pub fn warm_step(&self, i: u64) -> Step {
        self.step(i | 1 << 63)
    }

    /// The page that is number `k` of those that leave this thread's remainder.
    fn shared(&self, k: u64) -> u64 {
        k * self.amount.threads + self.thread
    }
}

/// Where access number `i` of a strided pass over `pages` pages goes.
fn strided(i: u64, pages: u64) -> u64 {
    let mut left = i % pages;
    for offset in 0..STRIDE {
        let sweep = (pages + STRIDE - 1 - offset) / STRIDE;
        if left < sweep {
            return offset + left * STRIDE;
        }
        left -= sweep;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(pages: u64, threads: u64) -> Amount {
        Amount {
            pages,
            frames: pages / 8,
            accesses: 4 * pages,
            threads,
            seed: 3,
        }
    }

    #[test]
    fn every_page_is_filled_once_by_one_thread() {
        for (pages, threads) in [(10, 1), (10, 3), (64, 16), (7, 7)] {
            let mut seen = vec![0; pages as usize];
            for thread in 0..threads {
                let schedule = Schedule::new(Pass::Fill, amount(pages, threads), thread);
                (0..schedule.count()).for_each(|i| seen[schedule.step(i).page as usize] += 1);
            }
            assert!(seen.iter().all(|times| *times == 1), "{pages}/{threads}");
        }
    }

    #[test]
    fn no_two_threads_share_a_page_out_of_order() {
        for pass in Pass::value_variants()
            .iter()
            .copied()
            .filter(|p| !p.in_order())
        {
            for thread in 0..3 {
                let schedule = Schedule::new(pass, amount(1000, 3), thread);
                for i in 0..schedule.count() {
                    for step in [schedule.step(i), schedule.warm_step(i)] {
                        assert!(step.page < 1000 && step.page % 3 == thread);
                    }
                }
            }
        }
    }

    #[test]
    fn strides_visit_every_page_before_any_twice() {
        for pages in [1, 15, 16, 17, 100] {
            let mut seen: Vec<_> = (0..pages).map(|i| strided(i, pages)).collect();
            if pages == 100 {
                assert_eq!(seen[..3], [0, 16, 32]);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn zipf_is_read_mostly_and_has_favourites() {
        let schedule = Schedule::new(Pass::Zipf, amount(10_000, 1), 0);
        let steps: Vec<_> = (0..schedule.count()).map(|i| schedule.step(i)).collect();
        let writes = steps.iter().filter(|s| s.write).count() as f64 / steps.len() as f64;
        assert!((0.04..0.06).contains(&writes), "{writes}");
        let favourite = steps.iter().filter(|s| s.page == 0).count() as f64 / steps.len() as f64;
        assert!(favourite > 0.05, "{favourite}");
    }
}
