//! Deletes segments without live pages, and all of a run at its end.

use crate::operations::Ended;
use crate::segments::SegmentNumber;
use crate::transport::{ObjectTransport, PATIENCE};
use objectstore::ObjectError;
use std::time::Instant;

impl ObjectTransport {
    /// Begins to delete the segments that have died.
    pub(crate) fn delete_dead(&mut self) {
        for number in self.segments.take_dead() {
            self.operations.delete(number);
        }
    }

    /// Begins to delete a segment that could not be deleted. One for each success of the store, and for each write that
    /// finds no slot: all at once would be as many requests as failed in an outage.
    pub(crate) fn retry_deletion(&mut self) {
        if let Some(number) = self.undeleted.pop_front() {
            self.operations.delete(number);
        }
    }

    /// A segment was deleted, or was not.
    pub(crate) fn on_deleted(&mut self, number: SegmentNumber, result: Result<(), ObjectError>) {
        match result {
            Ok(()) => {
                if let Some(slot) = self.slots.remove(&number.0) {
                    self.table.free_slot(slot);
                    self.free_slots.push(slot);
                }
                self.retry_deletion();
            }
            Err(why) => {
                tracing::warn!("{why}; it is tried again when the store works, and at the end");
                self.undeleted.push_back(number);
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
