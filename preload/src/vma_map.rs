//! The program's mappings in paged memory: addresses, access, state.
//!
//! The kernel's own record does not have them. An *arena* stays mapped and registered as
//! long as the process lives, and the program's `mmap` and `munmap` within it only
//! change this map. It holds what `mmap` promises: which addresses are free, where a
//! mapping ends, which calls meet a hole.
//!
//! Rule: pure. It makes no system call; the code that changes it changes memory to match.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wired::{HUGE_RANGE, PAGE};

/// Addresses, both ends page aligned.
pub type AddrRange = Range<usize>;

/// The kind of mapping at a used address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappingKind {
    /// Private anonymous memory of ours: a stretch.
    Paged,
    /// Another mapping that the program made there with MAP_FIXED (a file, shared memory).
    Foreign,
}

/// The lock that `mlock` requested. It does not nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MlockState {
    /// Nothing.
    No,
    /// Pages stay once brought in: locked in the program's view, and not nailed.
    OnFault,
    /// The pages are nailed.
    Nailed,
}

/// The state of used addresses, as far as the program can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MappingAttrs {
    /// The kind of mapping.
    pub kind: MappingKind,
    /// PROT_READ | PROT_WRITE | PROT_EXEC as the program set them.
    pub prot: i32,
    /// Has a memory protection key other than the default one.
    pub keyed: bool,
    /// By `mlock`.
    pub locked: MlockState,
    /// MADV_DONTFORK: not there in the child of a fork.
    pub dont_fork: bool,
    /// MADV_WIPEONFORK: zero in the child of a fork.
    pub wipe_on_fork: bool,
}

impl MappingAttrs {
    /// Fresh paged memory with access `prot`.
    pub const fn paged(prot: i32) -> Self {
        Self {
            kind: MappingKind::Paged,
            prot,
            keyed: false,
            locked: MlockState::No,
            dont_fork: false,
            wipe_on_fork: false,
        }
    }

    /// A mapping that is not ours.
    pub const FOREIGN: Self = Self {
        kind: MappingKind::Foreign,
        ..Self::paged(0)
    };
}

/// The origin of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenaOrigin {
    /// Reserved by us: free addresses in it are handed out.
    Reserved,
    /// The program's own mapping, adopted: what it unmaps is the kernel's again.
    Adopted,
}

/// The map's record of some addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// No arena: ask the kernel.
    Outside,
    /// Inside an arena, not mapped in the program's view.
    Free,
    /// Mapped.
    Used(MappingAttrs, ArenaOrigin),
}

/// A run of addresses of one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// Which.
    pub span: AddrRange,
    /// What is there.
    pub state: Lookup,
}

/// Some tries are enough to find an aligned place; a list of thousands of small gaps is
/// not worth walking.
const PLACE_TRIES: usize = 64;

/// The map.
#[derive(Debug, Default)]
pub struct VmaMap {
    arenas: BTreeMap<usize, (usize, ArenaOrigin)>,
    used: BTreeMap<usize, (usize, MappingAttrs)>,
    /// Free addresses of reserved arenas, by address.
    free: BTreeMap<usize, usize>,
    /// The same by (length, address).
    sizes: BTreeSet<(usize, usize)>,
}

impl VmaMap {
    /// An empty map.
    pub const fn new() -> Self {
        Self {
            arenas: BTreeMap::new(),
            used: BTreeMap::new(),
            free: BTreeMap::new(),
            sizes: BTreeSet::new(),
        }
    }

    /// Adds an arena of free addresses.
    pub fn add_reserved(&mut self, span: AddrRange) {
        self.arenas
            .insert(span.start, (span.end, ArenaOrigin::Reserved));
        self.add_free(span);
    }

