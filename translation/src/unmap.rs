//! Unmap without keeping contents: one range, or many with one TLB flush.
//!
//! One page costs 1.25 us, and 11.3 us where a second thread runs (the flush); 64
//! scattered pages in one `process_madvise` 0.76 us each (`examples/translation_costs`). Page tables are only
//! freed for whole 2 MiB ranges: end with such a sweep.

use crate::capability::{Capabilities, Feature};
use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

/// A range of memory, laid out as the kernel's `struct iovec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IoVec {
    /// First byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

/// Pieces one call takes (`UIO_MAXIOV`).
const MAX_IOVECS: usize = 1024;

/// Drops the pages of the range. They are missing afterwards: registered memory faults,
/// other memory reads as zeros. Write protection and poison go too.
///
/// # Safety
/// The contents are lost: nobody may rely on them.
pub unsafe fn discard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(addr),
            len,
            Advice::LinuxDontNeed,
        )
    }
}

/// Drops the pages of all pieces, with one TLB flush where the kernel can.
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
                    // A part was done: its next piece gives the error below.
                    if whole < batch.len() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
    }
    // The fallback, and the way to a failing piece's own error.
    // SAFETY: the caller's promise.
    rest.iter()
        .try_for_each(|piece| unsafe { discard(piece.addr, piece.len) })
}

/// How many pieces `bytes` cover wholly; discarding a piece twice is harmless.
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
