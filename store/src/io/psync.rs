//! I/O by plain system calls.

use super::IoVec;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};

/// Transfers the pieces and returns the result.
///
/// # Safety
/// The pieces' memory is valid, and no other thread uses it.
pub unsafe fn transfer(fd: BorrowedFd<'_>, write: bool, pieces: &mut [IoVec], offset: u64) -> i32 {
    let (start, count) = (pieces.as_mut_ptr(), pieces.len());
    let result = loop {
        let result = if write {
            // SAFETY: IoSlice has the layout of iovec, as IoVec has; the memory is valid by the
            // caller's promise.
            let slices = unsafe { std::slice::from_raw_parts(start.cast::<IoSlice<'_>>(), count) };
            rustix::io::pwritev(fd, slices, offset)
        } else {
            // SAFETY: as above.
            let slices =
                unsafe { std::slice::from_raw_parts_mut(start.cast::<IoSliceMut<'_>>(), count) };
            rustix::io::preadv(fd, slices, offset)
        };
        if result != Err(Errno::INTR) {
            break result;
        }
    };
    match result {
        Ok(bytes) => bytes as i32,
        Err(errno) => -errno.raw_os_error(),
    }
}
