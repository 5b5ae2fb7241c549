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
    /// Misses when it was entered, with its own.
    pub(crate) number: u64,
    /// When it was entered, by [`clock`].
    pub(crate) entered: u64,
    /// Some of its pages are scratch pages.
    pub(crate) has_scratch: bool,
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

    /// There are places for so many more.
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.pieces.len() + pieces <= self.most
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

    /// The oldest piece of the ranges without pins.
    pub(crate) fn oldest(&self, keep: Option<usize>) -> Option<&Piece> {
        self.tables()
            .filter(|pieces| Some(pieces[0].table()) != keep && pieces.iter().all(|p| p.pins == 0))
            .flatten()
            .min_by_key(|piece| piece.entered)
    }

    /// The oldest piece without pins.
    pub(crate) fn oldest_piece(&self) -> Option<&Piece> {
        let without_pins = self.pieces.iter().filter(|piece| piece.pins == 0);
        without_pins.min_by_key(|piece| piece.entered)
    }

    /// The first entry that overlaps `range`.
    pub(crate) fn first_in(&self, range: &Range<usize>) -> Option<&Piece> {
        let piece = self.pieces.get(self.first_after(range.start))?;
        (piece.region.start < range.end).then_some(piece)
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

    pub(crate) fn mark_scratch(&mut self, index: usize) {
        self.pieces[index].has_scratch = true;
    }

    /// Returns true if an entry with scratch pages overlaps `range`.
    pub(crate) fn has_scratch(&self, range: &Range<usize>) -> bool {
        let pieces = &self.pieces[self.first_after(range.start)..];
        let mut inside = pieces.iter().take_while(|p| p.region.start < range.end);
        inside.any(|piece| piece.has_scratch)
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

    /// Pins the part of an entry in `range`. The parts beside it become entries of their own, so that
    /// pins hold what they are asked for, and changes of other pages hide no pinned page: two places
    /// are free for them. Returns the end of the part.
    pub(crate) fn pin_part(&mut self, mut index: usize, range: &Range<usize>) -> usize {
        if self.region(index).start < range.start {
            self.cut(index, range.start);
            index += 1;
        }
        if range.end < self.region(index).end {
            self.cut(index, range.end);
        }
        let piece = &mut self.pieces[index];
        self.pinned += usize::from(piece.pins == 0);
        piece.pins += 1;
        piece.region.end
    }

    /// Makes two entries of one: what the kernel maps stays as it is.
    fn cut(&mut self, index: usize, at: usize) {
        let piece = &mut self.pieces[index];
        let mut rest = *piece;
        rest.region = piece.region.part(&(at..piece.region.end));
        piece.region.end = at;
        self.pinned += usize::from(rest.pins > 0);
        self.pieces.insert(index + 1, rest);
    }

    /// Takes a pin of each entry in `range`. Parts of an entry without pins are one again.
    pub(crate) fn unpin(&mut self, range: &Range<usize>) {
        for piece in self.pieces.iter_mut().filter(|p| p.overlaps(range)) {
            self.pinned -= usize::from(piece.pins == 1);
            piece.pins = piece.pins.saturating_sub(1);
        }
        self.pieces.dedup_by(|next, piece| {
            let joins = next.pins == 0 && piece.pins == 0 && next.table() == piece.table();
            if !joins || !piece.region.continues_in(&next.region) {
                return false;
            }
            piece.region.end = next.region.end;
            piece.number = piece.number.min(next.number);
            piece.entered = piece.entered.min(next.entered);
            piece.has_scratch |= next.has_scratch;
            true
        });
    }
}

/// The addresses that a page of page tables covers.
pub(crate) fn table_range(table: usize) -> Range<usize> {
    table * HUGE_RANGE..(table + 1) * HUGE_RANGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{Kind, Mapping};
    use selfpage::Rights;
    use wired::PAGE;

    fn piece(pages: Range<usize>) -> Piece {
        let mapping = Mapping {
            id: 1,
            object: 0,
            offset: (pages.start * PAGE) as u64,
            copies: None,
            paged: false,
            no_exception: None,
        };
        Piece {
            region: Region {
                start: pages.start * PAGE,
                end: pages.end * PAGE,
                section: None,
                rights: Rights::READ,
                kind: Kind::Mapped(mapping),
            },
            pins: 0,
            number: 0,
            entered: pages.start as u64,
            has_scratch: false,
        }
    }

    fn pieces(entries: &VtlbEntries) -> Vec<(Range<usize>, u32)> {
        let pages = |piece: &Piece| piece.region.start / PAGE..piece.region.end / PAGE;
        let all = entries.pieces.iter();
        all.map(|piece| (pages(piece), piece.pins)).collect()
    }

    #[test]
    fn pins_cut_entries_at_their_edges_and_parts_without_pins_are_one_again() {
        let mut entries = VtlbEntries::with_capacity(8);
        entries.insert(piece(0..16));
        let (one, other) = (2 * PAGE..8 * PAGE, 4 * PAGE..12 * PAGE);
        assert_eq!(entries.pin_part(0, &one), one.end);
        assert_eq!(entries.pin_part(1, &other), one.end);
        assert_eq!(entries.pin_part(3, &other), other.end);
        let expected = [(0..2, 0), (2..4, 1), (4..8, 2), (8..12, 1), (12..16, 0)];
        assert_eq!(pieces(&entries), expected);
        assert_eq!(entries.pinned().0, 3);
        entries.unpin(&one);
        let expected = [(0..4, 0), (4..8, 1), (8..12, 1), (12..16, 0)];
        assert_eq!(pieces(&entries), expected);
        entries.unpin(&other);
        assert_eq!(pieces(&entries), [(0..16, 0)]);
        assert_eq!(entries.region(0), piece(0..16).region);
        assert_eq!(entries.pinned().0, 0);
    }
}
