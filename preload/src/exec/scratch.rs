//! Memory for a call: on the stack, no more than it needs to be, since programs execute others on
//! stacks of a few pages, and there is no heap between vfork and exec; or, where it is much, in a mapping.

use crate::raw_syscall::is_error;
use crate::{address_space, raw_syscall};
use std::cell::Cell;
use std::mem::MaybeUninit;
use wired::PAGE;

/// Calls `go` with memory for so many bytes, aligned to words and not initialised; with `None` where
/// there is none.
pub fn with_scratch<R>(bytes: usize, go: impl FnOnce(Option<*mut u8>) -> R) -> R {
    match bytes.div_ceil(size_of::<usize>()) {
        0..=128 => on_stack::<128, R>(go),
        129..=512 => on_stack::<512, R>(go),
        _ => mapped(bytes, go),
    }
}

/// Never inlined: the caller's own frame would have the array, and the longest of all.
#[inline(never)]
fn on_stack<const WORDS: usize, R>(go: impl FnOnce(Option<*mut u8>) -> R) -> R {
    let mut room = [const { MaybeUninit::<usize>::uninit() }; WORDS];
    go(Some(room.as_mut_ptr().cast()))
}

/// At the start of a mapping.
struct MappingHeader {
    bytes: usize,
    /// The process that made it.
    process: i32,
    /// The one that the thread had previously; 0 where it had none.
    previous: usize,
}

thread_local! {
    /// The thread's last mapping. The child of a vfork has its parent's memory and control block, and unmaps
    /// nothing once it has executed a program.
    static LAST_MAPPING: Cell<usize> = const { Cell::new(0) };
}

fn mapped<R>(bytes: usize, go: impl FnOnce(Option<*mut u8>) -> R) -> R {
    unmap_leftovers();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let bytes = (size_of::<MappingHeader>() + bytes).next_multiple_of(PAGE);
    let start = address_space::map(0, bytes, address_space::RW, flags, -1, 0);
    if is_error(start) {
        return go(None);
    }
    let header = start as *mut MappingHeader;
    let previous = LAST_MAPPING.replace(start as usize);
    // SAFETY: fresh memory, with room for the header and what follows it.
    let result = unsafe {
        header.write(MappingHeader {
            bytes,
            process: raw_syscall::pid(),
            previous,
        });
        go(Some(header.add(1).cast()))
    };
    // A signal handler's children may have left theirs meanwhile.
    unmap_leftovers();
    LAST_MAPPING.set(previous);
    address_space::unmap(&(start as usize..start as usize + bytes));
    result
}

/// Unmaps what children of this thread's vforks have left. What this process, or its parent, has in use is its own.
/// Also where the thread ends.
pub fn unmap_leftovers() {
    if LAST_MAPPING.get() == 0 {
        return;
    }
    let in_use = [raw_syscall::pid(), raw_syscall::parent()];
    // SAFETY: the headers of mappings that are there.
    while let Some(last) = unsafe { (LAST_MAPPING.get() as *const MappingHeader).as_ref() }
        && !in_use.contains(&last.process)
    {
        let start = LAST_MAPPING.replace(last.previous);
        address_space::unmap(&(start..start + last.bytes));
    }
}
