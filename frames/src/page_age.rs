//! How old a domain's oldest page is: trims of other domains go by it ([`crate::Ledger::trim_idle`]).

use crate::millis::Millis;
use std::sync::atomic::{AtomicU32, Ordering};

/// The age of a domain's oldest page, roughly: frames go round, so that it came in the lap before
/// this one.
#[derive(Default)]
pub struct PageAge {
    /// Frames taken in this lap, which ends when they are as many as the domain owns.
    taken: AtomicU32,
    /// When this lap began, and the one before: [`Millis`].
    began: AtomicU32,
    before: AtomicU32,
}

impl PageAge {
    /// Records that a frame was taken by a domain that owns `owned`.
    pub fn note_taken(&self, owned: u32) {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        if taken >= owned {
            self.taken.store(0, Ordering::Relaxed);
            let began = self.began.swap(Millis::now().0, Ordering::Relaxed);
            self.before.store(began, Ordering::Relaxed);
        }
    }

    /// When the oldest page came. `None` until two laps have ended: all pages are young then.
    pub fn oldest(&self) -> Option<Millis> {
        // A lap that ends in the one millisecond of 49 days that is 0 counts as none.
        let before = self.before.load(Ordering::Relaxed);
        (before != 0).then_some(Millis(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_no_oldest_page_until_its_second_lap_has_ended() {
        let age = PageAge::default();
        let began = Millis::now();
        for taken in 1..=20 {
            assert_eq!(age.oldest(), None, "{taken}");
            age.note_taken(10);
        }
        let oldest = age.oldest().unwrap();
        assert!(oldest.since(began) < 60_000);
    }
}
