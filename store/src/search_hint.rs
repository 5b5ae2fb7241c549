//! Where a search starts: "a hint pointer to the earliest structure which is known to have free
//! bloks" (Nemesis, section 6.6), for many processes at once.
//!
//! Rule: freeing before the hint lowers it, freeing after it writes nothing, so that threads that
//! free pages do not contend for the hint's cache line. A searcher that raises the hint checks
//! again what it passes over: either it sees what was freed meanwhile, or the thread that freed it
//! sees the raised hint. `retire` repairs the hint after a searcher that dies in between.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A position.
#[derive(Clone, Copy)]
pub(crate) struct SearchHint(pub &'static AtomicU64);

impl SearchHint {
    /// First position of a search.
    pub fn start(self) -> usize {
        self.0.load(Ordering::Acquire) as usize
    }

    /// Raises the hint after a search from `seen` found nothing before `position`; `first_free`
    /// checks again.
    pub fn raise(
        self,
        seen: usize,
        position: usize,
        first_free: impl FnOnce(Range<usize>) -> Option<usize>,
    ) {
        let moved = position > seen
            && self
                .0
                .compare_exchange(
                    seen as u64,
                    position as u64,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
                .is_ok();
        if moved {
            fence(Ordering::SeqCst);
            if let Some(free) = first_free(seen..position) {
                self.lower(free);
            }
        }
    }

    /// Lowers the hint to a position that became free.
    pub fn lower(self, position: usize) {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::SeqCst) > position as u64 {
            self.0.fetch_min(position as u64, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint() -> SearchHint {
        SearchHint(Box::leak(Box::default()))
    }

    #[test]
    fn entries_freed_while_the_hint_is_raised_are_found_again() {
        let hint = hint();
        let seen = hint.start();
        hint.raise(seen, 9, |passed| {
            assert_eq!(passed, 0..9);
            Some(4)
        });
        assert_eq!(hint.start(), 4);
    }

    #[test]
    fn a_search_that_began_elsewhere_moves_nothing() {
        let hint = hint();
        hint.raise(0, 7, |_| None);
        hint.raise(3, 20, |_| None);
        assert_eq!(hint.start(), 7);
        hint.lower(12);
        assert_eq!(hint.start(), 7);
        hint.lower(2);
        assert_eq!(hint.start(), 2);
    }
}
