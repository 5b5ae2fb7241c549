//! Which segments there are, how much of each is live, and which one to clean.
//!
//! A page that is written again, or moved, is dead in its old segment. A segment without live pages is deleted. Where
//! much is dead the segment with the least part of live pages is *cleaned*: these are written to another segment.
//!
//! Rule: what is stored is at most twice what is live, and [`SLACK_PAGES`], once cleaning has caught up. A segment whose
//! cleaning fails is kept from it for a number of segments that a program writes, which doubles each time: a store that
//! works again after an outage catches up, and a segment that is lost for good is no work for each write.
//!
//! Rule: a segment that is kept from cleaning counts neither as stored nor as live meanwhile. Where it did, segments that a
//! store has lost would have wholly live ones cleaned, of which each becomes one of the same size, without end.

use std::collections::{BTreeMap, BTreeSet};

/// Most pages of a segment: 1 MiB.
pub const SEGMENT_PAGES: usize = 256;
/// Dead pages that are never worth cleaning: 16 MiB.
pub const SLACK_PAGES: u64 = 4096;

/// The number of a segment, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentNumber(pub u64);

/// Failures after which the number of writes that a segment waits for grows no more.
const MAX_DOUBLINGS: u32 = 16;

/// Whether a segment may be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleaning {
    Possible,
    UnderWay,
    /// Not before programs have written so many segments.
    KeptUntil(u64),
}

#[derive(Debug)]
struct SegmentUse {
    /// The page that each of its places was written with.
    pages: Box<[u32]>,
    live: u32,
    is_written: bool,
    cleaning: Cleaning,
    /// How often it could not be cleaned.
    failures: u32,
}

impl SegmentUse {
    /// Its live part, in thousandths.
    fn rank(&self) -> u32 {
        self.live * 1000 / (self.pages.len() as u32).max(1)
    }

    /// Its pages, and those of them that are live, where cleaning may change that.
    fn counted(&self) -> [u64; 2] {
        match self.cleaning {
            Cleaning::KeptUntil(_) => [0, 0],
            _ => [self.pages.len() as u64, self.live.into()],
        }
    }
}

/// The segments of a space.
#[derive(Debug, Default)]
pub struct Segments {
    all: BTreeMap<SegmentNumber, SegmentUse>,
    /// Those that may be cleaned, by their live parts.
    by_rank: BTreeSet<(u32, SegmentNumber)>,
    /// Those that may be cleaned later, by the number of written segments.
    kept: BTreeSet<(u64, SegmentNumber)>,
    /// Segments that programs have written.
    written: u64,
    /// Pages of all segments but those that are kept from cleaning, and the live ones of them.
    stored: u64,
    live: u64,
    dead: Vec<SegmentNumber>,
}

impl Segments {
    /// A segment is being written with these pages, none of which is live yet.
    pub fn begin(&mut self, number: SegmentNumber, pages: Box<[u32]>) {
        self.stored += pages.len() as u64;
        let segment = SegmentUse {
            pages,
            live: 0,
            is_written: false,
            cleaning: Cleaning::Possible,
            failures: 0,
        };
        self.all.insert(number, segment);
    }

    /// The write of a segment has ended, and its pages were placed: [`Segments::place`].
    pub fn complete(&mut self, number: SegmentNumber) {
        self.update(number, |segment| segment.is_written = true);
    }

    /// A page is in a segment now, and not any more in an earlier one.
    pub fn place(&mut self, number: SegmentNumber, earlier: Option<SegmentNumber>) {
        self.update(number, |segment| segment.live += 1);
        if let Some(earlier) = earlier {
            self.remove(earlier);
        }
    }

    /// A page is not in a segment any more.
    pub fn remove(&mut self, number: SegmentNumber) {
        self.update(number, |segment| segment.live -= 1);
    }

