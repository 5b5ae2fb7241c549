//! The page table of one stretch: a word for each page, a gate for each unit.
//!
//! Nemesis (section 6.3) keeps translations in a table the domain may read and the system may
//! change. On Linux the hardware's table is the kernel's; this one holds what the kernel does
//! not know: where the contents of a page are, and which frame of the contract it occupies.
//!
//! A *unit* is the span that one eviction sweeps: 2 MiB where there are frames enough,
//! a single page where there are few. Its gate orders the two things that must not
//! overlap: publishing a filled page, and taking all pages of the unit away.

use crate::page::{Busy, PageWord, RangeGate, State};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use wired::{HUGE_RANGE_PAGES, PAGE, WiredMemory};

/// What a unit's bookkeeping costs, beside the page words.
struct UnitMeta {
    gate: RangeGate,
    meta: AtomicU32,
}

/// Set in a unit's meta word once any page of it has left `Empty`: the units of a huge
/// sparse reservation that were never touched are passed over without reading their
/// page words.
const TOUCHED: u32 = 1 << 31;
/// Set while the unit stands in a replacement queue.
const QUEUED: u32 = 1 << 30;
/// Set once something else was mapped over a page of the unit.
const FOREIGN: u32 = 1 << 29;
/// Set while every page of the unit is foreign although its words are empty: it was never touched, and a word for each page of
/// a huge reservation is not written. It changes while the unit's gate is closed.
const SURRENDERED: u32 = 1 << 28;
/// Where in the unit the last eviction of a part of it ended: a page, in these bits.
const HAND: u32 = (HUGE_RANGE_PAGES as u32 - 1) << HAND_SHIFT;
const HAND_SHIFT: u32 = 16;
/// The rest of the meta word: pages of the unit that are resident.
const COUNT: u32 = (1 << HAND_SHIFT) - 1;

/// Page words and unit gates of `pages` pages from `base` on.
pub(crate) struct PageTable {
    base: usize,
    pages: usize,
    unit_pages: usize,
    words: WiredMemory,
    units: WiredMemory,
    unit_count: usize,
    /// Pages where something else is mapped now.
    foreign: AtomicUsize,
}

impl PageTable {
    /// An all-empty table. `unit_pages` is a power of two.
    pub(crate) fn new(base: usize, pages: usize, unit_pages: usize) -> rustix::io::Result<Self> {
        let unit_bytes = unit_pages * PAGE;
        let first = base / unit_bytes;
        let last = (base + pages * PAGE - 1) / unit_bytes;
        let unit_count = last - first + 1;
        Ok(Self {
            base,
            pages,
            unit_pages,
            words: WiredMemory::private(pages * size_of::<AtomicU64>())?,
            units: WiredMemory::private(unit_count * size_of::<UnitMeta>())?,
            unit_count,
            foreign: AtomicUsize::new(0),
        })
    }

    /// First address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Pages covered.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// One past the last address.
    pub(crate) fn end(&self) -> usize {
        self.base + self.pages * PAGE
    }

    /// The number of the page that holds `addr`, an address inside the table.
    pub(crate) fn index(&self, addr: usize) -> usize {
        debug_assert!(addr >= self.base && addr < self.end());
        (addr - self.base) / PAGE
    }

    /// The address of page `index`.
    pub(crate) fn address(&self, index: usize) -> usize {
        self.base + index * PAGE
    }

    /// The state word of page `index`.
    pub(crate) fn word(&self, index: usize) -> &PageWord {
        assert!(index < self.pages, "page outside its stretch");
        // SAFETY: in bounds, zero-initialised memory is the Empty word, and the type is
        // one atomic.
        unsafe { &*self.words.as_ptr().cast::<PageWord>().add(index) }
    }

    /// Units that the stretch touches.
    pub(crate) fn unit_count(&self) -> usize {
        self.unit_count
    }

    /// The unit of page `index`.
    pub(crate) fn unit_of(&self, index: usize) -> usize {
        self.address(index) / (self.unit_pages * PAGE) - self.base / (self.unit_pages * PAGE)
    }

    /// The pages of a unit that belong to the stretch.
    pub(crate) fn unit_pages(&self, unit: usize) -> Range<usize> {
        let unit_bytes = self.unit_pages * PAGE;
        let start = (self.base / unit_bytes + unit) * unit_bytes;
        let from = start.max(self.base);
        let to = (start + unit_bytes).min(self.end());
        (from - self.base) / PAGE..(to - self.base) / PAGE
    }

