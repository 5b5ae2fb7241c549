//! The entries of a VTLB, in the order of their addresses.
//!
//! Rule: a list never grows beyond the capacity that it is made with, so that nothing allocates.

use crate::region::Region;
use std::ops::Range;
use wired::HUGE_RANGE;

/// An entry: see [`crate::vtlb`].
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) region: Region,
    /// Pins that hold it.
    pub(crate) pins: u32,
    /// When it was entered, by [`clock`].
    pub(crate) entered: u64,
}

impl Piece {
    pub(crate) fn table(&self) -> usize {
        self.region.start / HUGE_RANGE
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.region.start < range.end && range.start < self.region.end
    }
}

/// Entries by address, which do not overlap.
pub(crate) struct VtlbEntries {
    pieces: Vec<Piece>,
    most: usize,
    /// Pieces with pins.
    pinned: usize,
}

impl VtlbEntries {
    pub(crate) fn with_capacity(most: usize) -> Self {
        Self {
            pieces: Vec::with_capacity(most),
            most,
            pinned: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pieces.len() >= self.most
    }

    /// Pieces with pins, and the most pieces that there may be.
    pub(crate) fn pinned(&self) -> (usize, usize) {
        (self.pinned, self.most)
    }

    pub(crate) fn index_of(&self, addr: usize) -> Option<usize> {
        let index = self.first_after(addr);
        let piece = self.pieces.get(index)?;
        (piece.region.start <= addr).then_some(index)
    }

    /// The index of the first piece that ends after `addr`.
    fn first_after(&self, addr: usize) -> usize {
        self.pieces.partition_point(|p| p.region.end <= addr)
    }

    /// Returns true if a piece has this page of page tables.
    pub(crate) fn has_table(&self, table: usize) -> bool {
        let index = self.pieces.partition_point(|p| p.table() < table);
        self.pieces.get(index).is_some_and(|p| p.table() == table)
    }

    /// The pieces of each page of page tables.
    fn tables(&self) -> impl Iterator<Item = &[Piece]> {
        self.pieces.chunk_by(|a, b| a.table() == b.table())
    }

    /// The oldest range without pins: its page of page tables, and when it was entered.
    pub(crate) fn oldest(&self, keep: Option<usize>) -> Option<(usize, u64)> {
        self.tables()
            .filter(|pieces| Some(pieces[0].table()) != keep && pieces.iter().all(|p| p.pins == 0))
            .filter_map(|pieces| {
                let entered = pieces.iter().map(|p| p.entered).min()?;
                Some((pieces[0].table(), entered))
            })
            .min_by_key(|(_, entered)| *entered)
    }

    /// The oldest piece without pins.
    pub(crate) fn oldest_piece(&self) -> Option<Region> {
        let without_pins = self.pieces.iter().filter(|piece| piece.pins == 0);
        Some(without_pins.min_by_key(|piece| piece.entered)?.region)
    }

    /// The first entry that overlaps `range`.
    pub(crate) fn first_in(&self, range: &Range<usize>) -> Option<Piece> {
        let piece = self.pieces.get(self.first_after(range.start))?;
        (piece.region.start < range.end).then_some(*piece)
    }

    /// The addresses around `addr`, which has no entry, up to the entries beside it.
    pub(crate) fn gap_at(&self, addr: usize) -> Range<usize> {
        let (before, after) = self.pieces.split_at(self.first_after(addr));
        let start = before.last().map_or(0, |piece| piece.region.end);
        start..after.first().map_or(usize::MAX, |piece| piece.region.start)
    }

    pub(crate) fn region(&self, index: usize) -> Region {
        self.pieces[index].region
    }

    /// Page-table pages that pins hold, and those that pinning `range` too would need.
    pub(crate) fn pinned_tables(&self, range: &Range<usize>) -> (usize, usize) {
        let asked = range.start / HUGE_RANGE..range.end.div_ceil(HUGE_RANGE);
        let held = self
            .tables()
            .filter(|pieces| pieces.iter().any(|p| p.pins > 0));
        let (mut pinned, mut needed) = (0, asked.len());
        if self.pinned == 0 {
            return (pinned, needed);
        }
        for pieces in held {
            pinned += 1;
            needed -= usize::from(asked.contains(&pieces[0].table()));
        }
        (pinned, needed)
    }

    /// Inserts an entry that overlaps none. Returns its index.
    pub(crate) fn insert(&mut self, piece: Piece) -> usize {
        let index = self.first_after(piece.region.start);
        self.pieces.insert(index, piece);
        index
    }

    pub(crate) fn remove(&mut self, index: usize) -> Piece {
        let piece = self.pieces.remove(index);
        self.pinned -= usize::from(piece.pins > 0);
        piece
    }

    /// Pins an entry. Returns its region.
    pub(crate) fn pin(&mut self, index: usize) -> Region {
        let piece = &mut self.pieces[index];
        self.pinned += usize::from(piece.pins == 0);
        piece.pins += 1;
        piece.region
    }

    /// Takes a pin of each entry that overlaps `range`.
    pub(crate) fn unpin(&mut self, range: &Range<usize>) {
        for piece in self.pieces.iter_mut().filter(|p| p.overlaps(range)) {
            self.pinned -= usize::from(piece.pins == 1);
            piece.pins = piece.pins.saturating_sub(1);
        }
    }
}

/// The addresses that a page of page tables covers.
pub(crate) fn table_range(table: usize) -> Range<usize> {
    table * HUGE_RANGE..(table + 1) * HUGE_RANGE
}