    /// Changes a segment, counts it, and ranks it anew.
    fn update(&mut self, number: SegmentNumber, change: impl FnOnce(&mut SegmentUse)) {
        let Some(segment) = self.all.get_mut(&number) else {
            return;
        };
        self.by_rank.remove(&(segment.rank(), number));
        if let Cleaning::KeptUntil(written) = segment.cleaning {
            self.kept.remove(&(written, number));
        }
        let [stored, live] = segment.counted();
        change(segment);
        let [then_stored, then_live] = match segment.is_written && segment.live == 0 {
            true => [0, 0],
            false => segment.counted(),
        };
        self.stored = self.stored - stored + then_stored;
        self.live = self.live - live + then_live;
        match segment {
            segment if !segment.is_written => {}
            segment if segment.live == 0 => {
                self.all.remove(&number);
                self.dead.push(number);
            }
            segment => match segment.cleaning {
                Cleaning::Possible => _ = self.by_rank.insert((segment.rank(), number)),
                Cleaning::UnderWay => {}
                Cleaning::KeptUntil(written) => _ = self.kept.insert((written, number)),
            },
        }
    }

    /// Takes the segments that are to be deleted.
    pub fn take_dead(&mut self) -> Vec<SegmentNumber> {
        std::mem::take(&mut self.dead)
    }

    /// The store has written a segment of a program's pages.
    pub fn count_written(&mut self) {
        self.written += 1;
        while let Some((_, number)) = self.kept.first().filter(|kept| kept.0 <= self.written) {
            self.update(*number, |segment| segment.cleaning = Cleaning::Possible);
        }
    }

    /// Takes the segment that is to be cleaned now, if too much is dead, until [`Segments::end_cleaning`].
    pub fn take_to_clean(&mut self) -> Option<SegmentNumber> {
        if self.stored <= 2 * self.live + SLACK_PAGES {
            return None;
        }
        let (_, number) = *self.by_rank.first()?;
        self.update(number, |segment| segment.cleaning = Cleaning::UnderWay);
        Some(number)
    }

    /// Cleaning of a segment has ended. One that is still there was not cleaned, or not wholly.
    pub fn end_cleaning(&mut self, number: SegmentNumber) {
        let written = self.written;
        self.update(number, |segment| {
            let wait = 1 << segment.failures.min(MAX_DOUBLINGS);
            segment.failures += 1;
            segment.cleaning = Cleaning::KeptUntil(written + wait);
        });
    }

    /// Returns true if so much is dead that writes wait for the cleaning that is under way.
    pub fn is_overfull(&self) -> bool {
        self.stored > 3 * self.live + 2 * SLACK_PAGES
    }

    /// The pages that a segment was written with.
    pub fn pages(&self, number: SegmentNumber) -> &[u32] {
        self.all.get(&number).map_or(&[], |segment| &segment.pages)
    }

