//! Reserve, commit, protect, decommit, deallocate (2.1).
//!
//! An operation holds the space's mutex, checks its arguments, and goes through the regions of its
//! range in order. A region that is in the wrong state ends it, with the earlier ones done.

use crate::address_space::AddressSpace;
use crate::error::SpaceError;
use crate::flags::{CommitFlags, MapFlags};
use crate::object::MemoryObject;
use crate::region::{Kind, Region};
use crate::state::SpaceState;
use selfpage::Rights;
use std::ops::Range;
use translation::Reservation;
use wired::{HUGE_RANGE, PAGE};

impl AddressSpace {
    /// Reserves `size` bytes and commits them: read and write, with frames at once.
    ///
    /// # Errors
    /// As for [`AddressSpace::reserve`] and [`AddressSpace::commit`]; nothing is reserved then.
    pub fn allocate(&self, size: usize) -> Result<usize, SpaceError> {
        let addr = self.reserve(None, size, false)?;
        self.commit(addr, size, CommitFlags::default())
            .inspect_err(|_| drop(self.deallocate(addr, size)))?;
        Ok(addr)
    }

    /// Reserves `size` bytes, at `addr` exactly where one is given. An access to reserved memory is
    /// an exception (SIGSEGV). A `section` is deallocated as a whole, and operations at its first
    /// address may have a size of zero, for all of it.
    ///
    /// # Errors
    /// [`SpaceError::Overlap`] where the addresses are in use, [`SpaceError::Unaligned`],
    /// [`SpaceError::Empty`], [`SpaceError::Overflow`].
    pub fn reserve(
        &self,
        addr: Option<usize>,
        size: usize,
        section: bool,
    ) -> Result<usize, SpaceError> {
        let mut state = self.state()?;
        if size == 0 {
            return Err(SpaceError::Empty {
                addr: addr.unwrap_or(0),
            });
        }
        let asked = self.range(addr.unwrap_or(PAGE), size)?;
        let start = self.take_addresses(&mut state, addr, asked.len())?;
        let range = start..start + size;
        self.core.insert(Region {
            start,
            end: range.end,
            section: section.then_some((start, range.end)),
            rights: Rights::NONE,
            kind: Kind::Reserved,
        });
        Ok(start)
    }

    /// Addresses that the kernel maps nothing else at: those of a cached run, or new ones.
    fn take_addresses(
        &self,
        state: &mut SpaceState,
        addr: Option<usize>,
        len: usize,
    ) -> Result<usize, SpaceError> {
        if let Some(backing) = &self.backing {
            if let Some(mut run) = backing.take_cached(addr, len, self.number) {
                run.join(&self.core, self.number, &backing.counters)?;
                let start = run.range().start;
                state.runs.insert(start, run);
                return Ok(start);
            }
            if let Some(addr) = addr {
                backing.evict_cached(&(addr..addr + len));
            }
        }
        match addr {
            Some(_) => Ok(translation::reserve(addr, len, false)?.addr),
            None if len >= HUGE_RANGE => reserve_apart(len),
            None => Ok(translation::reserve(None, len, false)?.addr),
        }
    }

    /// Commits reserved pages: see [`CommitFlags`]. Where frames are short it waits for them, and the
    /// space's other operations wait with it, the end of a pin too; accesses do not.
    ///
    /// # Errors
    /// [`SpaceError::State`] for pages that are committed or mapped, [`SpaceError::NotReserved`],
    /// [`SpaceError::NoDomain`], [`SpaceError::Stretch`] where frames run out. Earlier pages of the
    /// range are committed then.
    pub fn commit(&self, addr: usize, size: usize, flags: CommitFlags) -> Result<(), SpaceError> {
        let mut state = self.state()?;
        let range = self.range(addr, size)?;
        if flags.shareable {
            return self.commit_shareable(&mut state, range, flags);
        }
        let backing = self.backing.clone().ok_or(SpaceError::NoDomain)?;
        self.for_each_region(&range, |region, part| {
            expect(region, region.kind == Kind::Reserved, "reserved")?;
            for (piece, run) in state.split_by_runs(part) {
                let base = match run {
                    Some(base) => base,
                    None => {
                        let made = backing
                            .make(&self.core, piece.clone(), self.number)
                            .inspect_err(|_| self.reserve_again(&piece))?;
                        state.runs.insert(piece.start, made);
                        piece.start
                    }
                };
                let Some(run) = state.runs.get_mut(&base) else {
                    continue;
                };
                run.open(&piece, &flags, &backing.counters)?;
                self.set_kind(&piece, Kind::Committed, flags.rights);
                if !flags.auto {
                    run.populate(&piece, backing.domain().contract().x as usize)?;
                }
            }
            Ok(())
        })
    }

