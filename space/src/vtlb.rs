//! The VTLB: a bounded cache of what the tree describes, in page-table pages (3.1).
//!
//! An entry is a *piece*: the part of a mapped region that lies in one 2 MiB range of addresses,
//! which is what one page of page tables covers. A miss maps its piece; where the bound is reached,
//! the oldest range without pins is hidden first, which frees its page of page tables. Any entry
//! may be recycled at any time: objects keep what was stored to them, and the pages that a
//! copy-on-write mapping copied go to its file of copies, from which they come back.
//!
//! Rules: nothing here allocates, and no code here touches the memory of a space, since misses run
//! in a signal handler. Measurements: `examples/mapping_costs`, `examples/figure_6`.

use crate::error::SpaceError;
use crate::region::{Kind, Mapping, Region};
use crate::saved_copies;
use rustix::io::Errno;
use std::ops::Range;
use translation::{Access, Capabilities, Pagemap, Reservation, Sharing, TranslationError};
use wired::HUGE_RANGE;

/// The most page-table pages that a VTLB may have: choosing a victim looks at every entry, which is
/// to take less than the rest of a miss.
pub(crate) const MOST_PAGES: usize = 4096;

/// A range may have several pieces, such as the buffers of many clients: so many for each page of
/// the bound on average, and at least [`FEWEST_PIECES`] in all.
const PIECES_PER_PAGE: usize = 16;
const FEWEST_PIECES: usize = 1024;

/// An entry.
#[derive(Clone, Copy)]
struct Piece {
    region: Region,
    /// Pins that hold it.
    pins: u32,
    /// Its place in the order of entries.
    sequence: u64,
}

impl Piece {
    fn table(&self) -> usize {
        self.region.start / HUGE_RANGE
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.region.start < range.end && range.start < self.region.end
    }
}

/// What a VTLB did and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VtlbStats {
    /// The bound, in page-table pages.
    pub bound: usize,
    /// Page-table pages that entries have now.
    pub pages: usize,
    /// The most that they had.
    pub peak_pages: usize,
    /// Misses that entered a piece.
    pub misses: u64,
    /// Page-table pages recycled for a miss.
    pub recycled: u64,
    /// Faults whose piece another thread had entered meanwhile.
    pub spurious: u64,
    /// Copied pages that went to a file of copies.
    pub copies_saved: u64,
    /// Copied pages that came back.
    pub copies_restored: u64,
    /// Faults of no-exception mappings that got scratch pages.
    pub scratch_faults: u64,
}

/// The entries.
pub(crate) struct Vtlb {
    /// By address.
    pieces: Vec<Piece>,
    most_pieces: usize,
    next: u64,
    pagemap: Pagemap,
    /// 2 MiB of addresses at which pieces with saved copies are made.
    staging: usize,
    stats: VtlbStats,
}

impl Vtlb {
    /// An empty one of `bound` page-table pages, at least two: an instruction may need two ranges.
    pub(crate) fn new(bound: usize) -> Result<Self, SpaceError> {
        let bound = bound.clamp(2, MOST_PAGES);
        let most_pieces = (bound * PIECES_PER_PAGE).max(FEWEST_PIECES);
        Ok(Self {
            pieces: Vec::with_capacity(most_pieces),
            most_pieces,
            next: 0,
            pagemap: Pagemap::open(&Capabilities::probe_fast())
                .map_err(SpaceError::system("opening /proc/self/pagemap"))?,
            staging: translation::reserve(None, HUGE_RANGE, false)?.addr,
            stats: VtlbStats {
                bound,
                ..VtlbStats::default()
            },
        })
    }

    pub(crate) fn stats(&self) -> VtlbStats {
        self.stats
    }

    fn index_of(&self, addr: usize) -> Option<usize> {
        let index = self.first_after(addr);
        let piece = self.pieces.get(index)?;
        (piece.region.start <= addr).then_some(index)
    }

    /// The index of the first piece that ends after `addr`.
    fn first_after(&self, addr: usize) -> usize {
        self.pieces.partition_point(|p| p.region.end <= addr)
    }

    /// Returns true if a piece has this page of page tables.
    fn has_table(&self, table: usize) -> bool {
        let index = self.pieces.partition_point(|p| p.table() < table);
        self.pieces.get(index).is_some_and(|p| p.table() == table)
    }

