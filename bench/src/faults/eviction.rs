//! Eviction by itself: no page is compressed or written, because it holds only zeros or
//! equals its stored copy. Another thread runs meanwhile, so that taking pages from
//! the program interrupts a second processor.

use super::{FaultPlan, figure, first_touch, page_at, paged};
use crate::page_pattern::WORDS;
use crate::prelude::*;
use crate::statistics::percentile_us;
use selfpage::{Counter, Domain, Stretch};
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages of a range, and how many of them are present.
const RANGE: usize = 512;
const PRESENT: usize = 64;
/// Ranges in one round: 16,384 pages present.
const RANGES: usize = 256;
/// Times all of them are evicted.
const ROUNDS: u32 = 3;
/// Pages per timed request.
const PIECE: u32 = 1_024;

/// What the pages hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Zeros.
    Zero,
    /// What the store has already.
    Clean,
}

/// Time to evict a page: the median of pieces.
pub fn of(pages: Pages, plan: &FaultPlan) -> Result<Sample> {
    let present = RANGES * PRESENT;
    let data = (present * PAGE) as u64;
    // More frames than are used: nothing is evicted before that is requested.
    let (domain, stretch) = paged(present * 2, data * 2, RANGES * RANGE)?;
    let chosen = chosen(plan.seed);
    if pages == Pages::Clean {
        for page in &chosen {
            page_at(&stretch, *page as u64).write(1);
        }
        evict_all(&domain);
    }
    let mut each_ns = Vec::new();
    let running = AtomicBool::new(true);
    let written = figure(&domain, Counter::Written);
    std::thread::scope(|scope| {
        scope.spawn(|| spin(&running));
        let worked = (0..ROUNDS).try_for_each(|_| {
            chosen.iter().try_for_each(|page| match pages {
                Pages::Zero => zero(&stretch, *page),
                Pages::Clean => page_at(&stretch, *page as u64).probe(1),
            })?;
            each_ns.extend(evict_all(&domain));
            anyhow::Ok(())
        });
        running.store(false, Ordering::Relaxed);
        worked
    })?;
    let written = figure(&domain, Counter::Written) - written;
    let [p50, p90] = [50, 90].map(|percent| percentile_us(&mut each_ns, percent));
    Ok(Sample::new(p50, None).notes([
        ("p90", p90),
        ("pieces", each_ns.len() as f64),
        ("pages written", written as f64),
    ]))
}

/// The pages that are present: some of each range, in order.
fn chosen(seed: u64) -> Vec<usize> {
    let mut all = Vec::with_capacity(RANGES * PRESENT);
    for range in 0..RANGES {
        let mut some = first_touch::shuffled(RANGE, seed ^ (range as u64) << 8);
        some.truncate(PRESENT);
        some.sort_unstable();
        all.extend(some.into_iter().map(|page| range * RANGE + page));
    }
    all
}

fn zero(stretch: &Stretch, page: usize) -> Result<()> {
    let word = stretch.as_ptr().cast::<u64>();
    // SAFETY: the first word of a page of the stretch, which only this thread uses.
    let found = unsafe { word.add(page * WORDS).read_volatile() };
    match found {
        0 => Ok(()),
        found => bail!(ExperimentError::WrongData {
            page: page as u64,
            word: 0,
            found,
            expected: 0
        }),
    }
}

/// Releases every frame of the domain, piece by piece. Returns nanoseconds a page of each.
fn evict_all(domain: &Domain) -> Vec<u64> {
    // Empty frames cost nothing to release.
    domain.relinquish(domain.n() - domain.in_use());
    let mut each_ns = Vec::new();
    while domain.in_use() > 0 {
        let (held, begin) = (domain.in_use(), Instant::now());
        domain.relinquish(PIECE);
        let elapsed = begin.elapsed().as_nanos() as u64;
        match held.saturating_sub(domain.in_use()) {
            0 => break,
            evicted => each_ns.push(elapsed / u64::from(evicted)),
        }
        // The domain may have released more frames than requested: those are no longer in use.
        domain.relinquish(domain.n() - domain.in_use());
    }
    each_ns
}

/// Keeps a processor in this address space busy.
fn spin(running: &AtomicBool) {
    let mut other = vec![0u8; PAGE];
    while running.load(Ordering::Relaxed) {
        std::hint::black_box(&mut other).fill(1);
    }
}
