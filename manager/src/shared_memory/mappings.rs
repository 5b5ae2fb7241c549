//! What one process maps of the objects, by address.
//!
//! Rule: pure. The kernel reports changes ([`translation::UffdMessage`]), and this table follows.

use std::collections::BTreeMap;
use std::ops::Range;
use wired::PAGE;

/// The number of an object; no two of a tree ever have the same.
pub type ObjectId = u32;

/// Pages of an object, at consecutive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    bytes: usize,
    object: ObjectId,
    first: usize,
    is_locked: bool,
}

impl Mapped {
    /// Returns true if another mapping, so many bytes behind this one's first, could be a part of it.
    fn continues_with(&self, offset: usize, other: &Mapped) -> bool {
        let next = Mapped {
            bytes: other.bytes,
            first: self.first + self.bytes / PAGE,
            ..*self
        };
        offset == self.bytes && next == *other
    }
}

/// The mappings of one process.
#[derive(Clone, Debug, Default)]
pub struct Mappings(BTreeMap<usize, Mapped>);

impl Mappings {
    /// Adds pages of an object from page `first` on, at `addr`; what was there is not any more.
    pub fn insert(&mut self, addr: usize, bytes: usize, object: ObjectId, first: usize) {
        self.remove(addr, bytes);
        let mapped = Mapped {
            bytes,
            object,
            first,
            is_locked: false,
        };
        self.0.insert(addr, mapped);
    }

    /// Locks what is mapped in a range of addresses, or ends its locks. A lock is the mapping's, and moves and ends with
    /// it.
    pub fn set_locked(&mut self, range: &Range<usize>, is_locked: bool) {
        for (start, it) in self.cut(range.start, range.len()) {
            self.0.insert(start, Mapped { is_locked, ..it });
        }
        self.join(range);
    }

    /// Joins mappings in a range and beside it that continue each other: locks begin and end any number of times, and each
    /// would leave its two cuts.
    fn join(&mut self, range: &Range<usize>) {
        let first = self.0.range(..range.start).next_back();
        let first = first.map_or(range.start, |(start, _)| *start);
        let parts = self.0.range(first..=range.end);
        let parts: Vec<_> = parts.map(|(start, it)| (*start, *it)).collect();
        let mut before: Option<(usize, Mapped)> = None;
        for (start, it) in parts {
            match &mut before {
                Some((at, joined)) if joined.continues_with(start - *at, &it) => {
                    joined.bytes += it.bytes;
                    self.0.remove(&start);
                    self.0.insert(*at, *joined);
                }
                _ => before = Some((start, it)),
            }
        }
    }

    /// Ends all locks: a fork's child inherits none.
    pub fn unlock_all(&mut self) {
        self.0.values_mut().for_each(|it| it.is_locked = false);
    }

    /// The pages of an object that some mapping has locked, each once.
    pub fn locked_pages(&self, object: ObjectId) -> Vec<Range<usize>> {
        let locked = self.0.values();
        let locked = locked.filter(|it| it.is_locked && it.object == object);
        let mut ranges: Vec<_> = locked
            .map(|it| it.first..it.first + it.bytes / PAGE)
            .collect();
        ranges.sort_unstable_by_key(|pages| pages.start);
        let mut joined: Vec<Range<usize>> = Vec::new();
        for pages in ranges {
            match joined.last_mut().filter(|last| pages.start <= last.end) {
                Some(last) => last.end = last.end.max(pages.end),
                None => joined.push(pages),
            }
        }
        joined
    }

    /// The object and page at an address.
    pub fn find(&self, addr: usize) -> Option<(ObjectId, usize)> {
        let (start, it) = self.0.range(..=addr).next_back()?;
        let offset = addr - start;
        (offset < it.bytes).then(|| (it.object, it.first + offset / PAGE))
    }

    /// Removes a range of addresses.
    pub fn remove(&mut self, addr: usize, bytes: usize) {
        self.cut(addr, bytes);
    }

