//! The page-state word: where a page's contents are, and which thread is changing that.
//!
//! One 64-bit word for each page of a stretch, changed by compare-and-swap alone. It is
//! what Nemesis keeps in the translation and the stretch driver (*Self-Paging in the
//! Nemesis Operating System*, sections 6.3 and 6.6), and what makes paging safe against
//! the program, the evictor and a discarder at that very moment.
//!
//! | state | contents are | frame | handle |
//! |---|---|---|---|
//! | `Empty` | zeros, nowhere (the all-zero word) | none | none |
//! | `Filling` | being brought in by one thread | the staged one, if it was `Staged` | kept |
//! | `Resident` | in the program's memory | its own | an earlier copy, maybe stale |
//! | `Staged` | in a staging slot: the standby list | its own | an earlier copy, maybe stale |
//! | `Stored` | in the store | none | the copy |
//! | `Poisoned` | lost, and each access fails | none | none |
//! | `Foreign` | not the domain's: something else was mapped there | none | none |
//!
//! # How races are settled
//!
//! - *Fill against fill.* Only the thread that changes a settled word to `Filling` fills the
//!   page; the others wait on the word, or are woken by the kernel when it is mapped.
//! - *Fill against staging.* A filled page is mapped and its word made `Resident` inside
//!   the range's [`RangeGate`]; staging moves the range's memory away and makes its words
//!   `Staged` with the gate closed. So no page becomes resident while its range is taken,
//!   and no word says `Resident` of a page that was moved away. What the program wrote
//!   before the move is in the staging slot; after it, it faults.
//! - *Write-out against a fault on a staged page.* Both want the word. If the fault is
//!   first, the write-out's [`PageWord::write_done`] fails, and the copy just written is
//!   given up: the program may have newer contents. If the write-out is first, the fault
//!   finds `Stored` and reads the copy.
//! - *The same frame again.* A write-out recognises its page by the frame. So the frame of
//!   a staged page is given to nothing else until its slot is discarded: a page that comes
//!   back from staging comes back in another frame, or in its own by
//!   [`PageWord::finish_in_place`], which only the slot's owner calls.
//! - *Discard.* With the gate closed and before the memory's frames are put back.

mod event;
pub mod gate;
#[cfg(all(test, loom))]
mod interleavings;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

pub use gate::RangeGate;
pub use state::{PageState, State};

use event::{AtomicU64, WordEvent};
use state::*;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use store::PageHandle;

/// Resources of a page that the caller must release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The frame of a resident page: to be released once the memory is gone. The frame of a
    /// staged page is not here: its slot keeps it until the slot is discarded.
    pub frame: Option<u32>,
    /// The stored copy, to which no page refers any more.
    pub handle: Option<PageHandle>,
    /// True if the page was nailed; it no longer is.
    pub nailed: bool,
}

/// The page is being filled: wait, and retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// One page's word. All-zero memory is an [`State::Empty`] page.
#[derive(Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct PageWord {
    word: AtomicU64,
    event: WordEvent,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PageWord>() == 8);

impl PageWord {
    /// What the word says now.
    pub fn load(&self) -> PageState {
        PageState(self.word.load(Acquire))
    }

    /// Claims the fill of an empty, staged or stored page that was in the state `seen`.
    /// Returns false if the word has changed, or the page cannot be filled.
    pub fn begin_fill(&self, seen: PageState) -> bool {
        seen.filling().is_some_and(|filling| {
            self.word
                .compare_exchange(seen.0, filling, AcqRel, Acquire)
                .is_ok()
        })
    }

    /// The page was mapped in `frame`, for an access. The thread that claimed the fill calls
    /// this inside the range's gate; a stored copy is kept as long as it is known to be the
    /// same. Wakes the waiters; returns true if there were any.
    pub fn finish_fill(&self, frame: u32) -> bool {
        self.finish(|word| AHEAD.put(Self::filled(word, frame), 0))
    }

    /// As [`PageWord::finish_fill`], for a page that had no access yet: coming back from the
    /// standby list will be its first use, and is no evidence of a second.
    pub fn finish_ahead(&self, frame: u32) -> bool {
        self.finish(|word| AHEAD.put(Self::filled(word, frame), 1))
    }

