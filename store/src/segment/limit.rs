//! The limit on segments in use, which may change while channels append and read.
//!
//! Segments from the limit on are not opened, and what they hold is moved below it or demoted by
//! the process that lowers it. An opener raises the segment's state before it reads the limit, and
//! the process that lowers writes the limit before it reads the states: so either the opener finds
//! the new limit, or that process finds the segment. Memory is given back by [`SegmentTable::trim`].

use super::{
    APPENDING, CLAIMED, FREE, KIND, OPEN, OpenSegment, SEALED, Segment, SegmentTable, owned,
};
use crate::HolderId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ages are told apart in eighths: the youngest, the oldest, and those between.
const AGE_PART: usize = 8;

/// The words of the limit.
#[derive(Clone, Copy)]
pub(crate) struct RamLimit {
    /// Segments that may be in use.
    pub segments: &'static AtomicU64,
    /// The birth from which a segment is young.
    pub young: &'static AtomicU64,
    /// The birth below which a segment is old.
    pub old: &'static AtomicU64,
    /// Not 0 where so many segments below the limit are free that none is demoted soon: a hint.
    pub room: &'static AtomicU64,
}

/// The age of a segment among those in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Age {
    Young,
    Middle,
    Old,
}

impl Segment {
    fn birth(&self) -> u64 {
        self.state() >> super::BIRTH_SHIFT
    }
}

impl SegmentTable {
    /// Segments that may be in use: those below this number.
    pub fn limit(&self) -> u32 {
        let limit = self.limit.segments.load(Ordering::SeqCst);
        limit.min(self.table.len() as u64) as u32
    }

    /// Sets the limit. What lies above is to be emptied.
    pub fn set_limit(&self, segments: u32) {
        let most = self.table.len() as u64;
        self.limit
            .segments
            .store(u64::from(segments).min(most), Ordering::SeqCst);
    }

    /// Returns true if the segment is free.
    pub fn is_free(&self, at: u32) -> bool {
        self.table[at as usize].state.load(Ordering::SeqCst) & KIND == FREE
    }

    /// One past the last segment that is not free.
    pub fn end(&self) -> u32 {
        let used = (0..self.high()).rev().find(|&at| !self.is_free(at));
        used.map_or(0, |at| at + 1)
    }

    /// Segments that are not free.
    pub fn in_use(&self) -> u32 {
        (0..self.high()).filter(|&at| !self.is_free(at)).count() as u32
    }

    /// Returns true if there was room for more when the room was last noted.
    pub fn has_room(&self) -> bool {
        self.limit.room.load(Ordering::Relaxed) != 0
    }

    /// Notes whether there is room for more: for channels, which would count too often.
    pub fn note_room(&self) {
        let free = self.limit().saturating_sub(self.in_use());
        let has_room = free > self.limit() / 8 + 2;
        self.limit.room.store(has_room.into(), Ordering::Relaxed);
    }

    /// Claims a sealed segment, or one that another channel has open and is not appending to: that
    /// channel finds out at its next append. Returns true if it did.
    pub fn seize(&self, at: u32, holder: HolderId) -> bool {
        let segment = &self.table[at as usize];
        let now = segment.state();
        let can = now & KIND == SEALED || now & (KIND | APPENDING) == OPEN;
        can && segment.try_change(now, owned(CLAIMED, holder, segment.birth()))
    }

    /// Opens a free segment that is as old as another one.
    pub fn open_aged(&self, at: u32, holder: HolderId, like: u32) -> Option<OpenSegment> {
        let mut open = self.open(at, holder)?;
        let aged = owned(OPEN, holder, self.table[like as usize].birth());
        self.table[at as usize].set_state(aged);
        open.state = aged;
        Some(open)
    }

    /// Gives back the memory of the segments from the limit on, once none is in use. Returns the
    /// number of segments that may have memory.
    pub fn trim(&self) -> u32 {
        let (limit, end) = (self.limit(), self.end());
        let high = self.high();
        let kept = limit.max(end);
        if kept < high {
            // SAFETY: nothing above is in use, and nothing there is opened past the limit; a late
            // reader finds zeros and that its page has moved.
            let _ = unsafe {
                rustix::mm::madvise(
                    self.start(kept).cast(),
                    (high - kept) as usize * self.size,
                    rustix::mm::Advice::LinuxRemove,
                )
            };
        }
        kept
    }

    /// Sets the births that divide the segments in use by age, for [`SegmentTable::age`].
    /// Allocates: not for the page path.
    pub fn divide_by_age(&self) {
        let used = (0..self.high()).filter(|&at| !self.is_free(at));
        let mut births: Vec<u64> = used.map(|at| self.table[at as usize].birth()).collect();
        births.sort_unstable();
        let part = births.len().div_ceil(AGE_PART);
        let (old, young) = match births.len() {
            0 | 1 => (0, u64::MAX),
            all => (births[part], births[all - part]),
        };
        self.limit.old.store(old, Ordering::Relaxed);
        self.limit.young.store(young, Ordering::Relaxed);
    }

    /// The age of a segment in which a page was found.
    pub fn age(&self, at: u32) -> Age {
        let birth = self.table.get(at as usize).map_or(0, Segment::birth);
        if birth >= self.limit.young.load(Ordering::Relaxed) {
            Age::Young
        } else if birth < self.limit.old.load(Ordering::Relaxed) {
            Age::Old
        } else {
            Age::Middle
        }
    }
}
