//! `mseal`, of Linux 6.10.

use crate::address_space::{self, page_range};
use crate::raw_syscall::{SyscallResult, error, syscall3};

/// `mseal`: paged memory gets ENOSYS, as before Linux 6.10, since pages of a sealed mapping could not be evicted.
pub fn mseal(addr: usize, len: usize, flags: usize) -> SyscallResult {
    let is_paged = page_range(addr, len)
        .filter(|_| address_space::is_active())
        .is_some_and(|target| address_space::lock().map.touches(&target));
    if is_paged {
        return error(libc::ENOSYS);
    }
    // SAFETY: the program asked for exactly this.
    unsafe { syscall3(libc::SYS_mseal, addr, len, flags) }
}
