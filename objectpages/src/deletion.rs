//! Deletes segments without live pages, and all of a run at its end.

use crate::operations::Ended;
use crate::segments::SegmentNumber;
use crate::transport::{ObjectTransport, PATIENCE};
use objectstore::ObjectError;
use std::collections::VecDeque;
use std::time::Instant;

/// Deletions under way at once.
const MOST_DELETIONS: usize = 16;

/// Segments on their way out of the store.
#[derive(Default)]
pub(crate) struct Deletions {
    /// Those that are to be deleted.
    pub waiting: VecDeque<SegmentNumber>,
    under_way: usize,
    /// A warning is given for the first that cannot be deleted.
    has_warned: bool,
}

impl ObjectTransport {
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
                if let Some(slot) = self.slots.remove(&number.0) {
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
