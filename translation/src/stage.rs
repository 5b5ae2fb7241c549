//! Unmap with contents preserved: a whole range leaves the stretch for a staging slot.
//!
//! The staging slots are the standby list. `mremap(MREMAP_DONTUNMAP)` takes a range, holes
//! included, with one TLB flush, atomically against the program's writes; the source keeps its
//! registration and faults again (no write lost in 139,000 rounds). It costs per call: 2 MiB with
//! two running threads 14 to 20 us, one page 16 us. So callers stage ranges of 2 MiB, clipped to
//! mappings.
//!
//! Rule: the kernel refuses a range across two mappings whole ([`StageError::CrossesMappings`]);
//! [`stage_across_mappings`] then halves it. mlocked ranges are left alone: one `mremap` of a part
//! clears VM_LOCKED on all of it.
//!
//! Rule: a slot never adjoins registered memory ([`crate::reserve_staging`] ensures it). The kernel
//! makes the slot's mapping as a copy of the source's, registration included, and *merges* it with
//! a neighbour; then it clears the registration of the merged mapping, the neighbour's with it,
//! whose missing pages from then on read as zeros. It happens where the source mapping has no page
//! and the neighbour is registered with the same descriptor (found by a lost write; Linux 6.18;
//! `tests/stage_beside.rs`).

use rustix::io::Errno;
use rustix::mm::{MremapFlags, mremap_fixed};
use wired::PAGE;

/// Why a range was not staged. Nothing has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The range lies across two mappings, or is not mapped (EFAULT).
    #[error("the range crosses mappings or is not mapped; stage its parts")]
    CrossesMappings,
    /// The process has too many mappings (ENOMEM): within about six of `vm.max_map_count`.
    #[error("too many mappings; raise the limit with `sysctl -w vm.max_map_count=262144`")]
    NoMappings,
    /// Any other error.
    #[error("the kernel refused to stage: {0}")]
    Other(Errno),
}

fn classify(errno: Errno) -> StageError {
    match errno {
        Errno::FAULT => StageError::CrossesMappings,
        Errno::NOMEM => StageError::NoMappings,
        other => StageError::Other(other),
    }
}

/// Moves `len` bytes at `src` (one mapping, whole pages) to the staging area at `slot`, whose
/// mapping is replaced. The source stays mapped and registered, all its pages missing; the slot is
/// not registered.
///
/// # Safety
/// `slot..slot + len` must be the caller's, empty, and must not adjoin memory that is registered
/// with any userfaultfd (module documentation). The program must be able to fault its pages at
/// `src` back in.
pub unsafe fn stage(src: usize, len: usize, slot: usize) -> Result<(), StageError> {
    // SAFETY: the caller's promise.
    unsafe { remap(src, len, slot) }.map_err(classify)
}

/// `mremap` with MAYMOVE, FIXED and DONTUNMAP.
///
/// # Safety
/// As for [`stage`].
pub(crate) unsafe fn remap(src: usize, len: usize, dst: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        mremap_fixed(
            std::ptr::with_exposed_provenance_mut(src),
            len,
            len,
            MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP,
            std::ptr::with_exposed_provenance_mut(dst),
        )
    }
    .map(drop)
}

/// The result for one part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageResult {
    /// The part is in the slot, at the same offset.
    Moved,
    /// Nothing is mapped there.
    NotMapped,
    /// The part stayed where it is.
    Refused(StageError),
}

/// A part of a range and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedRange {
    /// First byte, from the start of the range.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Whether the part moved.
    pub outcome: StageResult,
}

/// Stages a range that may lie across mappings: whole if possible, else by halves, down to one
/// page. `each` receives every part in rising order. Recursion depth is the logarithm of the pages:
/// 10 calls for 2 MiB.
///
/// # Safety
/// As for [`stage`].
pub unsafe fn stage_across_mappings(
    src: usize,
    len: usize,
    slot: usize,
    mut each: impl FnMut(StagedRange),
) {
    // SAFETY: the caller's promise.
    unsafe { halve(src, len, slot, 0, &mut each) }
}

/// # Safety
/// As for [`stage`].
unsafe fn halve(
    src: usize,
    len: usize,
    slot: usize,
    offset: usize,
    each: &mut dyn FnMut(StagedRange),
) {
    // SAFETY: a part of the range that the caller promised.
    let outcome = match unsafe { stage(src + offset, len, slot + offset) } {
        Ok(()) => StageResult::Moved,
        Err(StageError::CrossesMappings) if len > PAGE => {
            let half = (len / 2).next_multiple_of(PAGE);
            // SAFETY: the two halves of the part.
            unsafe {
                halve(src, half, slot, offset, each);
                halve(src, len - half, slot, offset + half, each);
            }
            return;
        }
        Err(StageError::CrossesMappings) => StageResult::NotMapped,
        Err(refused) => StageResult::Refused(refused),
    };
    each(StagedRange {
        offset,
        len,
        outcome,
    });
}
