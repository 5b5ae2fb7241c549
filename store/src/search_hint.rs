//! Where to look first: "a hint pointer to the earliest structure which is known to have
//! free bloks" (Nemesis, section 6.6), for many processes at once.
//!
//! Rule: what is freed before the hint lowers it, what is freed after it writes nothing, so
//! that threads that free pages do not fight for the hint's cache line. A searcher that
//! moves the hint up looks once more at what it passes over: either it sees what was freed
//! meanwhile, or whoever freed it sees the moved hint. A searcher that dies in between is
//! put right by `retire`.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A position.
#[derive(Clone, Copy)]
pub(crate) struct SearchHint(pub &'static AtomicU64);

impl SearchHint {
    /// Where to begin a search.
    pub fn start(self) -> usize {
        self.0.load(Ordering::Acquire) as usize
    }

    /// The search that began at `seen` found nothing before `position`; `first_free` says
    /// whether that is still so.
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

    /// Something at `position` has become free.
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
    fn what_is_freed_while_the_hint_is_raised_is_found_again() {
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
