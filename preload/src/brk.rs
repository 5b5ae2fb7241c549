//! `brk` and `sbrk`: the program break, continued in paged memory.
//!
//! The kernel's break stays where it was when the program started. The addresses above it are
//! reserved once and become a stretch; the emulated break moves within it.

use crate::address_space::{AddressSpace, RW};
use crate::raw_syscall::{SyscallResult, error, is_error, syscall3};
use crate::{address_space, mapped_bitmap, paged_memory};
use std::ops::Range;
use wired::PAGE;

/// Most bytes reserved above the kernel's break; halved until they fit.
const MAX_RESERVED: usize = 8 << 30;

/// Least bytes reserved.
const MIN_RESERVED: usize = 1 << 20;

/// The emulated break.
#[derive(Debug)]
pub struct ProgramBreak {
    start: usize,
    now: usize,
    room: Range<usize>,
    tried: bool,
}

impl ProgramBreak {
    /// No addresses are reserved yet.
    pub const fn new() -> Self {
        Self {
            start: 0,
            now: 0,
            room: 0..0,
            tried: false,
        }
    }
}

/// The system call `brk`: the new break, or the old one where it cannot be moved.
pub fn brk(to: usize) -> SyscallResult {
    if !address_space::is_active() {
        // SAFETY: the program asked for exactly this.
        return unsafe { syscall3(libc::SYS_brk, to, 0, 0) };
    }
    let space = &mut address_space::lock();
    prepare(space);
    if to < space.brk.start || to > space.brk.room.end {
        return space.brk.now as SyscallResult;
    }
    let up = |addr: usize| addr.next_multiple_of(PAGE).max(space.brk.room.start);
    let (old, new) = (up(space.brk.now), up(to));
    if new > old {
        if is_taken(space, &(old..new)) {
            return space.brk.now as SyscallResult;
        }
        if is_error(space.map_in_arena(&(old..new), RW)) {
            return space.brk.now as SyscallResult;
        }
    } else if new < old {
        // Rights that the program gave it, and what it has mapped there, end with it.
        if is_error(space.release_all(&(new..old))) {
            return space.brk.now as SyscallResult;
        }
    }
    space.brk.now = to;
    to as SyscallResult
}

/// Returns true if the program has mapped something above the break (MAP_FIXED).
fn is_taken(space: &AddressSpace, above: &Range<usize>) -> bool {
    !space.map.is_free(above)
}

/// The C library's `sbrk`: the break before, or an error.
pub fn sbrk(by: isize) -> SyscallResult {
    let old = brk(0) as usize;
    if by == 0 {
        return old as SyscallResult;
    }
    let Some(new) = old.checked_add_signed(by) else {
        return error(libc::ENOMEM);
    };
    // The C library takes any break at or above the one asked for as success.
    match brk(new) as usize >= new {
        true => old as SyscallResult,
        false => error(libc::ENOMEM),
    }
}

/// Reserves the addresses that the break may grow into, once.
fn prepare(space: &mut AddressSpace) {
    if space.brk.tried {
        return;
    }
    space.brk.tried = true;
    // SAFETY: a query without effect.
    let now = unsafe { syscall3(libc::SYS_brk, 0, 0, 0) } as usize;
    let first = now.next_multiple_of(PAGE);
    space.brk.start = now;
    space.brk.now = now;
    space.brk.room = first..first;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let mut size = MAX_RESERVED;
    while size >= MIN_RESERVED {
        let answer = address_space::map(first, size, RW, flags, -1, 0);
        if answer as usize == first {
            break;
        }
        if !is_error(answer) {
            address_space::unmap(&(answer as usize..answer as usize + size));
        }
        size /= 2;
    }
    let room = first..first + size;
    if size < MIN_RESERVED {
        return;
    }
    if paged_memory::adopt(&room).is_err() || mapped_bitmap::add(&room).is_err() {
        address_space::unmap(&room);
        return;
    }
    space.map.add_break(room.clone());
    space.brk.room = room;
}
