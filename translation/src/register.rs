//! Registered memory: whose faults a descriptor receives, which stores fault, and pages whose
//! contents are lost.
//!
//! When a store fails or returns other bytes than were written, the program gets the error at the
//! access that needs the page: SIGBUS in user mode, an error from a system call. So the page is
//! poisoned: an access fails and never reads something else.

use crate::capability::Feature;
use crate::uapi;
use crate::unmap::discard;
use crate::userfault::Userfault;
use linux_raw_sys::general as sys;
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::ffi::c_void;

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

/// How the range was poisoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoisonMethod {
    /// `UFFDIO_POISON`: markers in the page table; the mapping and its registration stay.
    Marked,
    /// A mapping of an empty file instead: the registration of these pages is gone and
    /// the mapping is split, until [`Userfault::unpoison`].
    Replaced,
}

/// An address that programs do not map, above `vm.mmap_min_addr`: below it the kernel refuses a
/// range before it looks at the address space.
pub(crate) const UNMAPPED: usize = 1 << 20;

/// Returns true while a process has the address space of a userfaultfd.
pub(crate) fn is_memory_in_use(userfaultfd: impl AsFd) -> bool {
    // Write protection looks the address space up before the range, on every kernel.
    let mut protect = uapi::uffdio_writeprotect {
        range: range(UNMAPPED, wired::PAGE),
        mode: 0,
    };
    // SAFETY: the range is not mapped, so nothing changes.
    let outcome =
        unsafe { uapi::call::<{ uapi::WRITEPROTECT }, _>(userfaultfd.as_fd(), &mut protect) };
    outcome != Err(Errno::SRCH)
}

/// The error of an operation.
pub(crate) fn failed(
    operation: &'static str,
    addr: usize,
    len: usize,
) -> impl Fn(Errno) -> TranslationError {
    move |errno| TranslationError {
        operation,
        addr,
        len,
        errno,
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
            .map_err(failed("registering", addr, len))
    }

    /// Ends the registration and wakes waiting threads. Missing pages read as zeros afterwards.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<(), TranslationError> {
        let mut argument = range(addr, len);
        // SAFETY: the argument of UFFDIO_UNREGISTER; contents stay as they are.
        unsafe { uapi::call::<{ uapi::UNREGISTER }, _>(self.as_fd(), &mut argument) }
            .map(drop)
            .map_err(failed("unregistering", addr, len))
    }

    /// Makes stores to the present pages of the range fault (`on`), or permits them again and wakes
    /// the waiting threads. The range must be registered for write protection.
    pub fn write_protect(&self, addr: usize, len: usize, on: bool) -> Result<(), TranslationError> {
        let mut argument = uapi::uffdio_writeprotect {
            range: range(addr, len),
            mode: if on { uapi::WRITEPROTECT_MODE_WP } else { 0 },
        };
        // SAFETY: affects registered memory only and no contents.
        unsafe { uapi::call::<{ uapi::WRITEPROTECT }, _>(self.as_fd(), &mut argument) }
            .map(drop)
            .map_err(failed("write-protecting", addr, len))
    }

    /// Makes accesses to the missing pages of the range fail: SIGBUS in user mode, an error
    /// (EFAULT, EHWPOISON) from system calls. Wakes waiting threads, which then fail.
    ///
    /// # Safety
    /// The pages are missing ones of memory that is registered here: the fallback replaces whatever
    /// is mapped.
    pub unsafe fn poison(&self, addr: usize, len: usize) -> Result<PoisonMethod, TranslationError> {
        let failed = failed("poisoning", addr, len);
        if self.capabilities().has(Feature::Poison) {
            let mut argument = uapi::uffdio_poison {
                range: range(addr, len),
                mode: 0,
                updated: 0,
            };
            // SAFETY: marks missing pages of registered memory only.
            unsafe { uapi::call::<{ uapi::POISON }, _>(self.as_fd(), &mut argument) }
                .map_err(failed)?;
            return Ok(PoisonMethod::Marked);
        }
        // SAFETY: the caller's promise.
        unsafe { replace_by_empty_file(addr, len) }.map_err(failed)?;
        self.wake(addr, len)?;
        Ok(PoisonMethod::Replaced)
    }

    /// Returns true if a process still uses the memory of a descriptor whose pager has ended.
    pub fn is_orphan_in_use(&self) -> bool {
        is_memory_in_use(self)
    }

    /// Removes the poison: the pages are missing again, registered for missing pages and, with
    /// `write_protect`, for write protection.
    ///
    /// # Safety
    /// The range must have been poisoned by `method`.
    pub unsafe fn unpoison(
        &self,
        addr: usize,
        len: usize,
        method: PoisonMethod,
        write_protect: bool,
    ) -> Result<(), TranslationError> {
        let failed = failed("removing poison", addr, len);
        match method {
            // SAFETY: the pages have no contents.
            PoisonMethod::Marked => unsafe { discard(addr, len) }.map_err(failed),
            PoisonMethod::Replaced => {
                // SAFETY: the mapping there is the fallback's own.
                unsafe {
                    mmap_anonymous(
                        std::ptr::with_exposed_provenance_mut(addr),
                        len,
                        ProtFlags::READ | ProtFlags::WRITE,
                        MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                    )
                }
                .map_err(failed)?;
                self.register(addr, len, true, write_protect)
            }
        }
    }
}

/// Every page of the mapping lies past the end of its file: SIGBUS at access.
///
/// # Safety
/// No code uses what is mapped there.
unsafe fn replace_by_empty_file(addr: usize, len: usize) -> Result<*mut c_void, Errno> {
    let empty = memfd_create(c"selfpage-lost", MemfdFlags::CLOEXEC)?;
    // SAFETY: the caller's promise.
    unsafe {
        mmap(
            std::ptr::with_exposed_provenance_mut(addr),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
            &empty,
            0,
        )
    }
}

pub(crate) fn range(addr: usize, len: usize) -> uapi::uffdio_range {
    uapi::uffdio_range {
        start: addr as u64,
        len: len as u64,
    }
}
