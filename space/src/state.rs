//! What the mutex of operations protects: stretches behind committed pages, objects that regions
//! have, pins.

use crate::backing::Run;
use crate::error::SpaceError;
use crate::fault_record::FaultRecord;
use crate::object::MemoryObject;
use crate::region::{Kind, Region};
use crate::saved_copies;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What the mutex of operations protects.
#[derive(Default)]
pub(crate) struct SpaceState {
    /// Stretches behind committed pages, by their first addresses.
    pub(crate) runs: BTreeMap<usize, Run>,
    /// Objects that regions have, by the number of their `map` call.
    pub(crate) mappings: BTreeMap<u64, MappedObject>,
    pub(crate) next_mapping: u64,
    /// Ranges with a pin each.
    pub(crate) pins: Vec<Range<usize>>,
    /// Addresses that the views have, and those that ended and are still pinned.
    pub(crate) views: Vec<ViewRange>,
}

/// The addresses of a client view.
pub(crate) struct ViewRange {
    pub(crate) range: Range<usize>,
    pub(crate) has_ended: bool,
}

/// An object that regions have.
pub(crate) struct MappedObject {
    pub(crate) object: MemoryObject,
    /// The file of copies, by whose number regions and entries have it.
    pub(crate) copies: Option<OwnedFd>,
    /// Bytes of regions.
    pub(crate) bytes: usize,
    /// It is the space's own shareable memory, and ends with its last region.
    pub(crate) own: bool,
    /// Counts its faults, where it is a no-exception mapping.
    pub(crate) _record: Option<Arc<FaultRecord>>,
}

impl SpaceState {
    pub(crate) fn check_pins(&self, range: &Range<usize>) -> Result<(), SpaceError> {
        let pinned = self
            .pins
            .iter()
            .find(|pin| pin.start < range.end && range.start < pin.end);
        pinned.map_or(Ok(()), |range| {
            Err(SpaceError::Pinned {
                range: range.clone(),
            })
        })
    }

    pub(crate) fn check_views(&self, range: &Range<usize>) -> Result<(), SpaceError> {
        let mut views = self.views.iter().map(|view| &view.range);
        let inside = views.find(|view| view.start < range.end && range.start < view.end);
        inside.map_or(Ok(()), |range| {
            Err(SpaceError::View {
                range: range.clone(),
            })
        })
    }

    /// The parts of `range` that no pin has.
    pub(crate) fn parts_without_pins(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.pins.iter().fold(vec![range], |parts, pin| {
            let outside = parts.into_iter().flat_map(|part| {
                let before = part.start..part.end.min(pin.start);
                [before, part.start.max(pin.end)..part.end]
            });
            outside.filter(|part| !part.is_empty()).collect()
        })
    }

    /// The parts of `range` that are in one run, with its base, or in none.
    pub(crate) fn split_by_runs(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Option<usize>)> + use<> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let before = self
                .runs
                .range(..=at)
                .next_back()
                .map(|(_, run)| run.range());
            let (end, run) = match before.filter(|run| at < run.end) {
                Some(run) => (run.end, Some(run.start)),
                None => {
                    let next = self.runs.range(at..).next().map(|(base, _)| *base);
                    (next.unwrap_or(range.end), None)
                }
            };
            let end = end.min(range.end);
            pieces.push((at..end, run));
            at = end;
        }
        pieces.into_iter()
    }

    /// Gives up the runs' pages in `range`; the runs stay in use.
    pub(crate) fn give_up_pages(&mut self, range: &Range<usize>) -> Result<(), SpaceError> {
        for (piece, run) in self.split_by_runs(range.clone()) {
            if let Some(run) = run.and_then(|base| self.runs.get_mut(&base)) {
                run.give_up(&piece)?;
            }
        }
        Ok(())
    }

    /// A part of a mapped region is gone. Returns the object with the last part: dropping it releases
    /// the object, whose pager may have the addresses until they are unmapped.
    pub(crate) fn release_mapping(
        &mut self,
        part: &Region,
    ) -> Result<Option<MappedObject>, SpaceError> {
        let Kind::Mapped(mapping) = part.kind else {
            return Ok(None);
        };
        let Some(mapped) = self.mappings.get_mut(&mapping.id) else {
            return Ok(None);
        };
        let len = part.range().len();
        mapped.bytes -= len;
        if mapped.bytes > 0 {
            if mapped.own {
                mapped
                    .object
                    .punch(mapping.offset - mapped.object.offset(), len as u64)?;
            }
            if let (Some(file), Some(copies)) = (&mapped.copies, mapping.copies) {
                saved_copies::free(file.as_fd(), mapping.offset - copies.begin, len as u64)
                    .map_err(SpaceError::system("freeing saved copies"))?;
            }
            return Ok(None);
        }
        let ended = self.mappings.remove(&mapping.id);
        if let Some(own) = ended.as_ref().filter(|ended| ended.own) {
            own.object.revoke()?;
        }
        Ok(ended)
    }
}
