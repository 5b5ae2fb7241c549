//! A channel's compressed RAM: appends pages to its open segment and makes room when it is full.
//!
//! A segment is opened while free ones are left and few bytes of the others are dead; one stays in
//! reserve, as the destination of the first compaction. Compaction empties the segment with the
//! fewest live bytes, which then is the next reserve.

use crate::codec::Codec;
use crate::inner::{HolderStore, StoreCounter};
use crate::location::Location;
use crate::page_index::Lookup;
use crate::segment::{OpenSegment, room_for};
use crate::segment_stats::{LOW_SPARSE_THRESHOLD, SPARSE_THRESHOLD, SegmentStats};
use crate::{Checksum, PageHandle};
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
pub(crate) struct CompactionPolicy {
    /// Bytes of room that compaction must gain.
    need: u32,
    /// At most this part of it alive, in 32nds.
    part: u32,
    /// Less than this part of all alive, in 32nds: then segments are compacted first.
    sparse: u32,
}

impl CompactionPolicy {
    /// To gain `need` bytes in a store with a disk below, or without.
    pub fn new(need: u32, tiered: bool) -> Self {
        let part = if tiered { TIER_COMPACT } else { FULL_COMPACT };
        Self {
            need,
            part,
            sparse: SPARSE_THRESHOLD,
        }
    }

    /// Where few segments are free: compacts more before pages are demoted. Returns true if that
    /// gains enough.
    pub fn tighten(&mut self, stats: &SegmentStats) -> bool {
        self.sparse = LOW_SPARSE_THRESHOLD;
        stats.is_sparse(self.sparse)
    }

    /// For a full disk: compacts whatever gains anything. Returns true if it did not before.
    pub fn relax(&mut self) -> bool {
        std::mem::replace(&mut self.part, FULL_COMPACT) < FULL_COMPACT
    }
}

/// The compressed RAM of a channel: the segment that it appends to.
pub(crate) struct CompressedRam {
    store: HolderStore,
    open: Option<OpenSegment>,
    pub codec: Codec,
}

impl CompressedRam {
    pub fn new(store: HolderStore) -> Self {
        Self {
            store,
            open: None,
            codec: Codec::new(),
        }
    }

