//! I/O by plain system calls: an operation completes within the call that begins it.

use super::{IoBackend, IoVec};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};

/// The swap file's descriptor, which the store keeps open while channels use it.
pub(crate) struct Psync(RawFd);

impl Psync {
    pub fn new(fd: BorrowedFd<'_>) -> Self {
        Self(fd.as_raw_fd())
    }
}

impl IoBackend for Psync {
    unsafe fn begin(
        &mut self,
        _: usize,
        write: bool,
        pieces: &mut [IoVec],
        offset: u64,
    ) -> Option<i32> {
        // SAFETY: the store keeps it open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0) };
        let (start, count) = (pieces.as_mut_ptr(), pieces.len());
        let result = loop {
            let result = if write {
                // SAFETY: IoSlice has the layout of iovec, as IoVec has; the memory is valid by the
                // caller's promise.
                let slices =
                    unsafe { std::slice::from_raw_parts(start.cast::<IoSlice<'_>>(), count) };
                rustix::io::pwritev(fd, slices, offset)
            } else {
                // SAFETY: as above.
                let slices = unsafe {
                    std::slice::from_raw_parts_mut(start.cast::<IoSliceMut<'_>>(), count)
                };
                rustix::io::preadv(fd, slices, offset)
            };
            if result != Err(Errno::INTR) {
                break result;
            }
        };
        Some(match result {
            Ok(bytes) => bytes as i32,
            Err(errno) => -errno.raw_os_error(),
        })
    }

    fn submit(&mut self) {}

    fn reap(&mut self, _: bool) -> Option<(usize, i32)> {
        None
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nothing: the descriptor is the store's.
    fn close(&mut self) {}
}
