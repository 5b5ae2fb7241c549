//! Contents dropped, kept in place and flushed: the effects of a program's own calls on its
//! stretches.
//!
//! Flushing makes the driver save what is in a page, and the page stays in place: a page need
//! not be evicted to be written, and many may not be: pages that are pinned, that a device
//! holds, and all pages if eviction would not be sound. So a flush nails one page at a time,
//! copies it, and gives the copy to the driver. The copy is of one moment, or of several if
//! the program writes meanwhile: whatever it wrote before the flush is in it.

use crate::driver::{CleanOutcome, call_driver};
use crate::evict::nap;
use crate::page::{Busy, PageWord, RangeGate, Released, State};
use crate::page_table::PageTable;
use crate::pager::Pager;
use crate::stretch::StretchState;
use frames::Frame;
use std::ops::Range;
use std::time::Duration;
use store::StoreError;
use wired::PAGE;

/// How often a page on the standby list, which can be neither written nor put back, is checked
/// again.
const TRIES: u32 = 16;

/// How often, and how long each time, a thread waits for others to leave a gate before it keeps them out.
const CLOSES: u32 = 1000;
const CLOSE_NAP: Duration = Duration::from_micros(20);

/// Closes a unit's gate for a thread of the program, which may be stopped at any time, by a tracer at each system call: it
/// waits with the gate open, unless others enter all the time.
fn close(gate: &RangeGate) {
    let is_closed = (0..CLOSES).any(|tries| {
        if tries > 0 {
            nap(CLOSE_NAP);
        }
        gate.try_close()
    });
    if !is_closed {
        gate.close();
    }
}

/// The state of pages whose contents were discarded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Afterwards {
    /// The domain's, and zeros.
    Empty,
    /// The same, but of a page that is nailed: it keeps its contents.
    EmptyUnlessNailed,
    /// The program's, to map something else over.
    Foreign,
}

impl Afterwards {
    fn give_up(self, word: &PageWord) -> Result<Released, Busy> {
        match self {
            Self::Empty | Self::EmptyUnlessNailed => word.discard(),
            Self::Foreign => word.become_foreign(),
        }
    }
}

impl Pager {
    /// Drops the contents of `range`: its pages are zeros again, their frames unused, their
    /// stored copies released. This is what `munmap` and `madvise(MADV_DONTNEED)` do to a
    /// program. The caller is inside the domain's gate, and has no page in `Filling`.
    pub(crate) fn discard(&self, range: Range<usize>) {
        self.mm.for_each_unit(range, &mut |stretch, unit, pages| {
            if stretch.table().touched(unit) {
                self.give_up_unit(stretch, unit, pages, Afterwards::Empty);
            }
        });
    }

    /// As [`Pager::discard`], but nailed pages keep their nails and contents. Returns the address of the first of them.
    pub(crate) fn discard_unless_nailed(&self, range: Range<usize>) -> Option<usize> {
        let mut first = None;
        self.mm.for_each_unit(range, &mut |stretch, unit, pages| {
            let table = stretch.table();
            if table.touched(unit) {
                let kept = self.give_up_unit(stretch, unit, pages, Afterwards::EmptyUnlessNailed);
                first = first.or(kept.map(|index| table.address(index)));
            }
        });
        first
    }

    /// Something else will be mapped over `range`: as [`Pager::discard`], and its pages are
    /// no longer the domain's. A stretch that is in it whole is closing, and the caller removes it. No word is written for
    /// the pages of a unit that was never touched.
    pub(crate) fn surrender(&self, range: Range<usize>) {
        self.mm
            .for_each_unit(range.clone(), &mut |stretch, unit, pages| {
                let table = stretch.table();
                let is_whole = range.start <= table.base() && table.end() <= range.end;
                if is_whole {
                    stretch.set_closing();
                }
                let needs_no_words = match table.unit_pages(unit) == pages {
                    _ if is_whole => !table.touched(unit),
                    true => Self::behind_gate(table, unit, || table.surrender_untouched(unit)),
                    false => table.is_surrendered(unit),
                };
                if !needs_no_words {
                    self.give_up_unit(stretch, unit, pages, Afterwards::Foreign);
                }
            });
    }

