//! Where this library, the C library and the loader lie, and their writeable data.

use crate::raw_syscall::syscall3;
use crate::vma_map::AddrRange;
use crate::{dlsym, pager_process};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Start and end of this library, of the C library, and of the loader.
static LIBRARIES: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];

/// Start and end of data, in pairs; this library's first.
static DATA: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Thread-local storage of the C library and this one: how far below a thread's control
/// block it begins, and bytes, in pairs. It is the same for all threads, since both were
/// loaded with the program.
static LOCAL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// How many words of each are in use.
struct Found {
    data: usize,
    local: usize,
}

/// Records where the libraries, their data and their thread-local storage lie. In the constructor.
pub fn find() {
    let mut found = Found { data: 2, local: 0 };
    // SAFETY: the callback fits, and the counts live through the call.
    unsafe { dlsym::dl_iterate_phdr(record_library, std::ptr::from_mut(&mut found).cast()) };
}

unsafe extern "C" fn record_library(
    info: *mut libc::dl_phdr_info,
    _: usize,
    found: *mut c_void,
) -> c_int {
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
    let start = info.dlpi_addr as usize;
    let loaded = || headers.iter().filter(|it| it.p_type == libc::PT_LOAD);
    let own = std::ptr::from_ref(&DATA) as usize;
    let is_own = loaded().any(|header| span(start, header).contains(&own));
    let is_c = file.starts_with(b"libc.so") || file.starts_with(b"ld-linux");
    if !is_own && !is_c {
        return 0;
    }
    let first = loaded().map(|header| span(start, header).start).min();
    let end = loaded().map(|header| span(start, header).end).max();
    let whole = (first.unwrap_or(0), end.unwrap_or(0));
    let place = match (is_own, file.starts_with(b"libc.so")) {
        (true, _) => 0,
        (false, true) => 2,
        (false, false) => 4,
    };
    put(&LIBRARIES, place, whole);
    // What the loader has made read-only after it has relocated it.
    let read_only = headers.iter().find(|it| it.p_type == libc::PT_GNU_RELRO);
    let read_only = read_only.map_or(0..0, |header| span(start, header));
    for header in loaded().filter(|it| it.p_flags & libc::PF_W != 0) {
        let mut data = span(start, header);
        if data.contains(&read_only.start) {
            data.start = read_only.end.min(data.end);
        }
        if !data.is_empty() {
            let at = if is_own { 0 } else { found.data };
            found.data += if is_own { 0 } else { 2 };
            put(&DATA, at, (data.start.next_multiple_of(8), data.end & !7));
        }
    }
    let local = info.dlpi_tls_data as usize;
    let below = pager_process::thread_pointer().checked_sub(local);
    let of_thread = headers.iter().find(|it| it.p_type == libc::PT_TLS);
    if let (Some(below), Some(header)) = (below, of_thread)
        && local != 0
    {
        put(&LOCAL, found.local, (below, header.p_memsz as usize));
        found.local += 2;
    }
    0
}

/// Where a part of a library that was loaded at `start` lies.
fn span(start: usize, header: &libc::Elf64_Phdr) -> AddrRange {
    let from = start + header.p_vaddr as usize;
    from..from + header.p_memsz as usize
}

/// Records a pair of words, where there is room for it.
fn put(words: &[AtomicUsize], at: usize, pair: (usize, usize)) {
    if let Some([first, second]) = words.get(at..at + 2) {
        first.store(pair.0, Ordering::Release);
        second.store(pair.1, Ordering::Release);
    }
}

fn pairs(words: &'static [AtomicUsize]) -> impl Iterator<Item = (usize, usize)> {
    words.chunks(2).map(|pair| {
        let [one, other] = [&pair[0], &pair[1]].map(|word| word.load(Ordering::Acquire));
        (one, other)
    })
}

/// Returns true if an address is in this library.
pub fn is_own(addr: usize) -> bool {
    library_contains(0, addr)
}

/// Returns true if an address is in the C library.
pub fn is_of_c_library(addr: usize) -> bool {
    library_contains(2, addr)
}

fn library_contains(at: usize, addr: usize) -> bool {
    library(at).contains(&addr)
}

fn library(at: usize) -> AddrRange {
    let [start, end] = [at, at + 1].map(|at| LIBRARIES[at].load(Ordering::Acquire));
    start..end
}

/// This library, the C library and the loader, in whole pages.
pub fn libraries() -> [AddrRange; 3] {
    [0, 2, 4].map(|at| {
        let AddrRange { start, end } = library(at);
        start & !(wired::PAGE - 1)..end.next_multiple_of(wired::PAGE)
    })
}

/// Data of the C library and the loader.
pub fn of_the_c_library() -> impl Iterator<Item = AddrRange> {
    pairs(&DATA[2..]).map(|(start, end)| start..end)
}

/// The calling thread's part of the C library's thread-local storage, and of this one's.
pub fn thread_local() -> impl Iterator<Item = AddrRange> {
    pairs(&LOCAL).map(|(below, size)| {
        let start = pager_process::thread_pointer().wrapping_sub(below);
        start..start + size
    })
}

/// Makes the data resident and the process's own: for a new image, which has yet to write most of
/// it. Once the pager process runs on another processor, each first write interrupts that, and
/// costs as much as all of these pages do here (7 and 8 us).
pub fn populate() {
    for (start, end) in pairs(&DATA).filter(|(_, end)| *end != 0) {
        let from = start & !(wired::PAGE - 1);
        let len = end.next_multiple_of(wired::PAGE) - from;
        // SAFETY: populates what is writeable already; changes no contents.
        unsafe {
            syscall3(
                libc::SYS_madvise,
                from,
                len,
                libc::MADV_POPULATE_WRITE as usize,
            )
        };
    }
}
