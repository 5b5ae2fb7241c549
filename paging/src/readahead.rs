//! Read-ahead: pages of a stream are read from the store before the program faults on them.
//!
//! Read-ahead fills buffers, not frames, and the page table does not record it: a page stays
//! `Stored`, and a thread that faults on it may read it itself. So only the stream that a
//! speculative read is for waits for it, no speculation has to be undone, and a wrong one
//! costs a read. When the stream's own fault comes, it uses contents that have arrived if the
//! page still has the handle they were read for *and* their checksum is that handle's: the
//! page may have been changed and written elsewhere meanwhile, and a handle can be used again.
//!
//! A lane belongs to one stream. It is a ring of buffers for consecutive positions of the
//! stream, so that neighbours in memory are neighbours in the ring, and one ioctl maps them
//! all. The ring of a stream that runs backwards is reversed.

mod lane;

use crate::page::State;
use crate::page_table::PageTable;
use crate::stream_detector::{Prediction, WIDEST, WINDOWS};
use lane::{Buffer, LaneTable, ReadaheadLane};
use std::time::{Duration, Instant};
use store::{Channel, Completion, PageHandle, ReadPage, Store, StoreError, Wait};
use wired::{PAGE, WiredMemory};

/// Streams that one reader reads ahead for at once.
const LANES: usize = 4;

/// Reads of a disk that a reader has under way at once.
const DEPTH: usize = 16;

/// How long a reader keeps its buffers unused, at least.
const IDLE: Duration = Duration::from_millis(500);

/// Pages in a lane, at most.
const LONGEST: usize = (WINDOWS * WIDEST) as usize;

/// Read-ahead statistics since the last query.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadaheadStats {
    /// Pages requested.
    pub(crate) read: u64,
    /// Pages dropped unused.
    pub(crate) unused: u64,
}

/// A channel to the store, and lanes for several streams. One thread at a time uses it: the
/// one that has the stream.
pub(crate) struct Readahead {
    channel: Box<dyn Channel>,
    lanes: LaneTable,
    memory: WiredMemory,
    /// Pages in each lane, at most: a power of two.
    length: usize,
    clock: u32,
    batch: Vec<ReadPage>,
    stats: ReadaheadStats,
    /// The clock at the last [`Readahead::release_idle`], and when that was.
    checked: (u32, Instant),
}

// SAFETY: the pointers in the batch are into the memory it owns.
unsafe impl Send for Readahead {}

/// A lane at the position of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneCursor {
    lane: usize,
    position: usize,
}

impl Readahead {
    /// Lanes for windows of up to `widest` pages. Memory is populated on first use.
    pub(crate) fn new(store: &dyn Store, widest: u32) -> Result<Self, crate::DomainError> {
        let length = ring_length(widest as usize);
        let wired =
            |bytes| WiredMemory::wiped_in_children(bytes).map_err(crate::DomainError::Memory);
        Ok(Self {
            channel: store.readahead_channel(DEPTH)?,
            lanes: LaneTable::new(wired(LaneTable::BYTES)?),
            memory: wired(LANES * length * PAGE)?,
            length,
            clock: 0,
            batch: Vec::with_capacity(LONGEST),
            stats: ReadaheadStats::default(),
            checked: (0, Instant::now()),
        })
    }

    /// Gives back the memory of a reader that no stream has used for [`IDLE`]: the processes of a
    /// tree are many, and most of them wait.
    pub(crate) fn release_idle(&mut self) {
        let (clock, since) = self.checked;
        if since.elapsed() < IDLE {
            return;
        }
        self.checked = (self.clock, Instant::now());
        if clock != self.clock || self.lanes.is_empty() {
            return;
        }
        for lane in 0..self.lanes.len() {
            self.drop_until(lane, usize::MAX);
        }
        while self.collect(Wait::No) {}
        if self.channel.pending() == 0 {
            self.channel.close_idle();
            self.lanes.discard();
            self.memory.discard();
        }
    }

    /// Switches to the child process: its own channel, and no reads under way.
    pub(crate) fn become_child(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.lanes.forget();
        if !self.channel.is_unopened() {
            // A channel that a fork inherited detects the fork: dropping it closes no descriptor
            // of this process.
            self.channel = store.readahead_channel(DEPTH)?;
        }
        Ok(())
    }

    /// Reaps completions; waits for one if `wait` says so. Returns false if none came or none
    /// can come.
    fn collect(&mut self, wait: Wait) -> bool {
        let Some(completion) = self.channel.complete(wait) else {
            return false;
        };
        self.landed(&completion);
        while let Some(completion) = self.channel.complete(Wait::No) {
            self.landed(&completion);
        }
        true
    }

