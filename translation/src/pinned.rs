//! Detects pages that a device may be writing to, and puts them back.
//!
//! A page pinned for direct I/O that is copied out and discarded loses what the device writes later
//! (50 of 50 trials). The sound way: stage the range, so that no new pin can arise, then move every
//! page on to a second area; `UFFDIO_MOVE` refuses exactly the pages that are pinned. Those return
//! to the program's addresses, the same physical pages, and are nailed.
//!
//! What `UFFDIO_MOVE` does with each kind of page (`tests/pinned`, Linux 6.18):
//!
//! | page | result |
//! |---|---|
//! | held by io_uring's registered buffers, or by a direct read in flight | EBUSY, stays |
//! | shared with a child since a fork, the child's end notwithstanding | EBUSY, until it is written |
//! | the zero page | moves |
//! | a hole | skipped |
//! | a mark without contents: a guard, poison | EFAULT, stays |
//! | one whose page table entry changed at that moment (its access bit) | EEXIST, and it has moved |
//!
//! The last: the kernel (6.18) tries the page again, moves it, and does not count it; its next attempt finds the destination
//! occupied. Where the source has no page any more, it has moved.
//!
//! So every page that refuses is kept, pinned or not; after a fork these may be many. References
//! that are no pins (`vmsplice`) go undetected; their holder only reads, and reads the contents at
//! the time of the eviction.
//!
//! Measured (`cargo run --release -p translation --example translation_costs`, one thread running,
//! 2 vCPU EPYC, Linux 6.18): a page of 512 / 64 / 8 scattered in 2 MiB costs 0.08 / 1.7 / 11.4 us
//! by [`separate_pinned`] and 0.10 / 0.87 / 1.2 us by [`separate_pinned_sparse`], the better way
//! unless ranges are full; [`restore_pinned`] 5.5 us. With a second thread running each run of
//! pages adds a flush (`examples/translation_costs`).

use crate::capability::Feature;
use crate::map::{MapError, Wake};
use crate::pagemap::Pagemap;
use crate::register::TranslationError;
use crate::stage::remap;
use crate::userfault::Userfault;
use linux_raw_sys::general as sys;
use rustix::io::Errno;
use wired::PAGE;
use wired::syscall::{checked, syscall6};

/// An error that ended a separation early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {done} bytes of the range: {error}")]
pub struct SeparateError {
    /// The cause.
    pub error: MapError,
    /// Bytes of the range that were processed: pages before this moved on or refused, pages from
    /// here on are where they were.
    pub done: usize,
}

/// Moves every page of the staged range at `slot_src` on to `slot_dst`, which must be registered
/// with `userfault` for missing pages, be empty, and not adjoin a staging slot
/// ([`crate::reserve_staging`] provides both). Holes are skipped. Pages that refuse (pinned, or
/// shared with a child since a fork) stay in `slot_src`; `pinned` receives their index in the
/// range. Returns their number.
///
/// The staged range may be several mappings, as the stretch was; the kernel moves within one.
///
/// On an error both areas hold pages.
///
/// # Safety
/// Only the caller may know or use the two areas.
pub unsafe fn separate_pinned(
    userfault: &Userfault,
    slot_src: usize,
    slot_dst: usize,
    len: usize,
    mut pinned: impl FnMut(usize),
) -> Result<usize, SeparateError> {
    if !userfault.capabilities().has(Feature::Move) {
        let error = MapError::Other(Errno::OPNOTSUPP);
        return Err(SeparateError { error, done: 0 });
    }
    let mut at = 0;
    let mut refused = 0;
    let mut tries = 0;
    let mut span = len;
    while at < len {
        span = span.min(len - at);
        // SAFETY: the caller's promise.
        match unsafe { userfault.move_present(slot_dst + at, slot_src + at, span, Wake::No) } {
            Ok(()) => {
                at += span;
                span = len;
            }
            // Across mappings, or with a marker in it: tries the first half, in the end one page.
            Err(MapError::Other(Errno::INVAL | Errno::FAULT)) if span > PAGE => {
                span = (span / 2).next_multiple_of(PAGE);
            }
            Err(MapError::Other(Errno::FAULT)) => {
                pinned(at / PAGE);
                refused += 1;
                at += PAGE;
                span = len;
                tries = 0;
            }
            Err(MapError::Pinned { done }) => {
                at += done;
                pinned(at / PAGE);
                refused += 1;
                at += PAGE;
                tries = 0;
            }
            Err(MapError::Again { done }) if done > 0 || tries < AGAIN_TRIES => {
                at += done;
                tries = if done > 0 { 0 } else { tries + 1 };
            }
            Err(MapError::Exists { done }) if !has_page(slot_src + at + done) => {
                at += done + PAGE;
                span = len;
                tries = 0;
            }
            Err(error) => {
                let done = at + error.done();
                return Err(SeparateError { error, done });
            }
        }
    }
    Ok(refused)
}

