//! Registration: which memory's faults a descriptor receives.

use crate::uapi;
use crate::userfault::Userfault;
use linux_raw_sys::general as sys;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// An operation on registered memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} of {len} bytes at {addr:#x}: {errno}; {}", hint(*errno))]
pub struct TranslationError {
    /// The operation.
    pub operation: &'static str,
    /// First byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// The kernel's error.
    pub errno: Errno,
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::INVAL => "the range must be whole pages, mapped, and of a kind userfaultfd takes",
        Errno::BUSY => "the range belongs to another userfaultfd; unregister it there first",
        Errno::NOENT => "the range is not registered here, or nothing is mapped there",
        Errno::NOMEM => "too many mappings (vm.max_map_count), or memory is short",
        Errno::PERM => "the mapping is a file's or may not be written",
        Errno::AGAIN => "the address space is changing; try again",
        _ => "see `selfpage doctor`",
    }
}

impl Userfault {
    /// Registers the whole pages in `addr..addr + len`: the descriptor receives accesses to pages
    /// that are `missing`, stores to pages under `write_protect`, or both. Registering again adds
    /// nothing and merges mappings that were split.
    pub fn register(
        &self,
        addr: usize,
        len: usize,
        missing: bool,
        write_protect: bool,
    ) -> Result<(), TranslationError> {
        let mut mode = 0;
        if missing {
            mode |= u64::from(sys::UFFDIO_REGISTER_MODE_MISSING);
        }
        if write_protect {
            mode |= u64::from(sys::UFFDIO_REGISTER_MODE_WP);
        }
        let mut argument = uapi::uffdio_register {
            range: range(addr, len),
            mode,
            ioctls: 0,
        };
        // SAFETY: the argument of UFFDIO_REGISTER; contents stay as they are.
        unsafe { uapi::call::<{ uapi::REGISTER }, _>(self.as_fd(), &mut argument) }
            .map(drop)
            .map_err(|errno| TranslationError {
                operation: "registering",
                addr,
                len,
                errno,
            })
    }

    /// Ends the registration and wakes waiting threads. Missing pages read as zeros afterwards.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<(), TranslationError> {
        let mut argument = range(addr, len);
        // SAFETY: the argument of UFFDIO_UNREGISTER; contents stay as they are.
        unsafe { uapi::call::<{ uapi::UNREGISTER }, _>(self.as_fd(), &mut argument) }
            .map(drop)
            .map_err(|errno| TranslationError {
                operation: "unregistering",
                addr,
                len,
                errno,
            })
    }
}

pub(crate) fn range(addr: usize, len: usize) -> uapi::uffdio_range {
    uapi::uffdio_range {
        start: addr as u64,
        len: len as u64,
    }
}
