//! Scan resistance: a thread reads pages by Zipf's law, alone and then while another thread
//! reads other pages in order, once each. A hit is an access that
//! needs no read from the store: its page was there, or on the standby list.

use super::{FaultPlan, figure, page_at, paged};
use crate::prelude::*;
use crate::process::joined;
use crate::zipf::Zipf;
use selfpage::{Counter, Domain, Stretch};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Hit rate with a scan, beside that without.
pub fn beside_zipf(plan: &FaultPlan) -> Result<Sample> {
    let pages = plan.data / PAGE as u64;
    let frames = plan.frames as usize / PAGE;
    // The scan reads as much again.
    let (domain, stretch) = paged(frames, 2 * plan.data, 2 * pages as usize)?;
    for page in 0..2 * pages {
        page_at(&stretch, page).write(1);
    }
    let zipf = HotSet {
        domain: &domain,
        stretch: &stretch,
        pages,
        law: Zipf::new(pages),
        accesses: plan.accesses,
        seed: plan.seed,
        done: AtomicU64::new(0),
    };
    let alone = zipf.hit_rate()?;
    zipf.done.store(0, Ordering::Relaxed);
    let ended = AtomicBool::new(false);
    let (beside, scanned) = std::thread::scope(|scope| -> Result<_> {
        let scan = scope.spawn(|| scan(&stretch, pages, &zipf.done, &ended));
        let rate = zipf.hit_rate();
        ended.store(true, Ordering::Relaxed);
        Ok((rate?, joined(scan)?))
    })?;
    let scanned = scanned as f64 / (2 * plan.accesses) as f64;
    Ok(Sample::new(beside, alone).notes([("pages scanned an access", scanned)]))
}

struct HotSet<'a> {
    domain: &'a Domain,
    stretch: &'a Stretch,
    pages: u64,
    law: Zipf,
    accesses: u64,
    seed: u64,
    /// Accesses so far, for the scan to keep step with.
    done: AtomicU64,
}

impl HotSet<'_> {
    /// Over as many accesses as are wanted, after as many more to come to the steady state.
    fn hit_rate(&self) -> Result<f64> {
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
        mix(self.law.rank(mix(self.seed << 32 ^ i))) % self.pages
    }

    fn access(&self, page: u64) -> Result<bool> {
        let there = self.stretch.trans(page as usize);
        let there = there.is_ok_and(|there| there.frame.is_some());
        let before = figure(self.domain, Counter::StandbyHits);
        page_at(self.stretch, page).probe(1)?;
        Ok(there || figure(self.domain, Counter::StandbyHits) > before)
    }
}

/// Reads the second half of the stretch in order, a page for each access of the other
/// thread at most. How many it were.
fn scan(stretch: &Stretch, pages: u64, pace: &AtomicU64, ended: &AtomicBool) -> Result<u64> {
    let mut scanned = 0;
    while !ended.load(Ordering::Relaxed) {
        if scanned >= pace.load(Ordering::Relaxed) {
            std::thread::yield_now();
            continue;
        }
        let page = pages + scanned % pages;
        page_at(stretch, page).probe(1)?;
        scanned += 1;
    }
    Ok(scanned)
}
