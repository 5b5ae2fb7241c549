//! The stretch allocator's address ranges: which are allocated, to whom, which are free.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.1: a stretch is asked for
//! by size, at an address if one is wanted, has an owner, and its base and length, always
//! multiples of the page size, can be queried. Pure: what is allocated here is mapped by
//! others.
//!
//! Rule: every page of the span is in exactly one range, free or allocated, and no two
//! free ranges touch. Any address is free: best fit, lowest first, so that large ranges
//! stay large; O(log n) in the number of ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wired::PAGE;

/// An allocated range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First address.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// Whose it is.
    pub owner: u32,
}

impl Allocation {
    /// One past the last address.
    pub fn end(&self) -> usize {
        self.base + self.len
    }
}

/// Why no range was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// No bytes were asked for, or more than there are addresses.
    #[error(
        "a stretch of {0} bytes cannot be: ask for at least 1 byte and less than the address space"
    )]
    Size(usize),
    /// The address wanted is not a multiple of the page size.
    #[error("the address {0:#x} is not a multiple of the page size, {PAGE}")]
    Unaligned(usize),
    /// The alignment wanted is not a power of two, or smaller than a page.
    #[error("an alignment of {0} bytes cannot be: it must be a power of two, at least {PAGE}")]
    Alignment(usize),
    /// What was wanted is not inside the span.
    #[error("{base:#x} to {end:#x} is not inside the addresses there are, {from:#x} to {to:#x}")]
    Outside {
        /// Wanted from here,
        base: usize,
        /// to here.
        end: usize,
        /// There are addresses from here,
        from: usize,
        /// to here.
        to: usize,
    },
    /// Part of what was wanted is allocated.
    #[error(
        "{base:#x} to {end:#x} is not free: a stretch of owner {owner} lies at {taken:#x} ({len} bytes)"
    )]
    Taken {
        /// Wanted from here,
        base: usize,
        /// to here.
        end: usize,
        /// Where the stretch in the way begins,
        taken: usize,
        /// its bytes,
        len: usize,
        /// and whose it is.
        owner: u32,
    },
    /// No free range is large enough.
    #[error(
        "no free range has {asked} bytes: {free} bytes are free, in pieces of at most {largest}; \
         free a stretch or make the span larger"
    )]
    Full {
        /// Bytes asked for.
        asked: usize,
        /// Bytes free in all.
        free: usize,
        /// Bytes of the largest free range.
        largest: usize,
    },
    /// No allocated range begins there.
    #[error("no stretch begins at {0:#x}")]
    NoSuchRange(usize),
}

/// The ranges of one span of addresses.
#[derive(Debug)]
pub struct Ranges {
    span: Range<usize>,
    taken: BTreeMap<usize, Allocation>,
    /// Free ranges: length by base.
    free: BTreeMap<usize, usize>,
    /// The same by length, then base.
    by_length: BTreeSet<(usize, usize)>,
}

