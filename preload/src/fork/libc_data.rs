//! The memory that the C library touches while it forks: heap memory that it reaches from its own
//! data, and the stack and thread-local storage of the thread.

use crate::address_space::AddressSpace;
use crate::vma_map::AddrRange;
use crate::{address_space, library_data, mapped_bitmap, paged_memory, pthread, raw_syscall};
use std::collections::BTreeSet;
use wired::PAGE;

unsafe extern "C" {
    static _IO_list_all: *const u8;
}

/// What an object reached from the C library's data may extend to: a FILE with its
/// wide part, the name service's state, a block of thread-specific values.
const REACH: usize = 1024;

/// Longest chain of files walked: a cycle would be a damaged list.
const FILES: usize = 65536;

/// Offsets in glibc's FILE, part of its binary interface: next file, lock.
const CHAIN: usize = 104;
const LOCK: usize = 136;

/// Calls `want` for all memory that may be reached.
fn each(space: &AddressSpace, want: &mut impl FnMut(AddrRange)) {
    let mut reached = Vec::new();
    files(&mut reached);
    for data in library_data::of_the_c_library() {
        words(space, data, &mut reached);
    }
    pthread::each_control_block(|block| words(space, block, &mut reached));
    for addr in reached {
        want(addr..addr + REACH);
    }
}

fn files(reached: &mut Vec<usize>) {
    // SAFETY: the list is held still, and files are readable memory.
    unsafe {
        let mut file = _IO_list_all as usize;
        for _ in 0..FILES {
            if file == 0 {
                break;
            }
            reached.push(file);
            reached.push(*((file + LOCK) as *const usize));
            file = *((file + CHAIN) as *const usize);
        }
    }
}

/// Every word that may be an address of ours: more than needed, never less.
fn words(space: &AddressSpace, span: AddrRange, reached: &mut Vec<usize>) {
    let mut last = 0;
    for at in span.step_by(8) {
        // SAFETY: the C library's data, or a live thread's control block.
        let word = unsafe { (at as *const usize).read_volatile() };
        // Neighbouring words often point into one buffer.
        if word & !(PAGE - 1) != last && word > PAGE && space.map.contains(word) {
            last = word & !(PAGE - 1);
            reached.push(word);
        }
    }
}

/// Nails the pages that are touched while the gate is closed. Returns false if some of them
/// cannot be nailed.
pub fn nail_touched(library: bool, written_by_clone: &[AddrRange]) -> (Vec<AddrRange>, bool) {
    pthread::release_dead_nails();
    let mut pages = BTreeSet::new();
    let mut want = |span: AddrRange| {
        let first = span.start & !(PAGE - 1);
        pages.extend((first..span.end).step_by(PAGE));
    };
    let here = std::ptr::from_ref(&pages_anchor()) as usize;
    // This thread's stack, where it is paged (a coroutine's, or one the program gave).
    want(here.saturating_sub(2 * PAGE)..here + 3 * PAGE);
    // Its thread-local storage, which lies on the same stack.
    library_data::thread_local().for_each(&mut want);
    written_by_clone.iter().cloned().for_each(&mut want);
    let space = address_space::lock();
    if library {
        each(&space, &mut want);
    }
    // Page by page: an unreadable page needs no nail, and must not keep its
    // neighbours from theirs. Nor does an unmapped one: the program break itself is
    // an address that the C library keeps.
    let mut nails: Vec<AddrRange> = pages
        .into_iter()
        .filter(|page| mapped_bitmap::is_mapped(*page))
        .flat_map(|page| space.nailable(&(page..page + PAGE)))
        .collect();
    let mut complete = true;
    nails.retain(|span| {
        let nailed = paged_memory::nail(span).is_ok();
        // The use of a page that cannot be read is a signal, and waits for nothing.
        complete &= nailed || !raw_syscall::is_readable(span.start, size_of::<u64>());
        nailed
    });
    (nails, complete)
}

#[inline(never)]
fn pages_anchor() -> u8 {
    0
}