    /// Pages that are stored, and those of them that are live, but for segments that are kept from cleaning.
    #[cfg(test)]
    pub fn counts(&self) -> (u64, u64) {
        (self.stored, self.live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Pages and their segments, beside the policy.
    #[derive(Default)]
    struct Model {
        segments: Segments,
        places: HashMap<u32, SegmentNumber>,
        objects: BTreeSet<SegmentNumber>,
        next: u64,
    }

    impl Model {
        fn write(&mut self, pages: &[u32]) {
            self.write_segment(pages);
            self.segments.count_written();
        }

        fn write_segment(&mut self, pages: &[u32]) {
            self.next += 1;
            let number = SegmentNumber(self.next);
            self.segments.begin(number, pages.into());
            self.objects.insert(number);
            for page in pages {
                let earlier = self.places.insert(*page, number);
                self.segments.place(number, earlier);
            }
            self.segments.complete(number);
            self.delete();
        }

        fn delete(&mut self) {
            for number in self.segments.take_dead() {
                assert!(self.places.values().all(|place| *place != number));
                assert!(self.objects.remove(&number));
            }
        }

        fn clean(&mut self) {
            self.clean_all_but(&BTreeSet::new());
        }

        /// Likewise, where the store has lost some. Returns how many segments were taken.
        fn clean_all_but(&mut self, lost: &BTreeSet<SegmentNumber>) -> usize {
            let mut taken = 0;
            while let Some(number) = self.segments.take_to_clean() {
                taken += 1;
                assert!(taken <= 100_000, "cleaning goes on");
                if !lost.contains(&number) {
                    let pages = self.segments.pages(number).iter().copied();
                    let live = pages.filter(|page| self.places[page] == number);
                    let live: BTreeSet<u32> = live.collect();
                    self.write_segment(&live.into_iter().collect::<Vec<_>>());
                }
                self.segments.end_cleaning(number);
            }
            taken
        }

        /// Likewise, where the store refuses. Returns how many segments it was tried for.
        fn fail_to_clean(&mut self) -> usize {
            let taken = std::iter::from_fn(|| {
                let number = self.segments.take_to_clean()?;
                self.segments.end_cleaning(number);
                Some(number)
            });
            taken.count()
        }

        /// Writes pages so often that too much is dead, and leaves a live one in each segment.
        fn write_dead_pages(&mut self) {
            for first in (0..2 * SLACK_PAGES as u32).step_by(SEGMENT_PAGES) {
                let pages: Vec<u32> = (first..first + SEGMENT_PAGES as u32).collect();
                (0..4).for_each(|skipped| self.write(&pages[skipped..]));
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_stored_is_bounded_and_no_live_page_is_deleted(
            writes in vec(vec(0..2000u32, 1..SEGMENT_PAGES), 1..200),
            outage in 0..200usize,
        ) {
            let mut model = Model::default();
            for (index, pages) in writes.iter().enumerate() {
                model.write(pages);
                if index == outage {
                    model.fail_to_clean();
                    // Once for each segment that may have failed.
                    model.write(&[0]);
                }
                model.clean();
                let (stored, live) = model.segments.counts();
                prop_assert_eq!(live, model.places.len() as u64);
                prop_assert!(stored <= 2 * live + SLACK_PAGES);
                prop_assert!(model.places.values().all(|number| model.objects.contains(number)));
            }
        }
    }

    #[test]
    fn segments_that_were_not_cleaned_in_an_outage_are_cleaned_after_it() {
        let mut model = Model::default();
        model.write_dead_pages();
        for _ in 0..2 {
            assert!(model.fail_to_clean() > 0);
            assert_eq!(model.fail_to_clean(), 0);
            // None was written since, or fewer than it waits for.
            model.write(&[0]);
            model.write(&[0]);
        }
        model.clean();
        let (stored, live) = model.segments.counts();
        assert!(stored <= 2 * live + SLACK_PAGES, "{stored} of {live}");
    }

    #[test]
    fn cleaning_ends_where_a_store_has_lost_what_could_be_cleaned() {
        let mut model = Model::default();
        model.write_dead_pages();
        let lost = model.objects.clone();
        assert!(model.clean_all_but(&lost) <= lost.len());
        let first = 2 * SLACK_PAGES as u32;
        let pages: Vec<u32> = (first..first + SEGMENT_PAGES as u32).collect();
        let taken: usize = (0..100)
            .map(|_| {
                model.write(&pages);
                assert!(!model.segments.is_overfull());
                model.clean_all_but(&lost)
            })
            .sum();
        assert!(
            taken <= 8 * lost.len(),
            "{taken} segments taken of {}",
            lost.len()
        );
    }

    #[test]
    fn a_segment_that_is_lost_is_tried_more_and_more_seldom() {
        let mut model = Model::default();
        model.write_dead_pages();
        let tries: usize = (0..100)
            .map(|_| {
                model.write(&[0]);
                model.fail_to_clean()
            })
            .sum();
        let segments = model.objects.len();
        assert!(
            tries <= 8 * segments,
            "{tries} tries of {segments} segments"
        );
    }

    #[test]
    fn a_segment_that_is_being_written_is_not_deleted() {
        let mut segments = Segments::default();
        segments.begin(SegmentNumber(1), [7].into());
        segments.begin(SegmentNumber(2), [7].into());
        segments.place(SegmentNumber(1), None);
        segments.place(SegmentNumber(2), Some(SegmentNumber(1)));
        assert!(segments.take_dead().is_empty());
        segments.complete(SegmentNumber(1));
        assert_eq!(segments.take_dead(), [SegmentNumber(1)]);
    }

    #[test]
    fn a_segment_whose_write_failed_is_deleted() {
        let mut segments = Segments::default();
        segments.begin(SegmentNumber(1), [7].into());
        segments.complete(SegmentNumber(1));
        assert_eq!(segments.take_dead(), [SegmentNumber(1)]);
        assert_eq!(segments.counts(), (0, 0));
    }
}
