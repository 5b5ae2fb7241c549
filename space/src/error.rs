//! Errors of operations on address spaces and memory objects.

use crate::region::RegionState;
use selfpage::{Rights, StretchError};
use std::ops::Range;
use translation::{ReserveError, TranslationError};

/// Why an operation failed. Operations on a reserved range are not failure-atomic (2.1): a part of
/// the range before the failure may be done.
/// [`AddressSpace::deallocate`](crate::AddressSpace::deallocate) of the range cleans up; where the
/// kernel refuses that (`vm.max_map_count`), the rest is there for a later one.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// An address, a size or an offset is not a multiple of the page size.
    #[error("invalid {what} {value:#x}: expected a multiple of the page size, 0x1000")]
    Unaligned {
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A size of zero outside a section.
    #[error("invalid size 0 at {addr:#x}: only the first address of a section takes it")]
    Empty {
        /// The address.
        addr: usize,
    },
    /// The range passes the end of addresses, or of the object.
    #[error("{size} bytes at {start:#x} are not within {limit:#x}")]
    Overflow {
        /// The first address or offset.
        start: u64,
        /// Bytes.
        size: u64,
        /// The end of what there is.
        limit: u64,
    },
    /// The address range is in use.
    #[error(transparent)]
    Overlap(#[from] ReserveError),
    /// No region of this space is at the address.
    #[error("{addr:#x} is not reserved in this address space; reserve it first")]
    NotReserved {
        /// The first such address.
        addr: usize,
    },
    /// A region is in another state.
    #[error("the region {:#x}..{:#x} is {found}, expected {expected}", region.start, region.end)]
    State {
        /// The region.
        region: Range<usize>,
        /// Its state.
        found: RegionState,
        /// The state that the operation takes.
        expected: &'static str,
    },
    /// A part of a section.
    #[error("{:#x}..{:#x} is a section, and is deallocated as a whole", section.start, section.end)]
    Section {
        /// The section.
        section: Range<usize>,
    },
    /// Pinned pages.
    #[error("pages in {:#x}..{:#x} are pinned; drop the pin first", range.start, range.end)]
    Pinned {
        /// The range of a pin.
        range: Range<usize>,
    },
    /// Addresses of a client view.
    #[error("{:#x}..{:#x} is a client's view; drop that instead", range.start, range.end)]
    View {
        /// The view.
        range: Range<usize>,
    },
    /// Addresses that belong to committed memory.
    #[error(
        "{addr:#x} is a part of memory that was committed at once and is in use; deallocate that first, or map elsewhere"
    )]
    Backed {
        /// The address.
        addr: usize,
    },
    /// A right that the object does not give.
    #[error("{asked} requested of a memory object that gives {given}")]
    Rights {
        /// Rights requested.
        asked: Rights,
        /// Rights that the object gives.
        given: Rights,
    },
    /// Not an object that can be mapped.
    #[error(
        "the descriptor is of no memory object ({0}): expected a regular file or shared memory"
    )]
    Foreign(&'static str),
    /// A client's object is a file that another process or machine may serve.
    #[error(
        "the file is of no local file system (tmpfs, ext4, xfs, btrfs, overlay and others), or of a mount that this \
         process does not see: another process or machine may serve it (FUSE, NFS), late or never; have the client send memory"
    )]
    ServedFile,
    /// The object has less memory than the view.
    #[error(
        "the memory object has {there} bytes and the view ends at {end}: its owner truncated or deallocated it"
    )]
    Dead {
        /// Bytes that there are.
        there: u64,
        /// The end of the view.
        end: u64,
    },
    /// Committed memory that is private.
    #[error(
        "{:#x}..{:#x} is not shareable: commit it with `shareable` to make a memory object of it", range.start, range.end
    )]
    NotShareable {
        /// The range.
        range: Range<usize>,
    },
    /// A space without a domain.
    #[error(
        "the address space has no domain, and commits no private memory: build it with one, or commit shareable memory"
    )]
    NoDomain,
    /// The stretch driver or the frames.
    #[error(transparent)]
    Stretch(#[from] StretchError),
    /// The kernel refused to change a mapping.
    #[error(transparent)]
    Translation(#[from] TranslationError),
    /// Every entry of the VTLB is pinned.
    #[error(
        "{needed} page-table pages are to be pinned, {pinned} are, and the bound is {bound}: six stay free for misses"
    )]
    VtlbFull {
        /// Entries to pin.
        needed: usize,
        /// Entries pinned.
        pinned: usize,
        /// The bound.
        bound: usize,
    },
    /// Every part of a mapping that pins may have is pinned.
    #[error(
        "{pinned} parts of mappings are pinned, of {most} that may be: the others stay free for misses; pin fewer and larger ranges, or give the space a larger bound"
    )]
    PinsFull {
        /// Parts pinned, of 2 MiB at most.
        pinned: usize,
        /// The most that may be.
        most: usize,
    },
    /// A VTLB budget that cannot be.
    #[error(
        "invalid VTLB budget of {pages} page-table pages for {spaces} spaces: expected 1 to 256 spaces, and 6 pages for each (an instruction may need as many) to 4096 in all"
    )]
    Budget {
        /// Pages in all.
        pages: usize,
        /// The most spaces.
        spaces: usize,
    },
    /// Every place of a VTLB budget is taken.
    #[error(
        "every place of the VTLB budget is taken ({spaces} spaces); create the budget for more spaces, or drop one"
    )]
    BudgetFull {
        /// The most spaces.
        spaces: usize,
    },
    /// The pager of memory objects refused, or is gone.
    #[error("the pager of memory objects: {0}")]
    Pager(String),
    /// An operation that paged objects do not have.
    #[error("a paged memory object cannot be {0}")]
    Paged(&'static str),
    /// Too many spaces and stack pools.
    #[error("the process has {0} address spaces and stack pools, the most there can be")]
    TooMany(usize),
    /// The caller is the child of a fork.
    #[error("the address space is of process {owner}: a child of a fork makes one of its own")]
    Forked {
        /// The process that made the space.
        owner: u32,
    },
    /// Every stack of a pool is in use.
    #[error("all {0} stacks of the pool are in use")]
    NoStack(usize),
    /// A pool without stacks, or of stacks that are too small.
    #[error(
        "invalid pool of {count} stacks of {bytes} bytes: expected 1 stack and 8192 bytes at least"
    )]
    StackPool {
        /// Bytes of a stack.
        bytes: usize,
        /// Stacks.
        count: usize,
    },
    /// A probe beyond the stack.
    #[error(
        "{bytes} bytes are not there below the stack pointer; probe for less, or make the stack larger"
    )]
    StackBytes {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// Another library handles the faults outside stretches.
    #[error("the process has another handler of faults outside stretches")]
    HandlerTaken,
    /// A system call failed.
    #[error("{what}: {errno}")]
    System {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        errno: rustix::io::Errno,
    },
    /// The signal handlers could not be installed.
    #[error("the signal handlers could not be installed: {0}")]
    Handlers(#[from] std::io::Error),
}

impl SpaceError {
    /// Wraps a system call's error.
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { what, errno }
    }
}
