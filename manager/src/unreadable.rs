//! Pages whose reads have failed, and are tried again: a device or a server may come back.

use std::time::{Duration, Instant};

/// How long the reads of a page may fail before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a page rests after a read that failed at once.
const PAUSE: Duration = Duration::from_millis(2);

/// Pages whose time is kept at once; others wait until a place is free. Faults allocate nothing.
const MOST: usize = 16;

/// The pages, and when a read of each failed first.
pub struct UnreadablePages<P>([Option<(P, Instant)>; MOST]);

impl<P> Default for UnreadablePages<P> {
    fn default() -> Self {
        Self([const { None }; MOST])
    }
}

impl<P: Copy + PartialEq> UnreadablePages<P> {
    /// A read of a page has failed. Returns true if it may be read again.
    pub fn on_failed(&mut self, page: P, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        if let Some((_, since)) = self.0.iter().flatten().find(|(it, _)| *it == page) {
            return !is_over(*since);
        }
        // A page that was discarded meanwhile keeps its place until its time is over.
        let mut places = self.0.iter_mut();
        let free = places.find(|it| it.is_none_or(|(_, since)| is_over(since)));
        free.into_iter()
            .for_each(|place| *place = Some((page, now)));
        true
    }

    /// Returns true while a page whose read has failed, at that time, is not to be read again.
    pub fn rests(&self, page: P, failed: Option<Instant>) -> bool {
        failed.is_some_and(|failed| failed.elapsed() < PAUSE)
            && self.0.iter().flatten().any(|(it, _)| *it == page)
    }

    /// A page has been read, or counts as lost.
    pub fn forget(&mut self, page: P) {
        let mut places = self.0.iter_mut();
        if let Some(place) = places.find(|it| it.is_some_and(|(it, _)| it == page)) {
            *place = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_again_for_its_own_patience() {
        let begin = Instant::now();
        let mut pages = UnreadablePages::default();
        let later = |part: u32| begin + PATIENCE * part / 4;
        assert!(pages.on_failed(1, begin));
        assert!(pages.on_failed(2, later(3)));
        pages.forget(7);
        assert!(!pages.on_failed(1, later(4)), "another page was read");
        pages.forget(1);
        assert!(pages.on_failed(2, later(4)));
        assert!(pages.on_failed(1, later(5)), "it was read since");
    }

    #[test]
    fn more_pages_than_have_a_place_wait_for_one() {
        let begin = Instant::now();
        let mut pages = UnreadablePages::default();
        assert!((0..=MOST).all(|page| pages.on_failed(page, begin)));
        pages.forget(0);
        assert!(pages.on_failed(MOST, begin + PATIENCE / 2));
        assert!(!pages.on_failed(1, begin + PATIENCE));
        assert!(pages.on_failed(MOST, begin + PATIENCE));
        assert!(!pages.on_failed(MOST, begin + PATIENCE * 2));
    }
}