    fn behind_gate<T>(table: &PageTable, unit: usize, work: impl FnOnce() -> T) -> T {
        let gate = table.gate(unit);
        close(gate);
        let done = work();
        gate.open();
        done
    }

    /// Gives up the pages that faults have brought into a closing stretch until it was removed.
    pub(crate) fn give_up_removed(&self, stretch: &StretchState) {
        let table = stretch.table();
        for unit in (0..table.unit_count()).filter(|unit| table.touched(*unit)) {
            self.give_up_unit(stretch, unit, table.unit_pages(unit), Afterwards::Empty);
        }
    }

    /// The foreign mapping over `range` is gone, and anonymous memory is registered there
    /// again.
    pub(crate) fn reclaim_foreign(&self, range: Range<usize>) {
        self.mm.for_each_unit(range, &mut |stretch, unit, pages| {
            let table = stretch.table();
            let is_whole = table.unit_pages(unit) == pages;
            let reclaim = || {
                if is_whole && table.reclaim_unit(unit) {
                    table.reclaimed(pages.len());
                    return Ok(());
                }
                table.write_foreign_words(unit)?;
                let back = pages.clone().filter(|index| table.word(*index).reclaim());
                table.reclaimed(back.count());
                Ok(())
            };
            while let Err(busy) = Self::behind_gate(table, unit, reclaim) {
                table.word(busy).wait_settled();
            }
        });
    }

    fn give_up_unit(
        &self,
        stretch: &StretchState,
        unit: usize,
        pages: Range<usize>,
        afterwards: Afterwards,
    ) -> Option<usize> {
        let (table, gate) = (stretch.table(), stretch.table().gate(unit));
        let (mut from, mut kept) = (pages.start, None);
        while from < pages.end {
            close(gate);
            let mut frames = FrameList::new();
            let mut at = from;
            let mut in_transit = None;
            let (mut surrendered, mut nailed, mut skipped) = (0, false, false);
            while at < pages.end && !frames.full() {
                let word = table.word(at);
                let ours = word.load().state() != State::Foreign;
                let keeps =
                    afterwards == Afterwards::EmptyUnlessNailed && self.is_nailed(stretch, at);
                if keeps {
                    kept = kept.or(Some(at));
                }
                if keeps || !ours && afterwards != Afterwards::Foreign {
                    skipped = true;
                    break;
                }
                match afterwards.give_up(word) {
                    Ok(dropped) => {
                        // A staged page's frame goes with its slot.
                        if let Some(frame) = dropped.frame {
                            frames.push(frame);
                            table.sub_resident(unit, 1);
                        }
                        let copy = dropped.handle;
                        copy.into_iter().for_each(|copy| self.store.release(copy));
                        surrendered += usize::from(ours);
                        nailed |= dropped.nailed;
                        at += 1;
                    }
                    Err(Busy) => {
                        in_transit = Some(at);
                        break;
                    }
                }
            }
            if at > from {
                if nailed {
                    self.standby
                        .pins
                        .forget(&(table.address(from)..table.address(at)));
                }
                if afterwards == Afterwards::Foreign {
                    table.surrendered(unit, surrendered);
                }
                gate.admit_beside(&table.places_in_unit(&(from..at)));
                // SAFETY: the program gave the contents up.
                let _ = unsafe { translation::discard(table.address(from), (at - from) * PAGE) };
                frames.put(self);
            }
            gate.open();
            // The contents of a foreign page are the kernel's to discard.
            from = at + usize::from(skipped);
            if let Some(page) = in_transit {
                table.word(page).wait_settled();
            }
        }
        kept
    }

    /// Returns true if the program keeps a page in place, not only a device. Under the unit's closed gate.
    fn is_nailed(&self, stretch: &StretchState, index: usize) -> bool {
        let nails = stretch.table().word(index).load().nails();
        let page = stretch.table().address(index);
        nails > 1 || nails == 1 && !self.standby.pins.is_held(page)
    }

