//! Wakes that are put off: pages are mapped, and all threads that wait for them are woken at once.

use std::cell::Cell;
use std::ops::Range;
use translation::{Userfault, Wake};

/// Pages that were mapped without a wake. Off at first.
#[derive(Default)]
pub(crate) struct DeferredWake {
    is_on: Cell<bool>,
    /// From the first of the pages to the last; empty if there is none.
    mapped: Cell<(usize, usize)>,
}

impl DeferredWake {
    /// From now on wakes are put off.
    pub fn begin(&self) {
        self.is_on.set(true);
    }

    /// Whether to wake the threads that wait for these pages as they are mapped.
    pub fn for_pages(&self, pages: Range<usize>) -> Wake {
        if !self.is_on.get() {
            return Wake::Yes;
        }
        let (start, end) = match self.mapped.get() {
            (_, 0) => (pages.start, pages.end),
            (start, end) => (start.min(pages.start), end.max(pages.end)),
        };
        self.mapped.set((start, end));
        Wake::No
    }

    /// Returns true if a thread may wait to be woken.
    pub fn are_put_off(&self) -> bool {
        self.mapped.get().1 > 0
    }

    /// Wakes the threads that wait for the pages mapped since [`DeferredWake::begin`], and puts no wake off any more.
    /// Threads that wait for other pages between them are woken, too, and fault again.
    pub fn end(&self, userfault: &Userfault) {
        self.is_on.set(false);
        let (start, end) = self.mapped.take();
        if end > 0 {
            let _ = userfault.wake(start, end - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_wake_has_all_pages_that_were_mapped() {
        let wakes = DeferredWake::default();
        assert_eq!(wakes.for_pages(0x5000..0x6000), Wake::Yes);
        wakes.begin();
        assert!(!wakes.are_put_off());
        for start in [0x5000, 0x9000, 0x3000, 0x7000] {
            assert_eq!(wakes.for_pages(start..start + 0x1000), Wake::No);
        }
        assert!(wakes.are_put_off());
        assert_eq!(wakes.mapped.get(), (0x3000, 0xa000));
    }
}