    /// The pieces of each page of page tables.
    fn tables(&self) -> impl Iterator<Item = &[Piece]> {
        self.pieces.chunk_by(|a, b| a.table() == b.table())
    }

    /// Maps the piece of `region` that holds `addr`. Returns its index.
    fn enter(&mut self, region: &Region, addr: usize) -> Result<usize, TranslationError> {
        if let Some(index) = self.index_of(addr) {
            self.stats.spurious += 1;
            return Ok(index);
        }
        let table = addr / HUGE_RANGE;
        let piece = region.part(&(table * HUGE_RANGE..(table + 1) * HUGE_RANGE));
        let Kind::Mapped(mapping) = piece.kind else {
            unreachable!("only mapped regions are entered");
        };
        if self.pieces.len() >= self.most_pieces
            || !self.has_table(table) && self.stats.pages >= self.stats.bound
        {
            self.recycle(table)?;
        }
        if self.pieces.len() >= self.most_pieces {
            // Pins hold them all: another one would allocate.
            return Err(TranslationError {
                operation: "entering a mapping beside pinned ones",
                addr: piece.start,
                len: piece.end - piece.start,
                errno: Errno::NOMEM,
            });
        }
        if !self.has_table(table) {
            self.stats.pages += 1;
            self.stats.peak_pages = self.stats.peak_pages.max(self.stats.pages);
        }
        self.stats.misses += 1;
        self.next += 1;
        let index = self.first_after(addr);
        let entry = Piece {
            region: piece,
            pins: 0,
            sequence: self.next,
        };
        self.pieces.insert(index, entry);
        if let Err(error) = self.map(&piece, &mapping) {
            self.release(&piece.range())?;
            return Err(error);
        }
        Ok(index)
    }

    /// The fault path's part: enters the piece of `addr`.
    pub(crate) fn miss(&mut self, region: &Region, addr: usize) -> Result<(), TranslationError> {
        self.enter(region, addr).map(drop)
    }

    fn map(&mut self, piece: &Region, mapping: &Mapping) -> Result<(), TranslationError> {
        let (addr, len) = (piece.start, piece.end - piece.start);
        let (object, offset) = (mapping.object(), mapping.offset);
        let copies = match mapping.copies {
            Some(copies) if saved_copies::has_copies(copies, offset, piece)? => copies,
            _ => {
                // SAFETY: the region is the space's, and the piece is inaccessible.
                return unsafe {
                    translation::map_object(
                        object,
                        offset,
                        addr,
                        len,
                        piece.access(),
                        mapping.sharing(),
                    )
                };
            }
        };
        let at = self.staging;
        let made = (|| {
            // SAFETY: the staging addresses are the VTLB's alone.
            unsafe {
                translation::map_object(
                    object,
                    offset,
                    at,
                    len,
                    Access::READ_WRITE,
                    Sharing::CopyOnWrite,
                )?;
            }
            let restored = saved_copies::restore(copies, offset, piece, at)?;
            // SAFETY: as above; the piece at its own addresses is inaccessible.
            unsafe {
                translation::set_access(at, len, piece.access())?;
                translation::move_mapping(at, len, addr)?;
            }
            Ok(restored)
        })();
        // SAFETY: as above.
        unsafe { translation::hide(at, len) }?;
        self.stats.copies_restored += made?;
        Ok(())
    }

    /// Hides the oldest range that has no pin and is not `keep`.
    fn recycle(&mut self, keep: usize) -> Result<(), TranslationError> {
        let oldest = self
            .tables()
            .filter(|pieces| pieces[0].table() != keep && pieces.iter().all(|p| p.pins == 0))
            .min_by_key(|pieces| pieces.iter().map(|p| p.sequence).min())
            .map(|pieces| pieces[0].table());
        // Pins leave one range at least.
        let Some(table) = oldest else { return Ok(()) };
        self.stats.recycled += 1;
        self.remove(&(table * HUGE_RANGE..(table + 1) * HUGE_RANGE))
    }

    fn first_in(&self, range: &Range<usize>) -> Option<Piece> {
        let piece = self.pieces.get(self.first_after(range.start))?;
        (piece.region.start < range.end).then_some(*piece)
    }

