//! Compressed RAM as a log of segments in one arena.
//!
//! One channel appends to a segment and then seals it; sealed segments are emptied whole, by moving
//! their live objects elsewhere. Any process may empty any sealed segment, after claiming it. An
//! object is a header word (handle, length) and the contents, padded to 8 bytes; it is alive if the
//! page index locates its page there.
//!
//! | state | means |
//! |---|---|
//! | free | nothing alive |
//! | open | its owner appends, and may lose it between two appends |
//! | sealed | no channel appends; may be claimed |
//! | claimed | its owner moves the live objects out of it |
//!
//! Rule: a location is not reused while its segment is claimed or holds a live object, so that a
//! page's location word never returns to a former value. The number of dead bytes is a hint that a
//! walk corrects.
//!
//! Dead space is bounded where segments are opened: see
//! [`SegmentStats::is_sparse`](crate::segment_stats::SegmentStats::is_sparse).

mod limit;
mod reclaim;

pub(crate) use limit::{Age, RamLimit};

use crate::HolderId;
use crate::location::Location;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use wired::Plain;

/// Header bytes of an object.
const HEADER: usize = 8;

/// One segment's words.
#[repr(C)]
pub(crate) struct Segment {
    state: AtomicU64,
    used: AtomicU32,
    /// Dead bytes. Not the live ones: an append would have to count them up, on a cache line that
    /// other processes' discards write.
    dead: AtomicI32,
}

impl Segment {
    fn state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    fn set_state(&self, state: u64) {
        self.state.store(state, Ordering::Release);
    }

    /// Returns true if the state was exactly `from`, and is changed.
    fn try_change(&self, from: u64, to: u64) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    fn live(&self) -> u32 {
        let dead = self.dead.load(Ordering::Relaxed).max(0) as u32;
        self.used.load(Ordering::Relaxed).saturating_sub(dead)
    }

    fn set_live(&self, live: u32) {
        let used = self.used.load(Ordering::Relaxed);
        self.dead
            .store(used.saturating_sub(live) as i32, Ordering::Release);
    }
}

// SAFETY: atomics only.
unsafe impl Plain for Segment {}

const KIND: u64 = 0b11;
const FREE: u64 = 0;
const OPEN: u64 = 1;
const SEALED: u64 = 2;
const CLAIMED: u64 = 3;
const OWNER_SHIFT: u32 = 2;
const OWNER: u64 = 0x7fff << OWNER_SHIFT;
/// The owner of an open segment is appending a page, or has yet to publish it.
const APPENDING: u64 = 1 << 17;
const BIRTH_SHIFT: u32 = 18;

fn owned(kind: u64, owner: HolderId, birth: u64) -> u64 {
    kind | (u64::from(owner) + 1) << OWNER_SHIFT | birth << BIRTH_SHIFT
}

/// A segment's state, for a search.
pub(crate) enum SegmentState {
    Free,
    /// Open or claimed.
    Busy,
    /// Sealed: its age, live bytes, and bytes left at its end.
    Sealed {
        birth: u64,
        live: u32,
        room: u32,
    },
}

/// The segments and their arena.
pub(crate) struct SegmentTable {
    table: &'static [Segment],
    births: &'static AtomicU64,
    /// One past the last segment that was ever opened: segments behind it are free.
    high: &'static AtomicU64,
    limit: RamLimit,
    arena: *mut u8,
    size: usize,
}

// SAFETY: the arena is shared memory; a segment's state permits writes by its owner only.
unsafe impl Send for SegmentTable {}
// SAFETY: as above.
unsafe impl Sync for SegmentTable {}

impl SegmentTable {
    /// # Safety
    /// `arena` has `size` bytes for each segment, and lives as long as the result.
    pub unsafe fn new(
        table: &'static [Segment],
        (births, high): (&'static AtomicU64, &'static AtomicU64),
        limit: RamLimit,
        arena: *mut u8,
        size: usize,
    ) -> Self {
        Self {
            table,
            births,
            high,
            limit,
            arena,
            size,
        }
    }

    /// Number of segments that the arena has addresses for.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// Bytes of a segment.
    pub fn size(&self) -> usize {
        self.size
    }

