//! Scan resistance: a thread reads pages by Zipf's law, alone and then while another thread
//! reads other pages in order, once each. A hit is an access that
//! needs no read from the store: its page was there, or on the standby list.

use super::{Plan, figure, paged, sample};
use crate::ExperimentError;
use crate::contents::{PAGE, PageAt, mix};
use crate::real::goal::Sample;
use selfpage::{Counter, Domain, Stretch};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The exponent that the field's key-value benchmarks use.
const SKEW: f64 = 0.99;

/// Hit rate with a scan, beside that without.
pub fn beside_zipf(plan: &Plan) -> Result<Sample, ExperimentError> {
    let pages = plan.data / PAGE as u64;
    let frames = plan.frames as usize / PAGE;
    // The scan reads as much again.
    let (domain, stretch) = paged(frames, 2 * plan.data, 2 * pages as usize)?;
    for page in 0..2 * pages {
        // SAFETY: a page of the stretch, which only this thread uses so far.
        unsafe { PageAt::new(stretch.as_ptr(), page) }.write(1);
    }
    let zipf = Zipf {
        domain: &domain,
        stretch: &stretch,
        law: law(pages),
        accesses: plan.accesses,
        seed: plan.seed,
        done: AtomicU64::new(0),
    };
    let alone = zipf.hit_rate()?;
    zipf.done.store(0, Ordering::Relaxed);
    let ended = AtomicBool::new(false);
    let (beside, scanned) = std::thread::scope(|scope| {
        let scan = scope.spawn(|| scan(&stretch, pages, &zipf.done, &ended));
        let rate = zipf.hit_rate();
        ended.store(true, Ordering::Relaxed);
        let scanned = scan
            .join()
            .unwrap_or_else(|_| Err(ExperimentError::Worker("the scan panicked".into())));
        Ok::<_, ExperimentError>((rate?, scanned?))
    })?;
    Ok(sample(
        beside,
        Some(alone),
        [(
            "pages scanned an access",
            scanned as f64 / (2 * plan.accesses) as f64,
        )],
    ))
}

struct Zipf<'a> {
    domain: &'a Domain,
    stretch: &'a Stretch,
    /// The part of accesses that goes to the first pages by rank.
    law: Vec<f64>,
    accesses: u64,
    seed: u64,
    /// Accesses so far, for the scan to keep step with.
    done: AtomicU64,
}

impl Zipf<'_> {
    /// Over as many accesses as are wanted, after as many more to come to the steady state.
    fn hit_rate(&self) -> Result<f64, ExperimentError> {
        let mut hits = 0;
        for i in 0..2 * self.accesses {
            let hit = self.access(self.page(i))?;
            hits += u64::from(hit && i >= self.accesses);
            self.done.store(i, Ordering::Relaxed);
        }
        Ok(hits as f64 / self.accesses as f64)
    }

    /// Ranks are strewn over all pages: those used often do not lie together.
    fn page(&self, i: u64) -> u64 {
        let at = mix(self.seed << 32 ^ i) as f64 / u64::MAX as f64;
        let rank = self.law.partition_point(|below| *below < at) as u64;
        mix(rank) % self.law.len() as u64
    }

    fn access(&self, page: u64) -> Result<bool, ExperimentError> {
        let there = self
            .stretch
            .trans(page as usize)
            .is_ok_and(|t| t.frame.is_some());
        let before = figure(self.domain, Counter::from_standby);
        // SAFETY: a page of the stretch; all writes to it are complete.
        unsafe { PageAt::new(self.stretch.as_ptr(), page) }.probe(1)?;
        Ok(there || figure(self.domain, Counter::from_standby) > before)
    }
}

fn law(pages: u64) -> Vec<f64> {
    let weight = |rank: u64| 1.0 / (rank as f64 + 1.0).powf(SKEW);
    let total: f64 = (0..pages).map(weight).sum();
    let mut sum = 0.0;
    (0..pages)
        .map(|rank| {
            sum += weight(rank) / total;
            sum
        })
        .collect()
}

/// Reads the second half of the stretch in order, a page for each access of the other
/// thread at most. How many it were.
fn scan(
    stretch: &Stretch,
    pages: u64,
    pace: &AtomicU64,
    ended: &AtomicBool,
) -> Result<u64, ExperimentError> {
    let mut scanned = 0;
    while !ended.load(Ordering::Relaxed) {
        if scanned >= pace.load(Ordering::Relaxed) {
            std::thread::yield_now();
            continue;
        }
        let page = pages + scanned % pages;
        // SAFETY: a page of the stretch; all writes to it are complete.
        unsafe { PageAt::new(stretch.as_ptr(), page) }.probe(1)?;
        scanned += 1;
    }
    Ok(scanned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_law_is_zipfs() {
        let law = law(1000);
        let part = |rank: usize| law[rank] - law[rank - 1];
        assert!((law[999] - 1.0).abs() < 1e-9);
        assert!((part(1) / part(9) - 5f64.powf(SKEW)).abs() < 1e-6);
    }
}
