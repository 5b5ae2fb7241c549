//! The program's mappings in paged memory: addresses, access, state.
//!
//! The kernel's own record does not have them. An *arena* stays mapped and registered as
//! long as the process lives, and the program's `mmap` and `munmap` within it only
//! change this map. It holds what `mmap` promises: which addresses are free, where a
//! mapping ends, which calls meet a hole.
//!
//! Rule: pure. It makes no system call; the code that changes it changes memory to match.

mod free_gaps;

use free_gaps::FreeGaps;
use std::collections::BTreeMap;
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
    /// MADV_DONTDUMP: the kernel leaves it out of core dumps.
    pub dont_dump: bool,
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
            dont_dump: false,
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
    /// Reserved by us above the program break: the break alone grows into its free addresses.
    Break,
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

impl Lookup {
    /// Returns true if the addresses are not paged memory, but mapped by the kernel, or free in
    /// its own view.
    pub fn is_kernels(self) -> bool {
        matches!(self, Self::Outside)
            || matches!(self, Self::Used(attrs, _) if attrs.kind == MappingKind::Foreign)
    }

    /// The state of paged memory.
    pub fn paged(self) -> Option<MappingAttrs> {
        match self {
            Self::Used(attrs, _) if attrs.kind == MappingKind::Paged => Some(attrs),
            _ => None,
        }
    }
}

/// A run of addresses of one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// Which.
    pub span: AddrRange,
    /// What is there.
    pub state: Lookup,
}

/// The map.
#[derive(Debug, Default)]
pub struct VmaMap {
    arenas: BTreeMap<usize, (usize, ArenaOrigin)>,
    used: BTreeMap<usize, (usize, MappingAttrs)>,
    /// Free addresses of reserved arenas.
    free: FreeGaps,
}

impl VmaMap {
    /// An empty map.
    pub const fn new() -> Self {
        Self {
            arenas: BTreeMap::new(),
            used: BTreeMap::new(),
            free: FreeGaps::new(),
        }
    }

    /// Adds an arena of free addresses.
    pub fn add_reserved(&mut self, span: AddrRange) {
        self.arenas
            .insert(span.start, (span.end, ArenaOrigin::Reserved));
        self.add_free(span);
    }

    /// Adds the arena that the program break grows into, of free addresses.
    pub fn add_break(&mut self, span: AddrRange) {
        self.arenas
            .insert(span.start, (span.end, ArenaOrigin::Break));
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
        self.free.find(len, align)
    }

    /// Sets the state of addresses inside arenas, used or free.
    pub fn set(&mut self, span: AddrRange, attrs: MappingAttrs) {
        self.cut_used(&span);
        self.free.cut(&span);
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
            match piece.state {
                Lookup::Used(_, ArenaOrigin::Reserved) => {
                    self.cut_used(&piece.span);
                    self.add_free(piece.span);
                }
                Lookup::Used(_, ArenaOrigin::Break) => self.cut_used(&piece.span),
                _ => {}
            }
        }
    }

    /// Takes addresses out of their arenas: they are the kernel's.
    pub fn forget(&mut self, span: &AddrRange) {
        self.cut_used(span);
        self.free.cut(span);
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

    /// Returns true if all of `span` is free.
    pub fn is_free(&self, span: &AddrRange) -> bool {
        let pieces = self.lookup(span);
        pieces.iter().all(|piece| piece.state == Lookup::Free)
    }

    /// Returns true if one arena has all of it: over the border of two a mapping would be two.
    pub fn is_in_one_arena(&self, span: &AddrRange) -> bool {
        let first = self.arenas.range(..=span.start).next_back();
        first.is_some_and(|(_, (end, _))| span.end <= *end)
    }

    /// Bytes of reserved arenas.
    pub fn reserved(&self) -> usize {
        let reserved = self.arenas.iter();
        let reserved = reserved.filter(|(_, (_, origin))| *origin == ArenaOrigin::Reserved);
        reserved.map(|(start, (end, _))| end - start).sum()
    }

    /// Bytes of reserved arenas that are not mapped.
    pub fn free(&self) -> usize {
        self.free.total()
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
            self.free
                .add(start..end, |addr| self.arenas.contains_key(&addr));
            start = end;
        }
    }
}

/// The alignment a mapping of `len` bytes is given: whole ranges are paged together, so
/// large mappings should not share one.
pub fn alignment(len: usize) -> usize {
    if len >= HUGE_RANGE { HUGE_RANGE } else { PAGE }
}

#[cfg(test)]
mod tests;
