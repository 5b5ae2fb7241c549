//! The VTLB: a bounded cache of what the tree describes, in page-table pages (3.1).
//!
//! An entry is a *piece*: the part of a mapped region that lies in one 2 MiB range of addresses,
//! which is what one page of page tables covers, and in no other entry. A pin makes a piece of its
//! own of the pages that it is for. A miss maps its piece; where the bound is reached,
//! the oldest range without pins is hidden first, which frees its page of page tables. The bound is
//! a number, or what the space has of a budget for several ([`PageLimit`]). Any entry
//! may be recycled at any time: objects keep what was stored to them, and the pages that a
//! copy-on-write mapping copied go to its file of copies, from which they come back.
//!
//! Rules: nothing here allocates, and no code here touches the memory of a space, since misses run
//! in a signal handler. Measurements: `examples/mapping_costs`, `examples/figure_6`.

use crate::error::SpaceError;
use crate::page_limit::PageLimit;
use crate::recycling_turn::{RecyclingTurn, YOUNG};
use crate::region::{Kind, Mapping, Region};
use crate::saved_copies;
use crate::vtlb_budget::GUARANTEED;
use crate::vtlb_entries::{Piece, VtlbEntries, table_range};
use crate::vtlb_stats::VtlbStats;
use std::ops::Range;
use translation::{Access, Pagemap, Reservation, Sharing, TranslationError};
use wired::{HUGE_RANGE, clock};

mod pins;
mod scratch_pages;

/// The most page-table pages that a VTLB may have: choosing a victim looks at every entry, which is
/// to take less than the rest of a miss.
pub(crate) const MOST_PAGES: usize = 4096;

/// A range may have several pieces, such as the buffers of many clients: so many for each page of
/// the bound on average, and at least [`FEWEST_PIECES`] in all. Pins leave as many to misses.
const PIECES_PER_PAGE: usize = 16;
const FEWEST_PIECES: usize = 1024;

/// What a miss did.
#[derive(Clone, Copy)]
pub(crate) enum MissOutcome {
    /// The piece has this index.
    Entered(usize),
    /// Nothing: other threads need what it would recycle. The access is to be repeated after a pause.
    AwaitTurn,
}

/// The cache.
pub(crate) struct Vtlb {
    entries: VtlbEntries,
    limit: PageLimit,
    turn: RecyclingTurn,
    /// The age that other spaces of a budget see is that of the oldest entry.
    age_published: bool,
    /// Opened for the first copy-on-write mapping: a process that is not dumpable may lack it.
    pagemap: Option<Pagemap>,
    /// 2 MiB of addresses at which pieces with saved copies are made.
    staging: usize,
    stats: VtlbStats,
}

impl Vtlb {
    /// An empty one.
    pub(crate) fn new(limit: PageLimit) -> Result<Self, SpaceError> {
        let most_pieces = (limit.most() * PIECES_PER_PAGE).max(FEWEST_PIECES);
        Ok(Self {
            entries: VtlbEntries::with_capacity(most_pieces),
            limit,
            turn: RecyclingTurn::default(),
            age_published: false,
            pagemap: None,
            staging: translation::reserve(None, HUGE_RANGE, false)?.addr,
            stats: VtlbStats::default(),
        })
    }

    /// What copy-on-write mappings need, which the first of them brings.
    pub(crate) fn pagemap(&mut self) -> &mut Option<Pagemap> {
        &mut self.pagemap
    }

    pub(crate) fn stats(&self) -> VtlbStats {
        VtlbStats {
            bound: self.limit.bound(),
            ..self.stats
        }
    }

    /// Maps the piece of `region` that holds `addr`. Returns its index.
    fn enter(&mut self, region: &Region, addr: usize) -> Result<usize, TranslationError> {
        if let Some(index) = self.entries.index_of(addr) {
            self.stats.spurious += 1;
            return Ok(index);
        }
        self.make_room_in(addr / HUGE_RANGE)?;
        self.enter_new(region, addr)
    }