    /// A mapping of the program's that became ours; with those that it touches it is one
    /// arena, so that their state may be one piece.
    pub fn add_adopted(&mut self, span: AddrRange, attrs: MappingAttrs) {
        let mut arena = span.clone();
        if let Some((start, (end, ArenaOrigin::Adopted))) =
            self.arenas.range(..span.start).next_back()
            && *end == span.start
        {
            arena.start = *start;
        }
        if let Some((end, ArenaOrigin::Adopted)) = self.arenas.get(&span.end).copied() {
            self.arenas.remove(&span.end);
            arena.end = end;
        }
        self.arenas
            .insert(arena.start, (arena.end, ArenaOrigin::Adopted));
        self.put_used(span, attrs);
    }

    /// Returns true if an address lies in an arena.
    pub fn contains(&self, addr: usize) -> bool {
        self.arena_at(addr).is_some()
    }

    /// Returns true if some address of a span lies in an arena.
    pub fn touches(&self, span: &AddrRange) -> bool {
        self.arenas
            .range(..span.end)
            .next_back()
            .is_some_and(|(_, (end, _))| *end > span.start)
    }

    /// A free place for `len` bytes, aligned to `align` if that can be had, else to a
    /// page: the smallest gap that holds it.
    pub fn place(&self, len: usize, align: usize) -> Option<usize> {
        let aligned = |(gap, start): &(usize, usize)| {
            let at = start.checked_next_multiple_of(align)?;
            (at + len <= start + gap).then_some(at)
        };
        let mut gaps = self.sizes.range((len, 0)..);
        let first = gaps.clone().next().map(|(_, start)| *start);
        gaps.by_ref()
            .take(PLACE_TRIES)
            .find_map(aligned)
            .or_else(|| self.sizes.iter().next_back().and_then(aligned))
            .or(first)
    }

    /// Sets the state of addresses inside arenas, used or free.
    pub fn set(&mut self, span: AddrRange, attrs: MappingAttrs) {
        self.cut_used(&span);
        self.cut_free(&span);
        self.put_used(span, attrs);
    }

    /// Changes the state of every used address of `span`.
    pub fn change(&mut self, span: &AddrRange, change: impl Fn(&mut MappingAttrs)) {
        for piece in self.lookup(span) {
            if let Lookup::Used(mut attrs, _) = piece.state {
                change(&mut attrs);
                self.cut_used(&piece.span);
                self.put_used(piece.span, attrs);
            }
        }
    }

    /// Makes addresses of reserved arenas free.
    pub fn clear(&mut self, span: &AddrRange) {
        for piece in self.lookup(span) {
            if matches!(piece.state, Lookup::Used(_, ArenaOrigin::Reserved)) {
                self.cut_used(&piece.span);
                self.add_free(piece.span);
            }
        }
    }

    /// Takes addresses out of their arenas: they are the kernel's.
    pub fn forget(&mut self, span: &AddrRange) {
        self.cut_used(span);
        self.cut_free(span);
        let cut: Vec<_> = self
            .arenas
            .range(..span.end)
            .rev()
            .take_while(|(_, (end, _))| *end > span.start)
            .map(|(start, (end, origin))| (*start, *end, *origin))
            .collect();
        for (start, end, origin) in cut {
            self.arenas.remove(&start);
            if start < span.start {
                self.arenas.insert(start, (span.start, origin));
            }
            if end > span.end {
                self.arenas.insert(span.end, (end, origin));
            }
        }
    }

    /// What lies in `span`, in order, without gaps.
    pub fn lookup(&self, span: &AddrRange) -> Vec<MappedRange> {
        let mut pieces = Vec::new();
        let mut at = span.start;
        while at < span.end {
            let (end, state) = self.at(at);
            let end = end.min(span.end);
            pieces.push(MappedRange {
                span: at..end,
                state,
            });
            at = end;
        }
        pieces
    }

    /// Bytes of reserved arenas.
    pub fn reserved(&self) -> usize {
        let reserved = self.arenas.iter();
        let reserved = reserved.filter(|(_, (_, origin))| *origin == ArenaOrigin::Reserved);
        reserved.map(|(start, (end, _))| end - start).sum()
    }

