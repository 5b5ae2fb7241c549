//! One stream's ring of buffers.

use super::LONGEST;
use store::PageHandle;

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
