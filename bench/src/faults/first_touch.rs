//! First touches: a page of zeros by upcall beside one of the kernel's.

use super::{FaultPlan, figure, paged};
use crate::prelude::*;
use crate::statistics::percentile_us;
use selfpage::Counter;

/// Pages touched in order: long enough that the start does not count.
const IN_ORDER: usize = 32_768;

/// Pages timed at once: a quarter of what one page table covers.
const PIECE: usize = 128;
/// Pages touched at random, in turn with as many of the kernel's.
const AT_RANDOM: usize = 8_192;
/// Pages touched before it is the other's turn.
const TURN: usize = 256;

/// One fault a page, in no order, so that no stream can be seen in it.
pub fn at_random(plan: &FaultPlan) -> Result<Sample> {
    let (domain, stretch) = paged(AT_RANDOM * 2, 0, AT_RANDOM)?;
    let native = WorkerMemory::new(&MemoryKind::Anonymous, AT_RANDOM as u64, 0)?;
    let order = shuffled(AT_RANDOM, plan.seed);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in order.chunks(TURN) {
        touch_each(stretch.as_ptr(), turn, &mut ours);
        touch_each(native.start(), turn, &mut theirs);
    }
    let (own, native) = (percentile_us(&mut ours, 50), percentile_us(&mut theirs, 50));
    Ok(Sample::new(own, native).notes([
        ("p99", percentile_us(&mut ours, 99)),
        ("native p99", percentile_us(&mut theirs, 99)),
        (
            "faults a page",
            figure(&domain, Counter::Faults) as f64 / AT_RANDOM as f64,
        ),
    ]))
}

/// Pages in order, the whole stretch within frames: the median of pieces, so that what else
/// the machine does shows in few of them.
pub fn in_order(_: &FaultPlan) -> Result<Sample> {
    let (domain, stretch) = paged(IN_ORDER * 5 / 4, 0, IN_ORDER)?;
    let native = WorkerMemory::new(&MemoryKind::Anonymous, IN_ORDER as u64, 0)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for piece in (0..IN_ORDER).step_by(PIECE) {
        let pages = piece..piece + PIECE;
        ours.push(touch_all(stretch.as_ptr(), pages.clone()));
        theirs.push(touch_all(native.start(), pages));
    }
    let us = |mut times: Vec<u64>| percentile_us(&mut times, 50) / PIECE as f64;
    Ok(Sample::new(us(ours), us(theirs)).notes([(
        "faults a page",
        figure(&domain, Counter::Faults) as f64 / IN_ORDER as f64,
    )]))
}

fn touch(base: *mut u8, page: usize) {
    // SAFETY: a page of the caller's memory, which has more than `page` of them.
    unsafe { base.add(page * PAGE).write_volatile(1) };
}

fn touch_each(base: *mut u8, pages: &[usize], each_ns: &mut Vec<u64>) {
    for page in pages {
        let begin = Instant::now();
        touch(base, *page);
        each_ns.push(begin.elapsed().as_nanos() as u64);
    }
}

fn touch_all(base: *mut u8, pages: std::ops::Range<usize>) -> u64 {
    let begin = Instant::now();
    pages.for_each(|page| touch(base, page));
    begin.elapsed().as_nanos() as u64
}

/// The numbers below `count` in no order.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(mix(seed)).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_order_once() {
        let mut order = shuffled(1000, 3);
        assert!(order.windows(2).filter(|w| w[0] + 1 == w[1]).count() < 10);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
}