    /// One past the last segment that was ever opened: segments behind it are free.
    pub fn high(&self) -> u32 {
        let high = self.high.load(Ordering::Acquire);
        high.min(self.table.len() as u64) as u32
    }

    /// The present state of a segment.
    pub fn state(&self, at: u32) -> SegmentState {
        let segment = &self.table[at as usize];
        let state = segment.state();
        match state & KIND {
            FREE => SegmentState::Free,
            SEALED => SegmentState::Sealed {
                birth: state >> BIRTH_SHIFT,
                live: segment.live(),
                room: (self.size as u32).saturating_sub(segment.used.load(Ordering::Relaxed)),
            },
            _ => SegmentState::Busy,
        }
    }

    /// Opens a free segment for `holder`.
    pub fn open(&self, at: u32, holder: HolderId) -> Option<OpenSegment> {
        let segment = &self.table[at as usize];
        // Raised first: a segment that its opener's death leaves behind must be found.
        self.high.fetch_max(u64::from(at) + 1, Ordering::AcqRel);
        let birth = self.births.fetch_add(1, Ordering::Relaxed) + 1;
        let open = owned(OPEN, holder, birth);
        // As if it appended: it cannot be seized before its words are those of an empty segment.
        if !segment.try_change(FREE, open | APPENDING) {
            return None;
        }
        if at >= self.limit() {
            segment.set_state(FREE);
            return None;
        }
        segment.used.store(0, Ordering::Release);
        segment.dead.store(0, Ordering::Release);
        segment.set_state(open);
        Some(OpenSegment {
            segment: at,
            used: 0,
            state: open,
        })
    }

    /// Reopens a sealed segment, to fill its end.
    pub fn reopen(&self, at: u32, holder: HolderId) -> Option<OpenSegment> {
        let segment = &self.table[at as usize];
        let state = segment.state();
        let open = owned(OPEN, holder, state >> BIRTH_SHIFT);
        (state & KIND == SEALED && segment.try_change(state, open)).then(|| OpenSegment {
            segment: at,
            used: segment.used.load(Ordering::Acquire),
            state: open,
        })
    }

    /// Bytes left in an open segment.
    pub fn room_in(&self, open: &OpenSegment) -> u32 {
        self.size as u32 - open.used
    }

    /// Seals an open segment, unless its owner has lost it.
    pub fn seal(&self, open: OpenSegment) {
        let sealed = SEALED | open.state >> BIRTH_SHIFT << BIRTH_SHIFT;
        self.table[open.segment as usize].try_change(open.state, sealed);
    }

    /// Claims a sealed segment to empty it. Returns true if it did.
    pub fn claim(&self, at: u32, holder: HolderId) -> bool {
        let segment = &self.table[at as usize];
        let now = segment.state();
        let claimed = owned(CLAIMED, holder, now >> BIRTH_SHIFT);
        now & KIND == SEALED && segment.try_change(now, claimed)
    }

    /// Releases a claimed segment with `live` bytes in it; with none it is free. One that could not
    /// be emptied goes to the end of the line.
    pub fn release(&self, at: u32, live: u32) {
        let segment = &self.table[at as usize];
        if live == 0 {
            segment.set_state(FREE);
            return;
        }
        segment.set_live(live);
        let birth = self.births.fetch_add(1, Ordering::Relaxed) + 1;
        segment.set_state(SEALED | birth << BIRTH_SHIFT);
    }

    /// Returns true if its owner is emptying it now.
    pub fn is_claimed(&self, at: u32) -> bool {
        self.table
            .get(at as usize)
            .is_some_and(|segment| segment.state() & KIND == CLAIMED)
    }