    /// Bytes of reserved arenas that are not mapped.
    pub fn free(&self) -> usize {
        self.free.iter().map(|(start, end)| end - start).sum()
    }

    /// All that is mapped.
    pub fn used(&self) -> impl Iterator<Item = (AddrRange, MappingAttrs)> + '_ {
        self.used
            .iter()
            .map(|(start, (end, attrs))| (*start..*end, *attrs))
    }

    /// Where the state at `addr` ends, and what it is.
    fn at(&self, addr: usize) -> (usize, Lookup) {
        let Some((arena_end, origin)) = self.arena_at(addr) else {
            let next = self
                .arenas
                .range(addr..)
                .next()
                .map_or(usize::MAX, |(start, _)| *start);
            return (next, Lookup::Outside);
        };
        match self.used.range(..=addr).next_back() {
            Some((_, (end, attrs))) if *end > addr => {
                ((*end).min(arena_end), Lookup::Used(*attrs, origin))
            }
            _ => {
                let next = self
                    .used
                    .range(addr..)
                    .next()
                    .map_or(usize::MAX, |(start, _)| *start);
                (next.min(arena_end), Lookup::Free)
            }
        }
    }

    fn arena_at(&self, addr: usize) -> Option<(usize, ArenaOrigin)> {
        let (_, (end, origin)) = self.arenas.range(..=addr).next_back()?;
        (*end > addr).then_some((*end, *origin))
    }

    /// Puts used addresses in, joined with neighbours of the same state, as the kernel
    /// joins mappings.
    fn put_used(&mut self, span: AddrRange, attrs: MappingAttrs) {
        let mut span = span;
        if let Some((start, (end, before))) = self.used.range(..span.start).next_back()
            && *end == span.start
            && *before == attrs
        {
            span.start = *start;
        }
        if let Some((end, after)) = self.used.get(&span.end).copied()
            && after == attrs
        {
            self.used.remove(&span.end);
            span.end = end;
        }
        self.used.insert(span.start, (span.end, attrs));
    }

    fn cut_used(&mut self, span: &AddrRange) {
        if let Some((start, (end, attrs))) = self
            .used
            .range(..span.start)
            .next_back()
            .map(|(s, e)| (*s, *e))
            && end > span.start
        {
            self.used.insert(start, (span.start, attrs));
            if end > span.end {
                self.used.insert(span.end, (end, attrs));
            }
        }
        while let Some((start, (end, attrs))) =
            self.used.range(span.clone()).next().map(|(s, e)| (*s, *e))
        {
            self.used.remove(&start);
            if end > span.end {
                self.used.insert(span.end, (end, attrs));
            }
        }
    }

    /// Addresses that become free. A gap does not go from one arena into the next, though they
    /// may touch: what is placed in it lies in one.
    fn add_free(&mut self, span: AddrRange) {
        let mut start = span.start;
        while start < span.end {
            let next = self.arenas.range(start + 1..span.end).next();
            let end = next.map_or(span.end, |(next, _)| *next);
            self.add_gap(start..end);
            start = end;
        }
    }

    fn add_gap(&mut self, span: AddrRange) {
        let mut span = span;
        let begins_arena = self.arenas.contains_key(&span.start);
        if let Some((start, end)) = self
            .free
            .range(..span.start)
            .next_back()
            .map(|(s, e)| (*s, *e))
            && end == span.start
            && !begins_arena
        {
            self.drop_gap(start, end);
            span.start = start;
        }
        if let Some(end) = self.free.get(&span.end).copied()
            && !self.arenas.contains_key(&span.end)
        {
            self.drop_gap(span.end, end);
            span.end = end;
        }
        self.put_gap(span.start, span.end);
    }

    fn cut_free(&mut self, span: &AddrRange) {
        let cut: Vec<_> = self
            .free
            .range(..span.end)
            .rev()
            .take_while(|(_, end)| **end > span.start)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in cut {
            self.drop_gap(start, end);
            if start < span.start {
                self.put_gap(start, span.start);
            }
            if end > span.end {
                self.put_gap(span.end, end);
            }
        }
    }

    fn put_gap(&mut self, start: usize, end: usize) {
        self.free.insert(start, end);
        self.sizes.insert((end - start, start));
    }

    fn drop_gap(&mut self, start: usize, end: usize) {
        self.free.remove(&start);
        self.sizes.remove(&(end - start, start));
    }
}