    /// Makes the pages of `range` resident and keeps them so. Returns false if a page could
    /// not be kept. In a linked program the caller's own access has faulted them in first.
    pub(crate) fn nail(&self, range: Range<usize>) -> bool {
        let mut all = true;
        self.mm.for_each_unit(range, &mut |stretch, unit, pages| {
            let gate = stretch.table().gate(unit);
            close(gate);
            for index in pages {
                let word = stretch.table().word(index);
                if word.nail() {
                    self.frames.mark(word.load().frame(), frames::State::Nailed);
                } else {
                    all = false;
                }
            }
            gate.open();
        });
        all
    }

    /// Undoes [`Pager::nail`].
    pub(crate) fn unnail(&self, range: Range<usize>) {
        self.mm.for_each_unit(range, &mut |stretch, unit, pages| {
            let gate = stretch.table().gate(unit);
            close(gate);
            for index in pages {
                self.frames.unnail(stretch, index);
            }
            gate.open();
            if stretch.table().touch(unit) {
                self.standby.queues.note_filled(stretch, unit, true, false);
            }
        });
    }

    /// Makes the driver save every page of a unit that the program may have changed. Returns
    /// why one could not be saved.
    pub(crate) fn flush_unit(&self, stretch: &StretchState, unit: usize) -> Option<StoreError> {
        let pages = stretch.table().unit_pages(unit);
        let refusals = pages.filter_map(|index| self.flush_page(stretch, index).err());
        refusals.reduce(|first, _| first)
    }

    fn flush_page(&self, stretch: &StretchState, index: usize) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            match stretch.table().word(index).wait_settled().state() {
                State::Resident => {
                    if let Some(kept) = self.flush_resident(stretch, index) {
                        return kept;
                    }
                }
                // The result of its write shows in the page's next state.
                State::Staged => self.evictor.drain(),
                _ => return Ok(()),
            }
        }
        Err(StoreError::Busy)
    }

    /// None if the page was evicted or discarded meanwhile.
    fn flush_resident(
        &self,
        stretch: &StretchState,
        index: usize,
    ) -> Option<Result<(), StoreError>> {
        let table = stretch.table();
        let page = table.address(index)..table.address(index) + PAGE;
        let nailed = self.nail(page.clone());
        // A page with the maximum pin count stays, too.
        if !nailed && table.word(index).load().nails() == 0 {
            return None;
        }
        let copy = copy_of(page.start);
        let kept = match stretch
            .driver()
            .map(|driver| call_driver(|| driver.clean(index, &copy)))
        {
            Some(CleanOutcome::Refused(error)) => Err(error),
            Some(CleanOutcome::Kept | CleanOutcome::ToStore) | None => Ok(()),
        };
        if nailed {
            self.unnail(page);
        }
        Some(kept)
    }
}

/// Frames to be put back after their memory is gone.
struct FrameList {
    frames: [Frame; FrameList::ROOM],
    count: usize,
}

impl FrameList {
    const ROOM: usize = 256;

    fn new() -> Self {
        Self {
            frames: [Frame(0); Self::ROOM],
            count: 0,
        }
    }

    fn full(&self) -> bool {
        self.count == Self::ROOM
    }

    fn push(&mut self, frame: u32) {
        self.frames[self.count] = Frame(frame);
        self.count += 1;
    }

    fn put(&self, pager: &Pager) {
        pager.frames.put_all(&self.frames[..self.count]);
    }
}

/// Copies a page that the program may be writing to.
fn copy_of(page: usize) -> [u8; PAGE] {
    let mut copy = [0; PAGE];
    for (word, bytes) in copy.chunks_exact_mut(size_of::<u64>()).enumerate() {
        let at = std::ptr::with_exposed_provenance::<u64>(page).wrapping_add(word);
        // SAFETY: a word of a stretch that may be read; volatile, since other threads may
        // write it.
        bytes.copy_from_slice(&unsafe { at.read_volatile() }.to_ne_bytes());
    }
    copy
}
