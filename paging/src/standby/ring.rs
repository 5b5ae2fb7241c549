//! The order of the slots, and which thread has claimed which piece of them.
//!
//! A slot consists of *pieces* of [`PIECE`] pages, so that several threads can empty one slot
//! at the same time, and a thread that waits for a frame waits for a piece, not for 2 MiB. One
//! word a piece records which thread may touch its pages:
//!
//! | word | the pages are |
//! |---|---|
//! | `EMPTY` | none |
//! | a count, maybe `KEPT` | there, for any thread that claims the piece |
//! | `BUSY` | its claimer's: no other thread writes the slot's words or discards memory |
//!
//! One thread at a time fills slots, in turn. A slot leaves the ring, in order, when its
//! pieces are empty and the thread that emptied the last of them has swept it.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64};

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Pages of a piece: what one thread checks and writes before it releases frames. The flush at
/// the end, 11 us with a second thread running, is amortised over as many.
pub(crate) const PIECE: usize = 64;

/// Pages of a claim at most: the pages of a unit that has little more than a piece go in one
/// claim, with one flush instead of two. If pages are accessed in no order, a unit has as many
/// resident as the ratio of frames to pages: 64 of 512 and some if it is one to eight.
pub(crate) const CLAIM: usize = PIECE + PIECE / 2;

const EMPTY: u32 = 0;
const BUSY: u32 = 1 << 31;
/// Claimed once, and not all of it could be evicted.
const KEPT: u32 = 1 << 30;
const COUNT: u32 = KEPT - 1;

/// What is left of a slot once its pieces are empty: the sweep.
const SWEEP: u32 = 1;

/// Which pieces to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimPass {
    /// Pieces that have not been claimed yet.
    First,
    /// Pieces of which something was kept: the store refused it, or a fault had it.
    Retry,
}

/// Neighbouring pieces of one slot that one thread has claimed, until [`StandbyRing::release`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Claim {
    /// The slot.
    pub(crate) slot: usize,
    /// The first of its pieces; one bit each from there on.
    first: usize,
    mine: u32,
    /// Pages in them.
    pub(crate) pages: u32,
}

impl Claim {
    fn new(slot: usize, piece: usize, pages: u32) -> Self {
        Self {
            slot,
            first: piece,
            mine: 1,
            pages,
        }
    }

    /// The pieces, and the empty ones between them.
    pub(crate) fn span(&self) -> Range<usize> {
        self.first..self.first + (u32::BITS - self.mine.leading_zeros()) as usize
    }

    fn each(&self) -> impl Iterator<Item = usize> {
        let mine = self.mine;
        self.span().filter({
            let first = self.first;
            move |piece| mine & 1 << (piece - first) != 0
        })
    }
}

/// The slots in the order they were filled, and their pieces.
pub(crate) struct StandbyRing {
    slots: usize,
    pieces_each: usize,
    pieces: Box<[AtomicU32]>,
    /// For each slot: pieces not empty, and the sweep; 0 if the slot is not in use.
    left: Box<[AtomicU32]>,
    /// Slots from `oldest` to `next` are in use. Never wrap.
    oldest: AtomicU64,
    next: AtomicU64,
}

impl StandbyRing {
    /// Slots of `unit_pages` pages.
    pub(crate) fn new(slots: usize, unit_pages: usize) -> Self {
        let pieces_each = unit_pages.div_ceil(PIECE);
        Self {
            slots,
            pieces_each,
            pieces: (0..slots * pieces_each)
                .map(|_| AtomicU32::new(EMPTY))
                .collect(),
            left: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            oldest: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    fn slot_at(&self, position: u64) -> usize {
        (position % self.slots as u64) as usize
    }

    fn word(&self, slot: usize, piece: usize) -> &AtomicU32 {
        &self.pieces[slot * self.pieces_each + piece]
    }

    /// The next slot to fill, if one is not in use. For one thread at a time.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        self.advance();
        let next = self.next.load(Relaxed);
        let used = next - self.oldest.load(Acquire);
        (used < self.slots as u64).then(|| self.slot_at(next))
    }

    /// The slot given by `free_slot` now has so many pages in each piece.
    pub(crate) fn push(&self, pages: impl Fn(usize) -> u32) {
        let slot = self.slot_at(self.next.load(Relaxed));
        let full = (0..self.pieces_each).filter(|p| pages(*p) > 0).count() as u32;
        // First: a piece may be claimed and released as soon as its word says so.
        self.left[slot].store(full + SWEEP, SeqCst);
        for piece in 0..self.pieces_each {
            self.word(slot, piece).store(pages(piece), Release);
        }
        self.next.fetch_add(1, SeqCst);
    }

    /// Returns true if no slot is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.advance();
        self.oldest.load(SeqCst) == self.next.load(SeqCst)
    }