    /// A staged page was put back at its address, in the frame it had. The thread that claimed
    /// its fill and holds its slot calls this, with the gate closed.
    pub fn finish_in_place(&self) {
        self.finish(|word| STATE.put(word, RESIDENT));
    }

    /// Aborts the fill: the page is again in the state `seen`. Wakes the waiters; returns true
    /// if there were any.
    pub fn abort_fill(&self, seen: PageState) -> bool {
        debug_assert_eq!(
            self.load().before_fill(),
            seen,
            "only its claimer ends a fill"
        );
        self.finish(|word| PageState(word).before_fill().0)
    }

    /// The contents are lost: the thread that claimed the fill could not read them. Every
    /// access fails from now on. The caller releases the stored copy.
    pub fn poison_fill(&self) -> Option<PageHandle> {
        let handle = self.load().handle();
        self.finish(|_| POISONED);
        handle
    }

    /// Makes a resident page staged: with the gate closed, after its memory was moved to the
    /// slot. Returns its frame; None if it is not resident or is nailed.
    pub fn stage(&self) -> Option<u32> {
        self.change(|now| {
            let stages = now.state() == State::Resident && now.nails() == 0;
            stages.then(|| (STATE.put(now.0, STAGED), now.frame()))
        })
    }

    /// Makes the copy just written of the page staged in `frame` the page. The caller releases
    /// the stale copy it had, if any. None if the page was faulted on or discarded meanwhile:
    /// then the caller releases the copy just written.
    pub fn write_done(&self, frame: u32, copy: PageHandle) -> Option<Option<PageHandle>> {
        self.change(|now| {
            let stored = HANDLE.put(STATE.put(now.without_frame(), STORED), copy.get().into());
            now.is(STAGED, frame).then(|| (stored, now.handle()))
        })
    }

    /// Makes the stored copy of the page staged in `frame`, which is the same, the page.
    /// Returns false if there is none, or the page was faulted on or discarded meanwhile.
    pub fn clean_drop(&self, frame: u32) -> bool {
        self.change(|now| {
            let clean = now.is(STAGED, frame) && now.handle().is_some();
            clean.then(|| (STATE.put(now.without_frame(), STORED), ()))
        })
        .is_some()
    }

    /// Makes the page staged in `frame`, which is all zeros, empty. The caller releases the
    /// stored copy it had, if any; None if the page was faulted on or discarded meanwhile.
    pub fn drop_zero(&self, frame: u32) -> Option<Option<PageHandle>> {
        self.change(|now| now.is(STAGED, frame).then(|| (EMPTY, now.handle())))
    }

    /// Makes the page empty, whatever its state: the program discarded its contents. With the
    /// gate closed and the memory discarded. A foreign page stays foreign.
    pub fn discard(&self) -> Result<Released, Busy> {
        self.finish_as(EMPTY)
    }

    /// Makes the page foreign, before something else is mapped there. With the gate closed and
    /// the memory discarded.
    pub fn become_foreign(&self) -> Result<Released, Busy> {
        self.finish_as(FOREIGN)
    }

    /// Makes a foreign page empty: plain memory of the domain's is mapped there again. Returns
    /// false if the page was not foreign.
    pub fn reclaim(&self) -> bool {
        self.change(|now| (now.state() == State::Foreign).then_some((EMPTY, ())))
            .is_some()
    }

    /// Separates a resident or staged page from its stored copy: when it is known to be stale,
    /// or the store needs the room. The caller releases the copy.
    pub fn take_handle(&self) -> Option<PageHandle> {
        self.change(|now| {
            let elsewhere = matches!(now.state(), State::Resident | State::Staged);
            let handle = now.handle().filter(|_| elsewhere)?;
            Some((HANDLE.put(now.0, 0), handle))
        })
    }

    /// Gives a resident or staged page another frame: in a child, whose pages are in the
    /// frames its parent reserved for it. Returns the frame it had.
    pub fn renumber(&self, frame: u32) -> Option<u32> {
        self.change(|now| {
            let framed = matches!(now.state(), State::Resident | State::Staged);
            framed.then(|| (FRAME.put(now.0, frame.into()), now.frame()))
        })
    }

