//! The size of a channel, and the layout of its memory.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | magic number, version, slots, pages |
//! | 128, 256 | the wake flags of the server and of the client |
//! | 384, 512 | the tails of the FIFOs of requests and of completions |
//! | 1024, 2048 | their numbers |
//! | 4096 | the slots, 128 bytes each |
//! | the next page | the page buffers |

use crate::fifo::CAPACITY;
use wired::PAGE;

/// Most pages of one request: what the store moves in one operation.
pub const MAX_RUN: usize = 32;
/// Most requests of a channel in flight.
pub const MAX_SLOTS: usize = CAPACITY;
/// Most page buffers of a channel: 2 MiB, two windows of read-ahead.
pub const MAX_PAGES: usize = 512;

/// Bytes of a slot: two cache lines, so that neighbours share none.
pub(crate) const SLOT: usize = 128;

/// Byte offsets in the first page.
pub(crate) mod at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const SLOTS: usize = 12;
    pub const PAGES: usize = 16;
    pub const SERVER_FLAG: usize = 128;
    pub const CLIENT_FLAG: usize = 256;
    pub const REQUESTS_TAIL: usize = 384;
    pub const COMPLETIONS_TAIL: usize = 512;
    pub const THREADS: usize = 640;
    pub const REQUESTS: usize = 1024;
    pub const COMPLETIONS: usize = 2048;
}

/// Number of requests and page buffers of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelGeometry {
    slots: u16,
    pages: u16,
}

/// A geometry out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "invalid IO channel geometry: {slots} requests and {pages} pages; expected 1 to {MAX_SLOTS} requests and {MAX_RUN} \
     to {MAX_PAGES} pages"
)]
pub struct GeometryError {
    /// Requests, as requested.
    pub slots: usize,
    /// Pages, as requested.
    pub pages: usize,
}

impl ChannelGeometry {
    /// A channel of `slots` requests (1 to [`MAX_SLOTS`]) and `pages` page buffers ([`MAX_RUN`], so
    /// that the largest request fits, to [`MAX_PAGES`]).
    pub fn new(slots: usize, pages: usize) -> Result<Self, GeometryError> {
        if !(1..=MAX_SLOTS).contains(&slots) || !(MAX_RUN..=MAX_PAGES).contains(&pages) {
            return Err(GeometryError { slots, pages });
        }
        Ok(Self {
            slots: slots as u16,
            pages: pages as u16,
        })
    }

    /// For `depth` concurrent requests of [`MAX_RUN`] pages each, up to [`MAX_PAGES`] page buffers: further
    /// requests wait in the client. Only pages that are ever used take memory.
    pub fn for_depth(depth: usize) -> Self {
        let slots = depth.clamp(1, MAX_SLOTS);
        Self {
            slots: slots as u16,
            pages: (slots * MAX_RUN).min(MAX_PAGES) as u16,
        }
    }

    /// Number of concurrent requests.
    pub fn slots(self) -> usize {
        self.slots.into()
    }

    /// Number of page buffers.
    pub fn pages(self) -> usize {
        self.pages.into()
    }

    /// Bytes of the channel's memory.
    pub fn bytes(self) -> usize {
        self.pages_at() + self.pages() * PAGE
    }

    /// Offset of the page buffers.
    pub(crate) fn pages_at(self) -> usize {
        (PAGE + self.slots() * SLOT).next_multiple_of(PAGE)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_at_most_about_two_mebibytes() {
        assert!(ChannelGeometry::for_depth(usize::MAX).bytes() <= (2 << 20) + (64 << 10));
        assert_eq!(ChannelGeometry::for_depth(1).pages(), MAX_RUN);
        assert_eq!(ChannelGeometry::for_depth(0).slots(), 1);
    }

    #[test]
    fn geometries_out_of_range_are_refused_with_the_range() {
        for (slots, pages) in [(0, 64), (257, 64), (4, 31), (4, 513), (1 << 16, 1 << 16)] {
            let error = ChannelGeometry::new(slots, pages).unwrap_err().to_string();
            assert!(error.contains("1 to 256"), "{error}");
        }
        assert_eq!(
            ChannelGeometry::new(256, 512),
            Ok(ChannelGeometry::for_depth(256))
        );
    }
}
