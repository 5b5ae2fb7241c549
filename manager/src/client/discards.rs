//! Discards that may be under way.
//!
//! The kernel reports a discard (MADV_REMOVE) once the event is read, and makes the hole afterwards: in between, the client's
//! thread may wait for a processor, or for the file's lock. It reports MADV_DONTNEED alike, which leaves a memfd's pages as they
//! are. So a resident page of which either is reported stays until a hole is seen there, or for [`LONGEST`]: a page that is
//! evicted in between would come back after its discard, with its contents.
//!
//! The pages are marked in the table ([`crate::page_table`]); here are the times, which begin anew in a manager that
//! follows another one.

use crate::page_table::UNIT;
use std::time::{Duration, Instant};

/// How long a thread may take from the report to the hole.
const LONGEST: Duration = Duration::from_secs(1);

/// When discards of resident pages were reported.
pub(super) struct Discards {
    begin: Instant,
    /// The time of each unit's last report, since the begin.
    reported: Vec<Duration>,
}

impl Discards {
    /// Of so many units. What was marked before counts as reported now.
    pub fn new(units: usize) -> Self {
        Self {
            begin: Instant::now(),
            reported: vec![Duration::ZERO; units],
        }
    }

    /// A discard of a page is reported.
    pub fn note(&mut self, page: usize) {
        self.reported[page / UNIT] = self.begin.elapsed();
    }

    /// Returns true if the discard of a page that is marked may be under way.
    pub fn may_be_under_way(&self, page: usize) -> bool {
        self.begin.elapsed() < self.reported[page / UNIT] + LONGEST
    }
}
