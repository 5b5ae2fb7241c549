//! A region: a run of pages of a space with one state.

use crate::fault_record::FaultRecord;
use selfpage::Rights;
use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use translation::{Access, Sharing};

/// Where a mapped region's pages are. A plain value, since the fault path copies it: the space
/// keeps the descriptors open while a region or an entry of the VTLB has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The number of the `map` call, unique in its space.
    pub(crate) id: u64,
    /// The object.
    pub(crate) object: RawFd,
    /// Where in the object the region begins, in bytes.
    pub(crate) offset: u64,
    /// Keeps the copied pages of a copy-on-write mapping while no entry maps them.
    pub(crate) copies: Option<Copies>,
    /// Its pages are mapped by a pager, and never by an entry of the VTLB.
    pub(crate) paged: bool,
    /// Counts the faults of a no-exception mapping.
    pub(crate) no_exception: Option<NonNull<FaultRecord>>,
}

/// A file of copied pages. It begins with the mapping, not with the object: a limit of file sizes
/// (`ulimit -f`) is for what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) file: RawFd,
    /// Where in the object the mapping begins, in bytes.
    pub(crate) begin: u64,
}

impl Mapping {
    pub(crate) fn sharing(&self) -> Sharing {
        match self.copies {
            Some(_) => Sharing::CopyOnWrite,
            None => Sharing::Shared,
        }
    }

    pub(crate) fn object(&self) -> BorrowedFd<'_> {
        // SAFETY: the space keeps the object while a region has it.
        unsafe { BorrowedFd::borrow_raw(self.object) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reserved,
    Committed,
    Mapped(Mapping),
}

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// First and one past the last address of the section, where it is one.
    pub(crate) section: Option<(usize, usize)>,
    pub(crate) rights: Rights,
    pub(crate) kind: Kind,
}

// SAFETY: the record that a region points to is shared state of atomics, and outlives the region.
unsafe impl Send for Region {}

impl Region {
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The part of the region in `range`, which it overlaps.
    pub(crate) fn part(&self, range: &Range<usize>) -> Region {
        let mut part = *self;
        part.start = self.start.max(range.start);
        part.end = self.end.min(range.end);
        if let Kind::Mapped(mapping) = &mut part.kind {
            mapping.offset += (part.start - self.start) as u64;
        }
        part
    }

    /// Returns true if `next` goes on where this region ends, in the same state.
    pub(crate) fn continues_in(&self, next: &Region) -> bool {
        let kind = match (self.kind, next.kind) {
            (Kind::Mapped(mut this), Kind::Mapped(other)) => {
                this.offset += (self.end - self.start) as u64;
                this == other
            }
            (this, other) => this == other,
        };
        kind && self.end == next.start && self.section == next.section && self.rights == next.rights
    }

    pub(crate) fn state(&self) -> RegionState {
        match self.kind {
            Kind::Reserved => RegionState::Reserved,
            Kind::Committed => RegionState::Committed,
            Kind::Mapped(_) => RegionState::Mapped,
        }
    }

    pub(crate) fn access(&self) -> Access {
        access(self.rights)
    }

    /// Returns true if the rights allow the access.
    pub(crate) fn allows(&self, write: bool, execute: bool) -> bool {
        let needed = match (write, execute) {
            (true, _) => Rights::WRITE,
            (false, true) => Rights::EXECUTE,
            (false, false) => Rights::READ,
        };
        // Linux gives loads with stores.
        self.rights.contains(needed)
            || needed == Rights::READ && self.rights.contains(Rights::WRITE)
    }
}

/// The kernel's form of rights.
pub(crate) fn access(rights: Rights) -> Access {
    Access {
        read: rights.contains(Rights::READ),
        write: rights.contains(Rights::WRITE),
        execute: rights.contains(Rights::EXECUTE),
    }
}

/// The state of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionState {
    /// Set aside: an access is an exception.
    Reserved,
    /// Private memory of the space.
    Committed,
    /// A memory object's.
    Mapped,
}

impl fmt::Display for RegionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reserved => "reserved",
            Self::Committed => "committed",
            Self::Mapped => "mapped",
        })
    }
}

/// What a space has at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The run of pages in one state.
    pub range: Range<usize>,
    /// The state.
    pub state: RegionState,
    /// The rights to it.
    pub rights: Rights,
    /// The section that it is a part of.
    pub section: Option<Range<usize>>,
}

impl From<Region> for RegionInfo {
    fn from(region: Region) -> Self {
        Self {
            range: region.range(),
            state: region.state(),
            rights: region.rights,
            section: region.section.map(|(start, end)| start..end),
        }
    }
}
