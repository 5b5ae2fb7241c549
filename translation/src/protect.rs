//! Protection: of pages against stores (userfaultfd), of ranges by access rights (mprotect).
//!
//! Nemesis changes a right in 0.4 us by protection domain (table 1); here `mprotect`
//! takes 2.6 us a page and write-protecting by userfaultfd 0.65 us, 12.4 us where a
//! second thread runs (`examples/translation_costs`).

use crate::register::TranslationError;
use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::mm::{MprotectFlags, mprotect};

/// Allowed kinds of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Loads.
    pub read: bool,
    /// Stores. Linux implies loads.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

impl Access {
    /// Nothing.
    pub const NONE: Self = Self {
        read: false,
        write: false,
        execute: false,
    };
    /// Loads only.
    pub const READ: Self = Self {
        read: true,
        write: false,
        execute: false,
    };
    /// Loads and stores.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
        execute: false,
    };

    pub(crate) fn flags(self) -> MprotectFlags {
        let mut flags = MprotectFlags::empty();
        flags.set(MprotectFlags::READ, self.read);
        flags.set(MprotectFlags::WRITE, self.write);
        flags.set(MprotectFlags::EXEC, self.execute);
        flags
    }
}

/// Sets the access rights of whole pages. A range inside a mapping splits it.
///
/// # Safety
/// No code may hold references that the new rights would break.
pub unsafe fn set_access(addr: usize, len: usize, access: Access) -> Result<(), TranslationError> {
    // SAFETY: the caller's promise.
    unsafe {
        mprotect(
            std::ptr::with_exposed_provenance_mut(addr),
            len,
            access.flags(),
        )
    }
    .map_err(|errno| TranslationError {
        operation: "setting access rights",
        addr,
        len,
        errno,
    })
}

/// Makes whole pages readable and writable for every thread and removes their protection key:
/// `mprotect` alone leaves the key, and a thread that did not inherit its rights from the program
/// has none to it.
///
/// # Safety
/// No code may rely on the pages' former rights.
pub unsafe fn open_access(addr: usize, len: usize) -> Result<(), TranslationError> {
    let flags = Access::READ_WRITE.flags().bits() as usize;
    // SAFETY: the caller's promise; every thread has the rights of key 0.
    let opened = unsafe { uapi::syscall(sys::__NR_pkey_mprotect, [addr, len, flags, 0, 0, 0]) };
    match opened {
        Ok(_) => Ok(()),
        // The processor or the kernel has no keys: there is none to remove.
        // SAFETY: the caller's promise.
        Err(_) => unsafe { set_access(addr, len, Access::READ_WRITE) },
    }
}
