//! A request as the server has it: copied out of the shared memory, and judged.

use crate::shape::RUN;
use crate::slot::Ask;
use wired::PAGE;

/// One piece of memory; the system's `struct iovec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Piece {
    /// First byte.
    pub start: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: an address and a size; what is done with them is its doer's to justify.
unsafe impl Send for Piece {}

/// Which way the pages go.
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

/// What a client asks for. Its offset is within what is the client's, and is not yet held
/// against the bounds of that.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Which, to be told in its answer.
    pub slot: u16,
    /// Read or write.
    pub op: Op,
    /// Bytes from the start of the client's file; a multiple of the page size, and no more
    /// than a file can have.
    pub offset: u64,
    pieces: [Piece; RUN],
    count: usize,
    len: usize,
}

impl Request {
    /// The page buffers, in the order of the file, neighbours joined: within the channel's
    /// memory and page aligned. Valid until the request's answer, as long as the server is
    /// there. The client may change their contents at any time.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }

    /// Bytes: 1 to [`RUN`] whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Judges what was asked in a slot, of a channel with `pages` page buffers from `base`
    /// on.
    pub(crate) fn judge(
        slot: usize,
        ask: &Ask,
        base: *mut u8,
        pages: usize,
    ) -> Result<Self, Corrupt> {
        let op = match ask.op {
            0 => Op::Read,
            1 => Op::Write,
            op => return Err(Corrupt::Op { slot, op }),
        };
        let count = ask.count as usize;
        if count == 0 || count > RUN {
            return Err(Corrupt::Count { slot, count });
        }
        let len = count * PAGE;
        let ends = ask.offset.checked_add(len as u64);
        if !ask.offset.is_multiple_of(PAGE as u64) || ends.is_none_or(|end| end > i64::MAX as u64) {
            let offset = ask.offset;
            return Err(Corrupt::Offset { slot, offset });
        }
        let mut request = Self {
            slot: slot as u16,
            op,
            offset: ask.offset,
            pieces: [Piece {
                start: std::ptr::null_mut(),
                len: 0,
            }; RUN],
            count: 0,
            len,
        };
        for &page in &ask.pages[..count] {
            if usize::from(page) >= pages {
                return Err(Corrupt::Page { slot, page, pages });
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
        self.pieces[self.count] = Piece {
            start: page,
            len: PAGE,
        };
        self.count += 1;
    }
}

/// A client has written into its channel what none of ours writes: it is to be cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Corrupt {
    /// More requests in the FIFO than there are slots.
    #[error("its FIFO says that {pending} requests wait, of a channel that has {slots}")]
    Overrun {
        /// As it says.
        pending: u32,
        /// As there are.
        slots: usize,
    },
    /// A slot that is none.
    #[error("its FIFO names slot {slot}, of a channel that has {slots}")]
    Slot {
        /// As it says.
        slot: usize,
        /// As there are.
        slots: usize,
    },
    /// A slot whose state does not say that it was put there.
    #[error("its FIFO names slot {slot}, whose state is that of no request put there")]
    State {
        /// Which.
        slot: usize,
    },
    /// A slot that is being served.
    #[error("it asks again in slot {slot} before that has its answer")]
    InFlight {
        /// Which.
        slot: usize,
    },
    /// An operation that is none.
    #[error("slot {slot} asks for operation {op}: there are 0 (read) and 1 (write)")]
    Op {
        /// Which.
        slot: usize,
        /// As it says.
        op: u32,
    },
    /// Pages: none, or too many.
    #[error("slot {slot} asks for {count} pages: a request has 1 to {RUN}")]
    Count {
        /// Which.
        slot: usize,
        /// As it says.
        count: usize,
    },
    /// A page buffer that is none.
    #[error("slot {slot} names page buffer {page}, of a channel that has {pages}")]
    Page {
        /// Which.
        slot: usize,
        /// As it says.
        page: u16,
        /// As there are.
        pages: usize,
    },
    /// An offset that no page can have.
    #[error(
        "slot {slot} asks for offset {offset}: not a multiple of {PAGE}, or past what a file can have"
    )]
    Offset {
        /// Which.
        slot: usize,
        /// As it says.
        offset: u64,
    },
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: *mut u8 = 0x10_0000 as *mut u8;

    fn ask(op: u32, offset: u64, pages: &[u16]) -> Ask {
        let mut ask = Ask {
            op,
            count: pages.len() as u32,
            offset,
            pages: [0; RUN],
        };
        ask.pages[..pages.len()].copy_from_slice(pages);
        ask
    }

    #[test]
    fn neighbouring_page_buffers_are_one_piece() {
        let request = Request::judge(3, &ask(1, 8192, &[4, 5, 6, 2, 9]), BASE, 64).unwrap();
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
            op: u32, small in 0u32..4, tell: bool, count in 0u32..40, offset: u64, aligned: bool,
            pages in prop::array::uniform32(0u16..80), buffers in RUN..64usize,
        ) {
            let offset = if aligned { offset >> 2 & !4095 } else { offset };
            let op = if tell { small } else { op };
            let ask = Ask { op, count, offset, pages };
            if let Ok(request) = Request::judge(0, &ask, BASE, buffers) {
                let mut len = 0;
                for piece in request.pieces() {
                    let start = piece.start as usize - BASE as usize;
                    prop_assert!(start.is_multiple_of(PAGE));
                    prop_assert!(start + piece.len <= buffers * PAGE);
                    len += piece.len;
                }
                prop_assert_eq!(len, request.len());
                prop_assert!(len <= RUN * PAGE && request.offset + len as u64 <= i64::MAX as u64);
            }
        }
    }
}
