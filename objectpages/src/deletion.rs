//! Deletes segments without live pages, and all of a run at its end.
//!
//! A write may arrive after its segment was deleted: that of a process which was killed, and an attempt that was given up
//! for another. So what a killed process has left is deleted after [`PATIENCE`] only, and a segment that took several
//! attempts keeps its name when it is deleted: the end of the run deletes it once more, or this does, before it forgets
//! the name for others.

use crate::operations::Ended;
use crate::segments::SegmentNumber;
use crate::transport::{ObjectTransport, PATIENCE};
use disk::time::{Nanos, Time};
use objectstore::ObjectError;
use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

/// Deletions under way at once.
const MOST_DELETIONS: usize = 16;
/// Deleted segments that keep their names, of a store that is late all the time: a quarter of the spare ones. Of more the
/// first is deleted once more, and keeps none then.
const MOST_NAMES: usize = 256;

/// Segments on their way out of the store.
#[derive(Default)]
pub(crate) struct Deletions {
    /// Those that are to be deleted.
    pub waiting: VecDeque<SegmentNumber>,
    under_way: usize,
    /// A warning is given for the first that cannot be deleted.
    has_warned: bool,
    /// Those that an earlier process has left, until they are deleted, from a time on.
    left: Vec<SegmentNumber>,
    left_until: Option<Time>,
    /// Those that may arrive once more, and those of them that were deleted.
    repeated: BTreeSet<SegmentNumber>,
    kept: VecDeque<SegmentNumber>,
}

impl Deletions {
    /// None but those that an earlier process has left.
    pub fn of_left(left: Vec<SegmentNumber>) -> Self {
        Self {
            left,
            ..Self::default()
        }
    }

    /// When those are deleted.
    pub fn left_due(&self) -> Option<Time> {
        self.left_until.filter(|_| !self.left.is_empty())
    }

    /// A write of a segment has ended, and an attempt of it may be carried out later still.
    pub fn on_given_up(&mut self, number: SegmentNumber) {
        self.repeated.insert(number);
    }

    /// A segment was deleted. Returns true if its name is needed no more.
    fn on_deleted(&mut self, number: SegmentNumber) -> bool {
        if !self.repeated.remove(&number) {
            return true;
        }
        self.kept.push_back(number);
        if self.kept.len() > MOST_NAMES {
            self.waiting.extend(self.kept.pop_front());
        }
        false
    }
}

impl ObjectTransport {
    /// Deletes what an earlier process has left, once no write of its can arrive any more.
    pub(crate) fn delete_left(&mut self, now: Time) {
        if self.deletions.left.is_empty() {
            return;
        }
        let until = now + Nanos::from(PATIENCE);
        if now >= *self.deletions.left_until.get_or_insert(until) {
            let left = std::mem::take(&mut self.deletions.left);
            self.deletions.waiting.extend(left);
            self.begin_deletions();
        }
    }

    /// Begins to delete the segments that have died.
    pub(crate) fn delete_dead(&mut self) {
        let dead = self.segments.take_dead();
        if !dead.is_empty() {
            self.deletions.waiting.extend(dead);
            self.begin_deletions();
        }
    }

    /// Begins to delete segments, a few at a time: in an outage as many may die as the program has. Called for those that
    /// have died, for each success of the store, and for each write that finds no slot; not where a deletion has failed.
    pub(crate) fn begin_deletions(&mut self) {
        while self.deletions.under_way < MOST_DELETIONS
            && let Some(number) = self.deletions.waiting.pop_front()
        {
            self.deletions.under_way += 1;
            self.operations.delete(number);
        }
    }

    /// A segment was deleted, or was not.
    pub(crate) fn on_deleted(&mut self, number: SegmentNumber, result: Result<(), ObjectError>) {
        self.deletions.under_way -= 1;
        match result {
            Ok(()) => {
                let is_unneeded = self.deletions.on_deleted(number);
                if is_unneeded && let Some(slot) = self.slots.remove(&number.0) {
                    self.table.free_slot(slot);
                    self.free_slots.push(slot);
                }
                self.deletions.has_warned = false;
                self.begin_deletions();
            }
            Err(why) => {
                if !std::mem::replace(&mut self.deletions.has_warned, true) {
                    tracing::warn!(
                        "{why}; it is tried again, as others are, when the store works, and at the end"
                    );
                }
                self.deletions.waiting.push_back(number);
            }
        }
    }
}

impl Drop for ObjectTransport {
    /// Nothing of a run that has ended stays. What another process goes on from does.
    fn drop(&mut self) {
        if !self.table.has_ended() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        // A segment that arrives after it was deleted would stay.
        while !self.writes.is_empty() {
            match self
                .operations
                .wait(until.saturating_duration_since(Instant::now()))
            {
                Some(Ended::Written(number, _)) => _ = self.writes.remove(&number),
                Some(_) => {}
                None => break,
            }
        }
        let named = self.table.named_segments();
        self.operations
            .delete_run(named.filter_map(|(_, segment)| segment));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_forgotten_once_its_segment_was_deleted_again() {
        let mut deletions = Deletions::default();
        for number in (0..=MOST_NAMES as u64).map(SegmentNumber) {
            assert!(deletions.waiting.is_empty());
            deletions.on_given_up(number);
            assert!(!deletions.on_deleted(number));
        }
        assert_eq!(deletions.waiting.pop_front(), Some(SegmentNumber(0)));
        assert!(deletions.on_deleted(SegmentNumber(0)));
        assert!(deletions.waiting.is_empty());
    }
}
