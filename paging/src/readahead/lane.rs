//! One stream's ring of buffers, and the table of a reader's lanes.

use super::{LANES, LONGEST};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use store::PageHandle;
use wired::WiredMemory;

/// What is in a buffer.
#[derive(Clone, Copy, Default)]
pub(super) enum Buffer {
    /// Nothing of use.
    #[default]
    Free,
    /// The read of this handle is under way.
    Coming(PageHandle),
    /// The contents have arrived.
    Here(PageHandle),
    /// The read failed.
    Failed,
    /// The read is under way, but its contents are no longer wanted.
    Dropped,
}

#[derive(Clone, Copy)]
pub(super) struct ReadaheadLane {
    /// 0 if the lane is unused.
    pub(super) stream: u32,
    pub(super) stretch: u32,
    /// The page at position 0.
    pub(super) origin: usize,
    pub(super) stride: isize,
    /// The ring holds positions from here on.
    pub(super) tail: usize,
    /// Positions from here on have not been requested yet.
    pub(super) end: usize,
    /// True if the stream's pages come from a disk: only then is there a reason to read
    /// farther than the window.
    pub(super) slow: bool,
    pub(super) used: u32,
    /// Buffers of the ring in use: a power of two.
    pub(super) length: usize,
    pub(super) buffers: [Buffer; LONGEST],
}

impl ReadaheadLane {
    pub(super) const NONE: Self = Self {
        stream: 0,
        stretch: 0,
        origin: 0,
        stride: 1,
        tail: 0,
        end: 0,
        slow: false,
        used: 0,
        length: 1,
        buffers: [Buffer::Free; LONGEST],
    };

    /// The position of a page, if the stream comes to it.
    pub(super) fn position(&self, index: usize) -> Option<usize> {
        let ahead = index.wrapping_sub(self.origin) as isize;
        let position = ahead / self.stride;
        (ahead % self.stride == 0 && position >= 0).then_some(position as usize)
    }
}

/// A reader's lanes: none until the reader's first stream, since most processes of a tree end
/// without one, and each would pay for them (66 KiB for four readers, and as much copied by a fork).
pub(super) struct LaneTable {
    memory: WiredMemory,
    begun: bool,
}

impl LaneTable {
    /// Bytes of the memory for a table.
    pub(super) const BYTES: usize = size_of::<[ReadaheadLane; LANES]>();

    /// In memory of [`LaneTable::BYTES`], which is zero in the child of a fork.
    pub(super) fn new(memory: WiredMemory) -> Self {
        assert!(memory.len() >= Self::BYTES, "layout");
        Self {
            memory,
            begun: false,
        }
    }

    fn at(&self) -> *mut [MaybeUninit<ReadaheadLane>; LANES] {
        self.memory.as_ptr().cast()
    }

    /// Makes the lanes, all unused, where that has not been done.
    pub(super) fn begin(&mut self) {
        if !self.begun {
            // SAFETY: the memory is the table's alone, as long as that, and page aligned.
            let lanes = unsafe { &mut *self.at() };
            for lane in lanes {
                lane.write(ReadaheadLane::NONE);
            }
            self.begun = true;
        }
    }

    /// In the child of a fork: its memory has no lanes.
    pub(super) fn forget(&mut self) {
        self.begun = false;
    }

    /// Frees the lanes, which no read refers to any more.
    pub(super) fn discard(&mut self) {
        self.forget();
        self.memory.discard();
    }

    fn count(&self) -> usize {
        if self.begun { LANES } else { 0 }
    }
}

impl Deref for LaneTable {
    type Target = [ReadaheadLane];

    fn deref(&self) -> &[ReadaheadLane] {
        // SAFETY: `begin` has written as many, and only this table refers to the memory.
        unsafe { std::slice::from_raw_parts(self.at().cast(), self.count()) }
    }
}

impl DerefMut for LaneTable {
    fn deref_mut(&mut self) -> &mut [ReadaheadLane] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at().cast(), self.count()) }
    }
}