    /// Appends a page, compressed (its `packed` length in the codec's buffer) or as it is, and
    /// publishes it. Returns false if the open segment has no room, or was taken for a lower
    /// limit.
    pub fn append(
        &mut self,
        handle: u32,
        contents: &[u8; PAGE],
        packed: Option<usize>,
        sum: Checksum,
    ) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let bytes = match packed {
            Some(len) => self.codec.packed(len),
            None => contents,
        };
        let index = &self.store.page_index;
        let publish = |location| {
            index.set_location(handle, location, sum);
            index.publish(handle);
        };
        if !self.store.segments.append(open, handle, bytes, publish) {
            return false;
        }
        let bytes_taken = room_for(bytes.len()) as u64;
        self.store.count(StoreCounter::ToRam, 1);
        self.store.count(StoreCounter::ToRamBytes, bytes_taken);
        true
    }

    /// Unpacks the page at a location; returns false if there is no page (any more).
    pub fn unpack(&mut self, location: Location, to: &mut [u8; PAGE]) -> bool {
        let buffer = self.codec.unpack_buffer();
        let len = self.store.segments.read(location, buffer);
        len.is_some_and(|len| self.codec.decompress(len, to))
    }

    /// Returns true if there is room for this page, whose copy is on disk, and it compresses.
    pub fn should_promote(&mut self, handle: PageHandle, page: &[u8; PAGE]) -> bool {
        let is_on_disk = |found| matches!(found, Lookup::At(Location::Disk { .. }));
        self.store.segments.has_room()
            && self.store.page_index.find(handle).is_some_and(is_on_disk)
            && self.codec.compress(page).is_some()
    }

    /// Seals the open segment.
    pub fn seal(&mut self) {
        if let Some(open) = self.open.take() {
            self.store.segments.seal(open);
        }
    }

    /// Seals the open segment where other channels may need its room.
    pub fn seal_if_low(&mut self) {
        if self.open.is_some() && self.is_low(&SegmentStats::of(&self.store.segments)) {
            self.seal();
        }
    }

    /// Returns true if so few segments are free that the oldest should move to disk.
    pub fn is_low(&self, stats: &SegmentStats) -> bool {
        stats.free <= (self.store.segments.limit() / 16).clamp(RESERVE + 2, 64)
    }

    /// Opens a segment with room: a free one, a sealed one with room at its end, or one that is
    /// compacted. Returns false if there is none.
    pub fn open_segment(&mut self, stats: &SegmentStats, policy: CompactionPolicy) -> bool {
        (stats.is_sparse(policy.sparse) && self.compact_several(stats, policy))
            || (stats.free > RESERVE && self.open_free(stats))
            || self.reopen_roomy(stats, policy.need)
            || self.compact(stats, policy)
    }

    /// Returns true if another channel is emptying a segment now, or took the candidate.
    pub fn others_make_room(&self, stats: &SegmentStats, policy: CompactionPolicy) -> bool {
        let worth = stats
            .emptiest
            .is_some_and(|(_, live)| live <= self.most_alive(policy));
        let segments = self.store.segments.count() as u32;
        worth || stats.free > RESERVE || (0..segments).any(|at| self.store.segments.is_claimed(at))
    }

    fn most_alive(&self, policy: CompactionPolicy) -> u32 {
        let size = self.store.segments.size() as u32;
        // Compaction must gain room for the page, or it would repeat for ever.
        (size / 32 * policy.part).min(size - policy.need)
    }

    /// Opens the first free segment. Returns true if there is one.
    fn open_free(&mut self, stats: &SegmentStats) -> bool {
        let free = stats.first_free;
        self.open = free.and_then(|at| self.store.segments.open(at, self.store.holder));
        self.open.is_some()
    }

    /// Reopens a segment that was sealed early, by the death of its owner or the end of its channel,
    /// and has room at its end. Returns true if there is one.
    fn reopen_roomy(&mut self, stats: &SegmentStats, need: u32) -> bool {
        let enough = need.max(self.store.segments.size() as u32 / 4);
        let roomy = stats.roomiest.filter(|&(_, room)| room >= enough);
        self.open = roomy.and_then(|(at, _)| self.store.segments.reopen(at, self.store.holder));
        self.open.is_some()
    }

    /// Empties the segment with the fewest live bytes into the reserve, which then is the open
    /// segment. Returns true if one was worth it.
    fn compact(&mut self, stats: &SegmentStats, policy: CompactionPolicy) -> bool {
        let Some((victim, live)) = stats.emptiest else {
            return false;
        };
        if live > self.most_alive(policy) || !self.store.segments.claim(victim, self.store.holder) {
            return false;
        }
        let live = self.store.segments.live_in(victim, self.store.is_live());
        if live > self.most_alive(policy) || (live > 0 && !self.open_free(stats)) {
            self.store.segments.release(victim, live);
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

    /// Compacts the emptiest segment, and more of them while they fit in the same one and the store
    /// is sparse. Returns true if it compacted any.
    fn compact_several(&mut self, stats: &SegmentStats, policy: CompactionPolicy) -> bool {
        let CompactionPolicy { need, sparse, .. } = policy;
        let part = sparse;
        let policy = CompactionPolicy { part, ..policy };
        if !self.compact(stats, policy) {
            return false;
        }
        for _ in 1..MAX_COMPACTIONS {
            let stats = SegmentStats::of(&self.store.segments);
            let fits = |live| {
                self.open
                    .as_ref()
                    .is_some_and(|open| live + need <= self.store.segments.room_in(open))
            };
            let Some((victim, _)) = stats.emptiest.filter(|&(_, live)| fits(live)) else {
                break;
            };
            if !stats.is_sparse(sparse) || !self.store.segments.claim(victim, self.store.holder) {
                break;
            }
            self.empty(victim);
        }
        true
    }

    /// Moves the live objects of a claimed segment to a free one below the limit, which takes its
    /// place in the order of age, and releases it. Returns false, and does not, if none is free.
    pub fn move_below_limit(&mut self, victim: u32) -> bool {
        self.seal();
        let segments = &self.store.segments;
        self.open = (0..segments.limit())
            .filter(|&at| segments.is_free(at))
            .find_map(|at| segments.open_aged(at, self.store.holder, victim));
        let found = self.open.is_some();
        if found {
            self.empty(victim);
            self.seal();
        }
        found
    }

    /// Moves the live objects of a claimed segment to the open one, as far as they fit.
    fn empty(&mut self, victim: u32) {
        if let Some(mut open) = self.open.take() {
            self.move_all(victim, &mut open);
            self.open = Some(open);
        }
        // Pages dropped or moved meanwhile are not alive; those that did not fit are.
        let left = self.store.segments.live_in(victim, self.store.is_live());
        self.store.segments.release(victim, left);
    }

    fn move_all(&mut self, victim: u32, open: &mut OpenSegment) {
        let Self { store, codec, .. } = self;
        let mut moved = 0;
        for (handle, location) in store.segments.objects(victim) {
            if !store.page_index.is_at(handle, location) {
                continue;
            }
            let Some(len) = store.segments.read(location, codec.unpack_buffer()) else {
                continue;
            };
            let bytes = &codec.unpack_buffer()[..len];
            let mut relocated = false;
            let relocate = |to| relocated = store.page_index.relocate(handle, location, to);
            if !store.segments.append(open, handle, bytes, relocate) {
                break;
            }
            if relocated {
                moved += 1;
            } else {
                store.segments.mark_dead(open.segment, len as u32);
            }
        }
        self.store.count(StoreCounter::Compacted, moved);
    }
}
