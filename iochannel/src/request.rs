//! A request as the server uses it: copied out of the shared memory, and validated.

use crate::geometry::MAX_RUN;
use crate::slot::RawRequest;
use wired::PAGE;

/// A range of memory; the system's `struct iovec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct IoVec {
    /// First byte.
    pub start: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl IoVec {
    /// An empty range.
    pub const EMPTY: Self = Self {
        start: std::ptr::null_mut(),
        len: 0,
    };

    /// A page.
    pub const fn page(start: *mut u8) -> Self {
        Self { start, len: PAGE }
    }
}

// SAFETY: an address and a size; code that dereferences it justifies that itself.
unsafe impl Send for IoVec {}

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// From the disk into the page buffers.
    Read,
    /// From the page buffers to the disk.
    Write,
}

impl Op {
    pub(crate) fn code(self) -> u32 {
        match self {
            Op::Read => 0,
            Op::Write => 1,
        }
    }
}

/// A client's request. Its offset is valid for any file, but not yet checked against the size of the
/// client's file.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The request's slot, which [`crate::ChannelServer::complete`] takes.
    pub slot: u16,
    /// Read or write.
    pub op: Op,
    /// Bytes from the start of the client's file; a multiple of the page size, and within the
    /// largest file size.
    pub offset: u64,
    pieces: [IoVec; MAX_RUN],
    count: usize,
    len: usize,
}

impl Request {
    /// The page buffers, in the order of the file, neighbours joined: within the channel's memory
    /// and page aligned. Valid until the request completes, as long as the server exists. The
    /// client may change their contents at any time.
    pub fn pieces(&self) -> &[IoVec] {
        &self.pieces[..self.count]
    }

    /// Bytes: 1 to [`MAX_RUN`] whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Validates the request of a slot, of a channel with `pages` page buffers from `base` on.
    pub(crate) fn validate(
        slot: usize,
        raw: &RawRequest,
        base: *mut u8,
        pages: usize,
    ) -> Result<Self, ProtocolError> {
        let op = match raw.op {
            0 => Op::Read,
            1 => Op::Write,
            op => return Err(ProtocolError::Op { slot, op }),
        };
        let count = raw.count as usize;
        if count == 0 || count > MAX_RUN {
            return Err(ProtocolError::Count { slot, count });
        }
        let len = count * PAGE;
        let ends = raw.offset.checked_add(len as u64);
        if !raw.offset.is_multiple_of(PAGE as u64) || ends.is_none_or(|end| end > i64::MAX as u64) {
            let offset = raw.offset;
            return Err(ProtocolError::Offset { slot, offset });
        }
        let mut request = Self {
            slot: slot as u16,
            op,
            offset: raw.offset,
            pieces: [IoVec::EMPTY; MAX_RUN],
            count: 0,
            len,
        };
        for &page in &raw.pages[..count] {
            if usize::from(page) >= pages {
                return Err(ProtocolError::Page { slot, page, pages });
            }
            request.add(base.wrapping_add(usize::from(page) * PAGE));
        }
        Ok(request)
    }

    fn add(&mut self, page: *mut u8) {
        if let Some(last) = self.pieces[..self.count].last_mut()
            && last.start.wrapping_add(last.len) == page
        {
            last.len += PAGE;
            return;
        }
        self.pieces[self.count] = IoVec::page(page);
        self.count += 1;
    }
}

/// A client has violated the protocol in its channel, and is to be disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// More requests in the FIFO than there are slots.
    #[error("corrupt FIFO: {pending} requests pending in a channel of {slots} slots")]
    Overrun {
        /// Number of requests in the FIFO.
        pending: u32,
        /// Number of slots.
        slots: usize,
    },
    /// A slot number out of range.
    #[error("corrupt FIFO: slot {slot} in a channel of {slots} slots")]
    Slot {
        /// The number.
        slot: usize,
        /// Number of slots.
        slots: usize,
    },
    /// A slot whose state is not that of a submitted request.
    #[error("corrupt FIFO: slot {slot} was not submitted there")]
    State {
        /// The slot.
        slot: usize,
    },
    /// A slot that is being served.
    #[error("slot {slot} was submitted again before its completion")]
    InFlight {
        /// The slot.
        slot: usize,
    },
    /// An unknown operation.
    #[error("slot {slot}: invalid operation {op}; expected 0 (read) or 1 (write)")]
    Op {
        /// The slot.
        slot: usize,
        /// The operation's code.
        op: u32,
    },
    /// A number of pages out of range.
    #[error("slot {slot}: invalid number of pages {count}; expected 1 to {MAX_RUN}")]
    Count {
        /// The slot.
        slot: usize,
        /// The number.
        count: usize,
    },
    /// A page buffer's index out of range.
    #[error("slot {slot}: invalid page buffer {page} in a channel of {pages}")]
    Page {
        /// The slot.
        slot: usize,
        /// The index.
        page: u16,
        /// Number of page buffers.
        pages: usize,
    },
    /// An offset that no page can have.
    #[error(
        "slot {slot}: invalid offset {offset}; expected a multiple of {PAGE} within the largest file size"
    )]
    Offset {
        /// The slot.
        slot: usize,
        /// The offset.
        offset: u64,
    },
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: *mut u8 = 0x10_0000 as *mut u8;

    fn raw(op: u32, offset: u64, pages: &[u16]) -> RawRequest {
        let mut raw = RawRequest {
            op,
            count: pages.len() as u32,
            offset,
            pages: [0; MAX_RUN],
        };
        raw.pages[..pages.len()].copy_from_slice(pages);
        raw
    }

    #[test]
    fn neighbouring_page_buffers_are_joined() {
        let request = Request::validate(3, &raw(1, 8192, &[4, 5, 6, 2, 9]), BASE, 64).unwrap();
        let pieces: Vec<_> = (request.pieces().iter())
            .map(|piece| (piece.start as usize - BASE as usize, piece.len))
            .collect();
        assert_eq!(
            pieces,
            [(4 * PAGE, 3 * PAGE), (2 * PAGE, PAGE), (9 * PAGE, PAGE)]
        );
        assert_eq!((request.op, request.len()), (Op::Write, 5 * PAGE));
    }

    proptest! {
        #[test]
        fn no_request_leaves_the_channels_pages(
            op: u32, small in 0u32..4, is_small: bool, count in 0u32..40, offset: u64, aligned: bool,
            pages in prop::array::uniform32(0u16..80), buffers in MAX_RUN..64usize,
        ) {
            let offset = if aligned { offset >> 2 & !4095 } else { offset };
            let op = if is_small { small } else { op };
            let raw = RawRequest { op, count, offset, pages };
            if let Ok(request) = Request::validate(0, &raw, BASE, buffers) {
                let mut len = 0;
                for piece in request.pieces() {
                    let start = piece.start as usize - BASE as usize;
                    prop_assert!(start.is_multiple_of(PAGE));
                    prop_assert!(start + piece.len <= buffers * PAGE);
                    len += piece.len;
                }
                prop_assert_eq!(len, request.len());
                prop_assert!(len <= MAX_RUN * PAGE && request.offset + len as u64 <= i64::MAX as u64);
            }
        }
    }
}
