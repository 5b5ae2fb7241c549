//! Replacement: which range of pages to take away next.
//!
//! Nemesis leaves this to the application (*Self-Paging in the Nemesis Operating System*,
//! section 6.6); so it is a trait, and this the default. Faults are the only reference bits
//! that cost nothing, and eviction works on ranges: one `mremap` takes 2 MiB. So
//! the default orders *ranges* by their faults alone, after S3-FIFO (Yang et al., SOSP
//! 2023, "FIFO queues are all you need for cache eviction"):
//!
//! - A range that comes in stands in the **small** queue, which is given a tenth of the
//!   frames. What a scan brings passes through it and out, and displaces little else.
//! - The second chance is the standby list: a page wanted while it is staged makes its
//!   range warm. A range that is warm when its turn comes goes to the **main** queue instead,
//!   and round it once for each time; the ghosts remember it for as many more evictions as
//!   there are ranges. (In the paper any ghost that returns joins the main queue. Here a
//!   cyclic scan would join too: it cost a third of the hits in `simulation.rs`, and
//!   without a scan a tenth.)
//! - A range with few pages in memory is passed over while there are better ones: the
//!   call costs the same for 8 pages as for 512.
//!
//! Rule: pure and bounded. No clock, and no allocation after construction.

mod queues;
#[cfg(test)]
mod simulation;

use queues::{QueueId, Queues};

