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
mod tests;