    /// Recycles what an entry in this range takes the place of. Neither this nor `enter_new` is inlined: the small stack
    /// of a signal handler has the frame of one at a time.
    #[inline(never)]
    fn make_room_in(&mut self, table: usize) -> Result<(), TranslationError> {
        let full = self.is_full(table);
        if full || !self.entries.has_room(1) {
            self.recycle(table, full)?;
        }
        self.make_room(1)
    }

    #[inline(never)]
    fn enter_new(&mut self, region: &Region, addr: usize) -> Result<usize, TranslationError> {
        let table = addr / HUGE_RANGE;
        // A region that was in parts, and is one again, has the pieces of its parts.
        let gap = self.entries.gap_at(addr);
        let piece = region.part(&table_range(table)).part(&gap);
        let Kind::Mapped(mapping) = piece.kind else {
            unreachable!("only mapped regions are entered");
        };
        if !self.entries.has_table(table) {
            self.stats.pages += 1;
            self.stats.peak_pages = self.stats.peak_pages.max(self.stats.pages);
        }
        self.stats.misses += 1;
        let index = self.entries.insert(Piece {
            region: piece,
            pins: 0,
            number: self.stats.misses,
            entered: clock::now(),
            has_scratch: false,
        });
        let mapped = self.map(&piece, &mapping);
        match mapped.or_else(|error| self.give_scratch_for(index, &mapping, addr, error)) {
            Ok(()) => Ok(index),
            Err(error) => {
                // Where the process has no mapping left this fails likewise; nothing is mapped there then.
                // SAFETY: the region is the space's.
                let _ = unsafe { translation::hide(piece.start, piece.end - piece.start) };
                self.forget(index);
                Err(error)
            }
        }
    }

    /// Returns true if an entry in this range would have a page of page tables more than the VTLB may have.
    fn is_full(&mut self, table: usize) -> bool {
        !self.entries.has_table(table) && !self.limit.allows(self.stats.pages + 1)
    }

    /// The fault path's part: enters the piece of `addr`, if the calling thread may recycle what makes room for it.
    pub(crate) fn miss(
        &mut self,
        region: &Region,
        addr: usize,
    ) -> Result<MissOutcome, TranslationError> {
        if !self.may_miss(addr) {
            return Ok(MissOutcome::AwaitTurn);
        }
        let entered = self.enter(region, addr);
        self.turn.entered();
        self.settle();
        entered.map(MissOutcome::Entered)
    }

