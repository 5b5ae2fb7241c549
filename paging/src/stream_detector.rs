//! Streams: which pages a program's next faults will be on.
//!
//! A thread that goes through memory in order faults at every page of it, and each fault costs
//! more than the page. So sequential and strided streams are detected from the faults
//! themselves, per thread, and served in *windows*: a run of pages for one fault (see
//! `fault_around`), read ahead of the program if they are on disk (see `readahead`). "The
//! application knows its access pattern" is Nemesis's reason for self-paging (*Self-Paging in
//! the Nemesis Operating System*, section 1); here the faults reveal what the application does
//! not state.
//!
//! The rule is cautious, since a page brought in for nothing costs a frame:
//! - Neighbours make a stream from the second fault on; any other stride up to
//!   [`FARTHEST`] pages needs three faults in step.
//! - A stream begins with [`FIRST`] pages and doubles each time the program has gone
//!   through what was brought, so that what is wasted at its end is at most as much as
//!   was useful before. No farther ahead is read from a disk than the stream has come.
//! - A stream goes on after its first window where each page between that and the fault is there
//!   already: a program that passed over one is perhaps elsewhere in its neighbourhood. Later it may
//!   leave some out.
//! - Where most streams end in their first window, as in a heap whose objects take two pages,
//!   a new one has to show up to [`TRIAL`] faults more in step. CPython that builds and groups
//!   176 MiB of objects in 84 MiB of frames on a disk (`selfpage run --frames 84M --store disk:DIR,size=512M
//!   --stats -- python3 bench/src/programs/group.py 576000`) read 2,000,000 pages ahead for nothing
//!   without these two rules and the limit on reading ahead, of 4,600,000 that it read and wrote, and
//!   100,000 of 1,500,000 with them, in half of the time.
//! - Faults that are in no stream never push a stream out: only a new stream does, the
//!   one that was quiet for longest.
//!
//! Pure: no clock, no allocation, no page table.

use wired::Lock;

/// Pages of a stream's first window, the page of the fault among them.
const FIRST: u32 = 4;

/// Pages of the largest window.
pub(crate) const WIDEST: u32 = 64;

/// Windows read ahead of one, at most: as much on its way as keeps a device busy (1 MiB in pieces of 128 KiB).
pub(crate) const WINDOWS: u32 = 4;

/// Pages between two faults of a stream, at most: farther apart than this, strides
/// cost more to keep apart from chance than they bring.
pub const FARTHEST: isize = 64;

/// Accesses of a stream that may have been passed over, their pages being there already.
/// More would take random faults for streams that ended long ago.
const BEYOND: isize = 8;

/// Faults after which a stream that was quiet has to prove itself again: random faults meet
/// the end of one by chance.
const QUIET: u32 = 1024;

/// Streams that one thread has at once: the runs that a merge reads, or the arrays of a loop.
const STREAMS: usize = 12;

/// Faults remembered that are in no stream.
const RECENT: usize = 8;

/// The most [false starts](StreamTable::false_starts) that count.
const FALSE_STARTS: u8 = 12;

/// Faults in step that a stream has to show before its first window, after so many false starts.
const TRIAL: u8 = 3;

/// The prediction of the next faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prediction {
    /// Names the stream, for as long as it lasts; never 0.
    pub(crate) stream: u32,
    /// Pages from one access to the next.
    pub(crate) stride: isize,
    /// Pages worth bringing in now, the one of the fault among them.
    pub(crate) window: u32,
    /// Pages worth reading beyond the window.
    pub(crate) ahead: u32,
}

/// One stream.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// 0 where there is none.
    id: u32,
    /// Its latest fault, a page number.
    last: usize,
    stride: isize,
    window: u32,
    /// Accesses from its latest fault to where the next is expected: the window, or less
    /// where that was cut short.
    brought: u32,
    /// When it was last seen, counted in faults.
    seen: u32,
    /// Faults in step that it has still to show before its first window.
    trial: u8,
    /// Accesses in the windows that the program has gone through.
    gone: u32,
}