/// Returns true if there is a page of memory at `addr`.
fn has_page(addr: usize) -> bool {
    let mut answer = 0u8;
    let to = (&raw mut answer).expose_provenance();
    // SAFETY: the kernel writes the byte.
    let outcome = unsafe { syscall6(sys::__NR_mincore.into(), [addr, PAGE, to, 0, 0, 0]) };
    checked(outcome).is_err() || answer & 1 != 0
}

/// Like [`separate_pinned`], for ranges with few pages: `pagemap` finds the runs with contents, and
/// only those are moved.
///
/// # Safety
/// As for [`separate_pinned`].
pub unsafe fn separate_pinned_sparse(
    userfault: &Userfault,
    pagemap: &Pagemap,
    slot_src: usize,
    slot_dst: usize,
    len: usize,
    mut pinned: impl FnMut(usize),
) -> Result<usize, SeparateError> {
    let mut result = Ok(0);
    let mut looked_at = 0;
    let looked = pagemap.runs_with_contents(slot_src, len, |run| {
        let Ok(refused) = result else { return };
        let (at, bytes) = (run.start * PAGE, run.len() * PAGE);
        // SAFETY: parts of the areas that the caller promised.
        let part = unsafe {
            separate_pinned(userfault, slot_src + at, slot_dst + at, bytes, |page| {
                pinned(run.start + page)
            })
        };
        looked_at = at + bytes;
        result = part
            .map(|more| refused + more)
            .map_err(|part| SeparateError {
                done: at + part.done,
                ..part
            });
    });
    match looked {
        Ok(()) => result,
        // The runs that were reported are processed, unless one of them failed already.
        Err(errno) => result.and(Err(SeparateError {
            error: MapError::Other(errno),
            done: looked_at,
        })),
    }
}

/// Retries of a move that meets a change of the address space: the change is another thread's call
/// and ends by itself.
const AGAIN_TRIES: usize = 1000;

/// Puts one page back from `slot` to `src`, the same physical page, and registers `src` again,
/// which also merges the mapping that the move split. The slot stays mapped and empty.
/// `write_protect` is the mode that `src` was registered with. Wakes waiting threads.
///
/// # Safety
/// `src` must be the page's own address, missing, and the caller must keep the pager from mapping
/// it meanwhile.
pub unsafe fn restore_pinned(
    slot: usize,
    src: usize,
    userfault: &Userfault,
    write_protect: bool,
) -> Result<(), TranslationError> {
    // SAFETY: the caller's promise.
    unsafe { put(slot, src, PAGE, userfault, write_protect) }
}

/// Moves pages from `src` to `dst` by way of `slot`: the same physical pages, pinned or not. All
/// three areas are `len` bytes; `src` is registered and stays so, its pages missing; `dst` is
/// registered, and is registered again afterwards, with the protection that `src` has. On an error
/// the pages are where they were.
///
/// Two moves, because a mapping that `mremap` copies from a registered one must not lie beside
/// registered memory ([`crate::stage`](mod@crate::stage)).
///
/// # Safety
/// As for [`fn@crate::stage`] on `src` and `slot`; the pages at `dst` are missing, and the caller
/// keeps the pager and the program from them meanwhile.
pub unsafe fn relocate(
    src: usize,
    slot: usize,
    dst: usize,
    len: usize,
    userfault: &Userfault,
    write_protect: bool,
) -> Result<(), RelocateError> {
    // SAFETY: the caller's promise.
    unsafe { crate::stage(src, len, slot) }?;
    // SAFETY: the pages in the slot belong at `dst`.
    match unsafe { put(slot, dst, len, userfault, write_protect) } {
        Ok(()) => Ok(()),
        // SAFETY: the pages came from `src` just now.
        Err(why) => match unsafe { put(slot, src, len, userfault, write_protect) } {
            Ok(()) => Err(RelocateError::Refused(why)),
            Err(stuck) => Err(RelocateError::Stuck(stuck)),
        },
    }
}

/// Why pages were not relocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// Staging failed; nothing has moved.
    #[error(transparent)]
    NotTaken(#[from] crate::StageError),
    /// The destination refused the pages; they are at the source again.
    #[error(transparent)]
    Refused(TranslationError),
    /// Destination and source refused the pages; they are in the slot.
    #[error("{0}; the pages stay in a staging slot")]
    Stuck(TranslationError),
}

/// # Safety
/// As for [`restore_pinned`], of `len` bytes.
unsafe fn put(
    slot: usize,
    at: usize,
    len: usize,
    userfault: &Userfault,
    write_protect: bool,
) -> Result<(), TranslationError> {
    // SAFETY: the caller's promise; the contents move with the pages.
    unsafe { remap(slot, len, at) }.map_err(|errno| TranslationError {
        operation: "restoring pinned pages",
        addr: at,
        len,
        errno,
    })?;
    userfault.register(at, len, true, write_protect)?;
    userfault.wake(at, len)
}