/// The alignment a mapping of `len` bytes is given: whole ranges are paged together, so
/// large mappings should not share one.
pub fn alignment(len: usize) -> usize {
    if len >= HUGE_RANGE { HUGE_RANGE } else { PAGE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: usize = 0x7000_0000_0000;
    const PAGES: usize = 48;

    fn page(n: usize) -> usize {
        BASE + n * PAGE
    }

    /// One change of the map, in pages from the base.
    #[derive(Clone, Debug)]
    enum Step {
        Set(Range<usize>, i32),
        Clear(Range<usize>),
        Change(Range<usize>, i32),
        Forget(Range<usize>),
    }

    fn range() -> impl Strategy<Value = Range<usize>> {
        (0..PAGES, 1..=PAGES).prop_map(|(start, len)| start..(start + len).min(PAGES))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (range(), 0..4i32).prop_map(|(range, prot)| Step::Set(range, prot)),
            4 => range().prop_map(Step::Clear),
            3 => (range(), 0..4i32).prop_map(|(range, prot)| Step::Change(range, prot)),
            1 => (0..PAGES).prop_map(|start| Step::Forget(start..start + 1)),
        ]
    }

    /// The state of one page, in the simplest correct model.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Plain {
        Outside,
        Free,
        Used(i32),
    }

    fn check(map: &VmaMap, pages: &[Plain]) {
        let whole = page(0)..page(PAGES);
        let pieces = map.lookup(&whole);
        assert_eq!(pieces.first().map(|p| p.span.start), Some(whole.start));
        assert_eq!(pieces.last().map(|p| p.span.end), Some(whole.end));
        for pair in pieces.windows(2) {
            assert_eq!(
                pair[0].span.end, pair[1].span.start,
                "no gaps between pieces"
            );
        }
        for piece in &pieces {
            let state = match piece.state {
                Lookup::Outside => Plain::Outside,
                Lookup::Free => Plain::Free,
                Lookup::Used(attrs, _) => Plain::Used(attrs.prot),
            };
            for addr in piece.span.clone().step_by(PAGE) {
                assert_eq!(
                    pages[(addr - BASE) / PAGE],
                    state,
                    "page {}",
                    (addr - BASE) / PAGE
                );
            }
        }
        let longest = pages
            .split(|page| *page != Plain::Free)
            .map(<[Plain]>::len)
            .max()
            .unwrap_or(0);
        match map.place(longest.max(1) * PAGE, PAGE) {
            Some(at) => {
                let first = (at - BASE) / PAGE;
                assert!(
                    longest > 0
                        && pages[first..first + longest]
                            .iter()
                            .all(|p| *p == Plain::Free)
                );
            }
            None => assert_eq!(longest, 0),
        }
        assert_eq!(
            map.place((longest + 1) * PAGE, PAGE),
            None,
            "nothing longer than the longest gap"
        );
    }

    #[test]
    fn what_is_placed_lies_in_one_arena() {
        let mut map = VmaMap::new();
        map.add_reserved(page(0)..page(8));
        map.add_reserved(page(8)..page(16));
        assert_eq!(map.place(9 * PAGE, PAGE), None);
        // Used and freed as one, they are two still.
        map.set(page(0)..page(16), MappingAttrs::paged(3));
        map.clear(&(page(0)..page(16)));
        assert_eq!(map.place(9 * PAGE, PAGE), None);
        assert!(map.place(8 * PAGE, PAGE).is_some());
    }

    proptest! {
        #[test]
        fn the_map_says_of_every_page_what_a_plain_list_says(steps in prop::collection::vec(step(), 1..60)) {
            let mut map = VmaMap::new();
            map.add_reserved(page(0)..page(PAGES));
            let mut pages = vec![Plain::Free; PAGES];
            for step in steps {
                match step {
                    Step::Set(range, prot) => {
                        // Only what is in an arena can be set.
                        if pages[range.clone()].contains(&Plain::Outside) {
                            continue;
                        }
                        map.set(page(range.start)..page(range.end), MappingAttrs::paged(prot));
                        pages[range].fill(Plain::Used(prot));
                    }
                    Step::Clear(range) => {
                        map.clear(&(page(range.start)..page(range.end)));
                        let used = |p: &&mut Plain| matches!(p, Plain::Used(_));
                        pages[range].iter_mut().filter(used).for_each(|p| *p = Plain::Free);
                    }
                    Step::Change(range, prot) => {
                        map.change(&(page(range.start)..page(range.end)), |attrs| attrs.prot = prot);
                        let used = |p: &&mut Plain| matches!(p, Plain::Used(_));
                        pages[range].iter_mut().filter(used).for_each(|p| *p = Plain::Used(prot));
                    }
                    Step::Forget(range) => {
                        map.forget(&(page(range.start)..page(range.end)));
                        pages[range].fill(Plain::Outside);
                    }
                }
                check(&map, &pages);
            }
        }
    }

    #[test]
    fn a_place_is_aligned_where_that_can_be_had() {
        let mut map = VmaMap::new();
        map.add_reserved(BASE + PAGE..BASE + 8 * HUGE_RANGE);
        assert_eq!(map.place(HUGE_RANGE, HUGE_RANGE), Some(BASE + HUGE_RANGE));
        map.set(
            BASE + PAGE..BASE + 7 * HUGE_RANGE + PAGE,
            MappingAttrs::paged(3),
        );
        assert_eq!(
            map.place(HUGE_RANGE - PAGE, HUGE_RANGE),
            Some(BASE + 7 * HUGE_RANGE + PAGE)
        );
    }

    #[test]
    fn neighbours_of_one_state_are_one_mapping_as_in_the_kernel() {
        let mut map = VmaMap::new();
        map.add_reserved(page(0)..page(8));
        map.set(page(0)..page(2), MappingAttrs::paged(3));
        map.set(page(2)..page(4), MappingAttrs::paged(3));
        map.set(page(4)..page(5), MappingAttrs::paged(1));
        let spans: Vec<_> = map.used().map(|(span, _)| span).collect();
        assert_eq!(spans, [page(0)..page(4), page(4)..page(5)]);
    }

    #[test]
    fn what_was_adopted_is_the_kernels_again_when_it_is_forgotten() {
        let mut map = VmaMap::new();
        map.add_adopted(page(0)..page(4), MappingAttrs::paged(3));
        map.forget(&(page(1)..page(2)));
        assert!(map.contains(page(0)) && !map.contains(page(1)) && map.contains(page(3)));
        assert_eq!(
            map.place(PAGE, PAGE),
            None,
            "an adopted mapping's addresses are never handed out"
        );
    }

    #[test]
    fn adopted_neighbours_of_one_state_are_one_piece() {
        let mut map = VmaMap::new();
        let attrs = MappingAttrs::paged(3);
        for part in [4..8, 12..16, 8..12] {
            map.add_adopted(page(part.start)..page(part.end), attrs);
        }
        let pieces = map.lookup(&(page(4)..page(16)));
        assert_eq!(pieces.len(), 1, "{pieces:?}");
        map.forget(&(page(6)..page(10)));
        assert!(map.contains(page(5)) && !map.contains(page(6)) && map.contains(page(10)));
    }
}
