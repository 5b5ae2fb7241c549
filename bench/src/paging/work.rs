//! The work that is timed: passes over memory that does not fit. The code is the same in
//! every arm: what differs is where a page is ([`Pages`]).

use super::figure::{CountedPages, Figure};
use super::pass::Pass;
use super::schedule::{Amount, Schedule, Step};
use crate::prelude::*;
use crate::process::joined;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};

/// Time limit of a pass out of order and of its warm-up, which then end early: a mapped file
/// without advice reads ahead 128 KiB per page under a small limit, 10 ms an access (measured).
const LIMIT: Duration = Duration::from_secs(5);

/// One thread's access to the pages.
pub trait Pages {
    /// A pass begins; in order it is over these pages. With `overwrites`, what they
    /// hold does not matter.
    fn begin(&mut self, _in_order: Option<Range<u64>>, _overwrites: bool) {}

    /// Where page number `page` is, until the next call.
    fn reach(&mut self, page: u64) -> Result<PageAt>;

    /// The page just reached has been used, and maybe written.
    fn leave(&mut self, _wrote: bool) -> Result<()> {
        Ok(())
    }

    /// The pass is over.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Memory to work on, the pages side by side.
pub struct Resident(*mut u8);

impl Resident {
    /// At `base`.
    ///
    /// # Safety
    /// `base` points to as many pages as the work has, which outlive this and
    /// which nothing but the work uses.
    pub unsafe fn new(base: *mut u8) -> Self {
        Self(base)
    }
}

impl Pages for Resident {
    fn reach(&mut self, page: u64) -> Result<PageAt> {
        // SAFETY: below the number of pages, as `new` was promised, and in a pass that
        // writes this thread's alone (`schedule`).
        Ok(unsafe { PageAt::new(self.0, page) })
    }
}

/// The work of one process.
pub struct Workload<'a> {
    /// How much.
    pub amount: Amount,
    /// Which passes; filling is one.
    pub passes: &'a [Pass],
    /// Reads the counters beside the time.
    pub count: &'a (dyn Fn() -> CountedPages + Sync),
}

impl Workload<'_> {
    /// Does all passes, each thread with the pages that `reached` gives it, and a last
    /// check of every page untimed.
    pub fn run<P: Pages>(&self, reached: impl Fn() -> Result<P> + Sync) -> Result<Vec<Figure>> {
        let versions: Vec<AtomicU8> = (0..self.amount.pages).map(|_| AtomicU8::new(0)).collect();
        let barrier = Barrier::new(self.amount.threads as usize);
        let one = |thread| {
            // A thread that fails must still come to the barriers, or the others wait for ever.
            let pages = reached();
            self.thread(thread, pages, &versions, &barrier)
        };
        let parts = std::thread::scope(|scope| {
            let one = &one;
            let one = |thread| scope.spawn(move || one(thread));
            let threads: Vec<_> = (0..self.amount.threads).map(one).collect();
            threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
        })?;
        let merged = |(k, pass): (usize, &Pass)| merge(*pass, parts.iter().map(|p| &p[k]));
        Ok(self.passes.iter().enumerate().map(merged).collect())
    }

    fn thread<P: Pages>(
        &self,
        thread: u64,
        mut pages: Result<P>,
        versions: &[AtomicU8],
        barrier: &Barrier,
    ) -> Result<Vec<WorkerShare>> {
        let mut parts = Vec::new();
        // The first thread counts, while all stand still.
        let count = || {
            barrier.wait();
            let counted = (thread == 0).then(self.count);
            barrier.wait();
            counted.unwrap_or_default()
        };
        for pass in self.passes {
            let order = Schedule::new(*pass, self.amount, thread);
            pages = pages.and_then(|pages| {
                let mut walk = PassRun::begin(pages, *pass, &order, versions);
                walk.warm_up()?;
                Ok(walk.pages)
            });
            let before = count();
            pages = pages.and_then(|pages| {
                let mut walk = PassRun::begin(pages, *pass, &order, versions);
                parts.push(walk.timed()?);
                Ok(walk.pages)
            });
            let after = count();
            if let Some(part) = parts.last_mut() {
                part.counted = between(before, after);
            }
        }
        let order = Schedule::new(Pass::SequentialRead, self.amount, thread);
        PassRun::begin(pages?, Pass::SequentialRead, &order, versions).timed()?;
        Ok(parts)
    }
}

fn between(before: CountedPages, after: CountedPages) -> CountedPages {
    let of = |b: Option<u64>, a: Option<u64>| Some(a?.saturating_sub(b?));
    CountedPages {
        misses: of(before.misses, after.misses),
        device_bytes: of(before.device_bytes, after.device_bytes),
    }
}

/// One thread's part of a pass.
struct WorkerShare {
    begin: Instant,
    end: Instant,
    pages: u64,
    each_ns: Vec<u32>,
    counted: CountedPages,
}

