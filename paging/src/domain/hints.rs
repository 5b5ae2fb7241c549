//! The program's hints about its next accesses to a stretch.

use super::{Stretch, StretchError};
use crate::prefetch::AccessLog;
use crate::working_set::WorkingSet;
use std::ops::Range;

impl Stretch {
    /// Announces that a range of bytes will be used soon: it is brought in while the program
    /// continues, up to three quarters of the frames. A hint: a page that cannot be brought in
    /// is skipped.
    ///
    /// # Errors
    /// [`StretchError::Outside`], or the domain's thread for this could not be started.
    pub fn prefetch(&self, bytes: Range<usize>) -> Result<(), StretchError> {
        let pages = self.page_range(bytes)?;
        self.submit(vec![pages])
    }

    /// As [`Stretch::prefetch`], for a set that was recorded, in its order. Pages beyond the
    /// stretch are skipped.
    ///
    /// # Errors
    /// The domain's thread for this could not be started.
    pub fn replay(&self, set: &WorkingSet) -> Result<(), StretchError> {
        self.submit(set.runs().collect())
    }

    fn submit(&self, runs: Vec<Range<usize>>) -> Result<(), StretchError> {
        let _operation = self.shared.operate()?;
        self.shared.prefetcher()?.submit(self.inner.id(), runs);
        Ok(())
    }

    /// Waits until every page requested by [`Stretch::prefetch`] and [`Stretch::replay`] in
    /// this domain is resident, or has failed.
    pub fn await_prefetch(&self) {
        if self.shared.is_same_process() {
            self.shared.prefetch.drain();
        }
    }

    /// Records from now on which pages come in, in order, until [`Stretch::recorded`]: of a stretch
    /// of more than 16 GiB those of the first 16 GiB.
    ///
    /// # Errors
    /// [`StretchError::Recording`] if they are being recorded already, or no memory.
    pub fn record(&self) -> Result<(), StretchError> {
        let log = AccessLog::new(self.pages()).map_err(|errno| StretchError::Table {
            pages: self.pages(),
            errno,
        })?;
        match self.inner.log().start(log) {
            true => Ok(()),
            false => Err(StretchError::Recording),
        }
    }

    /// Ends a recording and returns the pages that came in since, each at its first
    /// occurrence.
    pub fn recorded(&self) -> Option<WorkingSet> {
        let pager = self.shared.operate().ok()?;
        self.inner.log().finish(|| {
            let _control = pager.mm.control.lock();
            pager.mm.gate.close();
            pager.mm.gate.open();
        })
    }
}
