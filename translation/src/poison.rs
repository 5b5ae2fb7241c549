//! Pages whose contents are lost: an access fails and never reads something else.
//!
//! When a store fails or returns other bytes than were written, the program gets the error at the
//! access that needs the page: SIGBUS in user mode, an error from a system call.

use crate::capability::Feature;
use crate::register::{TranslationError, range};
use crate::uapi;
use crate::unmap::discard;
use crate::userfault::Userfault;
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::ffi::c_void;

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
const PROBED: usize = 1 << 20;

impl Userfault {
    /// Makes accesses to the missing pages of the range fail: SIGBUS in user mode, an error
    /// (EFAULT, EHWPOISON) from system calls. Wakes waiting threads, which then fail. The fallback
    /// replaces the mapping and loses present pages too: pass missing pages only.
    pub fn poison(&self, addr: usize, len: usize) -> Result<PoisonMethod, TranslationError> {
        let failed = |errno| TranslationError {
            operation: "poisoning",
            addr,
            len,
            errno,
        };
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
        replace_by_empty_file(addr, len).map_err(failed)?;
        self.wake(addr, len)?;
        Ok(PoisonMethod::Replaced)
    }

    /// Returns true if a process still uses the memory of a descriptor whose pager has ended: the
    /// next access to a missing page of [`PROBED`] fails then, too.
    pub fn is_orphan_in_use(&self) -> bool {
        let mut argument = uapi::uffdio_poison {
            range: range(PROBED, wired::PAGE),
            mode: 0,
            updated: 0,
        };
        // SAFETY: marks at most a missing page of registered memory, which nothing can bring.
        let outcome = unsafe { uapi::call::<{ uapi::POISON }, _>(self.as_fd(), &mut argument) };
        // An address space without a user gets ESRCH.
        outcome != Err(Errno::SRCH)
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
        let failed = |errno| TranslationError {
            operation: "removing poison",
            addr,
            len,
            errno,
        };
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
fn replace_by_empty_file(addr: usize, len: usize) -> Result<*mut c_void, Errno> {
    let empty = memfd_create(c"selfpage-lost", MemfdFlags::CLOEXEC)?;
    // SAFETY: the caller of `poison` passes missing pages, so replacing them loses nothing.
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