    /// A range of addresses moves.
    pub fn relocate(&mut self, from: usize, to: usize, bytes: usize) {
        let moved = self.cut(from, bytes);
        self.cut(to, bytes);
        for (start, it) in moved {
            self.0.insert(start - from + to, it);
        }
    }

    /// Removes and returns what lies in a range.
    fn cut(&mut self, addr: usize, bytes: usize) -> Vec<(usize, Mapped)> {
        let end = addr.saturating_add(bytes);
        let touched: Vec<_> = (self.0.range(..end).rev())
            .take_while(|(start, it)| **start + it.bytes > addr)
            .map(|(start, it)| (*start, *it))
            .collect();
        let mut cut = Vec::with_capacity(touched.len());
        for (start, it) in touched {
            self.0.remove(&start);
            let part = |range: Range<usize>| {
                let mapped = Mapped {
                    bytes: range.len(),
                    object: it.object,
                    first: it.first + (range.start - start) / PAGE,
                    is_locked: it.is_locked,
                };
                (!range.is_empty()).then_some((range.start, mapped))
            };
            let stop = start + it.bytes;
            self.0.extend(part(start..addr.max(start)));
            self.0.extend(part(end.min(stop)..stop));
            cut.extend(part(addr.max(start)..end.min(stop)));
        }
        cut
    }

    /// Where pages of an object are mapped: addresses and lengths in bytes.
    pub fn places(
        &self,
        object: ObjectId,
        pages: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let of_object = self.0.iter().filter(move |(_, it)| it.object == object);
        of_object.filter_map(move |(start, it)| {
            let from = pages.start.max(it.first);
            let to = pages.end.min(it.first + it.bytes / PAGE);
            (from < to).then(|| (start + (from - it.first) * PAGE, (to - from) * PAGE))
        })
    }

