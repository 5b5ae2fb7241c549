//! How large a channel is, and where each part of it lies.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | magic number, version, slots, pages |
//! | 128, 256 | the alarms of the server and of the client |
//! | 384, 512 | the tails of the FIFOs of requests and of completions |
//! | 1024, 2048 | their numbers |
//! | 4096 | the slots, 128 bytes each |
//! | the next page | the page buffers |

use crate::fifo::ROOM;
use wired::PAGE;

/// Pages of one request at most: what the store moves in one operation.
pub const RUN: usize = 32;
/// Most requests a channel has under way.
pub const MAX_SLOTS: usize = ROOM;
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
    pub const SERVER_ALARM: usize = 128;
    pub const CLIENT_ALARM: usize = 256;
    pub const REQUESTS_TAIL: usize = 384;
    pub const COMPLETIONS_TAIL: usize = 512;
    pub const REQUESTS: usize = 1024;
    pub const COMPLETIONS: usize = 2048;
}

/// Requests and page buffers of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    slots: u16,
    pages: u16,
}

/// A shape that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an IO channel of {slots} requests and {pages} pages cannot be: it has 1 to {MAX_SLOTS} requests and {RUN} to \
     {MAX_PAGES} pages"
)]
pub struct BadShape {
    /// Requests asked for.
    pub slots: usize,
    /// Pages asked for.
    pub pages: usize,
}

impl Shape {
    /// A channel of `slots` requests (1 to [`MAX_SLOTS`]) and `pages` page buffers ([`RUN`],
    /// so that the largest request fits, to [`MAX_PAGES`]).
    pub fn new(slots: usize, pages: usize) -> Result<Self, BadShape> {
        if !(1..=MAX_SLOTS).contains(&slots) || !(RUN..=MAX_PAGES).contains(&pages) {
            return Err(BadShape { slots, pages });
        }
        Ok(Self {
            slots: slots as u16,
            pages: pages as u16,
        })
    }

    /// For `depth` requests at once, each of a run, as far as there are pages: the rest
    /// wait in the client. Only pages that are ever used take memory.
    pub fn for_depth(depth: usize) -> Self {
        let slots = depth.clamp(1, MAX_SLOTS);
        Self {
            slots: slots as u16,
            pages: (slots * RUN).min(MAX_PAGES) as u16,
        }
    }

    /// Requests at once.
    pub fn slots(self) -> usize {
        self.slots.into()
    }

    /// Page buffers.
    pub fn pages(self) -> usize {
        self.pages.into()
    }

    /// Bytes of the channel's memory.
    pub fn bytes(self) -> usize {
        self.pages_at() + self.pages() * PAGE
    }

    /// Where the page buffers begin.
    pub(crate) fn pages_at(self) -> usize {
        (PAGE + self.slots() * SLOT).next_multiple_of(PAGE)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_at_most_about_two_mebibytes() {
        assert!(Shape::for_depth(usize::MAX).bytes() <= (2 << 20) + (64 << 10));
        assert_eq!(Shape::for_depth(1).pages(), RUN);
        assert_eq!(Shape::for_depth(0).slots(), 1);
    }

    #[test]
    fn shapes_that_cannot_be_are_refused_with_what_can() {
        for (slots, pages) in [(0, 64), (257, 64), (4, 31), (4, 513), (1 << 16, 1 << 16)] {
            let error = Shape::new(slots, pages).unwrap_err().to_string();
            assert!(error.contains("1 to 256"), "{error}");
        }
        assert_eq!(Shape::new(256, 512), Ok(Shape::for_depth(256)));
    }
}