    /// Takes the contents of a page, or the record of their loss, to be put elsewhere
    /// ([`PageWord::put`]); the page becomes empty. With the gate closed. Returns false if the
    /// word has changed.
    pub fn take(&self, seen: PageState) -> bool {
        let settled = !matches!(seen.state(), State::Empty | State::Filling | State::Foreign);
        settled
            && self
                .word
                .compare_exchange(seen.0, EMPTY, AcqRel, Acquire)
                .is_ok()
    }

    /// Gives an empty page what [`PageWord::take`] took, nailed once or not at all. With the
    /// gate closed. Returns false if the page is no longer empty.
    pub fn put(&self, taken: PageState, nailed: bool) -> bool {
        let word = NAILS.put(WAITERS.put(taken.0, 0), nailed.into());
        self.change(|now| (now.0 == EMPTY).then_some((word, ())))
            .is_some()
    }

    /// Keeps a resident page in place until as many [`PageWord::unnail`]. FreezeGuard the range's
    /// gate, so that it is not being staged. Returns false if it is not resident, or already
    /// nailed 7 times.
    pub fn nail(&self) -> bool {
        self.change(|now| {
            let nails = u64::from(now.nails()) + 1;
            let may = now.state() == State::Resident && nails < 1 << NAILS.bits;
            may.then(|| (NAILS.put(now.0, nails), ()))
        })
        .is_some()
    }

    /// Ends one [`PageWord::nail`]. Returns false if there was none.
    pub fn unnail(&self) -> bool {
        self.change(|now| {
            let nails = u64::from(now.nails()).checked_sub(1)?;
            Some((NAILS.put(now.0, nails), ()))
        })
        .is_some()
    }

    /// Sleeps until no thread is filling the page.
    pub fn wait_settled(&self) -> PageState {
        loop {
            let now = self.load();
            if now.state() != State::Filling {
                return now;
            }
            let asleep = WAITERS.put(now.0, 1);
            let marked = now.0 == asleep
                || self
                    .word
                    .compare_exchange(now.0, asleep, AcqRel, Relaxed)
                    .is_ok();
            if marked {
                self.event.wait(&self.word, asleep);
            }
        }
    }

    fn filled(word: u64, frame: u32) -> u64 {
        let from = PageState(word);
        debug_assert_ne!(from.frame(), frame, "the staged frame stays with its slot");
        // Coming back from the standby list is the only reference bit that costs nothing.
        let back = STATE.get(word) == REFILLING && AHEAD.get(word) == 0;
        let hot = (HOT.get(word) + u64::from(back)).min((1 << HOT.bits) - 1);
        let word = STATE.put(FRAME.put(word, frame.into()), RESIDENT);
        HOT.put(word, hot)
    }

    /// Ends a fill. Meanwhile only waiters may change the word, to announce themselves.
    fn finish(&self, settled: impl Fn(u64) -> u64) -> bool {
        let mut now = self.word.load(Relaxed);
        loop {
            debug_assert_eq!(
                PageState(now).state(),
                State::Filling,
                "ending what did not begin"
            );
            let next = WAITERS.put(settled(now), 0);
            match self.word.compare_exchange(now, next, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        let waiters = WAITERS.get(now) != 0;
        if waiters {
            self.event.wake_all(&self.word);
        }
        waiters
    }

    fn finish_as(&self, state: u64) -> Result<Released, Busy> {
        self.change(|now| {
            let resident = now.state() == State::Resident;
            let frame = resident.then(|| now.frame());
            let released = Released {
                frame,
                handle: now.handle(),
                nailed: now.nails() > 0,
            };
            match now.state() {
                State::Filling => None,
                State::Foreign => Some((FOREIGN, released)),
                _ => Some((state, released)),
            }
        })
        .ok_or(Busy)
    }

    /// Changes the word as `next` computes from its state; None if `next` returns None.
    fn change<T>(&self, next: impl Fn(PageState) -> Option<(u64, T)>) -> Option<T> {
        let mut now = self.load();
        loop {
            let (word, found) = next(now)?;
            if word == now.0 {
                // Nothing is written to the tables of a reservation that is mostly empty.
                return Some(found);
            }
            match self.word.compare_exchange(now.0, word, AcqRel, Acquire) {
                Ok(_) => return Some(found),
                Err(other) => now = PageState(other),
            }
        }
    }
}
