//! A channel's compressed RAM: appends pages to its open segment and makes room when it is full.
//!
//! A segment is opened while free ones are left and few bytes are holes; one stays in reserve, as
//! the destination of the first compaction. Compaction empties the segment with the fewest live
//! bytes, which then is the next reserve.

use crate::Checksum;
use crate::backoff::Backoff;
use crate::channel::StoreChannel;
use crate::inner::StoreCounter;
use crate::location::Location;
use crate::segment::{OpenSegment, room_for};
use crate::segment_stats::{SPARSE_THRESHOLD, SegmentStats};
use wired::PAGE;

/// Free segments that only compaction opens.
const RESERVE: u32 = 1;

/// With a disk below, segments are compacted while at most this part of them is alive, in 32nds;
/// otherwise the oldest is demoted: copying unused pages does not pay.
const TIER_COMPACT: u32 = 16;
/// Without a disk, or when it is full: whenever compaction gains a few pages.
const FULL_COMPACT: u32 = 31;

/// Maximum segments compacted at once: a store whose pages died in great number gets denser while
/// it is written to, without one write waiting for all of it.
const MAX_COMPACTIONS: usize = 4;

/// Which segments are worth compacting.
#[derive(Clone, Copy)]
struct CompactionPolicy {
    /// Bytes of room that compaction must gain.
    need: u32,
    /// At most this part of it alive, in 32nds.
    part: u32,
}

impl StoreChannel {
    /// Appends a page, compressed (its `packed` length in the codec's buffer) or as it is, and
    /// publishes it. Returns false if there is no room.
    pub(crate) fn put_in_ram(
        &mut self,
        handle: u32,
        contents: &[u8; PAGE],
        packed: Option<usize>,
        sum: Checksum,
    ) -> bool {
        loop {
            if let Some(open) = &mut self.open {
                let bytes = match packed {
                    Some(len) => self.codec.packed(len),
                    None => contents,
                };
                let bytes_taken = room_for(bytes.len()) as u64;
                if let Some(location) = self.inner.segments.append(open, handle, bytes) {
                    self.inner.page_index.set_location(handle, location, sum);
                    self.inner.page_index.publish(handle);
                    self.count(StoreCounter::ToRam, 1);
                    self.count(StoreCounter::ToRamBytes, bytes_taken);
                    return true;
                }
            }
            let need = room_for(packed.unwrap_or(PAGE)) as u32;
            if !self.make_room(need) {
                return false;
            }
        }
    }

    /// Unpacks the page at a location in RAM; returns false if there is no page (any more).
    pub(crate) fn get_from_ram(&mut self, location: Location, to: &mut [u8; PAGE]) -> bool {
        let len = self
            .inner
            .segments
            .read(location, self.codec.unpack_buffer());
        len.is_some_and(|len| self.codec.decompress(len, to))
    }

    /// Free segments below which the oldest begin to move to disk.
    fn low_water(&self) -> u32 {
        (self.inner.segments.count() as u32 / 16).clamp(RESERVE + 2, 64)
    }

    /// Opens another segment for the channel, with `need` bytes of room in it.
    fn make_room(&mut self, need: u32) -> bool {
        let tiered = self.inner.bloks.is_some();
        let mut compact = CompactionPolicy {
            need,
            part: if tiered { TIER_COMPACT } else { FULL_COMPACT },
        };
        let mut backoff = Backoff::default();
        loop {
            if let Some(open) = self.open.take() {
                self.inner.segments.seal(open);
            }
            let stats = SegmentStats::of(&self.inner.segments);
            if tiered && stats.free <= self.low_water() {
                self.begin_demotion(stats.oldest);
            }
            if stats.is_sparse() && self.close_holes(&stats, need) {
                return true;
            }
            if stats.free > RESERVE && self.open_free(&stats) {
                return true;
            }
            if self.reopen_roomy(&stats, need) || self.compact(&stats, compact) {
                return true;
            }
            if tiered && self.wait_for_demotion() {
                continue;
            }
            if tiered && compact.part < FULL_COMPACT {
                compact.part = FULL_COMPACT;
                continue;
            }
            // Other channels may be about to free a segment, which does not take long.
            if backoff.is_exhausted() || !self.others_make_room(&stats, compact) {
                return false;
            }
            backoff.wait();
        }
    }