    /// Commits reserved pages as a memory object of the space's own.
    fn commit_shareable(
        &self,
        state: &mut SpaceState,
        range: Range<usize>,
        flags: CommitFlags,
    ) -> Result<(), SpaceError> {
        let object = MemoryObject::create(range.len() as u64)?;
        let map = MapFlags::new(flags.rights);
        let id = self.map_range(state, &range, &object, 0, map, None)?;
        if let Some(mapped) = state.mappings.get_mut(&id) {
            mapped.own = true;
        }
        Ok(())
    }

    /// Changes the rights of committed or mapped pages.
    ///
    /// # Errors
    /// [`SpaceError::Rights`] for a right that a mapped object does not give, [`SpaceError::State`]
    /// for reserved pages, [`SpaceError::Pinned`], [`SpaceError::NotReserved`].
    pub fn protect(&self, addr: usize, size: usize, rights: Rights) -> Result<(), SpaceError> {
        let state = self.state()?;
        let range = self.range(addr, size)?;
        state.check_pins(&range)?;
        self.for_each_region(&range, |region, part| {
            expect(region, region.kind != Kind::Reserved, "committed or mapped")?;
            if let Kind::Mapped(mapping) = region.kind {
                let object = state.mappings.get(&mapping.id).map(|m| &m.object);
                let needed = crate::mapping::needed_rights(rights, mapping.copies.is_some());
                object.map_or(Ok(()), |object| object.check_rights(needed))?;
            }
            let kind = region.part(&part).kind;
            self.set_kind(&part, kind, rights);
            let changed = match kind {
                Kind::Mapped(mapping) if !mapping.paged => {
                    self.core.with_vtlb(|vtlb| vtlb.remove(&part))
                }
                // SAFETY: the region is the space's, and its rights are what is asked to change.
                _ => unsafe {
                    translation::set_access(part.start, part.len(), crate::region::access(rights))
                },
            };
            // An entry that stayed has the rights that it had: an access that only the new ones allow would fault for ever.
            Ok(changed.inspect_err(|_| self.set_kind(&part, kind, region.rights))?)
        })
    }

    /// Gives up the contents of committed pages: they are reserved again. Their frames stay the
    /// domain's.
    ///
    /// # Errors
    /// [`SpaceError::State`] for pages that are not committed; [`SpaceError::Pinned`],
    /// [`SpaceError::NotReserved`].
    pub fn decommit(&self, addr: usize, size: usize) -> Result<(), SpaceError> {
        let mut state = self.state()?;
        let range = self.range(addr, size)?;
        state.check_pins(&range)?;
        self.for_each_region(&range, |region, part| {
            let is_committed = match region.kind {
                Kind::Mapped(mapping) => state.mappings.get(&mapping.id).is_some_and(|m| m.own),
                kind => kind == Kind::Committed,
            };
            expect(region, is_committed, "committed")?;
            let old = region.part(&part);
            self.set_kind(&part, Kind::Reserved, Rights::NONE);
            let given_up = match region.kind {
                Kind::Mapped(_) => self.discard_entries(&part),
                _ => state.give_up_pages(&part),
            };
            given_up.inspect_err(|_| self.set_kind(&part, old.kind, old.rights))?;
            state.release_mapping(&old).map(drop)
        })
    }

    /// Gives pages up, whatever their state: their addresses are free. A deallocated part of a run
    /// of pages that were committed at once stays unavailable to others until the whole run is
    /// deallocated.
    ///
    /// # Errors
    /// [`SpaceError::Section`] for a part of a section, [`SpaceError::Pinned`],
    /// [`SpaceError::View`] for addresses of a client view, [`SpaceError::NotReserved`].
    pub fn deallocate(&self, addr: usize, size: usize) -> Result<(), SpaceError> {
        let mut state = self.state()?;
        let range = self.range(addr, size)?;
        state.check_pins(&range)?;
        state.check_views(&range)?;
        self.deallocate_range(&mut state, &range)
    }

