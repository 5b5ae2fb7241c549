//! Completing a batch: words updated, memory discarded, frames released, in this order.
//!
//! A page whose write has completed is `Stored`, unless a fault was quicker. A page that the
//! store refused returns to the program. A page that a fault is filling at this moment, or
//! that the kernel refused to put back, keeps its place in the slot, and its piece gets
//! another turn.

use super::nap;
use super::writeback::{BatchPage, Cleaner, WritebackProgress};
use crate::page::State;
use crate::standby::StandbyList;
use crate::stretch::StretchState;
use frames::Frame;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wired::PAGE;

/// How often, and how long each time, to wait for a page that a fault is filling. A copy takes
/// two microseconds; a fault that was preempted in it takes longer.
const LOOKS: u32 = 200;
const NAPS: u32 = 4;
const NAP: Duration = Duration::from_micros(50);

/// What became of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageOutcome {
    /// It is elsewhere; its frame is unused.
    Gone,
    /// It is mapped in the program again, in its frame.
    Back,
    /// It is still in the slot.
    Kept,
}

impl Cleaner {
    /// Completes every page of a batch whose writes are done, discards the memory of evicted
    /// pages and releases their frames.
    pub(super) fn complete_batch(&mut self, which: usize) -> WritebackProgress {
        let Self {
            standby,
            huge,
            batches,
            freed,
            ..
        } = self;
        let batch = &mut batches[which];
        let mut done = WritebackProgress {
            freed: 0,
            refusal: batch.refusal,
        };
        let Some(claim) = batch.claim.take() else {
            return done;
        };
        let slot_words = standby.slots.frames(claim.slot);
        let (mut back, mut kept) = (0, 0);
        for page in &mut batch.pages[..batch.count] {
            match complete_page(standby, page) {
                PageOutcome::Gone => {
                    slot_words[page.at].store(0, Ordering::Relaxed);
                    freed[done.freed as usize] = Frame(page.frame);
                    done.freed += 1;
                }
                PageOutcome::Back => back += 1,
                PageOutcome::Kept => kept += 1,
            }
        }
        // A slot's page tables go with its last piece: the kernel frees them for 2 MiB at once
        // only.
        let swept = kept == 0 && standby.slots.ring.is_last(&claim);
        let piece_pages = standby.slots.piece_pages();
        let span = claim.span();
        match (swept, kept) {
            (true, _)
                if standby.slots.is_whole(claim.slot)
                    && huge.reuse(standby.slots.address(claim.slot)) => {}
            (true, _) => standby.empty_slot(claim.slot),
            // It goes with the last piece.
            (false, 0) if standby.slots.is_whole(claim.slot) => {}
            (false, 0) => {
                let bytes = piece_pages * PAGE;
                standby.discard_staged(claim.slot, span.start * bytes..span.end * bytes);
            }
            _ => {
                let gone = |page: &&BatchPage| slot_words[page.at].load(Ordering::Relaxed) == 0;
                for page in batch.pages[..batch.count].iter().filter(gone) {
                    standby.discard_staged(claim.slot, page.at * PAGE..(page.at + 1) * PAGE);
                }
            }
        }
        standby.slots.count(0, done.freed + back);
        standby.frames.put_all(&freed[..done.freed as usize]);
        standby.release(&claim, swept);
        done
    }
}

/// Makes the copy just written the page, if it is still staged; a page that was not
/// written returns to the program.
fn complete_page(standby: &StandbyList, page: &mut BatchPage) -> PageOutcome {
    let fate = match standby.home(page.frame) {
        Some((stretch, index)) => complete_at(standby, stretch, index, page),
        None => PageOutcome::Gone,
    };
    if let Some(copy) = page.copy.take() {
        standby.store.release(copy);
    }
    fate
}

fn complete_at(
    standby: &StandbyList,
    stretch: &StretchState,
    index: usize,
    page: &mut BatchPage,
) -> PageOutcome {
    let word = stretch.table().word(index);
    let mut looks = 0;
    loop {
        let seen = word.load();
        if seen.frame() != page.frame {
            return PageOutcome::Gone;
        }
        match (seen.state(), page.copy) {
            // A fault is copying it back at this moment.
            (State::Filling, _) if looks == LOOKS + NAPS => return PageOutcome::Kept,
            (State::Filling, _) => {
                looks += 1;
                pause(looks);
            }
            (State::Staged, Some(copy)) => {
                if let Some(old) = word.write_done(page.frame, copy) {
                    page.copy = None;
                    if let Some(old) = old {
                        standby.store.release(old);
                    }
                    return PageOutcome::Gone;
                }
            }
            // Refused, or being filled by a fault when it was checked, and released since.
            (State::Staged, None) => {
                let unit = stretch.table().unit_of(index);
                let gate = stretch.table().gate(unit);
                gate.close();
                let back = standby.put_back_staged(stretch, index, page.frame);
                gate.open();
                if back {
                    standby.queues.requeue(stretch, unit);
                    return PageOutcome::Back;
                }
                if word.load() == seen {
                    return PageOutcome::Kept;
                }
            }
            _ => return PageOutcome::Gone,
        }
    }
}

/// Waits briefly: a spin at first, then a nap.
fn pause(looks: u32) {
    if looks <= LOOKS {
        std::hint::spin_loop();
    } else {
        nap(NAP);
    }
}