/// The streams of one thread, and the faults that may begin one.
#[derive(Default)]
pub(crate) struct StreamTable {
    streams: [Stream; STREAMS],
    recent: [usize; RECENT],
    newest: usize,
    faults: u32,
    ids: u32,
    /// Streams that had gone through no window when another took their place, less two for each that has: where fewer
    /// than a third of the first windows are of use, streams have to show more before they get one.
    false_starts: u8,
}

impl StreamTable {
    /// Records a fault on page number `page` and predicts. A repeated call for the same fault
    /// returns the same. `is_there` returns true if the program accesses a page without a fault.
    pub(crate) fn fault(
        &mut self,
        page: usize,
        widest: u32,
        is_there: &dyn Fn(usize) -> bool,
    ) -> Option<Prediction> {
        self.faults = self.faults.wrapping_add(1);
        let faults = self.faults;
        for stream in self.streams.iter_mut().filter(|s| s.id != 0) {
            let quiet = faults.wrapping_sub(stream.seen) > QUIET;
            let widest = if quiet { FIRST.min(widest) } else { widest };
            let began = stream.gone;
            if stream.continued(page, widest, is_there) {
                stream.seen = faults;
                if began == 0 && stream.gone > 0 {
                    self.false_starts = self.false_starts.saturating_sub(2);
                }
                return stream.prediction();
            }
        }
        if let Some(stride) = self.stride_to(page) {
            return self.begin(page, stride, widest);
        }
        self.newest = (self.newest + 1) % RECENT;
        self.recent[self.newest] = page;
        None
    }

    /// Records that the window of a stream's latest fault ended after so many accesses.
    fn brought(&mut self, stream: u32, accesses: u32) {
        if let Some(stream) = self.streams.iter_mut().find(|s| s.id == stream) {
            stream.brought = accesses;
        }
    }

    /// The stride of a stream that `page` begins with the faults before it.
    fn stride_to(&self, page: usize) -> Option<isize> {
        let latest_first =
            (0..RECENT).map(|back| self.recent[(self.newest + RECENT - back) % RECENT]);
        for before in latest_first.filter(|before| *before != 0) {
            let stride = page.wrapping_sub(before) as isize;
            let known = match stride.unsigned_abs() {
                0 => false,
                1 => true,
                far if far > FARTHEST.unsigned_abs() => false,
                _ => self.recent.contains(&before.wrapping_add_signed(-stride)),
            };
            if known {
                return Some(stride);
            }
        }
        None
    }

    fn begin(&mut self, page: usize, stride: isize, widest: u32) -> Option<Prediction> {
        self.ids = self.ids % (u32::MAX / SHARDS as u32 / 2) + 1;
        let trial = self.false_starts.div_ceil(FALSE_STARTS / TRIAL);
        let window = first_window(trial, widest);
        let fresh = Stream {
            id: self.ids,
            last: page,
            stride,
            window,
            brought: window,
            seen: self.faults,
            trial,
            gone: 0,
        };
        let now = self.faults;
        let quietest = self
            .streams
            .iter_mut()
            .max_by_key(|s| (s.id == 0, now.wrapping_sub(s.seen)));
        if let Some(place) = quietest {
            if place.id != 0 && place.trial == 0 && place.gone == 0 {
                self.false_starts = (self.false_starts + 1).min(FALSE_STARTS);
            }
            *place = fresh;
        }
        fresh.prediction()
    }
}

impl Stream {
    fn prediction(&self) -> Option<Prediction> {
        (self.trial == 0).then_some(Prediction {
            stream: self.id,
            stride: self.stride,
            window: self.window,
            ahead: self.gone.min(WINDOWS * self.window),
        })
    }

    /// Returns true if a fault on `page` is this stream's next, or its last again.
    fn continued(&mut self, page: usize, widest: u32, is_there: &dyn Fn(usize) -> bool) -> bool {
        let ahead = page.wrapping_sub(self.last) as isize;
        if ahead == 0 {
            return true;
        }
        // After what was brought, or a little beyond it where pages were there already.
        if ahead % self.stride != 0 {
            return false;
        }
        let steps = ahead / self.stride;
        let brought = self.brought.max(1) as isize;
        if !(brought..=brought + BEYOND).contains(&steps) {
            return false;
        }
        let passed = |step| is_there(self.last.wrapping_add_signed(self.stride * step));
        if self.gone == 0 && !(brought..steps).all(passed) {
            return false;
        }
        self.last = page;
        if self.trial > 0 {
            self.trial -= 1;
            self.window = first_window(self.trial, widest);
        } else {
            self.gone = self.gone.saturating_add(steps as u32);
            self.window = (self.window * 2).min(widest);
        }
        self.brought = self.window;
        true
    }
}

