//! Where the contents of each page of a client are.
//!
//! Pages are numbered over all mappings of a client; each mapping begins a new unit, so that a unit, what
//! one eviction takes, lies in one mapping. One word a page: the table of a client takes a
//! thousandth of its memory with 4 KiB pages.
//!
//! The words are in the client's record, so that a manager may be killed at any instruction. A step that moves contents
//! marks the word *moving* first, and its state is where the contents are certain to be:
//!
//! | step | the word meanwhile | where the manager is killed |
//! |---|---|---|
//! | a page comes in | moving, its state before | its contents are brought in again; where they are there already they stay, with what the client has stored since |
//! | a page leaves | moving, its state afterwards: the copy is stored before | a hole was punched, and the copy is brought in; or not, and the page stays, equal to the copy until a store |
//! | the client discards a resident page | moving, resident | it stays, or a hole is found at its next fault |
//!
//! Rule: a word names no copy that was released: it changes first.

use crate::client_record::ClientRecord;
use crate::handoff::Mapping;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::PageHandle;
use wired::PAGE;

/// Pages of a unit.
pub const UNIT: usize = 64;

/// Where a page's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// In the origin: the snapshot, or zeros where there is none.
    Origin,
    /// Nowhere: the page reads zero.
    Zero,
    /// In the store.
    Stored(PageHandle),
    /// Lost: the store failed, and accesses fail.
    Lost,
    /// In a frame, and perhaps still equal to the origin.
    ResidentOrigin,
    /// In a frame alone.
    Resident,
    /// In a frame, and perhaps still equal to the stored copy.
    ResidentStored(PageHandle),
    /// On its way to the store, in a slot ([`crate::shared_memory::slots`]).
    Staged,
}

impl PageState {
    const TAG: u32 = 7;

    /// Returns true if the page has a frame.
    pub fn is_resident(self) -> bool {
        matches!(
            self,
            Self::ResidentOrigin | Self::Resident | Self::ResidentStored(_)
        )
    }

    /// The stored copy, current or not.
    pub fn handle(self) -> Option<PageHandle> {
        match self {
            Self::Stored(handle) | Self::ResidentStored(handle) => Some(handle),
            _ => None,
        }
    }

    pub(crate) fn pack(self) -> u32 {
        let handle = self.handle().map_or(0, PageHandle::get);
        let tag = match self {
            Self::Origin => 0,
            Self::Zero => 1,
            Self::Stored(_) => 2,
            Self::Lost => 3,
            Self::ResidentOrigin => 4,
            Self::Resident => 5,
            Self::ResidentStored(_) => 6,
            Self::Staged => 7,
        };
        handle << 3 | tag
    }

    pub(crate) fn unpack(word: u32) -> Self {
        let handle = PageHandle::new(word >> 3);
        match (word & Self::TAG, handle) {
            (0, _) => Self::Origin,
            (1, _) => Self::Zero,
            (2, Some(handle)) => Self::Stored(handle),
            (4, _) => Self::ResidentOrigin,
            (5, _) => Self::Resident,
            (6, Some(handle)) => Self::ResidentStored(handle),
            (7, _) => Self::Staged,
            _ => Self::Lost,
        }
    }
}

/// A mapping and the number of its first page.
#[derive(Clone, Copy, Debug)]
struct Placed {
    mapping: Mapping,
    first: usize,
}

/// The bit of a word whose page is moving, above the handle.
const MOVING: u32 = 1 << 31;

/// The state in a word of a record.
pub(crate) fn state_in(word: u32) -> PageState {
    PageState::unpack(word & !MOVING)
}

/// The pages of one client.
pub struct PageTable {
    record: Arc<ClientRecord>,
    mappings: Vec<Placed>,
    page_size: usize,
    resident: usize,
}

impl PageTable {
    /// The table in a record, in which every page is in the origin at first.
    pub fn new(record: &Arc<ClientRecord>) -> Self {
        let handoff = record.handoff();
        let mut first = 0;
        let mut mappings = Vec::with_capacity(handoff.mappings.len());
        for &mapping in &handoff.mappings {
            mappings.push(Placed { mapping, first });
            first += (mapping.len / handoff.page_size).next_multiple_of(UNIT);
        }
        Self {
            record: Arc::clone(record),
            mappings,
            page_size: handoff.page_size,
            resident: 0,
        }
    }

