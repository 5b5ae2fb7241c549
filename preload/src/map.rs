//! `mmap`, `munmap` and `mprotect` as the kernel defines them, over arenas.
//!
//! Rule: results and error numbers are the kernel's own. What is not private anonymous memory passes through; where it
//! lands on an arena by MAP_FIXED, the arena gives way.

mod replacement;
mod unmap;

use crate::address_space::{AddressSpace, WORTH_ADOPTING, is_beyond_addresses, page_range};
use crate::mlock::LockLimit;
use crate::raw_syscall::{SignalsBlocked, SyscallResult, error, is_error, syscall6};
use crate::vma_map::{AddrRange, Lookup, MappingAttrs};
use crate::{address_space, mlock, paged_memory, process_pager, shared_memory};
use replacement::refuse_replacement;
use rustix::fd::BorrowedFd;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use wired::{HUGE_RANGE, PAGE};

pub use replacement::{displace, map_foreign, move_into_place};
pub use unmap::munmap;

/// Asks for memory with rules of its own (grows downwards, huge pages): these stay the kernel's.
const UNPAGED: c_int = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;

const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// The shift of the largest pages of x86-64, of 1 GiB.
const LARGEST_PAGE_SHIFT: c_int = 30;

/// Access bits the map keeps.
const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// Changes of mappings after which the pager makes its own in reserve: a process that makes so many may use up
/// those that it may have.
const MANY_CHANGES: u32 = 1024;

fn count_change() {
    static CHANGES: AtomicU32 = AtomicU32::new(0);
    if CHANGES.fetch_add(1, Ordering::Relaxed) + 1 == MANY_CHANGES
        && address_space::is_active()
        && let Some(pager) = process_pager::get()
    {
        let _signals = SignalsBlocked::new();
        pager.process.keep_mappings_in_reserve();
    }
}