/// Pages of a stream's window while the program has gone through none.
fn first_window(trial: u8, widest: u32) -> u32 {
    if trial > 0 { 1 } else { FIRST.min(widest) }
}

/// Threads are distinguished up to this many.
const SHARDS: usize = 16;

/// All threads' streams.
pub(crate) struct StreamDetector {
    shards: [Lock<StreamTable>; SHARDS],
}

impl Default for StreamDetector {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Lock::new(StreamTable::default())),
        }
    }
}

impl StreamDetector {
    /// Records a fault of the thread with number `thread` on page number `page`, in windows of
    /// at most `widest` pages. If two threads use one shard at once, one gets no prediction.
    pub(crate) fn fault(
        &self,
        thread: usize,
        page: usize,
        widest: u32,
        is_there: &dyn Fn(usize) -> bool,
    ) -> Option<Prediction> {
        let shard = &self.shards[thread % SHARDS];
        let prediction = shard.try_lock()?.fault(page, widest, is_there)?;
        // Streams of different shards have different names.
        let stream = prediction.stream * SHARDS as u32 + (thread % SHARDS) as u32;
        Some(Prediction {
            stream,
            ..prediction
        })
    }

    /// Records that the predicted window ended after so many accesses, fewer than predicted.
    pub(crate) fn brought(&self, prediction: &Prediction, accesses: u32) {
        let shard = &self.shards[prediction.stream as usize % SHARDS];
        if let Some(mut streams) = shard.try_lock() {
            streams.brought(prediction.stream / SHARDS as u32, accesses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// No page is there without a fault.
    const NONE: fn(usize) -> bool = |_| false;

    /// What a program's accesses cost when windows are filled.
    #[derive(Default)]
    struct Cost {
        faults: usize,
        /// Pages that came in.
        brought: usize,
        /// Pages that a disk reads, where all are there.
        read: usize,
    }

    fn cost(order: impl IntoIterator<Item = usize>) -> Cost {
        let mut streams = StreamTable::default();
        let mut there = HashSet::new();
        let mut read = HashSet::new();
        let mut faults = 0;
        for page in order {
            if there.contains(&page) {
                continue;
            }
            faults += 1;
            let prediction = streams.fault(page, WIDEST, &|page| there.contains(&page));
            there.insert(page);
            read.insert(page);
            if let Some(prediction) = prediction {
                let step = |k: u32| page.wrapping_add_signed(prediction.stride * k as isize);
                there.extend((1..prediction.window).map(step));
                read.extend((1..prediction.window + prediction.ahead).map(step));
            }
        }
        Cost {
            faults,
            brought: there.len(),
            read: read.len(),
        }
    }

    #[test]
    fn a_sequence_has_a_fault_a_window() {
        let cost = cost(10_000..20_000);
        assert!(cost.faults < 10_000 / 64 + 10, "{}", cost.faults);
        assert!(cost.brought <= 10_064);
    }

    #[test]
    fn backward_and_strided_streams_are_detected() {
        assert!(cost((10_000..20_000).rev()).faults < 170);
        assert!(cost((10_000..100_000).step_by(7)).faults < 90_000 / 7 / 64 + 12);
        assert!(cost((10_000..100_000).rev().step_by(64)).faults < 90_000 / 64 / 64 + 12);
    }

    #[test]
    fn the_runs_of_a_merge_are_distinguished() {
        let merge = (0..3000).flat_map(|k| (0..8).map(move |run| 100_000 * (run + 1) + k));
        assert!(cost(merge).faults < 8 * (3000 / 64 + 10));
    }

    #[test]
    fn a_stream_among_random_faults_is_kept() {
        let mut streams = StreamTable::default();
        let mut random = fastrand::Rng::with_seed(1);
        assert_eq!(streams.fault(999_998, WIDEST, &NONE), None);
        assert!(streams.fault(999_999, WIDEST, &NONE).is_some());
        let mut next = 999_999 + FIRST as usize;
        for _ in 0..100 {
            for _ in 0..100 {
                let page = 2_000_000 + random.usize(..1 << 24);
                assert_eq!(streams.fault(page, WIDEST, &NONE), None);
            }
            let prediction = streams.fault(next, WIDEST, &NONE);
            next += prediction.map_or(1, |a| a.window as usize);
        }
        assert!(next > 1_000_000 + 80 * 64);
    }

    #[test]
    fn a_fault_that_is_tried_again_has_the_same_prediction() {
        let mut streams = StreamTable::default();
        assert_eq!(streams.fault(5, WIDEST, &NONE), None);
        let prediction = streams.fault(6, WIDEST, &NONE);
        assert!(prediction.is_some());
        assert_eq!(streams.fault(6, WIDEST, &NONE), prediction);
    }

    #[test]
    fn random_faults_bring_hardly_more_than_themselves() {
        let mut random = fastrand::Rng::with_seed(1);
        let order = (0..100_000).map(|_| 1_000_000 + random.usize(..131_072));
        let Cost {
            faults, brought, ..
        } = cost(order);
        assert!(brought < faults + faults / 50, "{faults} {brought}");
    }

    /// A heap: objects of two neighbouring pages, at random.
    fn objects(random: &mut fastrand::Rng, count: usize) -> impl Iterator<Item = usize> {
        (0..count).flat_map(move |_| {
            let at = 1_000_000 + 8 * random.usize(..1 << 20);
            [at, at + 1]
        })
    }

    #[test]
    fn objects_of_two_pages_soon_bring_hardly_more_than_themselves() {
        let mut random = fastrand::Rng::with_seed(1);
        let Cost { faults, read, .. } = cost(objects(&mut random, 50_000));
        assert!(read < faults + faults / 50, "{faults} {read}");
    }

    #[test]
    fn sequences_after_a_heap_have_windows_again() {
        let mut random = fastrand::Rng::with_seed(1);
        let heap = cost(objects(&mut random, 1_000)).faults;
        let mut random = fastrand::Rng::with_seed(1);
        let sequences = (0..100).flat_map(|k| 1_000 * k..1_000 * k + 100);
        let both = cost(objects(&mut random, 1_000).chain(sequences)).faults;
        // Without a heap before them they have 6 each: 1, 1 and windows of 4, 8, 16, 32 and 64.
        assert!(both - heap < 100 * 7 + 20, "{}", both - heap);
    }

    #[test]
    fn a_page_is_passed_over_after_the_first_window_only() {
        let mut streams = StreamTable::default();
        streams.fault(100, WIDEST, &NONE);
        assert!(streams.fault(101, WIDEST, &NONE).is_some());
        assert_eq!(streams.fault(108, WIDEST, &|page| page < 107), None);
        let second = streams.fault(109, WIDEST, &|page| page < 109);
        assert_eq!(second.map(|it| it.window), Some(2 * FIRST));
        let third = streams.fault(109 + 2 * FIRST as usize + 1, WIDEST, &NONE);
        assert_eq!(third.map(|it| it.window), Some(4 * FIRST));
    }

    #[test]
    fn sequences_with_gaps_have_windows() {
        let mut random = fastrand::Rng::with_seed(1);
        let half = (10_000..30_000).filter(|_| random.bool());
        let Cost { faults, .. } = cost(half);
        assert!(faults < 1_000, "{faults}");
    }

    proptest! {
        #[test]
        fn what_is_brought_for_nothing_is_bounded_by_what_was_of_use(
            runs in prop::collection::vec((0usize..1 << 30, 1usize..200), 1..40),
        ) {
            let order: Vec<usize> = runs.iter().flat_map(|(at, len)| *at..at + len).collect();
            let used: HashSet<_> = order.iter().copied().collect();
            let Cost { brought, read, .. } = cost(order);
            prop_assert!(brought <= 3 * used.len() + 4 * runs.len());
            prop_assert!(read <= brought + 2 * used.len());
        }
    }
}
