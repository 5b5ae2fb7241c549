//! Every interleaving of one thread that fills slots and two that empty them, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p selfpage --lib interleavings`.
//! A cell for each piece stands for its pages, its slot words and its memory: loom
//! complains when two threads touch one without the ring ordering it.

use super::ring::{Claim, ClaimPass, PIECE, StandbyRing};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const SLOTS: usize = 2;
const PIECES: usize = 2;

struct ModelArea {
    ring: StandbyRing,
    pages: Vec<UnsafeCell<u32>>,
}

// SAFETY: what the model is to show; loom finds the interleaving where it is not so.
unsafe impl Sync for ModelArea {}
// SAFETY: as above.
unsafe impl Send for ModelArea {}

impl ModelArea {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ring: StandbyRing::new(SLOTS, PIECES * PIECE),
            pages: (0..SLOTS * PIECES).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn piece(&self, slot: usize, piece: usize, with: impl FnOnce(&mut u32)) {
        // SAFETY: as for the type.
        self.pages[slot * PIECES + piece].with_mut(|at| with(unsafe { &mut *at }));
    }

    /// Fills a slot; whether one was free.
    fn fill(&self) -> bool {
        let Some(slot) = self.ring.free_slot() else {
            return false;
        };
        for piece in 0..PIECES {
            self.piece(slot, piece, |pages| {
                assert_eq!(*pages, 0, "a slot is swept before it is filled");
                *pages = PIECE as u32;
            });
        }
        self.ring.push(|_| PIECE as u32);
        true
    }

    fn empty(&self, claim: &Claim) -> u32 {
        let mut gone = 0;
        for piece in claim.span() {
            self.piece(claim.slot, piece, |pages| gone += std::mem::take(pages));
        }
        if self.ring.release(claim, |_| 0) {
            // The sweep touches all of the slot.
            for piece in 0..PIECES {
                self.piece(claim.slot, piece, |pages| assert_eq!(*pages, 0));
            }
            self.ring.vacate(claim.slot);
        }
        gone
    }
}

#[test]
fn two_cleaners_empty_what_one_thread_fills() {
    loom::model(|| {
        let area = ModelArea::new();
        assert!(area.fill());
        let cleaner = {
            let area = area.clone();
            thread::spawn(move || {
                let claim = area.ring.claim_oldest(ClaimPass::First);
                claim.map_or(0, |claim| area.empty(&claim))
            })
        };
        let mut gone = 0;
        let mut filled = 1 + u32::from(area.fill());
        gone += area
            .ring
            .claim_oldest(ClaimPass::First)
            .map_or(0, |claim| area.empty(&claim));
        filled += u32::from(area.fill());
        gone += cleaner.join().unwrap();
        while let Some(claim) = area.ring.claim_oldest(ClaimPass::First) {
            gone += area.empty(&claim);
        }
        assert_eq!(gone, filled * (PIECES * PIECE) as u32, "no page is lost");
        assert!(area.ring.is_empty());
    });
}

#[test]
fn a_page_taken_back_and_a_cleaner_do_not_meet() {
    loom::model(|| {
        let area = ModelArea::new();
        assert!(area.fill());
        let other = {
            let area = area.clone();
            thread::spawn(move || {
                let Some(claim) = area.ring.claim_piece(0, 1) else {
                    return 0;
                };
                area.piece(0, 1, |pages| *pages -= 1);
                let last = area.ring.release(&claim, |_| PIECE as u32 - 1);
                assert!(!last, "what is kept is not swept");
                1
            })
        };
        let mut gone = 0;
        while let Some(claim) = area.ring.claim_oldest(ClaimPass::First) {
            gone += area.empty(&claim);
        }
        gone += other.join().unwrap();
        while let Some(claim) = area.ring.claim_oldest(ClaimPass::Retry) {
            gone += area.empty(&claim);
        }
        assert_eq!(gone, (PIECES * PIECE) as u32);
        assert!(area.ring.is_empty());
    });
}
