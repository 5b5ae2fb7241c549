//! LRU+SIZE: which paging objects migrate to free a number of pages.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.3.2: the queue of objects is
//! scanned from its least recently used end until their sizes sum to S; of those, the largest
//! whose combined size meets the goal migrate. S is twice the goal. A larger S prefers large
//! objects over idle ones.
//!
//! Rule: ties are settled, so that server and organizer choose alike. Of objects that were used at
//! the same time, the one with fewer faults counts as idler, then the one with the lower id; of
//! objects of one size, the idler one migrates.

use crate::identity::ObjectId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// S as a multiple of the goal (section 3.3.2).
pub const SCAN_FACTOR: u64 = 2;

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectUse {
    /// The paging object.
    pub object: ObjectId,
    /// Its size: the pages written, which are what migration moves and frees.
    pub size_pages: u64,
    /// When it was read or written last.
    pub last_used: Duration,
    /// Faults on it so far.
    pub faults: u64,
}

/// The objects to migrate so that at least `goal_pages` are freed, largest first; all that have
/// pages where they sum to less.
pub fn select(objects: impl IntoIterator<Item = ObjectUse>, goal_pages: u64) -> Vec<ObjectUse> {
    if goal_pages == 0 {
        return Vec::new();
    }
    let mut queue: Vec<_> = objects
        .into_iter()
        .filter(|one| one.size_pages > 0)
        .collect();
    queue.sort_by_key(|one| (one.last_used, one.faults, one.object));
    let scanned = first_of(&queue, goal_pages.saturating_mul(SCAN_FACTOR));
    let by_size = |(rank, one): (usize, &ObjectUse)| (one.size_pages, Reverse(rank));
    let mut heap: BinaryHeap<_> = queue[..scanned].iter().enumerate().map(by_size).collect();
    let mut selected = Vec::new();
    let mut sum = 0u64;
    while sum < goal_pages {
        let Some((size_pages, Reverse(rank))) = heap.pop() else {
            break;
        };
        sum = sum.saturating_add(size_pages);
        selected.push(queue[rank]);
    }
    selected
}

/// How many objects from the head of the queue sum to `pages`.
fn first_of(queue: &[ObjectUse], pages: u64) -> usize {
    let mut sum = 0u64;
    for (rank, one) in queue.iter().enumerate() {
        if sum >= pages {
            return rank;
        }
        sum = sum.saturating_add(one.size_pages);
    }
    queue.len()
}
