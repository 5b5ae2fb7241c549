//! Unmap without preserving contents: one range, or many with one TLB flush.
//!
//! One page costs 1.25 us, and 11.3 us where a second thread runs (the flush); 64 scattered pages
//! in one `process_madvise` 0.76 us each (`examples/translation_costs`). The kernel frees page
//! tables only for whole 2 MiB ranges: end with such a sweep.

use crate::capability::{Capabilities, Feature};
use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::io::Errno;

/// A range of memory, laid out as the kernel's `struct iovec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IoVec {
    /// First byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

/// Ranges that one call takes (`UIO_MAXIOV`).
const MAX_IOVECS: usize = 1024;

/// Drops the pages of the range. They are missing afterwards: registered memory faults, other
/// memory reads as zeros. Write protection and poison are dropped too.
///
/// # Safety
/// The contents are lost: no code may rely on them.
pub unsafe fn discard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let answer = unsafe { wired::syscall::madvise(addr, len, sys::MADV_DONTNEED as i32) };
    wired::syscall::checked(answer).map(|_| ())
}

/// Drops the pages of all ranges, with one TLB flush where the kernel can.
///
/// # Safety
/// As for [`discard`].
pub unsafe fn discard_batch(pieces: &[IoVec], capabilities: &Capabilities) -> Result<(), Errno> {
    let mut rest = pieces;
    if capabilities.has(Feature::BatchDiscard) {
        while rest.len() > 1 {
            let batch = &rest[..rest.len().min(MAX_IOVECS)];
            // SAFETY: the caller's promise.
            match unsafe { uapi::advise_self(batch, sys::MADV_DONTNEED) } {
                Ok(bytes) => {
                    let whole = whole_pieces(batch, bytes);
                    rest = &rest[whole..];
                    // The call did a part: the loop below returns the next range's error.
                    if whole < batch.len() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
    }
    // The fallback, which also returns a failing range's own error.
    // SAFETY: the caller's promise.
    rest.iter()
        .try_for_each(|piece| unsafe { discard(piece.addr, piece.len) })
}

/// The number of ranges that `bytes` cover wholly; discarding a range twice is harmless.
fn whole_pieces(pieces: &[IoVec], bytes: usize) -> usize {
    let mut left = bytes;
    pieces
        .iter()
        .take_while(|piece| {
            let fits = piece.len <= left;
            left = left.saturating_sub(piece.len);
            fits
        })
        .count()
}
