//! Map: gives a missing page its contents (Self-Paging in Nemesis, section 6.3).
//!
//! Costs of a page, one / two running threads (`examples/translation_costs`): copy 1.0 / 1.0 us,
//! move 0.8 / 12.4 us (it must flush the TLB for the source). So single pages are copied and whole
//! runs are moved.
//!
//! Rule: mapping never overwrites. A page that is present yields [`MapError::Exists`] with the
//! bytes mapped before it.

use crate::register::{TranslationError, failed, range};
use crate::uapi;
use crate::userfault::Userfault;
use linux_raw_sys::general as sys;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// Whether the call wakes the threads that wait for the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Waiting threads resume at once.
    Yes,
    /// Waiting threads sleep until [`Userfault::wake`].
    No,
}

/// Why some pages were not mapped. `done` counts the bytes mapped before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The next page is present already (EEXIST).
    #[error("a page is mapped already after {done} bytes; nothing was overwritten")]
    Exists {
        /// Bytes mapped before it.
        done: usize,
    },
    /// The address space is changing (EAGAIN): request the rest again, but never spin on it in
    /// the thread that reads events.
    #[error("the address space is changing after {done} bytes; request the rest again")]
    Again {
        /// Bytes mapped before.
        done: usize,
    },
    /// The memory is no longer mapped or no longer registered (ENOENT, ESRCH).
    #[error("the memory is not mapped or not registered any more; release the page")]
    Gone,
    /// The next source page may not move (EBUSY): a device holds it for direct I/O, or it is
    /// shared with a child since a fork.
    #[error(
        "a page is pinned by a device or shared after fork, after {done} bytes; it stays where it is"
    )]
    Pinned {
        /// Bytes moved before it.
        done: usize,
    },
    /// The kernel has no memory (ENOMEM).
    #[error("the kernel has no memory for the page; evict pages first")]
    NoMemory,
    /// Any other error.
    #[error("the kernel refused: {0}")]
    Other(Errno),
}

impl Wake {
    /// The flag of an operation that wakes no threads.
    fn unless(self, quiet: u64) -> u64 {
        if self == Self::No { quiet } else { 0 }
    }
}

impl MapError {
    /// Bytes mapped before the failure, where the kernel reports them.
    pub fn done(&self) -> usize {
        match *self {
            Self::Exists { done } | Self::Again { done } | Self::Pinned { done } => done,
            Self::Gone | Self::NoMemory | Self::Other(_) => 0,
        }
    }
}

impl Userfault {
    /// Maps the shared zero page. A later store takes a frame without a fault that reaches this
    /// descriptor, so the caller charges the frame now.
    pub fn zero(&self, addr: usize, len: usize, wake: Wake) -> Result<(), MapError> {
        let mode = wake.unless(sys::UFFDIO_ZEROPAGE_MODE_DONTWAKE.into());
        all(len, |done| {
            let mut argument = uapi::uffdio_zeropage {
                range: range(addr + done, len - done),
                mode,
                zeropage: 0,
            };
            // SAFETY: fills missing pages of registered memory only.
            let result =
                unsafe { uapi::call::<{ uapi::ZEROPAGE }, _>(self.as_fd(), &mut argument) };
            (result, argument.zeropage)
        })
    }

    /// Maps pages with a copy of `len` bytes from `src`. The source need not be aligned and must
    /// not be memory whose faults the calling thread serves.
    pub fn copy(&self, dst: usize, src: *const u8, len: usize, wake: Wake) -> Result<(), MapError> {
        let quiet = wake.unless(sys::UFFDIO_COPY_MODE_DONTWAKE.into());
        self.copy_mode(dst, src, len, quiet)
    }

    /// As [`Userfault::copy`], with the pages write-protected from the start: the first
    /// store to each faults. The memory must be registered for write protection.
    pub fn copy_protected(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
        wake: Wake,
    ) -> Result<(), MapError> {
        let quiet = wake.unless(sys::UFFDIO_COPY_MODE_DONTWAKE.into());
        self.copy_mode(dst, src, len, quiet | u64::from(sys::UFFDIO_COPY_MODE_WP))
    }

