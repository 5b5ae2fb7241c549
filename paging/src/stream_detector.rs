//! StreamTable: which pages a program's next faults will be on.
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
//!   was useful before.
//! - Faults that are in no stream never push a stream out: only a new stream does, the
//!   one that was quiet for longest.
//!
//! Pure: no clock, no allocation, no page table.

use wired::Lock;

/// Pages of a stream's first window, the page of the fault among them.
const FIRST: u32 = 4;

/// Pages of the largest window.
pub(crate) const WIDEST: u32 = 64;

/// Pages between two faults of a stream, at most: farther apart than this, strides
/// cost more to keep apart from chance than they bring.
pub const FARTHEST: isize = 64;

/// Accesses of a stream that may have been passed over, their pages being there already.
/// More would take random faults for streams that ended long ago.
const BEYOND: isize = 8;

/// Faults after which a stream that was quiet has to prove itself again: random faults meet
/// the end of one by chance.
const QUIET: u32 = 1024;

/// StreamTable one thread has at once: the runs that a merge reads, or the arrays of a loop.
const STREAMS: usize = 12;

/// Faults remembered that are in no stream.
const RECENT: usize = 8;

/// The prediction of the next faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prediction {
    /// Names the stream, for as long as it lasts; never 0.
    pub(crate) stream: u32,
    /// Pages from one access to the next.
    pub(crate) stride: isize,
    /// Pages worth bringing in now, the one of the fault among them.
    pub(crate) window: u32,
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
}

/// The streams of one thread, and the faults that may begin one.
#[derive(Default)]
pub(crate) struct StreamTable {
    streams: [Stream; STREAMS],
    recent: [usize; RECENT],
    newest: usize,
    faults: u32,
    ids: u32,
}

