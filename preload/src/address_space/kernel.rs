//! The kernel's own calls that change mappings, and the ranges that it takes.

use crate::paged_memory;
use crate::raw_syscall::{SyscallResult, is_error, syscall3, syscall6};
use crate::vma_map::AddrRange;
use std::ffi::c_int;
use wired::PAGE;

/// The kernel's madvise.
pub fn advise(span: &AddrRange, advice: c_int) -> SyscallResult {
    // SAFETY: the caller's advice changes no contents that are in use.
    unsafe { wired::syscall::madvise(span.start, span.len(), advice) }
}

/// The kernel's mprotect.
pub fn protect(span: &AddrRange, prot: c_int) -> SyscallResult {
    // SAFETY: the caller changes the access of memory it was asked to change.
    unsafe { syscall3(libc::SYS_mprotect, span.start, span.len(), prot as usize) }
}

/// The kernel's mprotect over paged memory. The evictor learns of it first: it reads what it
/// takes right after this.
pub fn protect_paged(span: &AddrRange, prot: c_int) -> SyscallResult {
    paged_memory::access_changed(span);
    protect(span, prot)
}

/// The kernel's munmap.
pub fn unmap(span: &AddrRange) -> SyscallResult {
    // SAFETY: the program asked for exactly this.
    unsafe { syscall3(libc::SYS_munmap, span.start, span.len(), 0) }
}

/// The kernel's mmap.
pub fn map(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> SyscallResult {
    let args = [
        addr,
        len,
        prot as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ];
    // SAFETY: the program asked for exactly this.
    unsafe { syscall6(libc::SYS_mmap, args) }
}

/// Makes a range without access a mapping of its own. Where the kernel has no mapping left, the error is returned, and the range
/// has the access `prot` as before.
pub fn split_off(span: &AddrRange, prot: c_int) -> SyscallResult {
    let answer = protect_paged(span, libc::PROT_NONE);
    if is_error(answer) {
        // The kernel may have changed a part.
        protect_paged(span, prot);
    }
    answer
}

/// Where a program's addresses end, with four levels of page tables (TASK_SIZE).
pub const ADDRESSES: usize = (1 << 47) - PAGE;

/// Returns true for what the kernel refuses as a whole: it ends where a program has no addresses.
pub fn is_beyond_addresses(span: &AddrRange) -> bool {
    span.end > ADDRESSES
}

/// `addr` and `len` as a span of whole pages; `None` where it does not fit.
pub fn page_range(addr: usize, len: usize) -> Option<AddrRange> {
    let end = addr.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    Some(addr..end)
}
