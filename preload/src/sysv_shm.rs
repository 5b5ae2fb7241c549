//! Segments of System V shared memory at addresses of an arena, which gives way to them. One that is attached where
//! the kernel chooses lies outside.

use crate::address_space::{self, AddressSpace, page_range};
use crate::map::map_foreign;
use crate::maps_file::for_each_mapping;
use crate::raw_syscall::{SyscallResult, error, is_error, syscall3};
use crate::vma_map::AddrRange;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use wired::PAGE;

/// As the kernel names a segment.
const NAME: &str = "/SYSV";

/// Parts of an attachment that are released at once.
const PARTS: usize = 16;

/// `shmat`.
pub fn shmat(id: c_int, addr: usize, flags: c_int) -> SyscallResult {
    let attach = |addr: usize, flags: c_int| {
        // SAFETY: the program asked for this, or for nothing where the kernel chooses.
        unsafe { syscall3(libc::SYS_shmat, id as usize, addr, flags as usize) }
    };
    let at = match flags & libc::SHM_RND {
        0 => addr,
        _ => addr & !(PAGE - 1),
    };
    let is_placed = address_space::is_active() && at != 0 && at.is_multiple_of(PAGE);
    let bytes = is_placed.then(|| segment_bytes(id)).flatten();
    let Some(to) = bytes.and_then(|len| page_range(at, len)) else {
        return attach(addr, flags);
    };
    let how = match flags & libc::SHM_REMAP {
        0 => libc::MAP_FIXED_NOREPLACE,
        _ => libc::MAP_FIXED,
    };
    let answer = map_foreign(&mut address_space::lock(), to, how, |addr, how| {
        let replaces = how & libc::MAP_FIXED != 0;
        let remap = if replaces { libc::SHM_REMAP } else { 0 };
        attach(addr, flags & !libc::SHM_REMAP | remap)
    });
    match answer == error(libc::EEXIST) {
        true => error(libc::EINVAL),
        false => answer,
    }
}

/// The size of a segment that this process may read.
fn segment_bytes(id: c_int) -> Option<usize> {
    let mut stat = MaybeUninit::<libc::shmid_ds>::zeroed();
    let to = stat.as_mut_ptr() as usize;
    // SAFETY: room for the answer.
    let answer = unsafe { syscall3(libc::SYS_shmctl, id as usize, libc::IPC_STAT as usize, to) };
    // SAFETY: zeros, or the answer.
    (!is_error(answer)).then(|| unsafe { stat.assume_init() }.shm_segsz)
}

/// `shmdt`. In an arena the addresses are free again, and not the kernel's to give.
pub fn shmdt(addr: usize) -> SyscallResult {
    // SAFETY: the program asked for exactly this.
    let detach = || unsafe { syscall3(libc::SYS_shmdt, addr, 0, 0) };
    if !address_space::is_active() {
        return detach();
    }
    let space = &mut address_space::lock();
    let mut is_released = false;
    while space.map.contains(addr) {
        let (parts, count) = attached_at(addr);
        if count == 0 {
            break;
        }
        for part in &parts[..count] {
            for piece in space.map.lookup(part) {
                space.release(&piece);
            }
        }
        is_released = true;
    }
    if is_released {
        return 0;
    }
    let answer = detach();
    if !is_error(answer) {
        release_hole(space, addr);
    }
    answer
}

/// Releases the addresses of an arena that the kernel has unmapped from `addr` on: where the list of mappings cannot be
/// read, it detached a segment there.
fn release_hole(space: &mut AddressSpace, addr: usize) {
    let is_hole = |space: &AddressSpace, page: usize| {
        let is_foreign = space.map.contains(page)
            && space.map.lookup(&(page..page + PAGE))[0].state.is_kernels();
        let mut there = 0u8;
        let to = &raw mut there as usize;
        // SAFETY: room for a page's byte.
        is_foreign && unsafe { syscall3(libc::SYS_mincore, page, PAGE, to) } == error(libc::ENOMEM)
    };
    let end = (addr..).step_by(PAGE).find(|page| !is_hole(space, *page));
    let hole = addr..end.unwrap_or(addr);
    if !hole.is_empty() {
        for piece in space.map.lookup(&hole) {
            space.fill_hole(&piece);
        }
    }
}

/// What is left of the first segment that was attached at an address: the first of its parts, and how many they are.
fn attached_at(addr: usize) -> ([AddrRange; PARTS], usize) {
    let mut parts = [const { 0..0 }; PARTS];
    let (mut count, mut inode) = (0, None);
    // Without a list none is found.
    let _ = for_each_mapping(|mapping| {
        let is_part = mapping.name.starts_with(NAME)
            && mapping.span.start.checked_sub(mapping.offset) == Some(addr)
            && inode.is_none_or(|inode| inode == mapping.inode);
        if is_part && count < PARTS {
            inode = Some(mapping.inode);
            parts[count] = mapping.span.clone();
            count += 1;
        }
    });
    (parts, count)
}