impl StreamTable {
    /// Records a fault on page number `page` and predicts. A repeated call for the same fault
    /// returns the same.
    pub(crate) fn fault(&mut self, page: usize, widest: u32) -> Option<Prediction> {
        self.faults = self.faults.wrapping_add(1);
        let faults = self.faults;
        for stream in self.streams.iter_mut().filter(|s| s.id != 0) {
            let quiet = faults.wrapping_sub(stream.seen) > QUIET;
            let widest = if quiet { FIRST.min(widest) } else { widest };
            if let Some(prediction) = stream.continued(page, widest) {
                stream.seen = faults;
                return Some(prediction);
            }
        }
        if let Some(stride) = self.stride_to(page) {
            return Some(self.begin(page, stride, widest));
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

    fn begin(&mut self, page: usize, stride: isize, widest: u32) -> Prediction {
        self.ids = self.ids % (u32::MAX / SHARDS as u32 / 2) + 1;
        let fresh = Stream {
            id: self.ids,
            last: page,
            stride,
            window: FIRST.min(widest),
            brought: FIRST.min(widest),
            seen: self.faults,
        };
        let now = self.faults;
        let quietest = self
            .streams
            .iter_mut()
            .max_by_key(|s| (s.id == 0, now.wrapping_sub(s.seen)));
        if let Some(place) = quietest {
            *place = fresh;
        }
        fresh.prediction()
    }
}

impl Stream {
    fn prediction(&self) -> Prediction {
        Prediction {
            stream: self.id,
            stride: self.stride,
            window: self.window,
        }
    }

    /// Returns true if a fault on `page` is this stream's next, or its last again.
    fn continued(&mut self, page: usize, widest: u32) -> Option<Prediction> {
        let ahead = page.wrapping_sub(self.last) as isize;
        if ahead == 0 {
            return Some(self.prediction());
        }
        // After what was brought, or a little beyond it where pages were there already.
        if ahead % self.stride != 0 {
            return None;
        }
        let steps = ahead / self.stride;
        let brought = self.brought.max(1) as isize;
        if !(brought..=brought + BEYOND).contains(&steps) {
            return None;
        }
        self.window = (self.window * 2).min(widest);
        self.brought = self.window;
        self.last = page;
        Some(self.prediction())
    }
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
    pub(crate) fn fault(&self, thread: usize, page: usize, widest: u32) -> Option<Prediction> {
        let shard = &self.shards[thread % SHARDS];
        let prediction = shard.try_lock()?.fault(page, widest)?;
        // StreamTable of different shards have different names.
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

    /// Faults as a program has them that accesses these pages when windows are filled.
    fn faults(order: impl IntoIterator<Item = usize>) -> (usize, usize) {
        let mut streams = StreamTable::default();
        let mut there = std::collections::HashSet::new();
        let mut faults = 0;
        for page in order {
            if there.contains(&page) {
                continue;
            }
            faults += 1;
            there.insert(page);
            if let Some(prediction) = streams.fault(page, WIDEST) {
                let step = |k: u32| page.wrapping_add_signed(prediction.stride * k as isize);
                there.extend((1..prediction.window).map(step));
            }
        }
        (faults, there.len())
    }

    #[test]
    fn a_sequence_has_a_fault_a_window() {
        let (faults, brought) = faults(10_000..20_000);
        assert!(faults < 10_000 / 64 + 10, "{faults}");
        assert!(brought <= 10_064);
    }

    #[test]
    fn backward_and_strided_streams_are_detected() {
        assert!(faults((10_000..20_000).rev()).0 < 170);
        assert!(faults((10_000..100_000).step_by(7)).0 < 90_000 / 7 / 64 + 12);
        assert!(faults((10_000..100_000).rev().step_by(64)).0 < 90_000 / 64 / 64 + 12);
    }

    #[test]
    fn the_runs_of_a_merge_are_distinguished() {
        let merge = (0..3000).flat_map(|k| (0..8).map(move |run| 100_000 * (run + 1) + k));
        assert!(faults(merge).0 < 8 * (3000 / 64 + 10));
    }

    #[test]
    fn a_stream_among_random_faults_is_kept() {
        let mut streams = StreamTable::default();
        let mut random = fastrand::Rng::with_seed(1);
        assert_eq!(streams.fault(999_998, WIDEST), None);
        assert!(streams.fault(999_999, WIDEST).is_some());
        let mut next = 999_999 + FIRST as usize;
        for _ in 0..100 {
            for _ in 0..100 {
                let page = 2_000_000 + random.usize(..1 << 24);
                assert_eq!(streams.fault(page, WIDEST), None);
            }
            let prediction = streams.fault(next, WIDEST);
            next += prediction.map_or(1, |a| a.window as usize);
        }
        assert!(next > 1_000_000 + 80 * 64);
    }

    #[test]
    fn a_fault_that_is_tried_again_has_the_same_prediction() {
        let mut streams = StreamTable::default();
        assert_eq!(streams.fault(5, WIDEST), None);
        let prediction = streams.fault(6, WIDEST);
        assert!(prediction.is_some());
        assert_eq!(streams.fault(6, WIDEST), prediction);
    }

    #[test]
    fn random_faults_bring_hardly_more_than_themselves() {
        let mut random = fastrand::Rng::with_seed(1);
        let order = (0..100_000).map(|_| 1_000_000 + random.usize(..131_072));
        let (faults, brought) = faults(order);
        assert!(brought < faults + faults / 50, "{faults} {brought}");
    }

    proptest! {
        #[test]
        fn what_is_brought_for_nothing_is_bounded_by_what_was_of_use(
            runs in prop::collection::vec((0usize..1 << 30, 1usize..200), 1..40),
        ) {
            let order: Vec<usize> = runs.iter().flat_map(|(at, len)| *at..at + len).collect();
            let used: std::collections::HashSet<_> = order.iter().copied().collect();
            let (_, brought) = faults(order);
            prop_assert!(brought <= 3 * used.len() + 4 * runs.len());
        }
    }
}