    /// Appends an object to an open segment and publishes it, if it fits and the segment is still
    /// the owner's. Until `publish` returns the segment cannot be taken, so that no page is
    /// published in one that is being emptied. Returns true if the object is in.
    pub fn append(
        &self,
        open: &mut OpenSegment,
        handle: u32,
        contents: &[u8],
        publish: impl FnOnce(Location),
    ) -> bool {
        let need = room_for(contents.len());
        let offset = open.used as usize;
        let segment = &self.table[open.segment as usize];
        if offset + need > self.size || !segment.try_change(open.state, open.state | APPENDING) {
            return false;
        }
        let at = self.start(open.segment).wrapping_add(offset);
        let header = u64::from(handle) | (contents.len() as u64) << 32;
        // SAFETY: inside the segment, aligned to 8; only its opener writes there. Readers of an
        // earlier object at this location find that their page has moved.
        unsafe {
            (*at.cast::<AtomicU64>()).store(header, Ordering::Relaxed);
            std::ptr::copy_nonoverlapping(contents.as_ptr(), at.add(HEADER), contents.len());
        }
        open.used += need as u32;
        // Before the page is published: a walk of the segment after this channel's death must find
        // it.
        segment.used.store(open.used, Ordering::Release);
        publish(Location::Ram {
            segment: open.segment,
            offset: offset as u32,
            len: contents.len() as u32,
        });
        segment.set_state(open.state);
        true
    }

    /// Counts an object of this length as dead.
    pub fn mark_dead(&self, segment: u32, len: u32) {
        if let Some(segment) = self.table.get(segment as usize) {
            segment
                .dead
                .fetch_add(room_for(len as usize) as i32, Ordering::Relaxed);
        }
    }

    /// Copies an object's present bytes: the caller verifies them. `None` if the location is
    /// invalid.
    pub fn read(&self, location: Location, into: &mut [u8]) -> Option<usize> {
        let Location::Ram {
            segment,
            offset,
            len,
        } = location
        else {
            return None;
        };
        let (offset, len) = (offset as usize + HEADER, len as usize);
        let exists = (segment as usize) < self.table.len();
        if !exists || offset + len > self.size || len > into.len() {
            return None;
        }
        // SAFETY: inside the arena. The bytes may be overwritten meanwhile, if the page has moved:
        // they are not interpreted before their checksum is, and any bytes are valid.
        unsafe {
            let from = self.start(segment).wrapping_add(offset);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len);
        }
        Some(len)
    }

    /// The object at `offset` of a claimed segment: handle, location, and the next offset. `None`
    /// at the end.
    pub fn object(&self, segment: u32, offset: u32) -> Option<(u32, Location, u32)> {
        let used = self.table[segment as usize].used.load(Ordering::Acquire);
        if offset as usize + HEADER > (used as usize).min(self.size) {
            return None;
        }
        let at = self.start(segment).wrapping_add(offset as usize);
        // SAFETY: inside the segment, aligned to 8.
        let header = unsafe { (*at.cast::<AtomicU64>()).load(Ordering::Relaxed) };
        let len = (header >> 32) as u32;
        let next = offset.checked_add(room_for(len as usize) as u32)?;
        (next <= used).then_some((
            header as u32,
            Location::Ram {
                segment,
                offset,
                len,
            },
            next,
        ))
    }

    /// The objects of a claimed segment.
    pub fn objects(&self, segment: u32) -> impl Iterator<Item = (u32, Location)> + '_ {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (handle, location, next) = self.object(segment, offset)?;
            offset = next;
            Some((handle, location))
        })
    }

    /// Live bytes of a segment that is claimed or unowned, by walking it.
    pub fn live_in(&self, at: u32, is_live: impl Fn(u32, Location) -> bool) -> u32 {
        let (mut live, mut offset) = (0, 0);
        while let Some((handle, location, next)) = self.object(at, offset) {
            live += if is_live(handle, location) {
                next - offset
            } else {
                0
            };
            offset = next;
        }
        live
    }

    /// Bytes of the segments that are not free.
    pub fn used(&self) -> u64 {
        let busy = |s: &&Segment| s.state() & KIND != FREE;
        self.table.iter().filter(busy).count() as u64 * self.size as u64
    }

    fn start(&self, segment: u32) -> *mut u8 {
        self.arena.wrapping_add(segment as usize * self.size)
    }
}

/// A segment that its channel appends to. Not `Clone`: its holder is the owner.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub segment: u32,
    used: u32,
    /// Its state word between two appends, for as long as it is the owner's.
    state: u64,
}

/// Bytes of arena an object of `len` bytes takes.
pub(crate) fn room_for(len: usize) -> usize {
    HEADER + len.next_multiple_of(8)
}
