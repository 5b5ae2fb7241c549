//! Memory for a call: on the stack, no more than it needs to be, since programs execute others on
//! stacks of a few pages, and there is no heap between vfork and exec; or, where it is much, in a mapping.

use crate::address_space;
use crate::raw_syscall::is_error;
use std::mem::MaybeUninit;
use wired::PAGE;

/// Calls `go` with memory for so many bytes, aligned to words and not initialised; with `None` where
/// there is none.
pub fn with_scratch<R>(bytes: usize, go: impl FnOnce(Option<*mut u8>) -> R) -> R {
    match bytes.div_ceil(size_of::<usize>()) {
        0..=128 => on_stack::<128, R>(go),
        129..=512 => on_stack::<512, R>(go),
        513..=2048 => on_stack::<2048, R>(go),
        _ => mapped(bytes, go),
    }
}

/// Never inlined: the caller's own frame would have the array, and the longest of all.
#[inline(never)]
fn on_stack<const WORDS: usize, R>(go: impl FnOnce(Option<*mut u8>) -> R) -> R {
    let mut room = [const { MaybeUninit::<usize>::uninit() }; WORDS];
    go(Some(room.as_mut_ptr().cast()))
}

fn mapped<R>(bytes: usize, go: impl FnOnce(Option<*mut u8>) -> R) -> R {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = address_space::map(0, bytes, address_space::RW, flags, -1, 0);
    if is_error(start) {
        return go(None);
    }
    let start = start as usize;
    let result = go(Some(start as *mut u8));
    address_space::unmap(&(start..start + bytes.next_multiple_of(PAGE)));
    result
}
