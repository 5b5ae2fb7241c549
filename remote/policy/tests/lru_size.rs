//! LRU+SIZE as in section 3.3.2 of the paper, and its ties.

mod common;

use common::object;
use proptest::prelude::*;
use selfpage_remote_policy::identity::ObjectId;
use selfpage_remote_policy::lru_size::{ObjectUse, SCAN_FACTOR, select};
use std::time::Duration;

fn usage(number: u64, size_pages: u64, last_used: u64, faults: u64) -> ObjectUse {
    ObjectUse {
        object: object(1, number),
        size_pages,
        last_used: Duration::from_secs(last_used),
        faults,
    }
}

fn numbers(objects: &[ObjectUse], goal_pages: u64) -> Vec<u64> {
    select(objects.iter().copied(), goal_pages)
        .iter()
        .map(|one| one.object.number)
        .collect()
}

#[test]
fn the_largest_of_the_idlest_migrates() {
    // S is 20: the first three sum to 22, so the fourth, larger than all, is not scanned.
    let objects = [
        usage(1, 4, 1, 0),
        usage(2, 6, 2, 0),
        usage(3, 12, 3, 0),
        usage(4, 99, 4, 0),
    ];
    assert_eq!(numbers(&objects, 10), [3]);
    assert_eq!(numbers(&objects, 11), [3]);
    assert_eq!(numbers(&objects[..2], 7), [2, 1]);
}

#[test]
fn ties_are_settled_by_faults_then_by_the_lower_id() {
    let equal = [usage(3, 5, 1, 0), usage(1, 5, 1, 0), usage(2, 5, 1, 0)];
    assert_eq!(numbers(&equal, 5), [1]);
    let by_faults = [usage(1, 5, 1, 9), usage(2, 5, 1, 1)];
    assert_eq!(numbers(&by_faults, 5), [2]);
    let by_idleness = [usage(1, 5, 2, 0), usage(2, 5, 1, 0)];
    assert_eq!(numbers(&by_idleness, 5), [2]);
}

#[test]
fn objects_without_pages_never_migrate() {
    assert_eq!(numbers(&[usage(1, 0, 1, 0)], 5), [0u64; 0]);
    assert_eq!(numbers(&[usage(1, 5, 1, 0)], 0), [0u64; 0]);
}

proptest! {
    #[test]
    fn a_selection_meets_its_goal_from_the_idlest_alone(
        objects in prop::collection::vec((0u64..40, 0u64..10, 0u64..5), 0..40),
        goal_pages in 1u64..300,
    ) {
        let numbered = objects.into_iter().enumerate();
        let objects: Vec<_> = numbered.map(|(n, (size, used, faults))| usage(n as u64, size, used, faults)).collect();
        let selected = select(objects.iter().copied(), goal_pages);
        let sum = |some: &[ObjectUse]| some.iter().map(|one| one.size_pages).sum::<u64>();
        prop_assert!(sum(&selected) >= goal_pages || sum(&selected) == sum(&objects));
        // No object more than the goal needs.
        if let Some((_, all_but_last)) = selected.split_last() {
            prop_assert!(sum(all_but_last) < goal_pages);
        }
        // Those idler than the most recently used of the selection sum to less than S.
        let key = |one: &ObjectUse| (one.last_used, one.faults, one.object);
        if let Some(last) = selected.iter().map(key).max() {
            let idler: Vec<_> = objects.iter().copied().filter(|one| key(one) < last).collect();
            prop_assert!(sum(&idler) < SCAN_FACTOR * goal_pages);
        }
        let mut again: Vec<_> = objects.clone();
        again.reverse();
        let ids = |some: &[ObjectUse]| some.iter().map(|one| one.object).collect::<Vec<ObjectId>>();
        prop_assert_eq!(ids(&select(again, goal_pages)), ids(&selected));
    }
}