    /// Hides every piece that overlaps `range`. Copied pages are saved.
    pub(crate) fn remove(&mut self, range: &Range<usize>) -> Result<(), TranslationError> {
        while let Some(piece) = self.first_in(range) {
            self.save_and_release(&piece.region)?;
        }
        Ok(())
    }

    /// Hides every piece that overlaps `range`, whose copied pages are of no more use.
    pub(crate) fn discard(&mut self, range: &Range<usize>) -> Result<(), TranslationError> {
        while let Some(piece) = self.first_in(range) {
            if piece.region.start < range.start || piece.region.end > range.end {
                self.save_and_release(&piece.region)?;
            } else {
                self.release(&piece.region.range())?;
            }
        }
        Ok(())
    }

    fn save_and_release(&mut self, piece: &Region) -> Result<(), TranslationError> {
        let saved = self.save(piece).and_then(|()| self.release(&piece.range()));
        if saved.is_err() {
            // It stays entered: with the rights that it had, or its stores would fault for ever.
            // SAFETY: the region is the space's.
            unsafe {
                translation::set_access(piece.start, piece.end - piece.start, piece.access())
            }?;
        }
        saved
    }

    fn save(&mut self, piece: &Region) -> Result<(), TranslationError> {
        let Kind::Mapped(Mapping {
            copies: Some(copies),
            offset,
            ..
        }) = piece.kind
        else {
            return Ok(());
        };
        self.stats.copies_saved += saved_copies::save(&self.pagemap, copies, offset, piece)?;
        Ok(())
    }

    /// Hides one piece and forgets it.
    fn release(&mut self, piece: &Range<usize>) -> Result<(), TranslationError> {
        let Some(index) = self.index_of(piece.start) else {
            return Ok(());
        };
        // SAFETY: the region is the space's; its accesses fault from here on.
        unsafe { translation::hide(piece.start, piece.len()) }?;
        let table = self.pieces.remove(index).table();
        if !self.has_table(table) {
            self.stats.pages -= 1;
        }
        Ok(())
    }

    /// Gives the rest of a piece, from the page of `addr` on, scratch pages: the object ends before.
    pub(crate) fn give_scratch(
        &mut self,
        region: &Region,
        addr: usize,
    ) -> Result<(), TranslationError> {
        let index = self.enter(region, addr)?;
        let piece = self.pieces[index].region;
        let page = addr & !(wired::PAGE - 1);
        self.stats.scratch_faults += 1;
        // SAFETY: the region is the space's; the object has no memory there.
        unsafe { translation::map_scratch(page, piece.end - page) }
    }

    /// Page-table pages that pins hold, and those that pinning `range` too would need.
    pub(crate) fn pinned_tables(&self, range: &Range<usize>) -> (usize, usize) {
        let asked = range.start / HUGE_RANGE..range.end.div_ceil(HUGE_RANGE);
        let held = self
            .tables()
            .filter(|pieces| pieces.iter().any(|p| p.pins > 0));
        let (mut pinned, mut needed) = (0, asked.len());
        for pieces in held {
            pinned += 1;
            needed -= usize::from(asked.contains(&pieces[0].table()));
        }
        (pinned, needed)
    }

    /// Enters the pieces of `region` and pins them.
    pub(crate) fn pin(&mut self, region: &Region) -> Result<(), TranslationError> {
        let mut at = region.start;
        while at < region.end {
            let index = match self.enter(region, at) {
                Ok(index) => index,
                Err(error) => {
                    self.unpin(&(region.start..at));
                    return Err(error);
                }
            };
            self.pieces[index].pins += 1;
            at = self.pieces[index].region.end;
        }
        Ok(())
    }

    /// Undoes [`Vtlb::pin`].
    pub(crate) fn unpin(&mut self, range: &Range<usize>) {
        for piece in self.pieces.iter_mut().filter(|p| p.overlaps(range)) {
            piece.pins = piece.pins.saturating_sub(1);
        }
    }
}

impl Drop for Vtlb {
    fn drop(&mut self) {
        let (addr, len) = (self.staging, HUGE_RANGE);
        // SAFETY: the addresses are the VTLB's alone.
        let _ = unsafe { translation::unmap_reservation(Reservation { addr, len }) };
    }
}
