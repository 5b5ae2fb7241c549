//! Where to look first: "a hint pointer to the earliest structure which is known to have
//! free bloks" (Nemesis, section 6.6), for many processes at once.
//!
//! The word counts its changes, so that a search that found nothing below some place moves
//! the hint there only if nothing was freed meanwhile: a freed place is never passed over
//! for good.

use std::sync::atomic::{AtomicU64, Ordering};

/// Version in the upper half, position in the lower.
#[derive(Clone, Copy)]
pub(crate) struct Hint(pub &'static AtomicU64);

/// What the hint said when a search began.
#[derive(Clone, Copy)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Where to begin.
    pub fn position(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

impl Hint {
    /// Looks, before a search.
    pub fn look(self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// The search found nothing before `position`.
    pub fn raise(self, seen: Seen, position: usize) {
        if position > seen.position() {
            let next = word(seen.0, position);
            let _ = self
                .0
                .compare_exchange(seen.0, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Something at `position` has become free.
    pub fn lower(self, position: usize) {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let next = word(now, position.min(Seen(now).position()));
            match self
                .0
                .compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

fn word(before: u64, position: usize) -> u64 {
    ((before >> 32).wrapping_add(1) << 32) | position as u64
}
