//! `remap_file_pages`: other pages of a shared mapping's object at its addresses.
//!
//! To the kernel the call is a mapping anew, which the userfaultfd of shared memory does not know: pages that were
//! evicted would read as zeros. So it is made on a second mapping, which is known by the time that it takes
//! the place of the first. Shared mappings of files take the same way, which changes nothing for them.

use crate::address_space::{self, ADDRESSES, page_range};
use crate::maps_file::for_each_mapping;
use crate::mremap;
use crate::raw_syscall::{SyscallResult, error, is_error, syscall6};
use crate::shared_memory;
use crate::vma_map::AddrRange;
use std::ffi::c_int;
use wired::PAGE;

/// `remap_file_pages`.
pub fn remap_file_pages(
    start: usize,
    len: usize,
    prot: c_int,
    page: usize,
    flags: c_int,
) -> SyscallResult {
    let at = |start: usize, flags: c_int| {
        let args = [start, len, prot as usize, page, flags as usize, 0];
        // SAFETY: the program asked for exactly this, at its own mapping or a second one of the same.
        unsafe { syscall6(libc::SYS_remap_file_pages, args) }
    };
    if !address_space::is_active() {
        return at(start, flags);
    }
    // The kernel rounds both down.
    let (first, whole) = (start / PAGE * PAGE, len / PAGE * PAGE);
    let span = page_range(first, whole).filter(|span| !span.is_empty());
    let Some(span) = span else {
        return at(start, flags);
    };
    let space = address_space::lock();
    if !mremap::is_kernels(&space, &span) {
        return error(libc::EINVAL);
    }
    if !shared_memory::is_used() {
        return at(start, flags);
    }
    match is_of_one_object(&span) {
        Ok(true) => {}
        Ok(false) => return at(start, flags),
        // On the first mapping pages would be lost.
        Err(_) => return error(libc::ENOMEM),
    }
    let second = remap(first, 0, whole, libc::MREMAP_MAYMOVE, 0);
    if [libc::EINVAL, libc::EFAULT].map(error).contains(&second) {
        // Not shared, or not mapped: the kernel's own answer.
        return at(start, flags);
    }
    if is_error(second) {
        return second;
    }
    let second = second as usize;
    shared_memory::on_remapped(first, 0, whole, false, second);
    // Not populated: that would be before its faults are known.
    let answer = at(second, flags | libc::MAP_NONBLOCK);
    if is_error(answer) {
        address_space::unmap(&(second..second + whole));
        return answer;
    }
    shared_memory::refuse_huge_pages(&(second..second + whole));
    shared_memory::on_pages_remapped(first, page, &(second..second + whole));
    let place = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    match remap(second, whole, whole, place, first) {
        moved if is_error(moved) => moved,
        _ => 0,
    }
}

/// Returns true if shared mappings of one object cover the range. Else the kernel refuses the call, which on a second mapping,
/// as long as it is asked for, it would not. A range within one mapping needs no descriptor for the list of mappings: an `mremap`
/// past the end of all addresses, which fails, answers EFAULT only where the old range leaves its mapping.
///
/// # Errors
/// Where the kernel's list of mappings cannot be read.
fn is_of_one_object(span: &AddrRange) -> rustix::io::Result<bool> {
    if remap(span.start, span.len(), ADDRESSES, 0, 0) != error(libc::EFAULT) {
        return Ok(true);
    }
    let (mut covered, mut object, mut is_one) = (span.start, None, true);
    for_each_mapping(|mapping| {
        if mapping.span.end <= span.start || mapping.span.start >= span.end {
            return;
        }
        let its = (mapping.device, mapping.inode);
        is_one &= mapping.span.start <= covered
            && mapping.access.ends_with('s')
            && *object.get_or_insert(its) == its;
        covered = mapping.span.end;
    })?;
    Ok(is_one && covered >= span.end)
}

fn remap(from: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> SyscallResult {
    let args = [from, len, new_len, flags as usize, to, 0];
    // SAFETY: makes a second mapping, or moves it to where the program wants its pages.
    unsafe { syscall6(libc::SYS_mremap, args) }
}