    /// The pages of a range of addresses, by object.
    pub fn pages_in(
        &self,
        addr: usize,
        bytes: usize,
    ) -> impl Iterator<Item = (ObjectId, Range<usize>)> + '_ {
        let end = addr.saturating_add(bytes);
        let first = self.0.range(..=addr).next_back();
        let first = first.map_or(addr, |(start, _)| *start);
        self.0.range(first..end).filter_map(move |(start, it)| {
            let (from, to) = (addr.max(*start), end.min(start + it.bytes));
            let page = |at: usize| it.first + (at - start) / PAGE;
            (from < to).then(|| (it.object, page(from)..page(to)))
        })
    }

    /// All mappings: address, bytes, object.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize, ObjectId)> + '_ {
        self.0
            .iter()
            .map(|(start, it)| (*start, it.bytes, it.object))
    }

    /// Returns true if nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if some page of the object is mapped.
    pub fn has(&self, object: ObjectId) -> bool {
        self.0.values().any(|it| it.object == object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap};

    #[test]
    fn a_cut_leaves_the_pages_on_both_sides() {
        let mut it = Mappings::default();
        it.insert(10 * PAGE, 10 * PAGE, 7, 100);
        it.remove(13 * PAGE, 2 * PAGE);
        assert_eq!(it.find(12 * PAGE + 9), Some((7, 102)));
        assert_eq!(it.find(13 * PAGE), None);
        assert_eq!(it.find(15 * PAGE), Some((7, 105)));
        let places: Vec<_> = it.places(7, 101..106).collect();
        assert_eq!(places, [(11 * PAGE, 2 * PAGE), (15 * PAGE, PAGE)]);
    }

    #[test]
    fn a_lock_that_has_ended_leaves_no_cut() {
        let mut it = Mappings::default();
        for (addr, object, first) in [(0, 7, 100), (50, 7, 150), (100, 7, 201), (150, 8, 251)] {
            it.insert(addr * PAGE, 50 * PAGE, object, first);
        }
        for page in [10, 49, 60, 99, 100, 149, 150] {
            it.set_locked(&(page * PAGE..(page + 1) * PAGE), true);
        }
        assert_eq!(
            it.locked_pages(7),
            [110..111, 149..150, 160..161, 199..200, 201..202, 250..251]
        );
        for page in [10, 49, 60, 99, 100, 149, 150] {
            it.set_locked(&(page * PAGE..(page + 1) * PAGE), false);
        }
        // What continues the pages before is one with them.
        let left: Vec<_> = it
            .iter()
            .map(|(addr, len, _)| (addr / PAGE, len / PAGE))
            .collect();
        assert_eq!(left, [(0, 100), (100, 50), (150, 50)]);
        it.insert(300 * PAGE, 50 * PAGE, 9, 0);
        for page in 300..350 {
            it.set_locked(&(page * PAGE..(page + 1) * PAGE), true);
        }
        assert!(it.locked_pages(9).into_iter().flatten().eq(0..50));
        assert_eq!(it.iter().count(), 4);
    }

    /// Pages by address, as the kernel's own record would have them, and whether each is locked.
    type Model = HashMap<usize, (ObjectId, usize, bool)>;

    const OBJECTS: ObjectId = 3;

    fn locked_pages(model: &Model, object: ObjectId) -> BTreeSet<usize> {
        let locked = model
            .values()
            .filter(|(of, _, is_locked)| *of == object && *is_locked);
        locked.map(|(_, page, _)| *page).collect()
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_a_record_of_single_pages(
            steps in prop::collection::vec((0u8..5, 0usize..40, 1usize..12, 0usize..40), 1..60)
        ) {
            let (mut it, mut model) = (Mappings::default(), Model::new());
            for (number, (what, at, pages, to)) in steps.into_iter().enumerate() {
                let object = number as ObjectId % OBJECTS;
                match what {
                    0 => {
                        it.insert(at * PAGE, pages * PAGE, object, 3);
                        (0..pages).for_each(|page| { model.insert(at + page, (object, 3 + page, false)); });
                    }
                    1 => {
                        it.remove(at * PAGE, pages * PAGE);
                        (0..pages).for_each(|page| { model.remove(&(at + page)); });
                    }
                    2 | 3 => {
                        it.set_locked(&(at * PAGE..(at + pages) * PAGE), what == 2);
                        for page in at..at + pages {
                            model.entry(page).and_modify(|it| it.2 = what == 2);
                        }
                    }
                    // The kernel refuses ranges that overlap.
                    _ if at.abs_diff(to) < pages => {}
                    _ => {
                        it.relocate(at * PAGE, to * PAGE, pages * PAGE);
                        for page in 0..pages {
                            model.remove(&(to + page));
                            if let Some(moved) = model.remove(&(at + page)) {
                                model.insert(to + page, moved);
                            }
                        }
                    }
                }
                for page in 0..60 {
                    let found = model.get(&page).map(|(object, page, _)| (*object, *page));
                    prop_assert_eq!(it.find(page * PAGE), found);
                }
                let (from, bytes) = (at * PAGE, pages * PAGE);
                let part: Vec<_> = it.pages_in(from, bytes).flat_map(|(object, pages)| pages.map(move |page| (object, page))).collect();
                let expected: Vec<_> = (at..at + pages).filter_map(|page| model.get(&page)).map(|(object, page, _)| (*object, *page)).collect();
                prop_assert_eq!(part, expected);
                for object in 0..OBJECTS {
                    let locked = it.locked_pages(object);
                    let pages: usize = locked.iter().map(|pages| pages.len()).sum();
                    let set: BTreeSet<_> = locked.into_iter().flatten().collect();
                    prop_assert_eq!(pages, set.len());
                    prop_assert_eq!(set, locked_pages(&model, object));
                }
                let counted: usize = it.iter().map(|(_, bytes, _)| bytes / PAGE).sum();
                prop_assert_eq!(counted, model.len());
            }
        }
    }
}
