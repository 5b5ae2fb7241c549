//! The page table of one stretch: a word for each page, a gate for each unit.
//!
//! Nemesis (section 6.3) keeps translations in a table the domain may read and the system may
//! change. On Linux the hardware's table is the kernel's; this one holds what the kernel does
//! not know: where the contents of a page are, and which frame of the contract it occupies.
//!
//! A *unit* is the span that one eviction sweeps: 2 MiB where there are frames enough,
//! a single page where there are few. Its gate orders the two things that must not
//! overlap: publishing a filled page, and taking all pages of the unit away.

use crate::page::{PageWord, RangeGate, State};
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
    /// in a replacement queue.
    pub(crate) fn touch(&self, unit: usize) -> bool {
        let meta = &self.unit(unit).meta;
        if meta.load(Ordering::Relaxed) & (TOUCHED | QUEUED) == TOUCHED | QUEUED {
            return false;
        }
        meta.fetch_or(TOUCHED | QUEUED, Ordering::AcqRel) & QUEUED == 0
    }

    /// Records that a page of the unit is in use, though none is resident.
    pub(crate) fn touch_only(&self, unit: usize) {
        self.unit(unit).meta.fetch_or(TOUCHED, Ordering::AcqRel);
    }

    /// Returns true if any page of the unit was ever in use.
    pub(crate) fn touched(&self, unit: usize) -> bool {
        self.unit(unit).meta.load(Ordering::Acquire) & TOUCHED != 0
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
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_unit_take_its_movable_pages_in_turn() {
        const UNIT: usize = 64;
        // The first unit of the table is cut off at its start.
        let table = PageTable::new(10 * PAGE, 300, UNIT).unwrap();
        for unit in 0..table.unit_count() {
            let pages = table.unit_pages(unit);
            let there: Vec<usize> = pages.step_by(3).collect();
            assert_eq!(table.next_part(unit, 5), None);
            for index in &there {
                let word = table.word(*index);
                assert!(word.begin_fill(word.load()));
                word.finish_fill(1);
            }
            let mut taken = Vec::new();
            while taken.len() < 2 * there.len() {
                let part = table.next_part(unit, 5).unwrap();
                let of: Vec<usize> = part.clone().filter(|i| there.contains(i)).collect();
                assert!((1..=5).contains(&of.len()), "{part:?}");
                taken.extend(of);
            }
            let rounds: Vec<usize> = there.iter().cycle().take(taken.len()).copied().collect();
            assert_eq!(taken, rounds, "unit {unit}");
        }
    }

    #[test]
    fn what_was_surrendered_is_in_no_run_of_the_stretchs_own() {
        const UNIT: usize = 64;
        let table = PageTable::new(3 * PAGE, 300, UNIT).unwrap();
        let own = || {
            let mut runs = Vec::new();
            let all: Result<(), ()> = table.try_for_each_own_run(|run| {
                runs.push(run);
                Ok(())
            });
            all.unwrap();
            runs
        };
        let surrender = |pages: Range<usize>| {
            for index in pages {
                table.word(index).become_foreign().unwrap();
                table.surrendered(table.unit_of(index), 1);
            }
        };
        assert_eq!(own().as_slice(), std::slice::from_ref(&(0..300)));
        surrender(0..1);
        surrender(59..70);
        surrender(200..201);
        assert_eq!(own(), [1..59, 70..200, 201..300]);
        assert!(table.word(60).reclaim());
        table.reclaimed(1);
        assert_eq!(own(), [1..59, 60..61, 70..200, 201..300]);
        surrender(60..61);
        surrender(201..300);
        assert_eq!(own(), [1..59, 70..200]);
        surrender(1..59);
        assert!(!table.is_abandoned());
        surrender(70..200);
        assert!(table.is_abandoned() && own().is_empty());
    }
}
