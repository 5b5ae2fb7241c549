//! Streams of faults, and what windows cost.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// No page is there without a fault.
const NONE: fn(usize) -> bool = |_| false;

/// What a program's accesses cost when windows are filled.
#[derive(Default)]
struct Cost {
    faults: usize,
    /// Pages that came in.
    brought: usize,
    /// Pages that a disk reads, where all are there.
    read: usize,
}

fn cost(order: impl IntoIterator<Item = usize>) -> Cost {
    let mut streams = StreamTable::default();
    let mut there = HashSet::new();
    let mut read = HashSet::new();
    let mut faults = 0;
    for page in order {
        if there.contains(&page) {
            continue;
        }
        faults += 1;
        let prediction = streams.fault(page, WIDEST, &|page| there.contains(&page));
        there.insert(page);
        read.insert(page);
        if let Some(prediction) = prediction {
            let step = |k: u32| page.wrapping_add_signed(prediction.stride * k as isize);
            there.extend((1..prediction.window).map(step));
            read.extend((1..prediction.window + prediction.ahead).map(step));
        }
    }
    Cost {
        faults,
        brought: there.len(),
        read: read.len(),
    }
}

#[test]
fn a_sequence_has_a_fault_a_window() {
    let cost = cost(10_000..20_000);
    assert!(cost.faults < 10_000 / 64 + 10, "{}", cost.faults);
    assert!(cost.brought <= 10_064);
}

#[test]
fn backward_and_strided_streams_are_detected() {
    assert!(cost((10_000..20_000).rev()).faults < 170);
    assert!(cost((10_000..100_000).step_by(7)).faults < 90_000 / 7 / 64 + 12);
    assert!(cost((10_000..100_000).rev().step_by(64)).faults < 90_000 / 64 / 64 + 12);
}

#[test]
fn the_runs_of_a_merge_are_distinguished() {
    let merge = (0..3000).flat_map(|k| (0..8).map(move |run| 100_000 * (run + 1) + k));
    assert!(cost(merge).faults < 8 * (3000 / 64 + 10));
}

#[test]
fn a_stream_among_random_faults_is_kept() {
    let mut streams = StreamTable::default();
    let mut random = fastrand::Rng::with_seed(1);
    assert_eq!(streams.fault(999_998, WIDEST, &NONE), None);
    assert!(streams.fault(999_999, WIDEST, &NONE).is_some());
    let mut next = 999_999 + FIRST as usize;
    for _ in 0..100 {
        for _ in 0..100 {
            let page = 2_000_000 + random.usize(..1 << 24);
            assert_eq!(streams.fault(page, WIDEST, &NONE), None);
        }
        let prediction = streams.fault(next, WIDEST, &NONE);
        next += prediction.map_or(1, |a| a.window as usize);
    }
    assert!(next > 1_000_000 + 80 * 64);
}

#[test]
fn a_fault_that_is_tried_again_has_the_same_prediction() {
    let mut streams = StreamTable::default();
    assert_eq!(streams.fault(5, WIDEST, &NONE), None);
    let prediction = streams.fault(6, WIDEST, &NONE);
    assert!(prediction.is_some());
    assert_eq!(streams.fault(6, WIDEST, &NONE), prediction);
}

#[test]
fn random_faults_bring_hardly_more_than_themselves() {
    let mut random = fastrand::Rng::with_seed(1);
    let order = (0..100_000).map(|_| 1_000_000 + random.usize(..131_072));
    let Cost {
        faults, brought, ..
    } = cost(order);
    assert!(brought < faults + faults / 50, "{faults} {brought}");
}

/// A heap: objects of two neighbouring pages, at random.
fn objects(random: &mut fastrand::Rng, count: usize) -> impl Iterator<Item = usize> {
    (0..count).flat_map(move |_| {
        let at = 1_000_000 + 8 * random.usize(..1 << 20);
        [at, at + 1]
    })
}

#[test]
fn objects_of_two_pages_soon_bring_hardly_more_than_themselves() {
    let mut random = fastrand::Rng::with_seed(1);
    let Cost { faults, read, .. } = cost(objects(&mut random, 50_000));
    assert!(read < faults + faults / 50, "{faults} {read}");
}

#[test]
fn sequences_after_a_heap_have_windows_again() {
    let mut random = fastrand::Rng::with_seed(1);
    let heap = cost(objects(&mut random, 1_000)).faults;
    let mut random = fastrand::Rng::with_seed(1);
    let sequences = (0..100).flat_map(|k| 1_000 * k..1_000 * k + 100);
    let both = cost(objects(&mut random, 1_000).chain(sequences)).faults;
    // Without a heap before them they have 6 each: 1, 1 and windows of 4, 8, 16, 32 and 64.
    assert!(both - heap < 100 * 7 + 20, "{}", both - heap);
}

#[test]
fn a_page_is_passed_over_after_the_first_window_only() {
    let mut streams = StreamTable::default();
    streams.fault(100, WIDEST, &NONE);
    assert!(streams.fault(101, WIDEST, &NONE).is_some());
    assert_eq!(streams.fault(108, WIDEST, &|page| page < 107), None);
    let second = streams.fault(109, WIDEST, &|page| page < 109);
    assert_eq!(second.map(|it| it.window), Some(2 * FIRST));
    let third = streams.fault(109 + 2 * FIRST as usize + 1, WIDEST, &NONE);
    assert_eq!(third.map(|it| it.window), Some(4 * FIRST));
}

#[test]
fn sequences_with_gaps_have_windows() {
    let mut random = fastrand::Rng::with_seed(1);
    let half = (10_000..30_000).filter(|_| random.bool());
    let Cost { faults, .. } = cost(half);
    assert!(faults < 1_000, "{faults}");
}

proptest! {
    #[test]
    fn what_is_brought_for_nothing_is_bounded_by_what_was_of_use(
        runs in prop::collection::vec((0usize..1 << 30, 1usize..200), 1..40),
    ) {
        let order: Vec<usize> = runs.iter().flat_map(|(at, len)| *at..at + len).collect();
        let used: HashSet<_> = order.iter().copied().collect();
        let Cost { brought, read, .. } = cost(order);
        prop_assert!(brought <= 3 * used.len() + 4 * runs.len());
        prop_assert!(read <= brought + 2 * used.len());
    }
}