    fn may_miss(&mut self, addr: usize) -> bool {
        let table = addr / HUGE_RANGE;
        if self.entries.index_of(addr).is_some() || !self.is_full(table) && self.entries.has_room(1)
        {
            return true;
        }
        // Of more ranges the oldest is not young, and choosing it takes time.
        if self.stats.pages > YOUNG + self.entries.pinned().0 {
            return true;
        }
        let oldest = self.entries.oldest(Some(table));
        let oldest = oldest.or_else(|| self.entries.oldest_piece());
        oldest.is_none_or(|piece| self.turn.may_recycle(self.stats.misses - piece.number))
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
            let restored = saved_copies::restore(copies, mapping, piece, at)?;
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

    /// Hides the oldest range that has no pin and is not `keep`. Where the budget's pool is `dry`,
    /// another space may have an older one, and is asked for it.
    fn recycle(&mut self, keep: usize, dry: bool) -> Result<(), TranslationError> {
        let oldest = self.entries.oldest(Some(keep));
        if dry {
            self.limit.request(1, oldest.map(|piece| piece.entered));
        }
        // Pins leave six ranges at least.
        let Some(table) = oldest.map(Piece::table) else {
            return Ok(());
        };
        self.stats.recycled += 1;
        self.remove_pieces(&table_range(table))
    }

    /// Hides the oldest pieces without pins where the list is full of pieces in ranges with pins. Pins
    /// leave [`PIECES_PER_PAGE`].
    fn make_room(&mut self, pieces: usize) -> Result<(), TranslationError> {
        while !self.entries.has_room(pieces)
            && let Some(oldest) = self.entries.oldest_piece().map(|piece| piece.region)
        {
            self.save_and_release(&oldest)?;
        }
        Ok(())
    }

    /// Gives `count` pages back to the budget: the oldest ranges, beyond the guaranteed pages.
    pub(crate) fn give_back(&mut self, count: u32) {
        for _ in 0..count {
            let spare = self.stats.pages > GUARANTEED;
            let oldest = self.entries.oldest(None).filter(|_| spare);
            let Some(table) = oldest.map(Piece::table) else {
                break;
            };
            // An entry whose copies cannot be saved stays.
            if self.remove_pieces(&table_range(table)).is_err() {
                break;
            }
            self.stats.given_back += 1;
        }
        self.settle();
    }

    /// Ends each operation: the budget's pool gets what is in no use, and its spaces see the age of
    /// the oldest entry.
    fn settle(&mut self) {
        if !matches!(self.limit, PageLimit::Shared(_)) {
            return;
        }
        let pinned = self.entries.pinned_tables(&(0..0)).0 + GUARANTEED;
        let spare = self.stats.pages > GUARANTEED;
        let oldest = match self.age_published {
            true => None,
            false => self.entries.oldest(None).filter(|_| spare),
        };
        let PageLimit::Shared(member) = &mut self.limit else {
            return;
        };
        // As many as are guaranteed stay free for misses.
        member.keep(self.stats.pages.max(pinned));
        if !self.age_published {
            member.publish(oldest.map(|piece| piece.entered));
            self.age_published = oldest.is_some();
        }
    }

    /// Hides every piece that overlaps `range`. Copied pages are saved.
    pub(crate) fn remove(&mut self, range: &Range<usize>) -> Result<(), TranslationError> {
        let removed = self.remove_pieces(range);
        self.settle();
        removed
    }

    fn remove_pieces(&mut self, range: &Range<usize>) -> Result<(), TranslationError> {
        while let Some(region) = self.entries.first_in(range).map(|piece| piece.region) {
            self.save_and_release(&region)?;
        }
        Ok(())
    }

    /// Hides every piece without pins that overlaps `range`, whose copied pages are of no more use. Returns true if it
    /// left scratch pages.
    pub(crate) fn discard(&mut self, range: &Range<usize>) -> Result<bool, TranslationError> {
        let discarded = self.discard_pieces(range);
        self.settle();
        discarded?;
        Ok(self.entries.has_scratch(range))
    }

    fn discard_pieces(&mut self, range: &Range<usize>) -> Result<(), TranslationError> {
        let mut from = range.start;
        while let Some(&Piece { region, pins, .. }) = self.entries.first_in(&(from..range.end)) {
            from = region.end;
            let is_whole = range.start <= region.start && region.end <= range.end;
            match (pins, is_whole) {
                (0, true) => self.release(&region.range())?,
                (0, false) => self.save_and_release(&region)?,
                _ => {}
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
        let Kind::Mapped(mapping) = piece.kind else {
            return Ok(());
        };
        if let (Some(copies), Some(pagemap)) = (mapping.copies, &self.pagemap) {
            self.stats.copies_saved += saved_copies::save(pagemap, copies, mapping.offset, piece)?;
        }
        Ok(())
    }

    /// Hides one piece and forgets it.
    fn release(&mut self, piece: &Range<usize>) -> Result<(), TranslationError> {
        let Some(index) = self.entries.index_of(piece.start) else {
            return Ok(());
        };
        // SAFETY: the region is the space's; its accesses fault from here on.
        unsafe { translation::hide(piece.start, piece.len()) }?;
        self.forget(index);
        Ok(())
    }

    /// Takes a piece that is hidden out of the list.
    fn forget(&mut self, index: usize) {
        let table = self.entries.remove(index).table();
        self.age_published = false;
        if !self.entries.has_table(table) {
            self.stats.pages -= 1;
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
