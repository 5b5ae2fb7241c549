//! Map: regions of memory objects (2.2).

use crate::address_space::AddressSpace;
use crate::backing::Backing;
use crate::backing::Run;
use crate::error::SpaceError;
use crate::fault_record::FaultRecord;
use crate::flags::MapFlags;
use crate::object::MemoryObject;
use crate::operations::{expect, unmap};
use crate::region::{self, Copies, Kind, Mapping};
use crate::state::{MappedObject, SpaceState, ViewRange};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use selfpage::Rights;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

impl AddressSpace {
    /// Maps `size` bytes of an object from `offset` on: over reserved pages at `addr`, or where
    /// there is room.
    ///
    /// # Errors
    /// [`SpaceError::Rights`], [`SpaceError::Overflow`] for bytes that the object does not have,
    /// [`SpaceError::Dead`], [`SpaceError::State`] for pages that are not reserved,
    /// [`SpaceError::Backed`] for pages of a committed run.
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
        let mut state = self.state()?;
        let mapped = self.range(start, size).and_then(|range| {
            // A size of zero is a section's.
            object.check_range(offset, range.len() as u64)?;
            self.map_range(&mut state, &range, object, offset, flags, record)
        });
        drop(state);
        if mapped.is_err() && addr.is_none() {
            self.deallocate(start, size)?;
        }
        mapped.map(|_| start)
    }

    /// Makes reserved regions mapped ones. Returns the number of the mapping.
    pub(crate) fn map_range(
        &self,
        state: &mut SpaceState,
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
            true => Some(self.make_copies(range.len() as u64)?),
            false => None,
        };
        if let Some(paged) = object.paged() {
            if flags.copy_on_write || record.is_some() {
                return Err(SpaceError::Paged(
                    "mapped copy-on-write, or as a client view",
                ));
            }
            let offset = object.offset() + offset;
            paged.map(object.as_fd(), offset, range, region::access(flags.rights))?;
        }
        state.next_mapping += 1;
        let id = state.next_mapping;
        let offset = object.offset() + offset;
        let mapping = Mapping {
            id,
            object: object.as_fd().as_raw_fd(),
            offset,
            copies: copies.as_ref().map(|copies| Copies {
                file: copies.as_raw_fd(),
                begin: offset,
            }),
            paged: object.paged().is_some(),
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
        if mapping.no_exception.is_some() {
            state.views.push(ViewRange {
                range: range.clone(),
                has_ended: false,
            });
        }
        Ok(id)
    }

    /// A file for the copies of a mapping of `len` bytes.
    fn make_copies(&self, len: u64) -> Result<OwnedFd, SpaceError> {
        self.core.open_pagemap()?;
        let copies = memfd_create("selfpage-copies", MemfdFlags::CLOEXEC).map_err(SpaceError::system(
            "making a copy-on-write mapping's file of copies (each is a descriptor: see `ulimit -n`)",
        ))?;
        wired::check_file_size(len)
            .and_then(|()| ftruncate(&copies, len))
            .map_err(SpaceError::system(
                "making a file of copies as large as a copy-on-write mapping (see `ulimit -f`)",
            ))?;
        Ok(copies)
    }

    /// Ends the runs that reach into `range`, of which no page is committed. Their addresses stay
    /// reserved where a region has them.
    fn free_runs(&self, state: &mut SpaceState, range: &Range<usize>) -> Result<(), SpaceError> {
        let runs = state
            .split_by_runs(range.clone())
            .filter_map(|(_, run)| run);
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
                Backing::release(run);
            }
            for gap in gaps {
                unmap(&gap)?;
            }
        }
        Ok(())
    }
}

/// Rights that an object must give for a mapping with `rights`.
pub(crate) fn needed_rights(rights: Rights, copy_on_write: bool) -> Rights {
    if copy_on_write {
        rights.without(Rights::WRITE) | Rights::READ
    } else {
        rights
    }
}