    /// Counts the residents that a manager left, and returns the other pages that it was moving.
    pub fn resume(&mut self) -> Vec<usize> {
        let words = self.record.pages().iter();
        let words: Vec<u32> = words.map(|word| word.load(Ordering::Acquire)).collect();
        let is_resident = |word: &&u32| state_in(**word).is_resident();
        self.resident = words.iter().filter(is_resident).count();
        let moving = words.iter().enumerate();
        let moving =
            moving.filter(|(_, word)| **word & MOVING != 0 && !state_in(**word).is_resident());
        moving.map(|(page, _)| page).collect()
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Pages that have a frame.
    pub fn resident(&self) -> usize {
        self.resident
    }

    /// The number of the page at `addr`, if a mapping has it.
    pub fn page_at(&self, addr: usize) -> Option<usize> {
        let after = self.mappings.partition_point(|it| it.mapping.addr <= addr);
        let it = self.mappings.get(after.checked_sub(1)?)?;
        let page = (addr - it.mapping.addr) / self.page_size;
        (addr - it.mapping.addr < it.mapping.len).then_some(it.first + page)
    }

    /// The pages that lie wholly or partly in a range of addresses, a range for each mapping.
    pub fn pages_in(&self, addr: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
        let (end, size) = (addr.saturating_add(len), self.page_size);
        self.mappings.iter().filter_map(move |it| {
            let from = addr.max(it.mapping.addr);
            let to = end.min(it.mapping.addr + it.mapping.len);
            (from < to).then(|| {
                let first = it.first + (from - it.mapping.addr) / size;
                first..it.first + (to - it.mapping.addr).div_ceil(size)
            })
        })
    }

    fn placed(&self, page: usize) -> &Placed {
        let after = self.mappings.partition_point(|it| it.first <= page);
        &self.mappings[after - 1]
    }

    /// The address of a page.
    pub fn addr(&self, page: usize) -> usize {
        let it = self.placed(page);
        it.mapping.addr + (page - it.first) * self.page_size
    }

    /// Returns true if a page lies behind the page with the number before, in the same mapping.
    pub fn follows(&self, page: usize) -> bool {
        page > self.placed(page).first
    }

    /// The offset of a page in the snapshot.
    pub fn offset(&self, page: usize) -> u64 {
        let it = self.placed(page);
        it.mapping.offset + ((page - it.first) * self.page_size) as u64
    }

    /// The page whose contents begin at an offset of the snapshot, if a mapping has it.
    pub fn page_of_offset(&self, offset: u64) -> Option<usize> {
        self.mappings.iter().find_map(|it| {
            let within = offset.checked_sub(it.mapping.offset)?;
            (within < it.mapping.len as u64).then(|| it.first + within as usize / self.page_size)
        })
    }

    /// The pages of each mapping, by address.
    pub fn mapped(&self) -> impl Iterator<Item = Range<usize>> {
        let size = self.page_size;
        (self.mappings.iter()).map(move |it| it.first..it.first + it.mapping.len / size)
    }

    /// Units of all mappings.
    pub fn units(&self) -> usize {
        self.record.pages().len() / UNIT
    }

    /// Where the contents of the last mapping end, in the snapshot.
    pub fn end(&self) -> u64 {
        let ends = self
            .mappings
            .iter()
            .map(|it| it.mapping.offset + it.mapping.len as u64);
        ends.max().unwrap_or(0)
    }

    /// The pages of a unit.
    pub fn unit(&self, unit: usize) -> Range<usize> {
        let first = unit * UNIT;
        let it = self.placed(first);
        first..(first + UNIT).min(it.first + it.mapping.len / self.page_size)
    }

    /// The pages of a unit that have a frame.
    pub fn resident_in(&self, unit: usize) -> u32 {
        let pages = self.unit(unit);
        pages.filter(|page| self.get(*page).is_resident()).count() as u32
    }

    fn load(&self, page: usize) -> u32 {
        self.record.pages()[page].load(Ordering::Relaxed)
    }

    fn store(&mut self, page: usize, word: u32) -> PageState {
        let was = state_in(self.load(page));
        // A manager that is killed has made its stores in this order.
        self.record.pages()[page].store(word, Ordering::Release);
        self.resident += usize::from(state_in(word).is_resident());
        self.resident -= usize::from(was.is_resident());
        was
    }

    /// The state of a page.
    pub fn get(&self, page: usize) -> PageState {
        state_in(self.load(page))
    }

    /// Sets the state of a page, which moves no more, and returns the former.
    pub fn set(&mut self, page: usize, state: PageState) -> PageState {
        self.store(page, state.pack())
    }

    /// Sets the state of a page whose contents may still be elsewhere, or may be discarded, and returns the former.
    pub fn set_moving(&mut self, page: usize, state: PageState) -> PageState {
        self.store(page, state.pack() | MOVING)
    }

    /// Returns true if a page is moving.
    pub fn is_moving(&self, page: usize) -> bool {
        self.load(page) & MOVING != 0
    }

    /// The page's contents may be in a frame from now on.
    pub fn begin_move(&mut self, page: usize) {
        self.set_moving(page, self.get(page));
    }

    /// The page's contents are not in a frame.
    pub fn end_move(&mut self, page: usize) {
        self.set(page, self.get(page));
    }
}

/// A bit for each page, of 64 at most, that has something.
pub(crate) fn bits(pages: Range<usize>, has: impl Fn(usize) -> bool) -> u64 {
    let first = pages.start;
    pages
        .filter(|page| has(*page))
        .fold(0, |bits, page| bits | 1 << (page - first))
}

/// Runs of neighbouring pages, from a bit for each page from `first` on.
pub(crate) fn runs(first: usize, mut bits: u64) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        let start = bits.trailing_zeros() as usize;
        if bits == 0 {
            return None;
        }
        let len = (!(bits >> start)).trailing_zeros() as usize;
        let mask = u64::MAX >> (64 - len) << start;
        bits &= !mask;
        Some(first + start..first + start + len)
    })
}