    /// The places of pages of a unit, which begins with place 0.
    pub(crate) fn places_in_unit(&self, pages: &Range<usize>) -> Range<usize> {
        let first = self.offset_in_unit(pages.start) / PAGE;
        first..first + pages.len()
    }

    /// Where a page lies within its unit, in bytes.
    pub(crate) fn offset_in_unit(&self, index: usize) -> usize {
        self.address(index) % (self.unit_pages * PAGE)
    }

    fn unit(&self, unit: usize) -> &UnitMeta {
        assert!(unit < self.unit_count, "unit outside its stretch");
        // SAFETY: in bounds; zero is an open gate and no flags.
        unsafe { &*self.units.as_ptr().cast::<UnitMeta>().add(unit) }
    }

    /// The gate of a unit.
    pub(crate) fn gate(&self, unit: usize) -> &RangeGate {
        &self.unit(unit).gate
    }

    /// Records that a page of the unit is in use. Returns true if the caller must put the unit
    /// in a replacement queue; not where the unit is surrendered whole.
    pub(crate) fn touch(&self, unit: usize) -> bool {
        let meta = &self.unit(unit).meta;
        let seen = meta.load(Ordering::Acquire);
        if seen & (TOUCHED | QUEUED) == TOUCHED | QUEUED || seen & SURRENDERED != 0 {
            return false;
        }
        meta.fetch_or(TOUCHED | QUEUED, Ordering::AcqRel) & QUEUED == 0
    }

    /// Records that a page of the unit is in use, though none is resident; not where the unit is surrendered whole.
    pub(crate) fn touch_only(&self, unit: usize) {
        if !self.is_surrendered(unit) {
            self.unit(unit).meta.fetch_or(TOUCHED, Ordering::AcqRel);
        }
    }

    /// Makes all pages of a unit foreign that was never touched; with its gate closed. Returns false if it was.
    pub(crate) fn surrender_untouched(&self, unit: usize) -> bool {
        let meta = &self.unit(unit).meta;
        match meta.load(Ordering::Acquire) {
            seen if seen & SURRENDERED != 0 => true,
            seen if seen & TOUCHED != 0 => false,
            _ => {
                meta.fetch_or(SURRENDERED | FOREIGN, Ordering::AcqRel);
                let pages = self.unit_pages(unit).len();
                self.foreign.fetch_add(pages, Ordering::AcqRel);
                true
            }
        }
    }

    /// Returns true if all pages of the unit are foreign, by [`PageTable::surrender_untouched`].
    pub(crate) fn is_surrendered(&self, unit: usize) -> bool {
        self.unit(unit).meta.load(Ordering::Acquire) & SURRENDERED != 0
    }

    /// Writes the words of a unit that is surrendered whole: each page is foreign for itself. With the gate closed.
    ///
    /// # Errors
    /// A page that a fault is about to leave to the kernel: the caller waits for that, and tries again.
    pub(crate) fn write_foreign_words(&self, unit: usize) -> Result<(), usize> {
        if !self.is_surrendered(unit) {
            return Ok(());
        }
        for index in self.unit_pages(unit) {
            // An empty page has nothing to be released.
            self.word(index).become_foreign().map_err(|Busy| index)?;
        }
        let meta = &self.unit(unit).meta;
        meta.fetch_or(TOUCHED, Ordering::AcqRel);
        meta.fetch_and(!SURRENDERED, Ordering::AcqRel);
        Ok(())
    }

    /// Makes the pages of a unit empty that is surrendered whole. With the gate closed. Returns false if it is not.
    pub(crate) fn reclaim_unit(&self, unit: usize) -> bool {
        let meta = &self.unit(unit).meta;
        meta.fetch_and(!SURRENDERED, Ordering::AcqRel) & SURRENDERED != 0
    }

    /// Returns true if any page of the unit was ever in use. In one that is surrendered whole none is: what is mapped there is
    /// another's.
    pub(crate) fn touched(&self, unit: usize) -> bool {
        self.unit(unit).meta.load(Ordering::Acquire) & (TOUCHED | SURRENDERED) == TOUCHED
    }

