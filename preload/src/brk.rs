//! `brk` and `sbrk`: the program break, continued in paged memory.
//!
//! The kernel's break stays where it was when the program started. The addresses above it are
//! reserved once and become a stretch; the emulated break moves within it.

use crate::mappings::Traits;
use crate::raw::{self, Answer, error};
use crate::space::{self, RW, Space};
use crate::{allocated, pager};
use std::ops::Range;
use wired::PAGE;

/// Most bytes reserved above the kernel's break; halved until they fit.
const ROOM: usize = 8 << 30;

/// Least bytes reserved.
const LEAST: usize = 1 << 20;

/// The emulated break.
#[derive(Debug)]
pub struct Break {
    start: usize,
    now: usize,
    room: Range<usize>,
    tried: bool,
}

impl Break {
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
pub fn brk(to: usize) -> Answer {
    if !space::active() {
        // SAFETY: the program asked for exactly this.
        return unsafe { raw::call3(libc::SYS_brk, to, 0, 0) };
    }
    let space = &mut space::hold();
    prepare(space);
    if to < space.brk.start || to > space.brk.room.end {
        return space.brk.now as Answer;
    }
    let up = |addr: usize| addr.next_multiple_of(PAGE).max(space.brk.room.start);
    let (old, new) = (up(space.brk.now), up(to));
    if new > old {
        space.open(&(old..new), RW);
    } else if new < old {
        let gone = new..old;
        allocated::mark(&gone, false);
        pager::discard(&gone);
    }
    space.brk.now = to;
    to as Answer
}

/// The C library's `sbrk`: the break before, or an error.
pub fn sbrk(by: isize) -> Answer {
    let old = brk(0) as usize;
    if by == 0 {
        return old as Answer;
    }
    let Some(new) = old.checked_add_signed(by) else {
        return error(libc::ENOMEM);
    };
    match brk(new) as usize == new {
        true => old as Answer,
        false => error(libc::ENOMEM),
    }
}

/// Reserves the addresses that the break may grow into, once.
fn prepare(space: &mut Space) {
    if space.brk.tried {
        return;
    }
    space.brk.tried = true;
    // SAFETY: a query without effect.
    let now = unsafe { raw::call3(libc::SYS_brk, 0, 0, 0) } as usize;
    let first = now.next_multiple_of(PAGE);
    space.brk.start = now;
    space.brk.now = now;
    space.brk.room = first..first;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let mut size = ROOM;
    while size >= LEAST {
        let answer = space::map(first, size, RW, flags, -1, 0);
        if answer as usize == first {
            break;
        }
        if !raw::failed(answer) {
            space::unmap(&(answer as usize..answer as usize + size));
        }
        size /= 2;
    }
    let room = first..first + size;
    if size < LEAST {
        return;
    }
    if pager::adopt(&room).is_err() || allocated::add(&room).is_err() {
        space::unmap(&room);
        return;
    }
    // Never handed out as free addresses: the whole room is marked used, and what lies
    // above the break answers as unmapped only to faults.
    space.map.add_adopted(room.clone(), Traits::paged(RW));
    space.brk.room = room;
}