/// Names a range: its stretch, and the range's number in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    /// Range `unit` of the stretch with this id. Ranges are numbered below 2^32.
    pub fn new(stretch: u32, unit: usize) -> Self {
        Self(u64::from(stretch) << 32 | unit as u64 & u64::from(u32::MAX))
    }

    /// The id of its stretch.
    pub fn stretch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Its number in the stretch.
    pub fn unit(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

/// Chooses the range whose pages are evicted next, from the faults that it is given.
pub trait Replacement {
    /// Records that a page came into a range. Required once for each time that the range was a
    /// victim or emptied; more calls do no harm. Returns false if the tables are full: the
    /// range will not be a victim unless it is recorded again.
    fn filled(&mut self, range: Key) -> bool;

    /// Records an access to a page of the range while it was on the standby list.
    fn refaulted(&mut self, range: Key);

    /// Records that the range has no page any more, other than by being a victim.
    fn emptied(&mut self, range: Key);

    /// The next range to evict among those recorded; `resident` returns how many of a range's
    /// pages are in memory and may be evicted. A range with none is forgotten. None if no
    /// range has any.
    fn victim_by(&mut self, resident: &mut dyn FnMut(Key) -> u32) -> Option<Key>;

    /// The next range to evict, whatever it has in memory.
    fn victim(&mut self) -> Option<Key> {
        self.victim_by(&mut |_| u32::MAX)
    }

    /// The number of ranges that could be a victim.
    fn len(&self) -> usize;

    /// Returns true if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The default: S3-FIFO over ranges, with the standby list as the second chance.
pub struct ScanResistant {
    order: Queues,
    frames: u32,
    has_small_ranges: bool,
}

impl ScanResistant {
    /// The small queue's share of the frames, from the S3-FIFO paper: one in this many.
    const SMALL: u32 = 10;
    /// With more ranges than this the small queue is above its share without counting its
    /// pages, which reads up to 512 words a range.
    const COUNTED: usize = 64;
    /// A range with fewer pages in memory is passed over: staging 8 pages costs 1.9 us a
    /// page, 64 pages 0.26 us (measured with two running threads). Where frames are few
    /// it is one in so many of them.
    const FEW: u32 = 32;
    const FEW_OF: u32 = 512;
    /// How many ranges are passed over before the best of them is taken after all.
    const PASSES: usize = 8;
    /// Warmth is capped, so that a range goes round the main queue at most 7 times. The
    /// paper's 3 counts uses of one object; a range has many (1 % more hits in
    /// `simulation.rs`, and 15 or 31 no more).
    const WARMEST: u8 = 7;
    /// Ranges kept track of at least, if there are as many frames; they cost 32 bytes each.
    const TRACKED: usize = 4096;
    /// Small ranges kept track of likewise: all of them up to 256 MiB of frames.
    const TRACKED_SMALL: usize = 1 << 16;
    /// Small ranges by which the pages of the small queue are estimated.
    const SAMPLED: usize = 16;

    /// For a domain of at most `frames` frames.
    pub fn new(frames: usize) -> Self {
        Self::with_ranges(frames, Self::TRACKED, false)
    }

    /// For ranges of a few pages, of which most may have one in memory. None is passed over: those with the most
    /// pages are those in use.
    pub fn for_small_ranges(frames: usize) -> Self {
        Self::with_ranges(frames, Self::TRACKED_SMALL, true)
    }

    fn with_ranges(frames: usize, least: usize, has_small_ranges: bool) -> Self {
        let ranges = frames.min(least.max(frames / 4)).max(1);
        Self {
            order: Queues::new(ranges),
            frames: u32::try_from(frames).unwrap_or(u32::MAX),
            has_small_ranges,
        }
    }

    /// The queue whose turn it is to lose a range.
    fn next_queue(&self, resident: &mut dyn FnMut(Key) -> u32) -> QueueId {
        let ranges = self.order.len(QueueId::Small);
        let many = ranges > Self::COUNTED;
        if many && !self.has_small_ranges || self.order.len(QueueId::Main) == 0 {
            return QueueId::Small;
        }
        let share = self.frames / Self::SMALL;
        if many {
            let sample = self.order.since_oldest(QueueId::Small).take(Self::SAMPLED);
            let pages: u64 = sample.map(|key| u64::from(resident(key))).sum();
            return match pages * ranges as u64 / Self::SAMPLED as u64 > u64::from(share) {
                true => QueueId::Small,
                false => QueueId::Main,
            };
        }
        let mut pages = 0u32;
        for key in self.order.since_oldest(QueueId::Small) {
            pages = pages.saturating_add(resident(key));
            if pages > share {
                return QueueId::Small;
            }
        }
        QueueId::Main
    }

    /// Dequeues the next range that is not warm; warm ones get their second chance on the way.
    /// None if there are no ranges.
    fn coldest(&mut self, queue: QueueId) -> Option<(QueueId, Key)> {
        let other = if queue == QueueId::Small {
            QueueId::Main
        } else {
            QueueId::Small
        };
        loop {
            let queue = if self.order.len(queue) > 0 {
                queue
            } else {
                other
            };
            let key = self.order.oldest(queue)?;
            if self.order.cool(key) == 0 {
                self.order.remove(key);
                return Some((queue, key));
            }
            self.order.append(QueueId::Main, key);
        }
    }
}

impl Replacement for ScanResistant {
    fn filled(&mut self, range: Key) -> bool {
        match self.order.queue(range) {
            Some(QueueId::Small | QueueId::Main) => true,
            Some(QueueId::Ghost) if self.order.warmth(range) > 0 => {
                self.order.append(QueueId::Main, range)
            }
            Some(QueueId::Ghost) | None => self.order.append(QueueId::Small, range),
        }
    }

    fn refaulted(&mut self, range: Key) {
        self.order.warm(range, Self::WARMEST);
    }

    fn emptied(&mut self, range: Key) {
        self.order.remove(range);
    }

    fn victim_by(&mut self, resident: &mut dyn FnMut(Key) -> u32) -> Option<Key> {
        let turn = self.next_queue(resident);
        let mut best: Option<(u32, QueueId, Key)> = None;
        let few = match self.has_small_ranges {
            true => 0,
            false => Self::FEW.min(self.frames / Self::FEW_OF),
        };
        let mut passed = 0;
        while let Some((queue, key)) = self.coldest(turn) {
            let pages = resident(key);
            if pages == 0 {
                continue;
            }
            let found = (pages, queue, key);
            let (most, other) = match best {
                Some(best) if best.0 >= pages => (best, Some(found)),
                other => (found, other),
            };
            best = Some(most);
            if let Some((_, queue, key)) = other {
                self.order.append(queue, key);
            }
            passed += 1;
            if most.0 >= few || passed > Self::PASSES.min(self.len()) {
                break;
            }
        }
        let (_, _, key) = best?;
        self.order.append(QueueId::Ghost, key);
        Some(key)
    }

    fn len(&self) -> usize {
        self.order.len(QueueId::Small) + self.order.len(QueueId::Main)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(n: usize) -> Key {
        Key::new(7, n)
    }

    #[test]
    fn a_key_is_its_stretch_and_unit() {
        let key = Key::new(u32::MAX, 0x1234_5678);
        assert_eq!((key.stretch(), key.unit()), (u32::MAX, 0x1234_5678));
    }

    #[test]
    fn ranges_that_nothing_is_known_of_go_in_the_order_they_came() {
        let mut order = ScanResistant::new(100);
        (0..10).for_each(|n| assert!(order.filled(key(n))));
        let gone: Vec<_> = std::iter::from_fn(|| order.victim()).collect();
        assert_eq!(gone, (0..10).map(key).collect::<Vec<_>>());
    }

    #[test]
    fn a_range_wanted_from_standby_outlives_those_that_were_not() {
        let mut order = ScanResistant::new(100);
        (0..10).for_each(|n| assert!(order.filled(key(n))));
        order.refaulted(key(0));
        let gone: Vec<_> = std::iter::from_fn(|| order.victim()).collect();
        assert_eq!(gone.last(), Some(&key(0)));
    }

    #[test]
    fn a_range_with_few_pages_is_passed_over_for_a_better_one() {
        let mut order = ScanResistant::new(16_384);
        (0..3).for_each(|n| assert!(order.filled(key(n))));
        let pages = |key: Key| if key.unit() == 2 { 500 } else { 3 };
        assert_eq!(order.victim_by(&mut { pages }), Some(key(2)));
        assert!(
            order.victim_by(&mut { pages }).is_some(),
            "but taken when there is none"
        );
        assert_eq!(order.len(), 1);
    }

    #[test]
    fn small_ranges_go_in_the_order_they_came_whatever_they_have() {
        let mut order = ScanResistant::for_small_ranges(16_384);
        (0..3).for_each(|n| assert!(order.filled(key(n))));
        let pages = |key: Key| if key.unit() == 2 { 16 } else { 1 };
        assert_eq!(order.victim_by(&mut { pages }), Some(key(0)));
    }

    #[test]
    fn many_small_ranges_that_have_little_are_below_their_share() {
        let victim = |pages: u32| {
            let mut order = ScanResistant::for_small_ranges(16_384);
            order.filled(key(999));
            order.refaulted(key(999));
            (0..200).for_each(|n| assert!(order.filled(key(n))));
            // The warm one goes to the main queue.
            assert_eq!(order.victim(), Some(key(0)));
            order.victim_by(&mut |_| pages)
        };
        // A tenth of the frames is 1,638 pages.
        assert_eq!((victim(1), victim(16)), (Some(key(999)), Some(key(1))));
    }

    #[test]
    fn full_tables_refuse_and_go_on() {
        let mut order = ScanResistant::new(4);
        assert!((0..4).all(|n| order.filled(key(n))));
        assert!(!order.filled(key(4)));
        assert_eq!(order.victim(), Some(key(0)));
        assert!(order.filled(key(4)));
    }

    proptest! {
        #[test]
        fn a_victim_has_pages_whenever_any_range_has(
            frames in 1usize..40,
            steps in prop::collection::vec((0u8..5, 0usize..60), 0..400),
        ) {
            let mut order = ScanResistant::new(frames);
            let mut pages: BTreeMap<Key, u32> = BTreeMap::new();
            for (what, n) in steps {
                let range = key(n);
                match what {
                    0 | 1 => if order.filled(range) { *pages.entry(range).or_default() += 1 },
                    2 => order.refaulted(range),
                    // Emptied by the program without a notification.
                    3 => if let Some(count) = pages.get_mut(&range) { *count = 0 },
                    _ => {
                        let found = order.victim_by(&mut |k| pages.get(&k).copied().unwrap_or(0));
                        let any = pages.values().any(|count| *count > 0);
                        prop_assert_eq!(found.is_some(), any);
                        if let Some(found) = found {
                            prop_assert!(pages.remove(&found).unwrap() > 0);
                        }
                        pages.retain(|_, count| *count > 0);
                    }
                }
                prop_assert!(order.len() <= frames);
            }
        }
    }
}