impl Ranges {
    /// All of `span` free; its ends are rounded inwards to pages.
    pub fn new(span: Range<usize>) -> Self {
        let from = span
            .start
            .checked_next_multiple_of(PAGE)
            .unwrap_or(usize::MAX);
        let to = span.end - span.end % PAGE;
        let span = from.min(to)..to;
        let mut ranges = Self {
            span: span.clone(),
            taken: BTreeMap::new(),
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        ranges.add_free(span.start, span.len());
        ranges
    }

    /// Allocates `len` bytes, rounded up to pages, where there is room, at a multiple of
    /// `align`.
    pub fn allocate(
        &mut self,
        len: usize,
        align: usize,
        owner: u32,
    ) -> Result<Allocation, RangeError> {
        let asked = Self::pages(len)?;
        if !align.is_power_of_two() || align < PAGE {
            return Err(RangeError::Alignment(align));
        }
        let place = self.by_length.range((asked, 0)..).find_map(|(len, base)| {
            let at = base.checked_next_multiple_of(align)?;
            (at.checked_add(asked)? <= base + len).then_some(at)
        });
        match place {
            Some(base) => Ok(self.take(base, asked, owner)),
            None => Err(RangeError::Full {
                asked,
                free: self.free_bytes(),
                largest: self.largest(),
            }),
        }
    }

    /// Allocates `len` bytes, rounded up to pages, at `base`.
    pub fn allocate_at(
        &mut self,
        base: usize,
        len: usize,
        owner: u32,
    ) -> Result<Allocation, RangeError> {
        let asked = Self::pages(len)?;
        if !base.is_multiple_of(PAGE) {
            return Err(RangeError::Unaligned(base));
        }
        let Range {
            start: from,
            end: to,
        } = self.span;
        let end = base
            .checked_add(asked)
            .filter(|end| base >= from && *end <= to);
        let Some(end) = end else {
            return Err(RangeError::Outside {
                base,
                end: base.saturating_add(asked),
                from,
                to,
            });
        };
        if let Some(Allocation {
            base: taken,
            len,
            owner,
        }) = self.overlapping(base..end).next().copied()
        {
            return Err(RangeError::Taken {
                base,
                end,
                taken,
                len,
                owner,
            });
        }
        Ok(self.take(base, asked, owner))
    }

    /// Frees the range that begins at `base`.
    pub fn free(&mut self, base: usize) -> Result<Allocation, RangeError> {
        let gone = self
            .taken
            .remove(&base)
            .ok_or(RangeError::NoSuchRange(base))?;
        let (mut from, mut to) = (gone.base, gone.end());
        if let Some((before, len)) = self.free.range(..from).next_back().map(|(b, l)| (*b, *l))
            && before + len == from
        {
            self.remove_free(before);
            from = before;
        }
        if let Some(len) = self.free.get(&to).copied() {
            self.remove_free(to);
            to += len;
        }
        self.add_free(from, to - from);
        Ok(gone)
    }

    /// The allocated range that `address` lies in.
    pub fn find(&self, address: usize) -> Option<&Allocation> {
        let (_, found) = self.taken.range(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    /// The allocated ranges that share a page with `range`, from the lowest.
    pub fn overlapping(&self, range: Range<usize>) -> impl Iterator<Item = &Allocation> {
        let first = self
            .find(range.start)
            .map_or(range.start, |found| found.base);
        self.taken
            .range(first..range.end.max(first))
            .map(|(_, found)| found)
    }

    /// All allocated ranges, from the lowest.
    pub fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.taken.values()
    }

    /// How many ranges are allocated.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether no range is allocated.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Bytes not allocated.
    pub fn free_bytes(&self) -> usize {
        self.free.values().sum()
    }

    /// Bytes of the largest free range.
    pub fn largest(&self) -> usize {
        self.by_length.last().map_or(0, |(len, _)| *len)
    }

    fn pages(len: usize) -> Result<usize, RangeError> {
        let pages = len.checked_next_multiple_of(PAGE);
        pages
            .filter(|pages| *pages > 0)
            .ok_or(RangeError::Size(len))
    }

    /// Allocates pages that are known to be free.
    fn take(&mut self, base: usize, len: usize, owner: u32) -> Allocation {
        if let Some((from, free)) = self.free.range(..=base).next_back().map(|(b, l)| (*b, *l)) {
            self.remove_free(from);
            self.add_free(from, base - from);
            self.add_free(base + len, from + free - (base + len));
        }
        let allocation = Allocation { base, len, owner };
        self.taken.insert(base, allocation);
        allocation
    }

    fn add_free(&mut self, base: usize, len: usize) {
        if len > 0 {
            self.free.insert(base, len);
            self.by_length.insert((len, base));
        }
    }

    fn remove_free(&mut self, base: usize) {
        if let Some(len) = self.free.remove(&base) {
            self.by_length.remove(&(len, base));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: usize = 0x7000_0000;

    fn span(pages: usize) -> Range<usize> {
        BASE..BASE + pages * PAGE
    }

    #[test]
    fn sizes_round_up_to_pages_and_nothing_is_refused() {
        let mut ranges = Ranges::new(span(8));
        assert_eq!(
            ranges.allocate(1, PAGE, 3).unwrap(),
            Allocation {
                base: BASE,
                len: PAGE,
                owner: 3
            }
        );
        assert_eq!(ranges.allocate(0, PAGE, 3), Err(RangeError::Size(0)));
        assert_eq!(
            ranges.allocate(usize::MAX, PAGE, 3),
            Err(RangeError::Size(usize::MAX))
        );
        assert_eq!(ranges.allocate(PAGE, 24, 3), Err(RangeError::Alignment(24)));
    }

    #[test]
    fn an_address_asked_for_is_given_or_the_one_in_the_way_named() {
        let mut ranges = Ranges::new(span(8));
        ranges.allocate_at(BASE + 2 * PAGE, PAGE, 9).unwrap();
        let refused = ranges.allocate_at(BASE + PAGE, 2 * PAGE, 1).unwrap_err();
        assert!(
            matches!(refused, RangeError::Taken { taken, owner: 9, .. } if taken == BASE + 2 * PAGE)
        );
        assert!(refused.to_string().contains("0x70002000"));
        assert!(matches!(
            ranges.allocate_at(BASE + 1, PAGE, 1),
            Err(RangeError::Unaligned(_))
        ));
        for at in [BASE - PAGE, BASE + 8 * PAGE, usize::MAX - PAGE + 1] {
            assert!(matches!(
                ranges.allocate_at(at, PAGE, 1),
                Err(RangeError::Outside { .. })
            ));
        }
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken_first() {
        let mut ranges = Ranges::new(span(20));
        let all: Vec<_> = (0..20)
            .map(|_| ranges.allocate(PAGE, PAGE, 0).unwrap().base)
            .collect();
        for page in [1, 2, 3, 4, 8, 9] {
            ranges.free(all[page]).unwrap();
        }
        assert_eq!(ranges.allocate(2 * PAGE, PAGE, 0).unwrap().base, all[8]);
        let refused = ranges.allocate(5 * PAGE, PAGE, 0).unwrap_err();
        assert_eq!(
            refused,
            RangeError::Full {
                asked: 5 * PAGE,
                free: 4 * PAGE,
                largest: 4 * PAGE
            }
        );
    }

    #[test]
    fn an_alignment_asked_for_is_kept() {
        let mut ranges = Ranges::new(PAGE..1 << 30);
        for _ in 0..50 {
            assert!(
                ranges
                    .allocate(3 * PAGE, wired::RANGE, 0)
                    .unwrap()
                    .base
                    .is_multiple_of(wired::RANGE)
            );
        }
    }

    #[test]
    fn ten_thousand_stretches_are_found_by_any_address_in_them() {
        let mut ranges = Ranges::new(span(40_000));
        let all: Vec<_> = (0..10_000)
            .map(|n| ranges.allocate((1 + n % 4) * PAGE, PAGE, n as u32).unwrap())
            .collect();
        assert_eq!(ranges.len(), 10_000);
        for range in &all {
            assert_eq!(ranges.find(range.base), Some(range));
            assert_eq!(ranges.find(range.end() - 1), Some(range));
        }
        for range in all {
            assert_eq!(ranges.free(range.base), Ok(range));
        }
        assert_eq!((ranges.len(), ranges.largest()), (0, 40_000 * PAGE));
        assert_eq!(ranges.free(BASE), Err(RangeError::NoSuchRange(BASE)));
    }

    proptest! {
        #[test]
        fn every_page_is_free_or_in_one_range(
            steps in prop::collection::vec((0u8..3, 0usize..64, 1usize..12), 0..200),
        ) {
            let mut ranges = Ranges::new(span(64));
            let mut model = [None::<u32>; 64];
            for (n, (what, at, len)) in (0u32..).zip(steps) {
                let page = |address: usize| (address - BASE) / PAGE;
                match what {
                    0 => {
                        let longest = model.split(Option::is_some).map(<[_]>::len).max().unwrap_or(0);
                        let found = ranges.allocate(len * PAGE, PAGE, n);
                        prop_assert_eq!(found.is_ok(), longest >= len);
                        if let Ok(found) = found {
                            for place in &mut model[page(found.base)..page(found.end())] {
                                prop_assert_eq!(place.replace(n), None);
                            }
                        }
                    }
                    1 => {
                        let wanted = model.get_mut(at..at + len);
                        let may = wanted.as_ref().is_some_and(|w| w.iter().all(Option::is_none));
                        let found = ranges.allocate_at(BASE + at * PAGE, len * PAGE, n);
                        prop_assert_eq!(found.is_ok(), may);
                        if let (Ok(_), Some(wanted)) = (found, wanted) {
                            wanted.fill(Some(n));
                        }
                    }
                    _ => {
                        let base = ranges.find(BASE + at * PAGE).map(|found| found.base);
                        prop_assert_eq!(base.is_some(), model[at].is_some());
                        if let Some(base) = base {
                            let gone = ranges.free(base).unwrap();
                            model[page(gone.base)..page(gone.end())].fill(None);
                        }
                    }
                }
                for (page, owner) in model.iter().enumerate() {
                    let found = ranges.find(BASE + page * PAGE).map(|found| found.owner);
                    prop_assert_eq!(found, *owner);
                }
                let free = model.iter().filter(|owner| owner.is_none()).count();
                prop_assert_eq!(ranges.free_bytes(), free * PAGE);
            }
        }
    }
}
