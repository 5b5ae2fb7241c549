//! What a subject does with its pages.

use super::latency::{Done, Latency, latencies, schedule, wait_until};
use crate::prelude::*;
use crate::process::joined;
use selfpage::{Domain, Stretch};
use std::sync::atomic::{AtomicBool, Ordering};

/// The version of every page before anything changed it.
const INITIAL: u8 = 1;

/// How many times as long as its schedule an open phase may take. What is not done by then
/// has waited for as long as that, at least.
const MAX_OVERTIME: u32 = 2;

/// A subject's pages, and what it does with them.
pub struct SubjectWorkload {
    base: usize,
    pages: u64,
    resting: AtomicBool,
}

impl SubjectWorkload {
    /// With so many pages at `base`.
    ///
    /// # Safety
    /// They are readable and writable, outlive the subject, and are its alone.
    pub unsafe fn new(base: *mut u8, pages: u64) -> Self {
        Self {
            base: base.expose_provenance(),
            pages,
            resting: AtomicBool::new(false),
        }
    }

    fn page(&self, number: u64) -> PageAt {
        // SAFETY: below the number of pages of memory that outlives the subject; two threads
        // never have the same page, see `work`.
        unsafe { PageAt::new(std::ptr::with_exposed_provenance_mut(self.base), number) }
    }

    /// Writes every page.
    pub fn fill(&self) -> Done {
        let began = Instant::now();
        (0..self.pages).for_each(|page| self.page(page).write(INITIAL));
        done(self.pages, began)
    }

    /// Reads pages at random, one after the other.
    pub fn closed(&self, during: Duration) -> Result<Done> {
        let began = Instant::now();
        let mut accesses = 0;
        while began.elapsed() < during {
            self.page(mix(accesses) % self.pages).probe(INITIAL)?;
            accesses += 1;
        }
        Ok(done(accesses, began))
    }

    /// Reads pages at random when they are due.
    pub fn open(&self, during: Duration, rate: f64, seed: u64) -> Result<Latency> {
        let schedule = schedule(during, rate, seed);
        let mut times = latencies()?;
        let began = Instant::now();
        let mut done = 0;
        for (k, due) in schedule.iter().enumerate() {
            if began.elapsed() < during * MAX_OVERTIME {
                wait_until(began + *due);
                let page = mix(mix(seed) ^ k as u64) % self.pages;
                self.page(page).probe(INITIAL)?;
                done += 1;
            }
            let late = began.elapsed().saturating_sub(*due);
            times.saturating_record(late.as_nanos() as u64);
        }
        Ok(Latency::of(&times, schedule.len() as u64, done))
    }

    /// Reads or changes pages at random by several threads, until `until` returns. Each thread
    /// has a part of the pages of its own.
    pub fn work(&self, threads: u64, changes: bool, until: impl FnOnce()) -> Result<Done> {
        self.resting.store(false, Ordering::Relaxed);
        let began = Instant::now();
        let threads = threads.max(1);
        let part = self.pages / threads;
        let accesses = std::thread::scope(|scope| {
            let work = |thread| {
                move || match changes {
                    true => self.change(thread * part, part),
                    false => self.read(thread * part, part),
                }
            };
            let all: Vec<_> = (0..threads).map(|t| scope.spawn(work(t))).collect();
            until();
            self.resting.store(true, Ordering::Relaxed);
            all.into_iter().map(joined).sum::<Result<u64>>()
        })?;
        Ok(done(accesses, began))
    }

    fn read(&self, first: u64, pages: u64) -> Result<u64> {
        let mut accesses = 0;
        while !self.resting.load(Ordering::Relaxed) {
            let page = first + mix(mix(first) ^ accesses) % pages;
            self.page(page).probe(INITIAL)?;
            accesses += 1;
        }
        Ok(accesses)
    }

    /// Touches pages, and gives them and their frames up again.
    pub fn claim(&self, (stretch, domain): (&Stretch, &Domain), pages: u64) -> Result<Done> {
        let pages = pages.min(self.pages);
        let began = Instant::now();
        (0..pages).for_each(|page| self.page(page).advance(INITIAL));
        let claimed = done(pages, began);
        stretch.discard(0..pages as usize)?;
        domain.relinquish(domain.n());
        Ok(claimed)
    }

    fn change(&self, first: u64, pages: u64) -> Result<u64> {
        let mut versions = vec![INITIAL; pages as usize];
        let mut accesses = 0;
        while !self.resting.load(Ordering::Relaxed) {
            let at = mix(mix(first) ^ accesses) % pages;
            let version = &mut versions[at as usize];
            let page = self.page(first + at);
            page.probe(*version)?;
            *version = version.wrapping_add(1);
            page.advance(*version);
            accesses += 1;
        }
        // The next churn finds the pages as the first did.
        for (at, _) in versions.iter().enumerate().filter(|(_, v)| **v != INITIAL) {
            self.page(first + at as u64).advance(INITIAL);
        }
        Ok(accesses)
    }
}

fn done(accesses: u64, began: Instant) -> Done {
    Done {
        accesses,
        ns: began.elapsed().as_nanos() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_pattern::PAGE;

    fn subject(memory: &mut Vec<u64>, pages: u64) -> SubjectWorkload {
        memory.resize(pages as usize * PAGE / 8, 0);
        // SAFETY: the vector has so many pages, and is kept by the test.
        let subject = unsafe { SubjectWorkload::new(memory.as_mut_ptr().cast(), pages) };
        subject.fill();
        subject
    }

    #[test]
    fn what_is_not_done_in_time_counts_as_having_waited() {
        let mut memory = Vec::new();
        let subject = subject(&mut memory, 8);
        // Far more than can be done.
        let open = subject.open(Duration::from_millis(1), 1e9, 1).unwrap();
        assert!(open.done < open.due);
        assert!(
            open.most_ns > 1_000_000,
            "given up after twice the schedule"
        );
        assert!(open.p50_ns <= open.p99_ns && open.p999_ns <= open.most_ns);
    }

    #[test]
    fn a_neighbour_leaves_its_pages_as_it_found_them() {
        let mut memory = Vec::new();
        let subject = subject(&mut memory, 16);
        let pause = || std::thread::sleep(Duration::from_millis(20));
        assert!(subject.work(2, false, pause).unwrap().accesses > 0);
        assert!(subject.work(2, true, pause).unwrap().accesses > 0);
        assert!((0..16).all(|page| subject.page(page).check(INITIAL).is_ok()));
        assert!(subject.closed(Duration::from_millis(2)).unwrap().rate() > 0.0);
    }
}