/// `mmap`.
pub fn mmap(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> SyscallResult {
    count_change();
    if !address_space::is_active() || !shared_memory::is_wanted(len, flags) {
        return map(addr, len, prot, flags, fd, offset);
    }
    // MAP_POPULATE is not taken, as of private memory.
    let answer = map(addr, len, prot, flags & !libc::MAP_POPULATE, fd, offset);
    shared_memory::page_mapped(answer, len, prot);
    answer
}

/// `mmap`, but for the paging of shared memory.
fn map(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> SyscallResult {
    let through = || address_space::map(addr, len, prot, flags, fd, offset);
    if !address_space::is_active() || len == 0 {
        return through();
    }
    if !(offset as usize).is_multiple_of(PAGE) {
        return error(libc::EINVAL);
    }
    let anonymous = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    let pageable = anonymous && flags & UNPAGED == 0;
    if flags & FIXED != 0 {
        let page = page_bytes(flags, fd, addr, len);
        let whole = len.checked_next_multiple_of(page);
        let range = whole.and_then(|len| page_range(addr, len));
        let is_valid = |to: &AddrRange| addr.is_multiple_of(page) && !is_beyond_addresses(to);
        let Some(to) = range.filter(is_valid) else {
            return through();
        };
        return match pageable {
            true => map_fixed(&mut address_space::lock(), to, prot, flags),
            false => map_foreign(&mut address_space::lock(), to, flags, |addr, flags| {
                address_space::map(addr, len, prot, flags, fd, offset)
            }),
        };
    }
    if !pageable {
        let map = |addr, flags| address_space::map(addr, len, prot, flags, fd, offset);
        return map_foreign_at_hint(addr, len, flags, fd, map).unwrap_or_else(through);
    }
    let Some(len) = len.checked_next_multiple_of(PAGE) else {
        return error(libc::ENOMEM);
    };
    let space = &mut address_space::lock();
    if let Some(refused) = refused_locked(space, len, flags) {
        return refused;
    }
    if flags & libc::MAP_32BIT != 0 {
        let answer = map_low(space, addr, len, prot, flags);
        return match is_error(answer) {
            true => answer,
            false => lock_if_requested(space, answer, len, flags),
        };
    }
    if let Some(answer) = map_at_hint(space, addr, len, prot, flags) {
        return lock_if_requested(space, answer, len, flags);
    }
    match space.find_free(len) {
        Some(start) if !is_error(space.map_in_arena(&(start..start + len), prot & ACCESS)) => {
            lock_if_requested(space, start as SyscallResult, len, flags)
        }
        // Not from the kernel, which would give it: no contract would bound what the program touches of it. One that
        // is only reserved may be larger than any arena.
        None if prot & ACCESS != 0 => error(libc::ENOMEM),
        // The kernel's own answer where it has no mapping left, or forbids what is written to be executed.
        Some(_) | None => through(),
    }
}

/// The size of the pages of a mapping at `addr`: the kernel maps, and replaces, whole ones.
fn page_bytes(flags: c_int, fd: c_int, addr: usize, len: usize) -> usize {
    const ANONYMOUS_HUGE: c_int = libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    if flags & libc::MAP_ANONYMOUS == 0 {
        let range = page_range(addr, len);
        let is_ours = range.is_some_and(|range| address_space::lock().map.touches(&range));
        return if is_ours { file_page_bytes(fd) } else { PAGE };
    }
    if flags & ANONYMOUS_HUGE != ANONYMOUS_HUGE {
        return PAGE;
    }
    match flags >> libc::MAP_HUGE_SHIFT & libc::MAP_HUGE_MASK {
        // The default of x86-64.
        0 => HUGE_RANGE,
        // No processor has larger ones: no range consists of them, and the kernel refuses the call.
        shift if shift > LARGEST_PAGE_SHIFT => usize::MAX,
        shift => PAGE.max(1 << shift),
    }
}

/// The size of the pages of a file's mappings: hugetlbfs has huge ones.
fn file_page_bytes(fd: c_int) -> usize {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    if fd < 0 {
        return PAGE;
    }
    // SAFETY: the program's descriptor, which is only looked at; the kernel refuses one that is not open.
    let file = rustix::fs::fstatfs(unsafe { BorrowedFd::borrow_raw(fd) });
    match file {
        Ok(file) if file.f_type == HUGETLBFS_MAGIC => PAGE.max(file.f_bsize as usize),
        _ => PAGE,
    }
}

/// The kernel's error for MAP_LOCKED beyond the process's limit.
fn refused_locked(space: &AddressSpace, len: usize, flags: c_int) -> Option<SyscallResult> {
    if flags & libc::MAP_LOCKED == 0 {
        return None;
    }
    match mlock::room_for_locked(space, len) {
        LockLimit::Fits => None,
        LockLimit::Exceeded => Some(error(libc::EAGAIN)),
        LockLimit::Forbidden => Some(error(libc::EPERM)),
    }
}

/// MAP_LOCKED nails what it can, as the kernel does. MAP_POPULATE, a hint, would only push other pages out: it is not taken.
fn lock_if_requested(
    space: &mut AddressSpace,
    start: SyscallResult,
    len: usize,
    flags: c_int,
) -> SyscallResult {
    if flags & libc::MAP_LOCKED != 0 {
        let span = start as usize..start as usize + len;
        for piece in space.map.lookup(&span) {
            if let Lookup::Used(attrs, _) = piece.state {
                mlock::lock_held(space, &piece.span, attrs);
            }
        }
    }
    start
}

/// A mapping at the address that the program prefers, if that is free.
fn map_at_hint(
    space: &mut AddressSpace,
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
) -> Option<SyscallResult> {
    let addr = addr & !(PAGE - 1);
    if addr == 0 {
        return None;
    }
    let wanted = page_range(addr, len)?;
    if !space.map.touches(&wanted) {
        // By the kernel's own rules: it keeps a distance from stacks that may grow.
        let paged = len >= WORTH_ADOPTING;
        let answer = address_space::map(addr, len, prot, own_flags(paged, flags), -1, 0);
        if is_error(answer) {
            return None;
        }
        if answer as usize != addr {
            address_space::unmap(&(answer as usize..answer as usize + len));
            return None;
        }
        adopt(space, &wanted, paged, prot);
        return Some(answer);
    }
    let is_room = space.map.is_in_one_arena(&wanted) && space.map.is_free(&wanted);
    let is_mapped = is_room && !is_error(space.map_in_arena(&wanted, prot & ACCESS));
    is_mapped.then_some(addr as SyscallResult)
}

/// A mapping of another kind at an address that the program prefers, where an arena has it free: for the kernel the
/// arena is in its way.
fn map_foreign_at_hint(
    addr: usize,
    len: usize,
    flags: c_int,
    fd: c_int,
    map: impl Fn(usize, c_int) -> SyscallResult,
) -> Option<SyscallResult> {
    let addr = addr & !(PAGE - 1);
    let wanted = page_range(addr, len).filter(|_| addr != 0)?;
    // The kernel takes no preferred address above 2 GiB for a mapping below.
    if flags & (UNPAGED | libc::MAP_32BIT) != 0 || page_bytes(flags, fd, addr, len) != PAGE {
        return None;
    }
    let space = &mut address_space::lock();
    if !(space.map.is_in_one_arena(&wanted) && space.map.is_free(&wanted)) {
        return None;
    }
    let answer = map_foreign(space, wanted, flags, map);
    (!is_error(answer)).then_some(answer)
}

/// A mapping below 2 GiB, where no arena is: the kernel finds the place.
fn map_low(
    space: &mut AddressSpace,
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
) -> SyscallResult {
    let paged = len >= WORTH_ADOPTING;
    let answer = address_space::map(addr, len, prot, own_flags(paged, flags), -1, 0);
    if !is_error(answer) {
        let start = answer as usize;
        adopt(space, &(start..start + len), paged, prot);
    }
    answer
}

/// The flags for memory to be adopted: not yet populated, see [`lock_if_requested`].
fn own_flags(paged: bool, flags: c_int) -> c_int {
    match paged {
        true => flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED),
        false => flags,
    }
}

/// A fresh part of a mapping of the program's outside the arenas becomes a stretch if the mapping is
/// to be `paged` and it can be.
fn adopt(space: &mut AddressSpace, fresh: &AddrRange, paged: bool, prot: c_int) {
    if paged && paged_memory::adopt(fresh).is_ok() {
        paged_memory::access_changed(fresh);
        space
            .map
            .add_adopted(fresh.clone(), MappingAttrs::paged(prot & ACCESS));
    }
}

/// Private anonymous memory at a given address.
pub fn map_fixed(
    space: &mut AddressSpace,
    to: AddrRange,
    prot: c_int,
    flags: c_int,
) -> SyscallResult {
    if let Some(refused) = refused_locked(space, to.len(), flags) {
        return refused;
    }
    let pieces = space.map.lookup(&to);
    if let Some(refused) = refuse_replacement(&pieces, flags) {
        return refused;
    }
    // A mapping is not paged in one part and the kernel's in another, however small: the kernel
    // moves it as one.
    let reaches_in = pieces.iter().any(|piece| piece.state != Lookup::Outside);
    let paged = reaches_in || to.len() >= WORTH_ADOPTING;
    let (asked, flags) = (flags, own_flags(paged, flags & !FIXED | libc::MAP_FIXED));
    for piece in &pieces {
        let answer = match piece.state {
            Lookup::Outside => {
                let (start, len) = (piece.span.start, piece.span.len());
                let answer = address_space::map(start, len, prot, flags, -1, 0);
                if !is_error(answer) {
                    adopt(space, &piece.span, paged, prot);
                }
                answer
            }
            _ => space.renew(piece, prot & ACCESS),
        };
        if is_forbidden(answer, prot) {
            return map_foreign(space, to.clone(), libc::MAP_FIXED, |addr, fixed| {
                let flags = asked & !FIXED | fixed & FIXED;
                address_space::map(addr, to.len(), prot, flags, -1, 0)
            });
        }
        if is_error(answer) {
            return answer;
        }
    }
    lock_if_requested(space, to.start as SyscallResult, to.len(), asked)
}

/// Returns true if the kernel refuses to execute what was writable (PR_SET_MDWE, a filter): a new mapping may have that access.
fn is_forbidden(answer: SyscallResult, prot: c_int) -> bool {
    let forbids = [error(libc::EACCES), error(libc::EPERM)].contains(&answer);
    forbids && prot & libc::PROT_EXEC != 0
}

/// `mprotect` and `pkey_mprotect` (`key` other than -1).
pub fn mprotect(addr: usize, len: usize, prot: c_int, key: c_int) -> SyscallResult {
    let change = |start: usize, len: usize| {
        let args = [start, len, prot as usize, key as usize, 0, 0];
        let number = if key == -1 {
            libc::SYS_mprotect
        } else {
            libc::SYS_pkey_mprotect
        };
        // SAFETY: the program asked for exactly this.
        unsafe { syscall6(number, args) }
    };
    count_change();
    let grows = prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) != 0;
    let Some(target) = page_range(addr, len)
        .filter(|_| address_space::is_active() && !grows && addr.is_multiple_of(PAGE) && len > 0)
    else {
        return change(addr, len);
    };
    let space = &mut address_space::lock();
    if !space.map.touches(&target) {
        return change(addr, len);
    }
    for piece in space.map.lookup(&target) {
        if piece.state == Lookup::Free {
            return error(libc::ENOMEM);
        }
        let paged = piece.state.paged().is_some();
        if paged {
            // Before it is so: the evictor reads what it takes right after this.
            paged_memory::access_changed(&piece.span);
        }
        let answer = change(piece.span.start, piece.span.len());
        if is_error(answer) {
            return answer;
        }
        if paged {
            space.map.change(&piece.span, |attrs| {
                attrs.prot = prot & ACCESS;
                attrs.keyed |= key > 0;
            });
        }
    }
    0
}
