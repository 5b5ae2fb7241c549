//! A request slot: its state, and what is asked.

use crate::shape::RUN;
use crate::word::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u64 = 0;
const SUBMITTED: u64 = 1;
const DONE: u64 = 2;

/// Page numbers of 16 bits in one word.
const IN_WORD: usize = 4;

/// What a slot's state word says. The number beside the state is in the same word, so that
/// the two change together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Nobody's.
    Free,
    /// The server's to serve: put at position `ticket` of the FIFO of requests.
    Submitted { ticket: u32 },
    /// The client's to hear: bytes moved, or a negative error number.
    Done { result: i32 },
    /// Written by who knows no states.
    Nonsense,
}

/// What a client asks, as its slot has it. In the server's hands: a copy, not yet judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub op: u32,
    pub count: u32,
    pub offset: u64,
    pub pages: [u16; RUN],
}

/// One slot, on cache lines of its own.
#[derive(Debug, Default)]
#[cfg_attr(not(all(test, loom)), repr(C, align(128)))]
pub(crate) struct Slot {
    state: AtomicU64,
    offset: AtomicU64,
    /// The operation, and the count of pages in the upper half.
    what: AtomicU64,
    pages: [AtomicU64; RUN / IN_WORD],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Slot>() == crate::shape::SLOT);

#[cfg(not(all(test, loom)))]
// SAFETY: atomics only, any bits of which are read as some state and some request.
unsafe impl wired::Plain for Slot {}

impl Slot {
    /// What the state word says now.
    pub fn state(&self) -> State {
        let word = self.state.load(Acquire);
        let number = (word >> 32) as u32;
        match word & u64::from(u32::MAX) {
            FREE => State::Free,
            SUBMITTED => State::Submitted { ticket: number },
            DONE => State::Done {
                result: number as i32,
            },
            _ => State::Nonsense,
        }
    }

    /// The client's: asks. What was written to the page buffers before is there for the
    /// server.
    pub fn submit(&self, ask: &Ask, ticket: u32) {
        self.offset.store(ask.offset, Relaxed);
        self.what
            .store(u64::from(ask.op) | u64::from(ask.count) << 32, Relaxed);
        let count = (ask.count as usize).min(RUN);
        for (word, pages) in self.pages.iter().zip(ask.pages[..count].chunks(IN_WORD)) {
            let packed = (pages.iter().enumerate())
                .fold(0, |word, (at, &page)| word | u64::from(page) << (16 * at));
            word.store(packed, Relaxed);
        }
        self.state
            .store(SUBMITTED | u64::from(ticket) << 32, Release);
    }

    /// The server's, of a slot whose state it has seen: each word is read once.
    pub fn ask(&self) -> Ask {
        let what = self.what.load(Relaxed);
        let mut pages = [0; RUN];
        let count = ((what >> 32) as usize).min(RUN);
        for (word, pages) in self.pages.iter().zip(pages[..count].chunks_mut(IN_WORD)) {
            let packed = word.load(Relaxed);
            for (at, page) in pages.iter_mut().enumerate() {
                *page = (packed >> (16 * at)) as u16;
            }
        }
        Ask {
            op: what as u32,
            count: (what >> 32) as u32,
            offset: self.offset.load(Relaxed),
            pages,
        }
    }

    /// The server's: answers. What was written to the page buffers before is there for the
    /// client.
    pub fn finish(&self, result: i32) {
        self.state
            .store(DONE | u64::from(result as u32) << 32, Release);
    }

    /// The client's: it has heard.
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
        fn what_is_asked_is_what_is_read(
            op in 0u32..2, offset: u64, ticket: u32, pages in prop::collection::vec(any::<u16>(), 1..=RUN),
        ) {
            let mut ask = Ask { op, count: pages.len() as u32, offset, pages: [0; RUN] };
            ask.pages[..pages.len()].copy_from_slice(&pages);
            let slot = Slot::default();
            slot.submit(&ask, ticket);
            prop_assert_eq!(slot.state(), State::Submitted { ticket });
            prop_assert_eq!(slot.ask(), ask);
            slot.finish(-5);
            prop_assert_eq!(slot.state(), State::Done { result: -5 });
            slot.free();
            prop_assert_eq!(slot.state(), State::Free);
        }
    }
}