fn merge<'a>(pass: Pass, parts: impl Iterator<Item = &'a WorkerShare>) -> Figure {
    let parts: Vec<_> = parts.collect();
    let mut each: Vec<u32> = parts.iter().flat_map(|p| &p.each_ns).copied().collect();
    each.sort_unstable();
    let at = |part: usize| {
        each.get(each.len() * part / 100)
            .map_or(0, |ns| u64::from(*ns))
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
        misses: parts.iter().find_map(|p| p.counted.misses),
        device_bytes: parts.iter().find_map(|p| p.counted.device_bytes),
    }
}

/// One thread on its way through a pass.
struct PassRun<'a, P> {
    pages: P,
    pass: Pass,
    order: &'a Schedule,
    versions: &'a [AtomicU8],
}

impl<'a, P: Pages> PassRun<'a, P> {
    fn begin(mut pages: P, pass: Pass, order: &'a Schedule, versions: &'a [AtomicU8]) -> Self {
        let block = pass.in_order().then(|| order.block());
        pages.begin(block, pass == Pass::Fill);
        Self {
            pages,
            pass,
            order,
            versions,
        }
    }

    fn warm_up(&mut self) -> Result<()> {
        let begin = Instant::now();
        for i in 0..self.order.warm_up() {
            self.access(self.order.warm_step(i))?;
            if begin.elapsed() > LIMIT {
                break;
            }
        }
        self.pages.end()
    }

    fn timed(&mut self) -> Result<WorkerShare> {
        let (count, each_timed) = (self.order.count(), !self.pass.in_order());
        let mut each_ns = Vec::with_capacity(if each_timed { count as usize } else { 0 });
        let begin = Instant::now();
        let (mut last, mut pages) = (begin, 0);
        while pages < count {
            self.access(self.order.step(pages))?;
            pages += 1;
            if each_timed {
                let now = Instant::now();
                each_ns.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
                last = now;
                if now - begin > LIMIT {
                    break;
                }
            }
        }
        self.pages.end()?;
        Ok(WorkerShare {
            begin,
            end: Instant::now(),
            pages,
            each_ns,
            counted: CountedPages::default(),
        })
    }

    fn access(&mut self, step: Step) -> Result<()> {
        let at = self.pages.reach(step.page)?;
        let version = &self.versions[step.page as usize];
        let known = version.load(Ordering::Relaxed);
        match self.pass {
            Pass::Fill => at.write(known.wrapping_add(1)),
            Pass::SequentialRead | Pass::SequentialRmw => at.check(known)?,
            _ => at.probe(known)?,
        }
        if step.write {
            let next = known.wrapping_add(1);
            if self.pass != Pass::Fill {
                at.advance(next);
            }
            version.store(next, Ordering::Relaxed);
        }
        self.pages.leave(step.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ExperimentError;

    #[test]
    fn every_pass_is_counted_and_verified_with_any_number_of_threads() {
        for (pages, threads) in [(10, 1), (10, 3), (64, 16), (7, 7)] {
            let mut memory = vec![0u64; pages * 512];
            let base = memory.as_mut_ptr() as usize;
            let amount = Amount {
                pages: pages as u64,
                frames: 4,
                accesses: 320,
                threads,
                seed: 5,
            };
            let count = || CountedPages {
                misses: Some(3),
                device_bytes: None,
            };
            let work = Workload {
                amount,
                passes: Pass::value_variants(),
                count: &count,
            };
            // SAFETY: the vector holds that many pages, for the work alone.
            let figures = work.run(|| Ok(unsafe { Resident::new(base as *mut u8) }));
            for figure in figures.unwrap() {
                let expected = if figure.pass.in_order() {
                    pages as u64
                } else {
                    320 / threads * threads
                };
                assert_eq!(figure.pages, expected, "{:?}", figure.pass);
                assert_eq!((figure.misses, figure.device_bytes), (Some(0), None));
            }
        }
    }

    #[test]
    fn a_page_that_changes_behind_the_work_is_told() {
        struct Lossy(Vec<u64>);
        impl Pages for Lossy {
            fn reach(&mut self, page: u64) -> Result<PageAt> {
                // SAFETY: the vector holds one page.
                Ok(unsafe { PageAt::at(self.0.as_mut_ptr().cast(), page) })
            }
        }
        let amount = Amount {
            pages: 2,
            frames: 1,
            accesses: 2,
            threads: 2,
            seed: 1,
        };
        let work = Workload {
            amount: Amount {
                threads: 1,
                ..amount
            },
            passes: &[Pass::Fill],
            count: &CountedPages::default,
        };
        let done = work.run(|| Ok(Lossy(vec![0; 512])));
        let why = done.unwrap_err();
        assert!(matches!(
            why.downcast_ref(),
            Some(ExperimentError::WrongData { .. })
        ));
    }
}