    /// Deallocates a range that no pin has. What the kernel refuses to give up is as it was for a later deallocation.
    pub(crate) fn deallocate_range(
        &self,
        state: &mut SpaceState,
        range: &Range<usize>,
    ) -> Result<(), SpaceError> {
        self.for_each_region(range, |region, part| {
            match region.section {
                Some((start, end)) if start < range.start || end > range.end => {
                    return Err(SpaceError::Section {
                        section: start..end,
                    });
                }
                _ => {}
            }
            for (piece, run) in state.split_by_runs(part) {
                let Some(region) = self.core.find(piece.start) else {
                    continue;
                };
                let old = region.part(&piece);
                self.core.replace(&region, &piece, None);
                self.release_addresses(state, &old, run)
                    .inspect_err(|_| self.core.restore(old))?;
                // The pager of an object may have the addresses until they are unmapped.
                drop(state.release_mapping(&old)?);
            }
            Ok(())
        })
    }

    /// Ends the kernel's mappings of a part of a region that the tree does not have any more, in `run` or in none.
    fn release_addresses(
        &self,
        state: &mut SpaceState,
        part: &Region,
        run: Option<usize>,
    ) -> Result<(), SpaceError> {
        let range = part.range();
        if let Kind::Mapped(_) = part.kind {
            self.discard_entries(&range)?;
        }
        match run {
            Some(base) => self.release_run(state, base, &range),
            None => unmap(&range),
        }
    }

    fn discard_entries(&self, range: &Range<usize>) -> Result<(), SpaceError> {
        self.core.with_vtlb(|vtlb| vtlb.discard(range))?;
        Ok(())
    }

    /// Gives a run to the cache if no region has a part of it any more, else gives up `piece` of it.
    fn release_run(
        &self,
        state: &mut SpaceState,
        base: usize,
        piece: &Range<usize>,
    ) -> Result<(), SpaceError> {
        let Some(run) = state.runs.get(&base) else {
            return Ok(());
        };
        let range = run.range();
        let next = self.core.first_after(range.start);
        if next.is_some_and(|region| region.start < range.end) {
            return state.give_up_pages(piece);
        }
        // Its next owner reserves all of it.
        run.close(&range)?;
        if let (Some(mut run), Some(backing)) = (state.runs.remove(&base), &self.backing) {
            run.leave();
            backing.put_cached(run);
        }
        Ok(())
    }

    /// Reserves unmapped addresses of a reserved region again. If other code mapped something there
    /// meanwhile, they are no longer the space's.
    fn reserve_again(&self, range: &Range<usize>) {
        let again = translation::reserve(Some(range.start), range.len(), false);
        if let (Err(_), Some(region)) = (again, self.core.find(range.start)) {
            self.core.replace(&region, range, None);
        }
    }

    /// Sets the state of a range, a part of one region.
    pub(crate) fn set_kind(&self, range: &Range<usize>, kind: Kind, rights: Rights) {
        let Some(old) = self.core.find(range.start) else {
            return;
        };
        let new = Region {
            start: range.start,
            end: range.end,
            section: old.section,
            rights,
            kind,
        };
        self.core.replace(&old, range, Some(new));
    }
}

pub(crate) fn expect(
    region: &Region,
    holds: bool,
    expected: &'static str,
) -> Result<(), SpaceError> {
    if holds {
        return Ok(());
    }
    Err(SpaceError::State {
        region: region.range(),
        found: region.state(),
        expected,
    })
}

pub(crate) fn unmap(range: &Range<usize>) -> Result<(), SpaceError> {
    let reservation = Reservation {
        addr: range.start,
        len: range.len(),
    };
    // SAFETY: reserved by the space, and in no region any more.
    unsafe { translation::unmap_reservation(reservation) }.map_err(SpaceError::system("munmap"))
}

/// Reserves `len` bytes that begin at a 2 MiB boundary, so that a large mapping needs no more
/// page-table pages than it has ranges.
fn reserve_apart(len: usize) -> Result<usize, SpaceError> {
    let spacious = translation::reserve(None, len.saturating_add(HUGE_RANGE), false)?;
    let start = spacious.addr.next_multiple_of(HUGE_RANGE);
    let end = spacious.addr + spacious.len;
    for rest in [spacious.addr..start, start + len..end] {
        if !rest.is_empty() {
            unmap(&rest)?;
        }
    }
    Ok(start)
}
