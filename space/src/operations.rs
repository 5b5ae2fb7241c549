//! Reserve, commit, protect, decommit, deallocate, map (2.1, 2.2).
//!
//! An operation holds the space's mutex, checks its arguments, and goes through the regions of its range in order. A region that is
//! in the wrong state ends it, with the earlier ones done.

use crate::address_space::{AddressSpace, MappedObject, State};
use crate::backing::Run;
use crate::error::SpaceError;
use crate::fault_record::FaultRecord;
use crate::flags::{CommitFlags, MapFlags};
use crate::object::MemoryObject;
use crate::region::{Kind, Mapping, Region};
use rustix::fs::{MemfdFlags, memfd_create};
use selfpage::Rights;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
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

    /// Reserves `size` bytes, at `addr` exactly where one is given. An access to reserved memory is an exception (SIGSEGV). A
    /// `section` is deallocated as a whole, and operations at its first address may have a size of zero, for all of it.
    ///
    /// # Errors
    /// [`SpaceError::Overlap`] where the addresses are in use, [`SpaceError::Unaligned`], [`SpaceError::Empty`],
    /// [`SpaceError::Overflow`].
    pub fn reserve(
        &self,
        addr: Option<usize>,
        size: usize,
        section: bool,
    ) -> Result<usize, SpaceError> {
        let mut state = self.state();
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
        state: &mut State,
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

    /// Commits reserved pages: see [`CommitFlags`].
    ///
    /// # Errors
    /// [`SpaceError::State`] for pages that are committed or mapped, [`SpaceError::NotReserved`], [`SpaceError::NoDomain`],
    /// [`SpaceError::Stretch`] where frames run out. Earlier pages of the range are committed then.
    pub fn commit(&self, addr: usize, size: usize, flags: CommitFlags) -> Result<(), SpaceError> {
        let mut state = self.state();
        let range = self.range(addr, size)?;
        if flags.shareable {
            return self.commit_shareable(&mut state, range, flags);
        }
        let backing = self.backing.clone().ok_or(SpaceError::NoDomain)?;
        self.for_each_region(&range, |region, part| {
            expect(region, region.kind == Kind::Reserved, "reserved")?;
            for (piece, run) in split_by_runs(&state, part) {
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
        state: &mut State,
        range: Range<usize>,
        flags: CommitFlags,
    ) -> Result<(), SpaceError> {
        let object = MemoryObject::create(range.len() as u64)?;
        let map = MapFlags {
            rights: flags.rights,
            copy_on_write: false,
        };
        let id = self.map_range(state, &range, &object, 0, map, None)?;
        if let Some(mapped) = state.mappings.get_mut(&id) {
            mapped.own = true;
        }
        Ok(())
    }

    /// Changes the rights of committed or mapped pages.
    ///
    /// # Errors
    /// [`SpaceError::Rights`] for a right that a mapped object does not give, [`SpaceError::State`] for reserved pages,
    /// [`SpaceError::Pinned`], [`SpaceError::NotReserved`].
    pub fn protect(&self, addr: usize, size: usize, rights: Rights) -> Result<(), SpaceError> {
        let state = self.state();
        let range = self.range(addr, size)?;
        check_pins(&state, &range)?;
        self.for_each_region(&range, |region, part| {
            expect(region, region.kind != Kind::Reserved, "committed or mapped")?;
            if let Kind::Mapped(mapping) = region.kind {
                let object = state.mappings.get(&mapping.id).map(|m| &m.object);
                let needed = needed_rights(rights, mapping.copies.is_some());
                object.map_or(Ok(()), |object| object.check_rights(needed))?;
                self.set_kind(&part, region.part(&part).kind, rights);
                return Ok(self.core.with_vtlb(|vtlb| vtlb.remove(&part))?);
            }
            self.set_kind(&part, region.kind, rights);
            // SAFETY: the region is the space's, and its rights are what is asked to change.
            Ok(unsafe {
                translation::set_access(part.start, part.len(), crate::region::access(rights))
            }?)
        })
    }

    /// Gives up the contents of committed pages: they are reserved again. Their frames stay the domain's.
    ///
    /// # Errors
    /// [`SpaceError::State`] for pages that are not committed; [`SpaceError::Pinned`], [`SpaceError::NotReserved`].
    pub fn decommit(&self, addr: usize, size: usize) -> Result<(), SpaceError> {
        let mut state = self.state();
        let range = self.range(addr, size)?;
        check_pins(&state, &range)?;
        self.for_each_region(&range, |region, part| match region.kind {
            Kind::Committed => {
                self.set_kind(&part, Kind::Reserved, Rights::NONE);
                close_runs(&state, &part)
            }
            Kind::Mapped(mapping) if state.mappings.get(&mapping.id).is_some_and(|m| m.own) => {
                self.set_kind(&part, Kind::Reserved, Rights::NONE);
                self.core.with_vtlb(|vtlb| vtlb.discard(&part))?;
                release_mapping(&mut state, &region.part(&part))
            }
            _ => expect(region, false, "committed"),
        })
    }

    /// Gives pages up, whatever their state: their addresses are free. A deallocated part of a run of pages that were committed at
    /// once stays unavailable to others until the whole run is deallocated.
    ///
    /// # Errors
    /// [`SpaceError::Section`] for a part of a section, [`SpaceError::Pinned`], [`SpaceError::NotReserved`].
    pub fn deallocate(&self, addr: usize, size: usize) -> Result<(), SpaceError> {
        let mut state = self.state();
        let range = self.range(addr, size)?;
        check_pins(&state, &range)?;
        self.for_each_region(&range, |region, part| {
            match region.section {
                Some((start, end)) if start < range.start || end > range.end => {
                    return Err(SpaceError::Section {
                        section: start..end,
                    });
                }
                _ => {}
            }
            self.core.replace(region, &part, None);
            if let Kind::Mapped(_) = region.kind {
                self.core.with_vtlb(|vtlb| vtlb.discard(&part))?;
                release_mapping(&mut state, &region.part(&part))?;
            }
            if region.kind == Kind::Committed {
                close_runs(&state, &part)?;
            }
            for (piece, run) in split_by_runs(&state, part) {
                match run {
                    Some(base) => self.release_run(&mut state, base),
                    None => unmap(&piece)?,
                }
            }
            Ok(())
        })
    }

    /// Gives a run to the cache if no region has a part of it any more.
    fn release_run(&self, state: &mut State, base: usize) {
        let Some(range) = state.runs.get(&base).map(Run::range) else {
            return;
        };
        let used = self
            .core
            .first_after(range.start)
            .is_some_and(|r| r.start < range.end);
        let Some(mut run) = (!used).then(|| state.runs.remove(&base)).flatten() else {
            return;
        };
        run.leave();
        if let Some(backing) = &self.backing {
            backing.put_cached(run);
        }
    }

    /// Maps `size` bytes of an object from `offset` on: over reserved pages at `addr`, or where there is room.
    ///
    /// # Errors
    /// [`SpaceError::Rights`], [`SpaceError::Overflow`] for bytes that the object does not have, [`SpaceError::Dead`],
    /// [`SpaceError::State`] for pages that are not reserved, [`SpaceError::Backed`] for pages of a committed run.
    pub fn map(
        &self,
        addr: Option<usize>,
        size: usize,
        object: &MemoryObject,
        offset: u64,
        flags: MapFlags,
    ) -> Result<usize, SpaceError> {
        self.map_counted(addr, size, object, offset, flags, None)
    }

    /// As [`AddressSpace::map`]; with a record, a no-exception mapping.
    pub(crate) fn map_counted(
        &self,
        addr: Option<usize>,
        size: usize,
        object: &MemoryObject,
        offset: u64,
        flags: MapFlags,
        record: Option<Arc<FaultRecord>>,
    ) -> Result<usize, SpaceError> {
        object.check_range(offset, size as u64)?;
        object.check_rights(needed_rights(flags.rights, flags.copy_on_write))?;
        object.check_alive()?;
        let start = match addr {
            Some(addr) => addr,
            None => self.reserve(None, size, false)?,
        };
        let mut state = self.state();
        let mapped = self
            .range(start, size)
            .and_then(|range| self.map_range(&mut state, &range, object, offset, flags, record));
        drop(state);
        if mapped.is_err() && addr.is_none() {
            self.deallocate(start, size)?;
        }
        mapped.map(|_| start)
    }

    /// Makes reserved regions mapped ones. Returns the number of the mapping.
    fn map_range(
        &self,
        state: &mut State,
        range: &Range<usize>,
        object: &MemoryObject,
        offset: u64,
        flags: MapFlags,
        record: Option<Arc<FaultRecord>>,
    ) -> Result<u64, SpaceError> {
        self.for_each_region(range, |region, _| {
            expect(region, region.kind == Kind::Reserved, "reserved")
        })?;
        self.free_runs(state, range)?;
        let copies = match flags.copy_on_write {
            true => Some(
                memfd_create("selfpage-copies", MemfdFlags::CLOEXEC)
                    .map_err(SpaceError::system("memfd_create"))?,
            ),
            false => None,
        };
        if let Some(copies) = &copies {
            let end = object.offset() + offset + range.len() as u64;
            rustix::fs::ftruncate(copies, end).map_err(SpaceError::system("ftruncate"))?;
        }
        state.next_mapping += 1;
        let id = state.next_mapping;
        let mapping = Mapping {
            id,
            object: object.as_fd().as_raw_fd(),
            offset: object.offset() + offset,
            copies: copies.as_ref().map(AsRawFd::as_raw_fd),
            no_exception: record.as_ref().map(|r| NonNull::from(&**r)),
        };
        state.mappings.insert(
            id,
            MappedObject {
                object: object.clone(),
                copies,
                bytes: range.len(),
                own: false,
                _record: record,
            },
        );
        self.for_each_region(range, |_, part| {
            let mut mapping = mapping;
            mapping.offset += (part.start - range.start) as u64;
            self.set_kind(&part, Kind::Mapped(mapping), flags.rights);
            Ok(())
        })?;
        Ok(id)
    }

    /// Reserves unmapped addresses of a reserved region again. If other code mapped something there meanwhile, they are no longer
    /// the space's.
    fn reserve_again(&self, range: &Range<usize>) {
        let again = translation::reserve(Some(range.start), range.len(), false);
        if let (Err(_), Some(region)) = (again, self.core.find(range.start)) {
            self.core.replace(&region, range, None);
        }
    }

    /// Ends the runs that reach into `range`, of which no page is committed. Their addresses stay reserved where a region has them.
    fn free_runs(&self, state: &mut State, range: &Range<usize>) -> Result<(), SpaceError> {
        let runs = split_by_runs(state, range.clone()).filter_map(|(_, run)| run);
        for base in runs.collect::<Vec<_>>() {
            let Some(run) = state.runs.get(&base).map(Run::range) else {
                continue;
            };
            let mut gaps = Vec::new();
            let mut at = run.start;
            while at < run.end {
                let next = self.core.first_after(at).filter(|r| r.start < run.end);
                if let Some(region) = next.filter(|r| r.kind == Kind::Committed) {
                    return Err(SpaceError::Backed { addr: region.start });
                }
                let gap = at..next.map_or(run.end, |r| r.start.max(at));
                at = next.map_or(run.end, |r| r.end);
                gaps.extend((!gap.is_empty()).then_some(gap));
            }
            if let Some(run) = state.runs.remove(&base) {
                run.release();
            }
            for gap in gaps {
                unmap(&gap)?;
            }
        }
        Ok(())
    }

    /// Sets the state of a range, a part of one region.
    fn set_kind(&self, range: &Range<usize>, kind: Kind, rights: Rights) {
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

/// Rights that an object must give for a mapping with `rights`.
fn needed_rights(rights: Rights, copy_on_write: bool) -> Rights {
    if copy_on_write {
        rights.without(Rights::WRITE) | Rights::READ
    } else {
        rights
    }
}

fn expect(region: &Region, holds: bool, expected: &'static str) -> Result<(), SpaceError> {
    if holds {
        return Ok(());
    }
    Err(SpaceError::State {
        region: region.range(),
        found: region.state(),
        expected,
    })
}

fn check_pins(state: &State, range: &Range<usize>) -> Result<(), SpaceError> {
    let pinned = state
        .pins
        .iter()
        .find(|pin| pin.start < range.end && range.start < pin.end);
    pinned.map_or(Ok(()), |range| {
        Err(SpaceError::Pinned {
            range: range.clone(),
        })
    })
}

/// The parts of `range` that are in one run, with its base, or in none.
fn split_by_runs(
    state: &State,
    range: Range<usize>,
) -> impl Iterator<Item = (Range<usize>, Option<usize>)> + use<> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let before = state
            .runs
            .range(..=at)
            .next_back()
            .map(|(_, run)| run.range());
        let (end, run) = match before.filter(|run| at < run.end) {
            Some(run) => (run.end, Some(run.start)),
            None => {
                let next = state.runs.range(at..).next().map(|(base, _)| *base);
                (next.unwrap_or(range.end), None)
            }
        };
        let end = end.min(range.end);
        pieces.push((at..end, run));
        at = end;
    }
    pieces.into_iter()
}

/// Takes the access to the runs' pages in `range` away.
fn close_runs(state: &State, range: &Range<usize>) -> Result<(), SpaceError> {
    for (piece, run) in split_by_runs(state, range.clone()) {
        if let Some(run) = run.and_then(|base| state.runs.get(&base)) {
            run.close(&piece)?;
        }
    }
    Ok(())
}

/// A part of a mapped region is gone; the last part's end releases the object.
fn release_mapping(state: &mut State, part: &Region) -> Result<(), SpaceError> {
    let Kind::Mapped(mapping) = part.kind else {
        return Ok(());
    };
    let Some(mapped) = state.mappings.get_mut(&mapping.id) else {
        return Ok(());
    };
    let len = part.range().len();
    mapped.bytes -= len;
    if mapped.bytes > 0 {
        if mapped.own {
            mapped
                .object
                .punch(mapping.offset - mapped.object.offset(), len as u64)?;
        }
        return Ok(());
    }
    let Some(ended) = state.mappings.remove(&mapping.id) else {
        return Ok(());
    };
    drop(ended.copies);
    match ended.own {
        true => ended.object.revoke(),
        false => Ok(()),
    }
}

fn unmap(range: &Range<usize>) -> Result<(), SpaceError> {
    let reservation = Reservation {
        addr: range.start,
        len: range.len(),
    };
    // SAFETY: reserved by the space, and in no region any more.
    unsafe { translation::unmap_reservation(reservation) }.map_err(SpaceError::system("munmap"))
}

/// Reserves `len` bytes that begin at a 2 MiB boundary, so that a large mapping needs no more page-table pages than it has ranges.
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
