//! Memory protection keys: rights per thread, changed without a system call.
//!
//! A protection domain of Nemesis (section 6.1) is a set of rights per stretch that a thread can
//! exchange for another at little cost. Where the processor has protection keys, a stretch carries
//! a key and each thread a register of rights, so the rights hold per thread. They restrain data
//! access only, never instruction fetch, and a thread can give itself any right: discipline, not
//! enforcement, against hostile code.

use crate::protect::Access;
use crate::register::TranslationError;
use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::io::Errno;

/// What the calling thread may do with memory of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRights {
    /// Loads and stores.
    ReadWrite,
    /// Loads.
    Read,
    /// Neither.
    None,
}

impl KeyRights {
    const fn bits(self) -> u32 {
        match self {
            Self::ReadWrite => 0,
            Self::Read => 2,
            Self::None => 1,
        }
    }
}

/// A key of this process, of 15 at most. Freed on drop; memory that still carries it keeps it, so
/// change that first.
#[derive(Debug)]
pub struct ProtectionKey(u32);

impl ProtectionKey {
    /// Allocates a key. ENOSPC: all are taken, or the processor has none; EINVAL or ENOSYS: the
    /// kernel has none.
    pub fn new(rights: KeyRights) -> Result<Self, Errno> {
        // SAFETY: changes only the calling thread's rights to a key that no memory carries yet.
        let key = unsafe {
            uapi::syscall(
                sys::__NR_pkey_alloc,
                [0, rights.bits() as usize, 0, 0, 0, 0],
            )
        }?;
        Ok(Self(key as u32))
    }

    /// The key's number.
    pub fn number(&self) -> u32 {
        self.0
    }

    /// Assigns the key to whole pages, with `access` as the most it may grant.
    ///
    /// # Safety
    /// As for [`crate::set_access`].
    pub unsafe fn protect(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<(), TranslationError> {
        let flags = access.flags().bits() as usize;
        // SAFETY: the caller's promise.
        unsafe {
            uapi::syscall(
                sys::__NR_pkey_mprotect,
                [addr, len, flags, self.0 as usize, 0, 0],
            )
        }
        .map(drop)
        .map_err(|errno| TranslationError {
            operation: "setting the protection key",
            addr,
            len,
            errno,
        })
    }

    /// Sets the calling thread's rights by writing its register.
    ///
    /// # Safety
    /// As for [`crate::set_access`], for this thread.
    pub unsafe fn set_rights(&self, rights: KeyRights) {
        let shift = 2 * self.0;
        let value = (register::read() & !(3 << shift)) | (rights.bits() << shift);
        // SAFETY: `self` proves that the processor has keys; the rest is the caller's promise.
        unsafe { register::write(value) }
    }

    /// The calling thread's rights.
    pub fn rights(&self) -> KeyRights {
        match (register::read() >> (2 * self.0)) & 3 {
            0 => KeyRights::ReadWrite,
            2 => KeyRights::Read,
            _ => KeyRights::None,
        }
    }
}

impl Drop for ProtectionKey {
    fn drop(&mut self) {
        // SAFETY: frees the number; memory is not touched.
        let _ = unsafe { uapi::syscall(sys::__NR_pkey_free, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// The PKRU register. Only reached through a [`ProtectionKey`], which exists only where the
/// processor and the kernel have keys: elsewhere the instructions are illegal.
mod register {
    pub(super) fn read() -> u32 {
        let value: u32;
        // SAFETY: RDPKRU with ecx = 0, on a processor that has it.
        unsafe {
            std::arch::asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nostack, nomem));
        }
        value
    }

    /// # Safety
    /// Memory the compiler may access must stay accessible.
    pub(super) unsafe fn write(value: u32) {
        // SAFETY: WRPKRU with ecx = edx = 0. Not `nomem`: accesses must not move across.
        unsafe {
            std::arch::asm!("wrpkru", in("eax") value, in("ecx") 0, in("edx") 0, options(nostack));
        }
    }
}