/// Returns true if a page holds only zeros.
pub(crate) fn is_zero(page: &[u8; PAGE]) -> bool {
    // SAFETY: the words of the page.
    let (head, words, tail) = unsafe { page.align_to::<u64>() };
    head.iter().all(|it| *it == 0)
        && words.iter().all(|it| *it == 0)
        && tail.iter().all(|it| *it == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_record::MemoryKind;
    use crate::handoff::Handoff;
    use proptest::prelude::*;

    fn table() -> PageTable {
        let mapping = |addr, pages: usize, offset| Mapping {
            addr,
            len: pages * 4096,
            offset,
        };
        let handoff = Handoff {
            mappings: vec![mapping(1 << 20, 100, 409_600), mapping(4 << 20, 100, 0)],
            page_size: 4096,
        };
        let (record, _fd) = ClientRecord::create(1, 1, &handoff, MemoryKind::Memfd).unwrap();
        PageTable::new(&record)
    }

    #[test]
    fn a_successor_finds_states_and_moving_pages() {
        let mut table = table();
        let handle = PageHandle::new((1 << PageHandle::BITS) - 1).unwrap();
        table.set(3, PageState::ResidentStored(handle));
        table.set_moving(4, PageState::Stored(handle));
        table.begin_move(130);
        assert_eq!(table.get(4), PageState::Stored(handle));
        table.begin_move(131);
        table.end_move(131);
        table.begin_move(132);
        table.set(132, PageState::Zero);
        table.set_moving(133, PageState::Resident);
        let mut successor = PageTable::new(&table.record);
        assert_eq!(successor.resume(), [4, 130]);
        assert_eq!(successor.resident(), 2);
        assert_eq!(successor.get(3), PageState::ResidentStored(handle));
        assert!([4, 133].iter().all(|page| successor.is_moving(*page)) && !successor.is_moving(3));
    }

    #[test]
    fn mappings_begin_units_and_gaps_have_no_pages() {
        let table = table();
        assert_eq!(table.page_at((1 << 20) + 4097), Some(1));
        assert_eq!(table.page_at(1 << 19), None);
        assert_eq!(table.page_at((1 << 20) + 100 * 4096), None);
        assert_eq!(table.page_at(4 << 20), Some(128));
        assert_eq!((table.unit(1), table.unit(2)), (64..100, 128..192));
        assert_eq!(table.addr(129), (4 << 20) + 4096);
        assert_eq!((table.offset(1), table.offset(129)), (413_696, 4096));
        assert_eq!(table.page_of_offset(4096), Some(129));
        assert_eq!(table.page_of_offset(413_696), Some(1));
        assert_eq!(table.page_of_offset(819_200), None);
        let parts: Vec<_> = table.pages_in((1 << 20) + 98 * 4096, 4 << 20).collect();
        assert_eq!(parts, [98..100, 128..228]);
    }

    proptest! {
        #[test]
        fn residents_are_counted(steps in prop::collection::vec((0usize..100, 0u32..8), 0..200)) {
            let mut table = table();
            let handle = PageHandle::new(77).unwrap();
            for (page, what) in steps {
                let state = [
                    PageState::Origin, PageState::Zero, PageState::Stored(handle), PageState::Lost,
                    PageState::ResidentOrigin, PageState::Resident, PageState::ResidentStored(handle),
                    PageState::Staged,
                ][what as usize];
                table.set(page, state);
                prop_assert_eq!(table.get(page), state);
            }
            let counted = table.resident_in(0) + table.resident_in(1);
            prop_assert_eq!(table.resident(), counted as usize);
        }
    }
}