    /// Pages of the unit became resident.
    pub(crate) fn add_resident(&self, unit: usize, count: u32) {
        self.unit(unit).meta.fetch_add(count, Ordering::AcqRel);
    }

    /// Pages of the unit that were resident no longer are.
    pub(crate) fn sub_resident(&self, unit: usize, count: u32) {
        let before = self.unit(unit).meta.fetch_sub(count, Ordering::AcqRel);
        debug_assert!(
            before & COUNT >= count,
            "more pages sub_resident than were there"
        );
    }

    /// Pages of the unit that are resident.
    pub(crate) fn resident(&self, unit: usize) -> u32 {
        self.unit(unit).meta.load(Ordering::Acquire) & COUNT
    }

    /// Returns true if page `index` is resident and may be evicted.
    pub(crate) fn is_movable(&self, index: usize) -> bool {
        let seen = self.word(index).load();
        seen.state() == State::Resident && seen.may_stage()
    }

    /// Returns true if a page of the unit is resident and may be evicted.
    pub(crate) fn any_movable(&self, unit: usize) -> bool {
        let movable = |index| self.is_movable(index);
        self.resident(unit) > 0 && self.unit_pages(unit).any(movable)
    }

    /// The part of the unit whose turn it is to be evicted: up to `most` pages that may be,
    /// from where the last part ended. None if the unit has none.
    pub(crate) fn next_part(&self, unit: usize, most: usize) -> Option<Range<usize>> {
        let pages = self.unit_pages(unit);
        let movable = |index: &usize| self.is_movable(*index);
        let meta = &self.unit(unit).meta;
        let hand = (meta.load(Ordering::Acquire) & HAND) >> HAND_SHIFT;
        let hand = pages.end.min(pages.start + hand as usize);
        let start = (hand..pages.end).chain(pages.start..hand).find(movable)?;
        let last = (start..pages.end).filter(movable).take(most).last()?;
        let end = (last + 1 - pages.start) as u32 % HUGE_RANGE_PAGES as u32;
        let _ = meta.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
            Some(seen & !HAND | end << HAND_SHIFT)
        });
        Some(start..last + 1)
    }

    /// Returns true if a unit can be filled as a whole: none of its pages is resident, staged,
    /// being filled, or foreign; nor stored or empty, unless `stored` and `empty` allow it.
    pub(crate) fn fillable_whole(&self, unit: usize, stored: bool, empty: bool) -> bool {
        self.resident(unit) == 0
            && self
                .unit_pages(unit)
                .all(|index| match self.word(index).load().state() {
                    State::Empty => empty,
                    State::Stored => stored,
                    _ => false,
                })
    }

    /// Records that so many more pages of the unit become foreign.
    pub(crate) fn surrendered(&self, unit: usize, pages: usize) {
        self.unit(unit)
            .meta
            .fetch_or(TOUCHED | FOREIGN, Ordering::AcqRel);
        self.foreign.fetch_add(pages, Ordering::AcqRel);
    }

    /// Records that so many pages are the stretch's again.
    pub(crate) fn reclaimed(&self, pages: usize) {
        self.foreign.fetch_sub(pages, Ordering::AcqRel);
    }

    /// Returns true if every page of the stretch is foreign.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.foreign.load(Ordering::Acquire) == self.pages
    }

    /// Calls `each` for every maximal run of pages that are the stretch's, in rising order,
    /// until it fails. The caller keeps the words from changing.
    pub(crate) fn try_for_each_own_run<E>(
        &self,
        mut each: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut start = 0;
        if self.foreign.load(Ordering::Acquire) > 0 {
            for unit in 0..self.unit_count {
                if self.unit(unit).meta.load(Ordering::Acquire) & FOREIGN == 0 {
                    continue;
                }
                if self.is_surrendered(unit) {
                    let pages = self.unit_pages(unit);
                    if start < pages.start {
                        each(start..pages.start)?;
                    }
                    start = pages.end;
                    continue;
                }
                for index in self.unit_pages(unit) {
                    if self.word(index).load().state() == State::Foreign {
                        if start < index {
                            each(start..index)?;
                        }
                        start = index + 1;
                    }
                }
            }
        }
        match start < self.pages {
            true => each(start..self.pages),
            false => Ok(()),
        }
    }

    /// The unit has left the replacement queue.
    pub(crate) fn dequeued(&self, unit: usize) {
        self.unit(unit).meta.fetch_and(!QUEUED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