    /// Claims the pieces staged first, of one slot, as many as have [`CLAIM`] pages between
    /// them.
    pub(crate) fn claim_oldest(&self, turn: ClaimPass) -> Option<Claim> {
        let oldest = self.oldest.load(Acquire);
        let next = self.next.load(Acquire);
        (oldest..next).find_map(|position| self.claim_in(self.slot_at(position), turn))
    }

    fn claim_in(&self, slot: usize, turn: ClaimPass) -> Option<Claim> {
        let mut claim: Option<Claim> = None;
        for piece in 0..self.pieces_each {
            let word = self.word(slot, piece);
            let now = word.load(Relaxed);
            if now == EMPTY {
                continue;
            }
            let kept = now & KEPT != 0;
            let had = claim.as_ref().map_or(0, |claim| claim.pages);
            let mine = now & BUSY == 0
                && kept == (turn == ClaimPass::Retry)
                && (had == 0 || had + (now & COUNT) <= CLAIM as u32)
                && word.compare_exchange(now, BUSY, Acquire, Relaxed).is_ok();
            match &mut claim {
                Some(claim) if mine => {
                    claim.mine |= 1 << (piece - claim.first);
                    claim.pages += now & COUNT;
                }
                // The pieces between two pieces of a claim must be empty.
                Some(_) => break,
                None if mine => claim = Some(Claim::new(slot, piece, now & COUNT)),
                None => {}
            }
        }
        claim
    }

    /// Claims one piece, whatever its turn. None if it is empty or claimed.
    pub(crate) fn claim_piece(&self, slot: usize, piece: usize) -> Option<Claim> {
        let word = self.word(slot, piece);
        let now = word.load(Relaxed);
        let free = now != EMPTY && now & BUSY == 0;
        (free && word.compare_exchange(now, BUSY, Acquire, Relaxed).is_ok())
            .then(|| Claim::new(slot, piece, now & COUNT))
    }

    /// Returns true if the claim is all that is left of its slot.
    pub(crate) fn is_last(&self, claim: &Claim) -> bool {
        self.left[claim.slot].load(SeqCst) == claim.mine.count_ones() + SWEEP
    }

    /// Ends a claim; `kept` returns how many pages are still in a piece. Returns true if it
    /// was the slot's last: the caller sweeps the slot and then calls [`StandbyRing::vacate`].
    pub(crate) fn release(&self, claim: &Claim, kept: impl Fn(usize) -> u32) -> bool {
        let mut emptied = 0;
        for piece in claim.each() {
            let rest = match kept(piece) {
                0 => EMPTY,
                count => count | KEPT,
            };
            emptied += u32::from(rest == EMPTY);
            self.word(claim.slot, piece).store(rest, Release);
        }
        emptied > 0 && self.left[claim.slot].fetch_sub(emptied, SeqCst) == emptied + SWEEP
    }

    /// Releases a slot that has been swept, to be filled again in its turn.
    pub(crate) fn vacate(&self, slot: usize) {
        self.left[slot].store(0, SeqCst);
        self.advance();
    }

