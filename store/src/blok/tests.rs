//! Tests of the blok allocator, one by one and by random steps.

use super::*;
use crate::intent_log::IntentLog;
use crate::layout::INTENTS;
use proptest::prelude::*;
use std::collections::HashSet;

fn leak<T: Default>(count: usize) -> &'static [T] {
    Vec::leak((0..count).map(|_| T::default()).collect())
}

fn bloks(count: usize) -> BlokAllocator {
    let bloks = BlokAllocator::new(
        leak(count.div_ceil(64)),
        leak(count),
        &leak(1)[0],
        &leak(1)[0],
    );
    bloks.close_end();
    bloks
}

/// Bloks that a page owns, one by one.
fn owned(bloks: &BlokAllocator) -> u64 {
    let owners = bloks
        .owners
        .iter()
        .map(|owner| owner.load(Ordering::Acquire));
    owners.filter(|owner| ![0, GROWTH].contains(owner)).count() as u64
}

fn intents() -> IntentLog {
    IntentLog::new(leak(INTENTS))
}

fn take(
    bloks: &BlokAllocator,
    want: u32,
    near: Option<u32>,
    handle: u32,
    note: &IntentGuard,
) -> Option<BlokRun> {
    let run = bloks.reserve(want, near, note)?;
    for blok in run.first..run.first + run.count {
        assert!(
            bloks.try_assign(blok, handle),
            "blok {blok} was given twice"
        );
    }
    Some(run)
}

#[test]
fn an_empty_file_is_filled_from_its_start_and_to_its_end() {
    let bloks = bloks(100);
    let note = intents().begin(0, 0);
    let mut given = Vec::new();
    while let Some(run) = take(&bloks, 30, None, 1, &note) {
        given.extend(run.first..run.first + run.count);
    }
    given.sort_unstable();
    assert_eq!(given, (0..100).collect::<Vec<_>>());
}

#[test]
fn neighbours_follow_each_other() {
    let bloks = bloks(128);
    let note = intents().begin(0, 0);
    let first = take(&bloks, 8, None, 1, &note).unwrap();
    let _other = take(&bloks, 8, Some(40), 1, &note).unwrap();
    let next = take(&bloks, 8, Some(first.first + first.count), 1, &note).unwrap();
    assert_eq!(next, BlokRun { first: 8, count: 8 });
}

#[test]
fn a_blok_is_freed_once() {
    let bloks = bloks(64);
    let note = intents().begin(0, 0);
    take(&bloks, 1, None, 5, &note).unwrap();
    bloks.free(0, 5);
    assert_eq!(
        take(&bloks, 1, None, 6, &note),
        Some(BlokRun { first: 0, count: 1 })
    );
    bloks.free(0, 5);
    assert!(bloks.is_owned(0, 6));
}

#[test]
fn marks_of_dead_processes_are_cleared() {
    let bloks = bloks(64);
    let note = intents().begin(0, 0);
    let run = bloks.reserve(64, None, &note).unwrap();
    assert!(bloks.try_assign(3, 9));
    bloks.repair(run);
    let mut free = HashSet::new();
    while let Some(run) = take(&bloks, 64, None, 1, &note) {
        free.extend(run.first..run.first + run.count);
    }
    assert_eq!(free.len(), 63);
    assert!(!free.contains(&3));
}

#[test]
fn threads_never_share_a_blok() {
    let bloks = bloks(500);
    let intents = intents();
    std::thread::scope(|scope| {
        for thread in 1..=4u32 {
            let (bloks, intents) = (&bloks, &intents);
            scope.spawn(move || {
                let note = intents.begin(0, thread as usize);
                for round in 0..5_000 {
                    let want = 1 + (round * thread) % 40;
                    if let Some(run) = take(bloks, want, None, thread, &note) {
                        (run.first..run.first + run.count)
                            .for_each(|blok| bloks.free(blok, thread));
                    }
                }
            });
        }
    });
    assert_eq!(bloks.used(), 0);
    let note = intents.begin(0, 0);
    let mut given = 0;
    while let Some(run) = take(&bloks, 64, None, 1, &note) {
        given += run.count;
    }
    assert_eq!(given, 500);
}

proptest! {
    #[test]
    fn no_blok_is_assigned_twice_and_all_are_freed(
        count in 1usize..300,
        steps in prop::collection::vec((any::<bool>(), 1u32..70, 0u32..300), 1..200),
    ) {
        let bloks = bloks(count);
        let note = intents().begin(0, 0);
        let mut held: Vec<u32> = Vec::new();
        for (give, want, place) in steps {
            if give {
                let near = (place % 2 == 0).then_some(place);
                match take(&bloks, want, near, 1, &note) {
                    Some(run) => {
                        prop_assert!(run.count >= 1 && run.count <= want);
                        held.extend(run.first..run.first + run.count);
                    }
                    None => prop_assert_eq!(held.len(), count),
                }
            } else if !held.is_empty() {
                bloks.free(held.swap_remove(place as usize % held.len()), 1);
            }
            prop_assert_eq!(bloks.used(), held.len() as u64);
            prop_assert!(held.iter().all(|&blok| (blok as usize) < count));
        }
        held.drain(..).for_each(|blok| bloks.free(blok, 1));
        prop_assert_eq!(bloks.used(), 0);
    }

    #[test]
    fn bloks_are_counted_as_their_owners_are_whatever_is_closed(
        count in 65usize..700,
        steps in prop::collection::vec((0u8..4, 1u32..70, 0u32..700), 1..200),
    ) {
        let bloks = bloks(count);
        let note = intents().begin(0, 0);
        let mut held: Vec<u32> = Vec::new();
        // The file is open up to here: whole words, or all.
        let mut end = count as u64;
        for (step, want, place) in steps {
            let below = u64::from(place) % count as u64 / 64 * 64;
            match step {
                0 if below < end => {
                    bloks.set_end(below);
                    if bloks.close_if_free(below..end) {
                        prop_assert_eq!(bloks.used(), owned(&bloks));
                        bloks.permit(below..end);
                        end = below;
                    }
                    bloks.set_end(end);
                }
                1 if end < count as u64 => {
                    bloks.open(end..count as u64);
                    end = count as u64;
                    bloks.set_end(end);
                }
                2 if !held.is_empty() => {
                    bloks.free(held.swap_remove(place as usize % held.len()), 1);
                }
                _ => {
                    let run = take(&bloks, want, Some(place), 1, &note);
                    held.extend(run.iter().flat_map(|run| run.first..run.first + run.count));
                }
            }
            prop_assert_eq!(bloks.used(), owned(&bloks));
            prop_assert_eq!(bloks.used(), held.len() as u64);
        }
    }

    #[test]
    fn the_run_found_is_free_and_long_enough(word: u64, want in 1u32..=64) {
        let (bit, len) = longest_run(word, want);
        if len > 0 {
            prop_assert_eq!(word & mask(bit, len), mask(bit, len));
        }
        let longest = (1..=64u32).rev().find(|&n| (0..=64 - n).any(|b| word & mask(b, n) == mask(b, n)));
        prop_assert_eq!(len, longest.unwrap_or(0).min(want));
    }
}

#[test]
fn an_extent_that_ends_within_a_word_is_closed_and_opened_again() {
    let bloks = bloks(100);
    assert!(bloks.close_if_free(64..100));
    assert_eq!(bloks.free_below(100), 64);
    bloks.permit(64..100);
    bloks.open(64..100);
    assert_eq!(bloks.free_below(100), 100);
}