    /// Waits until the page at `place` has arrived or failed. Calls `before` first if the read
    /// is still under way.
    pub(crate) fn wait_for(&mut self, place: LaneCursor, before: impl FnOnce()) {
        self.collect(Wait::No);
        if self.is_coming(place) {
            before();
            while self.is_coming(place) && self.collect(Wait::Yes) {}
        }
    }

    fn landed(&mut self, completion: &Completion) {
        let (lane, slot) = (
            (completion.token >> 32) as usize,
            (completion.token & 0xffff_ffff) as usize,
        );
        let buffer = &mut self.lanes[lane].buffers[slot];
        *buffer = match (*buffer, completion.result) {
            (Buffer::Coming(handle), Ok(_)) => Buffer::Here(handle),
            (Buffer::Coming(_), Err(_)) => Buffer::Failed,
            _ => Buffer::Free,
        };
    }

    /// The lane of a stream that is now at page `index` of a stretch. Drops what the stream
    /// has passed. A new lane has room for windows of up to `widest` pages.
    pub(crate) fn place(
        &mut self,
        prediction: &Prediction,
        widest: u32,
        stretch: u32,
        index: usize,
    ) -> LaneCursor {
        self.lanes.begin();
        self.clock = self.clock.wrapping_add(1);
        let known = self.lanes.iter().position(|lane| {
            lane.stream == prediction.stream
                && lane.stretch == stretch
                && lane.stride == prediction.stride
        });
        if let Some(lane) = known
            && let Some(position) = self.lanes[lane].position(index)
        {
            // Resident pages can take the program past all that was read.
            self.drop_until(lane, position);
            self.lanes[lane].end = self.lanes[lane].end.max(position);
            self.lanes[lane].used = self.clock;
            return LaneCursor { lane, position };
        }
        let lane = known.unwrap_or_else(|| self.quietest());
        let end = self.lanes[lane].end;
        self.drop_until(lane, end);
        self.lanes[lane] = ReadaheadLane {
            stream: prediction.stream,
            stretch,
            origin: index,
            stride: prediction.stride,
            tail: 0,
            end: 0,
            slow: false,
            used: self.clock,
            length: ring_length(widest as usize).min(self.length),
            buffers: self.lanes[lane].buffers,
        };
        LaneCursor { lane, position: 0 }
    }

    fn quietest(&self) -> usize {
        let age = |lane: &ReadaheadLane| (lane.stream == 0, self.clock.wrapping_sub(lane.used));
        (0..LANES)
            .max_by_key(|at| age(&self.lanes[*at]))
            .unwrap_or(0)
    }

    /// Drops what is in a lane before `position`.
    fn drop_until(&mut self, lane: usize, position: usize) {
        let until = position.min(self.lanes[lane].end);
        for at in self.lanes[lane].tail..until {
            let slot = self.slot(lane, at);
            let buffer = &mut self.lanes[lane].buffers[slot];
            self.stats.unused += u64::from(matches!(buffer, Buffer::Coming(_) | Buffer::Here(_)));
            *buffer = match *buffer {
                Buffer::Coming(_) | Buffer::Dropped => Buffer::Dropped,
                _ => Buffer::Free,
            };
        }
        let lane = &mut self.lanes[lane];
        lane.tail = lane.tail.max(position);
    }

    fn slot(&self, lane: usize, position: usize) -> usize {
        let length = self.lanes[lane].length;
        let at = position % length;
        match self.lanes[lane].stride < 0 {
            true => length - 1 - at,
            false => at,
        }
    }

    fn memory(&self, lane: usize, slot: usize) -> *mut u8 {
        let page = lane * self.length + slot;
        self.memory.as_ptr().wrapping_add(page * PAGE)
    }

    /// Requests the pages of a stream from `place` on: the window, and those that are predicted ahead of it
    /// if they come from a disk. `faulting` is the handle of the page at `place`,
    /// which is being filled now.
    pub(crate) fn read(
        &mut self,
        place: LaneCursor,
        prediction: &Prediction,
        table: &PageTable,
        faulting: Option<PageHandle>,
    ) -> Result<(), StoreError> {
        let length = self.lanes[place.lane].length;
        let Prediction { window, ahead, .. } = *prediction;
        let near = place.position + (window as usize).min(length);
        let far = place.position + ((window + ahead) as usize).min(length);
        let later = self.extend(place, near, table, faulting)?;
        self.lanes[place.lane].slow |= later > 0;
        if self.lanes[place.lane].slow {
            self.extend(place, far, table, None)?;
        }
        Ok(())
    }

