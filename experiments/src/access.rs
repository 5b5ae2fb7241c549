//! The work that is timed: passes over memory that does not fit.

use crate::ExperimentError;
use crate::contents::{PageAt, mix};
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A random pass ends here, with the accesses it came to: a mapped file without advice
/// reads ahead 128 KiB for each page under a small limit, 10 ms an access [measured].
const LIMIT: Duration = Duration::from_secs(10);

/// A pass over the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// Writes every page in order, for the first time.
    Fill,
    /// Reads every page in order.
    SequentialRead,
    /// Reads pages in no order.
    RandomRead,
    /// Reads and changes pages in no order.
    RandomReadModifyWrite,
}

impl Pass {
    /// All, in the order they run.
    pub const ALL: [Self; 4] = [
        Self::Fill,
        Self::SequentialRead,
        Self::RandomRead,
        Self::RandomReadModifyWrite,
    ];

    /// As a column's head.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::SequentialRead => "sequential read",
            Self::RandomRead => "random read",
            Self::RandomReadModifyWrite => "random r-m-w",
        }
    }
}

/// What a pass took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Which pass.
    pub pass: Pass,
    /// Pages accessed, by all threads.
    pub pages: u64,
    /// From the first access to the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Median and 99th percentile of one access, in nanoseconds; of the random passes.
    pub p50_ns: u64,
    /// See `p50_ns`.
    pub p99_ns: u64,
}

impl Figure {
    /// Nanoseconds a page, all threads together.
    pub fn ns_per_page(&self) -> f64 {
        self.elapsed_ns as f64 / self.pages.max(1) as f64
    }
}

/// How much of each.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Pages of memory.
    pub pages: u64,
    /// Random accesses, by all threads.
    pub accesses: u64,
    /// Threads; each has the pages whose number leaves its own remainder.
    pub threads: u64,
    /// Makes the random order.
    pub seed: u64,
}

/// Memory to work on.
#[derive(Clone, Copy)]
struct Base(*mut u8);
// SAFETY: threads access disjoint pages of it.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// Does all passes over the memory at `base`, and a last check of every page untimed.
///
/// # Safety
/// `base` points to `amount.pages` pages of memory that nobody else uses.
pub unsafe fn run(base: *mut u8, amount: Amount) -> Result<Vec<Figure>, ExperimentError> {
    let mut versions = vec![0u8; amount.pages as usize];
    let shares = shares(&mut versions, amount.threads);
    let barrier = Barrier::new(amount.threads as usize);
    let (base, barrier) = (Base(base), &barrier);
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(id, versions)| {
                scope.spawn(move || {
                    let base = base;
                    Worker {
                        base: base.0,
                        id: id as u64,
                        amount,
                        versions,
                    }
                    .all(barrier)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(ExperimentError::Worker("a thread panicked".into())))
            })
            .collect::<Result<Vec<_>, _>>()
    })?;
    Ok(Pass::ALL
        .iter()
        .enumerate()
        .map(|(k, pass)| merge(*pass, parts.iter().map(|p| &p[k])))
        .collect())
}

/// Versions by thread: page `threads * k + id` is entry `k` of share `id`.
fn shares(versions: &mut [u8], threads: u64) -> Vec<&mut [u8]> {
    let total = versions.len() as u64;
    let mut rest = versions;
    (0..threads)
        .map(|id| {
            let own = (total + threads - 1 - id) / threads;
            let (share, after) = std::mem::take(&mut rest).split_at_mut(own as usize);
            rest = after;
            share
        })
        .collect()
}

/// One thread's part of a pass.
struct Part {
    begin: Instant,
    end: Instant,
    pages: u64,
    each_ns: Vec<u32>,
}

fn merge<'a>(pass: Pass, parts: impl Iterator<Item = &'a Part>) -> Figure {
    let parts: Vec<_> = parts.collect();
    let mut each: Vec<u32> = parts
        .iter()
        .flat_map(|p| p.each_ns.iter().copied())
        .collect();
    each.sort_unstable();
    let at = |part: usize| {
        each.get(each.len() * part / 100)
            .copied()
            .map_or(0, u64::from)
    };
    let begin = parts.iter().map(|p| p.begin).min();
    let end = parts.iter().map(|p| p.end).max();
    let elapsed = begin.zip(end).map(|(b, e)| e - b).unwrap_or_default();
    Figure {
        pass,
        pages: parts.iter().map(|p| p.pages).sum(),
        elapsed_ns: elapsed.as_nanos() as u64,
        p50_ns: at(50),
        p99_ns: at(99),
    }
}

struct Worker<'a> {
    base: *mut u8,
    id: u64,
    amount: Amount,
    versions: &'a mut [u8],
}

impl Worker<'_> {
    fn all(mut self, barrier: &Barrier) -> Result<Vec<Part>, ExperimentError> {
        // A thread that fails must still come to the barriers, or the others wait for ever.
        let mut failure = None;
        let mut parts = Vec::new();
        for pass in Pass::ALL {
            barrier.wait();
            match self.pass(pass) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        barrier.wait();
        match failure {
            Some(error) => Err(error),
            None => {
                (0..self.versions.len()).try_for_each(|k| self.page(k).check(self.versions[k]))?;
                Ok(parts)
            }
        }
    }

    fn pass(&mut self, pass: Pass) -> Result<Part, ExperimentError> {
        let random = matches!(pass, Pass::RandomRead | Pass::RandomReadModifyWrite);
        let count = if random {
            self.amount.accesses / self.amount.threads
        } else {
            self.versions.len() as u64
        };
        let mut each_ns = Vec::with_capacity(if random { count as usize } else { 0 });
        let seed = mix(self.amount.seed ^ self.id << 32 ^ (pass as u64) << 40);
        let begin = Instant::now();
        let mut last = begin;
        for i in 0..count {
            let k = if random {
                mix(seed ^ i) % self.versions.len() as u64
            } else {
                i
            } as usize;
            self.access(pass, k)?;
            if random {
                let now = Instant::now();
                each_ns.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
                last = now;
                if now - begin > LIMIT {
                    break;
                }
            }
        }
        Ok(Part {
            begin,
            end: Instant::now(),
            pages: if random { each_ns.len() as u64 } else { count },
            each_ns,
        })
    }

    fn access(&mut self, pass: Pass, k: usize) -> Result<(), ExperimentError> {
        let (page, version) = (self.page(k), &mut self.versions[k]);
        match pass {
            Pass::Fill => {
                *version = 1;
                page.write(1);
                Ok(())
            }
            Pass::SequentialRead => page.check(*version),
            Pass::RandomRead => page.probe(*version),
            Pass::RandomReadModifyWrite => {
                page.probe(*version)?;
                *version = version.wrapping_add(1);
                page.advance(*version);
                Ok(())
            }
        }
    }

    fn page(&self, k: usize) -> PageAt {
        let number = k as u64 * self.amount.threads + self.id;
        // SAFETY: below `amount.pages`, and this thread's alone: `run` was promised the rest.
        unsafe { PageAt::new(self.base, number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_belongs_to_one_thread_and_every_pass_is_counted() {
        for (pages, threads) in [(10, 1), (10, 3), (64, 16), (7, 7)] {
            let mut memory = vec![0u64; pages * 512];
            let amount = Amount {
                pages: pages as u64,
                accesses: 320,
                threads,
                seed: 5,
            };
            // SAFETY: the vector holds that many pages.
            let figures = unsafe { run(memory.as_mut_ptr().cast(), amount) }.unwrap();
            assert_eq!(figures[0].pages, pages as u64);
            assert_eq!(figures[2].pages, 320 / threads * threads);
        }
    }
}
