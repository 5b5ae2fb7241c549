//! A request slot: its state and its request.

use crate::atomics::AtomicU64;
use crate::geometry::MAX_RUN;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u64 = 0;
const SUBMITTED: u64 = 1;
const DONE: u64 = 2;

/// 16-bit page numbers in one word.
const IN_WORD: usize = 4;

/// A slot's state word, decoded. The number beside the state is in the same word, so that the two
/// change together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// Unused.
    Free,
    /// To be served by the server: put at `position` of the FIFO of requests.
    Submitted { position: u32 },
    /// To be reaped by the client: bytes moved, or a negative error number.
    Done { result: i32 },
    /// Not a valid state.
    Invalid,
}

/// A request as its slot holds it. In the server: a copy, not yet validated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawRequest {
    pub op: u32,
    pub count: u32,
    pub offset: u64,
    pub pages: [u16; MAX_RUN],
}

/// One slot, on cache lines of its own.
#[derive(Debug, Default)]
#[cfg_attr(not(all(test, loom)), repr(C, align(128)))]
pub(crate) struct RequestSlot {
    state: AtomicU64,
    offset: AtomicU64,
    /// The operation, and the number of pages in the upper half.
    op_and_count: AtomicU64,
    pages: [AtomicU64; MAX_RUN / IN_WORD],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<RequestSlot>() == crate::geometry::SLOT);

#[cfg(not(all(test, loom)))]
// SAFETY: atomics only, of which any bits decode to some state and some request.
unsafe impl wired::Plain for RequestSlot {}

impl RequestSlot {
    /// The current state.
    pub fn state(&self) -> SlotState {
        let word = self.state.load(Acquire);
        let number = (word >> 32) as u32;
        match word & u64::from(u32::MAX) {
            FREE => SlotState::Free,
            SUBMITTED => SlotState::Submitted { position: number },
            DONE => SlotState::Done {
                result: number as i32,
            },
            _ => SlotState::Invalid,
        }
    }

    /// For the client: publishes a request. Earlier writes to the page buffers are visible to the server.
    pub fn publish(&self, request: &RawRequest, position: u32) {
        self.offset.store(request.offset, Relaxed);
        self.op_and_count.store(
            u64::from(request.op) | u64::from(request.count) << 32,
            Relaxed,
        );
        let count = (request.count as usize).min(MAX_RUN);
        for (word, pages) in self
            .pages
            .iter()
            .zip(request.pages[..count].chunks(IN_WORD))
        {
            let packed = (pages.iter().enumerate())
                .fold(0, |word, (at, &page)| word | u64::from(page) << (16 * at));
            word.store(packed, Relaxed);
        }
        self.state
            .store(SUBMITTED | u64::from(position) << 32, Release);
    }

    /// For the server, which has read the slot's state: reads the request, each word once.
    pub fn request(&self) -> RawRequest {
        let op_and_count = self.op_and_count.load(Relaxed);
        let mut pages = [0; MAX_RUN];
        let count = ((op_and_count >> 32) as usize).min(MAX_RUN);
        for (word, pages) in self.pages.iter().zip(pages[..count].chunks_mut(IN_WORD)) {
            let packed = word.load(Relaxed);
            for (at, page) in pages.iter_mut().enumerate() {
                *page = (packed >> (16 * at)) as u16;
            }
        }
        RawRequest {
            op: op_and_count as u32,
            count: (op_and_count >> 32) as u32,
            offset: self.offset.load(Relaxed),
            pages,
        }
    }

    /// For the server: publishes a completion. Earlier writes to the page buffers are visible to the
    /// client.
    pub fn complete(&self, result: i32) {
        self.state
            .store(DONE | u64::from(result as u32) << 32, Release);
    }

    /// For the client: frees the slot after reaping its completion.
    pub fn free(&self) {
        self.state.store(FREE, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_submitted_request_reads_back(
            op in 0u32..2, offset: u64, position: u32, pages in prop::collection::vec(any::<u16>(), 1..=MAX_RUN),
        ) {
            let mut request = RawRequest { op, count: pages.len() as u32, offset, pages: [0; MAX_RUN] };
            request.pages[..pages.len()].copy_from_slice(&pages);
            let slot = RequestSlot::default();
            slot.publish(&request, position);
            prop_assert_eq!(slot.state(), SlotState::Submitted { position });
            prop_assert_eq!(slot.request(), request);
            slot.complete(-5);
            prop_assert_eq!(slot.state(), SlotState::Done { result: -5 });
            slot.free();
            prop_assert_eq!(slot.state(), SlotState::Free);
        }
    }
}
