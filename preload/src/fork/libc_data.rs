//! The memory that the C library touches while it forks: heap memory that it reaches from its own
//! data, and the stack and thread-local storage of the thread.

use crate::address_space::AddressSpace;
use crate::vma_map::AddrRange;
use crate::{
    address_space, dlsym, mapped_bitmap, paged_memory, pager_process, pthread, raw_syscall,
};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use wired::PAGE;

unsafe extern "C" {
    static _IO_list_all: *const u8;
}

/// Writeable data of the C library and the loader: start and end, in pairs.
static DATA: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// Thread-local storage of the C library and this one: how far below a thread's control
/// block it begins, and bytes, in pairs. It is the same for all threads, since both were
/// loaded with the program.
static LOCAL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// What an object reached from the C library's data may extend to: a FILE with its
/// wide part, the name service's state, a block of thread-specific values.
const REACH: usize = 1024;

/// Longest chain of files walked: a cycle would be a damaged list.
const FILES: usize = 65536;

/// Offsets in glibc's FILE, part of its binary interface: next file, lock.
const CHAIN: usize = 104;
const LOCK: usize = 136;

/// How many words of each are in use.
#[derive(Default)]
struct Found {
    data: usize,
    local: usize,
}

/// Finds the C library's data, and thread-local storage.
pub fn find() {
    let mut found = Found::default();
    // SAFETY: the callback fits, and the counts live through the call.
    unsafe { dlsym::dl_iterate_phdr(library, std::ptr::from_mut(&mut found).cast()) };
}

unsafe extern "C" fn library(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's record, and the counts passed above.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's string.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let file = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
    // SAFETY: the loader's array of program headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let at = |header: &libc::Elf64_Phdr| info.dlpi_addr as usize + header.p_vaddr as usize;
    let own = std::ptr::from_ref(&DATA) as usize;
    let is_own = headers.iter().any(|header| {
        header.p_type == libc::PT_LOAD
            && (at(header)..at(header) + header.p_memsz as usize).contains(&own)
    });
    let is_c = file.starts_with(b"libc.so") || file.starts_with(b"ld-linux");
    for header in headers {
        let size = header.p_memsz as usize;
        let written = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0;
        if is_c && written && found.data + 1 < DATA.len() {
            DATA[found.data].store(at(header).next_multiple_of(8), Ordering::Release);
            DATA[found.data + 1].store((at(header) + size) & !7, Ordering::Release);
            found.data += 2;
        }
        let local = info.dlpi_tls_data as usize;
        let below = pager_process::thread_pointer().checked_sub(local);
        if let Some(below) = below
            && header.p_type == libc::PT_TLS
            && (is_c || is_own)
            && local != 0
            && found.local + 1 < LOCAL.len()
        {
            LOCAL[found.local].store(below, Ordering::Release);
            LOCAL[found.local + 1].store(size, Ordering::Release);
            found.local += 2;
        }
    }
    0
}

/// Calls `want` for the thread-local storage that this thread uses while it forks, as
/// `errno`.
fn local(want: &mut impl FnMut(AddrRange)) {
    for pair in LOCAL.chunks(2) {
        let (below, size) = (
            pair[0].load(Ordering::Acquire),
            pair[1].load(Ordering::Acquire),
        );
        let start = pager_process::thread_pointer().wrapping_sub(below);
        want(start..start + size);
    }
}

/// Calls `want` for all memory that may be reached.
fn each(space: &AddressSpace, want: &mut impl FnMut(AddrRange)) {
    let mut reached = Vec::new();
    files(&mut reached);
    for pair in DATA.chunks(2) {
        let data = pair[0].load(Ordering::Acquire)..pair[1].load(Ordering::Acquire);
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
pub fn nail_touched(library: bool, also: &[AddrRange]) -> (Vec<AddrRange>, bool) {
    let mut pages = BTreeSet::new();
    let mut want = |span: AddrRange| {
        let first = span.start & !(PAGE - 1);
        pages.extend((first..span.end).step_by(PAGE));
    };
    let here = std::ptr::from_ref(&pages_anchor()) as usize;
    // This thread's stack, where it is paged (a coroutine's, or one the program gave).
    want(here.saturating_sub(2 * PAGE)..here + 3 * PAGE);
    // Its thread-local storage, which lies on the same stack.
    local(&mut want);
    also.iter().cloned().for_each(&mut want);
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