    /// Retires slots that have been swept, oldest first.
    fn advance(&self) {
        loop {
            let oldest = self.oldest.load(SeqCst);
            if oldest == self.next.load(SeqCst) || self.left[self.slot_at(oldest)].load(SeqCst) != 0
            {
                return;
            }
            // Fails if another thread advanced it first: then there may be more to do.
            let _ = self
                .oldest
                .compare_exchange(oldest, oldest + 1, AcqRel, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn finish(ring: &StandbyRing, claim: Claim) {
        if ring.release(&claim, |_| 0) {
            ring.vacate(claim.slot);
        }
    }

    #[test]
    fn pieces_are_claimed_in_the_order_they_were_filled() {
        let ring = StandbyRing::new(2, 3 * PIECE);
        assert_eq!(ring.free_slot(), Some(0));
        ring.push(|piece| [64, 0, 64][piece]);
        ring.push(|_| 1);
        assert_eq!(ring.free_slot(), None);
        let claims: Vec<_> = std::iter::from_fn(|| ring.claim_oldest(ClaimPass::First)).collect();
        let found: Vec<_> = claims.iter().map(|c| (c.slot, c.span(), c.pages)).collect();
        assert_eq!(found, [(0, 0..1, 64), (0, 2..3, 64), (1, 0..3, 3)]);
        let mut claims = claims.into_iter();
        let (first, second, other) = (claims.next(), claims.next(), claims.next());
        // The younger slot is empty first, and waits for the older.
        finish(&ring, other.unwrap());
        assert_eq!(ring.free_slot(), None);
        finish(&ring, second.unwrap());
        finish(&ring, first.unwrap());
        assert!(ring.is_empty());
    }

    #[test]
    fn what_was_kept_lets_others_go_first() {
        let ring = StandbyRing::new(1, 2 * PIECE);
        ring.push(|_| 64);
        let first = ring.claim_oldest(ClaimPass::First).unwrap();
        assert!(!ring.release(&first, |_| 3));
        let second = ring.claim_oldest(ClaimPass::First).unwrap();
        assert_eq!(second.span(), 1..2);
        finish(&ring, second);
        assert!(ring.claim_oldest(ClaimPass::First).is_none());
        let again = ring.claim_oldest(ClaimPass::Retry).unwrap();
        assert_eq!((again.span(), again.pages), (0..1, 3));
        assert!(ring.is_last(&again));
        finish(&ring, again);
        assert!(ring.is_empty());
    }

    proptest! {
        #[test]
        fn no_page_is_anyones_twice_and_every_slot_comes_free(
            steps in prop::collection::vec((0u8..5, 0u32..100, 0usize..8), 0..300),
        ) {
            const PIECES: usize = 4;
            let ring = StandbyRing::new(3, PIECES * PIECE);
            let mut held: Vec<Claim> = Vec::new();
            let mut inside = 0u32;
            for (what, number, which) in steps {
                match what {
                    0 | 1 if ring.free_slot().is_some() => {
                        let pages = |p: usize| (number >> p) % (PIECE as u32 + 1);
                        let sum: u32 = (0..PIECES).map(pages).sum();
                        if sum > 0 {
                            ring.push(pages);
                            inside += sum;
                        }
                    }
                    2 => held.extend(ring.claim_oldest(ClaimPass::First)),
                    3 => held.extend(ring.claim_oldest(ClaimPass::Retry)),
                    _ if !held.is_empty() => {
                        let claim = held.swap_remove(which % held.len());
                        let kept = u32::from(number.is_multiple_of(7));
                        let pieces = claim.each().count() as u32;
                        inside -= claim.pages - kept * pieces;
                        if ring.release(&claim, |_| kept) {
                            ring.vacate(claim.slot);
                        }
                    }
                    _ => {}
                }
                let mut seen = std::collections::BTreeSet::new();
                for claim in &held {
                    for piece in claim.each() {
                        prop_assert!(seen.insert((claim.slot, piece)));
                    }
                }
            }
            while let Some(claim) = ring.claim_oldest(ClaimPass::First)
                .or_else(|| ring.claim_oldest(ClaimPass::Retry))
                .or_else(|| held.pop())
            {
                inside -= claim.pages;
                finish(&ring, claim);
            }
            prop_assert_eq!(inside, 0);
            prop_assert!(ring.is_empty());
        }
    }
}