    /// Requests what is stored of the positions up to `until` that have not been requested
    /// yet. Returns how many pages are on their way.
    fn extend(
        &mut self,
        place: LaneCursor,
        until: usize,
        table: &PageTable,
        faulting: Option<PageHandle>,
    ) -> Result<usize, StoreError> {
        let LaneCursor { lane, position } = place;
        self.batch.clear();
        let ReadaheadLane { origin, stride, .. } = self.lanes[lane];
        for at in self.lanes[lane].end..until {
            let slot = self.slot(lane, at);
            // A read whose contents are no longer wanted still occupies the buffer: stop here.
            if matches!(self.lanes[lane].buffers[slot], Buffer::Dropped) {
                break;
            }
            self.lanes[lane].end = at + 1;
            self.lanes[lane].buffers[slot] = Buffer::Free;
            let index = origin.wrapping_add_signed(stride.wrapping_mul(at as isize));
            if index >= table.pages() {
                continue;
            }
            let handle = match faulting {
                Some(handle) if at == position => Some(handle),
                _ => {
                    let seen = table.word(index).load();
                    seen.handle().filter(|_| seen.state() == State::Stored)
                }
            };
            let Some(handle) = handle else { continue };
            self.lanes[lane].buffers[slot] = Buffer::Coming(handle);
            let into = self.memory(lane, slot);
            self.batch.push(ReadPage {
                handle,
                into,
                token: (lane as u64) << 32 | slot as u64,
            });
        }
        if self.batch.is_empty() {
            return Ok(0);
        }
        self.stats.read += self.batch.len() as u64;
        let submitted = self.channel.submit_read_ahead(&self.batch);
        if submitted.is_err() {
            for read in &self.batch {
                self.lanes[lane].buffers[(read.token & 0xffff_ffff) as usize] = Buffer::Failed;
            }
        }
        submitted
    }

    /// Returns true if the page at `place` is on its way.
    fn is_coming(&self, place: LaneCursor) -> bool {
        let slot = self.slot(place.lane, place.position);
        matches!(
            self.lanes[place.lane].buffers[slot],
            Buffer::Coming(_) | Buffer::Dropped
        )
    }

    /// The contents read for page `index` under this handle, if they have arrived. The caller
    /// still compares them with the handle's checksum.
    pub(crate) fn contents(
        &self,
        place: LaneCursor,
        index: usize,
        handle: Option<PageHandle>,
    ) -> Option<*const u8> {
        let lane = &self.lanes[place.lane];
        let position = lane.position(index)?;
        if position < lane.tail || position >= lane.end {
            return None;
        }
        let slot = self.slot(place.lane, position);
        match lane.buffers[slot] {
            Buffer::Here(read) if Some(read) == handle => {
                Some(self.memory(place.lane, slot).cast_const())
            }
            _ => None,
        }
    }

    /// Releases the buffer of page `index`: its contents were used, or are of no use.
    pub(crate) fn release(&mut self, place: LaneCursor, index: usize) {
        let Some(position) = self.lanes[place.lane].position(index) else {
            return;
        };
        let slot = self.slot(place.lane, position);
        let buffer = &mut self.lanes[place.lane].buffers[slot];
        if !matches!(buffer, Buffer::Coming(_) | Buffer::Dropped) {
            *buffer = Buffer::Free;
        }
    }

    /// Continues reading after the window from `place` on, as far as is predicted and the lane has room.
    pub(crate) fn read_on(
        &mut self,
        place: LaneCursor,
        prediction: &Prediction,
        table: &PageTable,
    ) -> Result<(), StoreError> {
        if !self.lanes[place.lane].slow {
            return Ok(());
        }
        let position = place.position + prediction.window as usize;
        // Only used buffers leave the ring: the window may have been cut short.
        let used = (place.position..position.min(self.lanes[place.lane].end))
            .take_while(|at| {
                matches!(
                    self.lanes[place.lane].buffers[self.slot(place.lane, *at)],
                    Buffer::Free | Buffer::Failed
                )
            })
            .count();
        let position = place.position + used;
        self.drop_until(place.lane, position);
        let place = LaneCursor { position, ..place };
        let until = position + (prediction.ahead as usize).min(self.lanes[place.lane].length);
        self.extend(place, until, table, None).map(|_| ())
    }

    /// What was read and what of it was not used, since last asked.
    pub(crate) fn take_stats(&mut self) -> ReadaheadStats {
        std::mem::take(&mut self.stats)
    }
}

/// Buffers of a lane for windows of up to `widest` pages: a power of two.
fn ring_length(widest: usize) -> usize {
    1 << (WINDOWS as usize * widest).clamp(1, LONGEST).ilog2()
}