    fn copy_mode(&self, dst: usize, src: *const u8, len: usize, mode: u64) -> Result<(), MapError> {
        all(len, |done| {
            let mut argument = uapi::uffdio_copy {
                dst: (dst + done) as u64,
                src: (src as usize + done) as u64,
                len: (len - done) as u64,
                mode,
                copy: 0,
            };
            // SAFETY: fills missing pages of registered memory only; an unreadable source yields
            // EFAULT.
            let result = unsafe { uapi::call::<{ uapi::COPY }, _>(self.as_fd(), &mut argument) };
            (result, argument.copy)
        })
    }

    /// Moves whole pages from `src` to the missing pages at `dst`, both private anonymous
    /// memory with the same rights, the destination registered here. Every source page
    /// must be present.
    ///
    /// # Safety
    /// The source loses its contents: no code may rely on them there.
    pub unsafe fn move_pages(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        wake: Wake,
    ) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        unsafe { self.move_mode(dst, src, len, wake.unless(uapi::MOVE_MODE_DONTWAKE)) }
    }

    /// As [`Userfault::move_pages`], where source pages may be missing: they are skipped
    /// and count as done.
    ///
    /// # Safety
    /// As for [`Userfault::move_pages`].
    pub unsafe fn move_present(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        wake: Wake,
    ) -> Result<(), MapError> {
        let quiet = wake.unless(uapi::MOVE_MODE_DONTWAKE);
        // SAFETY: the caller's promise.
        unsafe { self.move_mode(dst, src, len, quiet | uapi::MOVE_MODE_ALLOW_SRC_HOLES) }
    }

    unsafe fn move_mode(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        mode: u64,
    ) -> Result<(), MapError> {
        if !self.capabilities().has(crate::Feature::Move) {
            return Err(MapError::Other(Errno::OPNOTSUPP));
        }
        all(len, |done| {
            let mut argument = uapi::uffdio_move {
                dst: (dst + done) as u64,
                src: (src + done) as u64,
                len: (len - done) as u64,
                mode,
                move_: 0,
            };
            // SAFETY: the caller gives up the source; the destination is missing pages of
            // registered memory.
            let result = unsafe { uapi::call::<{ uapi::MOVE }, _>(self.as_fd(), &mut argument) };
            (result, argument.move_)
        })
    }

    /// Wakes the threads that wait for pages in the range; they fault again.
    pub fn wake(&self, addr: usize, len: usize) -> Result<(), TranslationError> {
        let mut argument = range(addr, len);
        // SAFETY: wakes threads; touches no memory.
        unsafe { uapi::call::<{ uapi::WAKE }, _>(self.as_fd(), &mut argument) }
            .map(drop)
            .map_err(failed("waking waiters", addr, len))
    }
}

/// Repeats `step` (from an offset on) until all of `len` is done or the kernel returns an error.
/// After a part the kernel returns EAGAIN with the bytes done, and the reason only when the rest is
/// requested.
pub(crate) fn all(
    len: usize,
    mut step: impl FnMut(usize) -> (Result<usize, Errno>, i64),
) -> Result<(), MapError> {
    let mut done = 0;
    loop {
        let (result, bytes) = step(done);
        match result {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN) if bytes > 0 && done + (bytes as usize) < len => {
                done += bytes as usize
            }
            Err(errno) => return Err(classify(errno, done)),
        }
    }
}

fn classify(errno: Errno, done: usize) -> MapError {
    match errno {
        Errno::EXIST => MapError::Exists { done },
        Errno::AGAIN => MapError::Again { done },
        Errno::BUSY => MapError::Pinned { done },
        // The other reasons do not say how many pages are there. A caller that repeated the whole range would find them occupied, so
        // it requests the rest, and gets the reason then.
        _ if done > 0 => MapError::Again { done },
        Errno::NOENT | Errno::SRCH => MapError::Gone,
        Errno::NOMEM => MapError::NoMemory,
        other => MapError::Other(other),
    }
}