    /// Returns true if another channel is emptying a segment now, or took the candidate.
    fn others_make_room(&self, stats: &SegmentStats, compact: CompactionPolicy) -> bool {
        let worth = stats
            .emptiest
            .is_some_and(|(_, live)| live <= self.most_alive(compact));
        let segments = self.inner.segments.count() as u32;
        worth || stats.free > RESERVE || (0..segments).any(|at| self.inner.segments.is_claimed(at))
    }

    fn most_alive(&self, compact: CompactionPolicy) -> u32 {
        let size = self.inner.segments.size() as u32;
        // Compaction must gain room for the page, or it would repeat for ever.
        (size / 32 * compact.part).min(size - compact.need)
    }

    fn open_free(&mut self, stats: &SegmentStats) -> bool {
        let free = stats.first_free;
        self.open = free.and_then(|at| self.inner.segments.open(at, self.holder));
        self.open.is_some()
    }

    /// A segment sealed early, by the death of its owner or the end of its channel, has room at its
    /// end.
    fn reopen_roomy(&mut self, stats: &SegmentStats, need: u32) -> bool {
        let enough = need.max(self.inner.segments.size() as u32 / 4);
        let roomy = stats.roomiest.filter(|&(_, room)| room >= enough);
        self.open = roomy.and_then(|(at, _)| self.inner.segments.reopen(at, self.holder));
        self.open.is_some()
    }

    /// Empties the segment with the fewest live bytes into the reserve, which then is the open
    /// segment.
    fn compact(&mut self, stats: &SegmentStats, compact: CompactionPolicy) -> bool {
        let Some((victim, live)) = stats.emptiest else {
            return false;
        };
        if live > self.most_alive(compact) || !self.inner.segments.claim(victim, self.holder) {
            return false;
        }
        let live = self.inner.segments.live_in(victim, self.inner.is_live());
        if live > self.most_alive(compact) || (live > 0 && !self.open_free(stats)) {
            self.inner.segments.release(victim, live);
            return false;
        }
        self.empty(victim);
        if self.open.is_none() {
            let stats = SegmentStats {
                first_free: Some(victim),
                ..SegmentStats::default()
            };
            return self.open_free(&stats);
        }
        true
    }

    /// Compacts the emptiest segment, and more of them while they fit in the same one.
    fn close_holes(&mut self, stats: &SegmentStats, need: u32) -> bool {
        let compact = CompactionPolicy {
            need,
            part: SPARSE_THRESHOLD,
        };
        if !self.compact(stats, compact) {
            return false;
        }
        for _ in 1..MAX_COMPACTIONS {
            let stats = SegmentStats::of(&self.inner.segments);
            let fits = |live| {
                self.open
                    .as_ref()
                    .is_some_and(|open| live + need <= self.inner.segments.room_in(open))
            };
            let Some((victim, _)) = stats.emptiest.filter(|&(_, live)| fits(live)) else {
                break;
            };
            if !stats.is_sparse() || !self.inner.segments.claim(victim, self.holder) {
                break;
            }
            self.empty(victim);
        }
        true
    }

    /// Moves the live objects of a claimed segment to the open one, as far as they fit.
    fn empty(&mut self, victim: u32) {
        if let Some(mut open) = self.open.take() {
            self.move_all(victim, &mut open);
            self.open = Some(open);
        }
        // Pages dropped or moved meanwhile are not alive; those that did not fit are.
        let left = self.inner.segments.live_in(victim, self.inner.is_live());
        self.inner.segments.release(victim, left);
    }

    fn move_all(&mut self, victim: u32, open: &mut OpenSegment) {
        let Self { inner, codec, .. } = self;
        let mut moved = 0;
        for (handle, location) in inner.segments.objects(victim) {
            if !inner.page_index.is_at(handle, location) {
                continue;
            }
            let Some(len) = inner.segments.read(location, codec.unpack_buffer()) else {
                continue;
            };
            let bytes = &codec.unpack_buffer()[..len];
            let Some(to) = inner.segments.append(open, handle, bytes) else {
                break;
            };
            if inner.page_index.relocate(handle, location, to) {
                moved += 1;
            } else {
                inner.segments.mark_dead(open.segment, len as u32);
            }
        }
        self.count(StoreCounter::Compacted, moved);
    }
}
