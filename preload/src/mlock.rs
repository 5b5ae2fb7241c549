//! `mlock` and its relatives over arenas: pages are nailed up to what the contract and the process's
//! limit allow.

use crate::address_space::{AddressSpace, page_range};
use crate::raw_syscall::{SyscallResult, error, is_error, syscall3};
use crate::vma_map::{AddrRange, Lookup, MappedRange, MappingAttrs, MlockState};
use crate::{address_space, diagnostics, shared_memory};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use wired::PAGE;

/// `mlock` and `mlock2`: nails pages. `on_fault` requests less than `mlock`, and has no
/// effect: pages that are brought in may be evicted.
pub fn mlock(addr: usize, len: usize, on_fault: bool) -> SyscallResult {
    let kernel = |s: &AddrRange| {
        let flags = usize::from(on_fault);
        // SAFETY: the program asked for exactly this.
        unsafe { syscall3(libc::SYS_mlock2, s.start, s.len(), flags) }
    };
    let first = addr & !(PAGE - 1);
    let Some(target) = page_range(first, len.saturating_add(addr - first))
        .filter(|_| address_space::is_active() && len > 0)
    else {
        // SAFETY: as above.
        return unsafe { syscall3(libc::SYS_mlock2, addr, len, usize::from(on_fault)) };
    };
    let mut space = address_space::lock();
    let pieces = space.map.lookup(&target);
    let fresh = |piece: &MappedRange| match piece.state.paged() {
        Some(attrs) if attrs.locked == MlockState::No => piece.span.len(),
        _ => 0,
    };
    match room_for_locked(&space, pieces.iter().map(fresh).sum()) {
        LockLimit::Fits => {}
        LockLimit::Exceeded => return error(libc::ENOMEM),
        LockLimit::Forbidden => return error(libc::EPERM),
    }
    let mut result = 0;
    let mut pieces = pieces.into_iter();
    while let Some(piece) = pieces.next() {
        let answer = match piece.state.paged() {
            None if piece.state == Lookup::Free => return error(libc::ENOMEM),
            None if !on_fault && !shared_memory::lock(&piece.span) => error(libc::ENOMEM),
            None => {
                // As `madvise`: the pages come from a thread of the program, perhaps.
                drop(space);
                let answer = kernel(&piece.span);
                if is_error(answer) {
                    shared_memory::unlock_unlocked(&piece.span);
                }
                if is_error(answer) && !shared_memory::is_mapped(&piece.span) {
                    return answer;
                }
                space = address_space::lock();
                let rest = piece.span.end..target.end;
                pieces = space.map.lookup(&rest).into_iter();
                answer
            }
            Some(attrs) if on_fault => {
                if attrs.locked == MlockState::No {
                    space
                        .map
                        .change(&piece.span, |t| t.locked = MlockState::OnFault);
                }
                0
            }
            Some(attrs) => lock_held(&mut space, &piece.span, attrs),
        };
        // The kernel stops at a hole, and goes on where pages cannot be brought in, which it reports at the end.
        if is_error(answer) {
            result = answer;
        }
    }
    result
}

/// The answer of the process's RLIMIT_MEMLOCK to a further lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LockLimit {
    /// The limit allows it.
    Fits,
    /// The limit is lower.
    Exceeded,
    /// The limit forbids any lock.
    Forbidden,
}

/// Checks if `more` bytes can be locked beyond those that are.
pub fn room_for_locked(space: &AddressSpace, more: usize) -> LockLimit {
    let Some(limit) = getrlimit(Resource::Memlock).current else {
        return LockLimit::Fits;
    };
    let locked = |(span, attrs): (AddrRange, MappingAttrs)| match attrs.locked {
        MlockState::No => 0,
        MlockState::OnFault | MlockState::Nailed => span.len(),
    };
    let all = || space.map.used().map(locked).sum::<usize>() + more;
    let privileged =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match limit {
        0 if !privileged() => LockLimit::Forbidden,
        limit if !privileged() && all() as u64 > limit => LockLimit::Exceeded,
        _ => LockLimit::Fits,
    }
}

/// Nails pages of paged memory that are not nailed yet; ENOMEM, as from the kernel, where
/// the contract has no frames for that.
pub fn lock_held(space: &mut AddressSpace, span: &AddrRange, attrs: MappingAttrs) -> SyscallResult {
    let (locked, answer) = match attrs.locked {
        // As the kernel: locked, though no page could be brought in.
        MlockState::No if attrs.prot == libc::PROT_NONE => {
            (MlockState::OnFault, error(libc::ENOMEM))
        }
        before if attrs.prot == libc::PROT_NONE => (before, error(libc::ENOMEM)),
        MlockState::Nailed => (MlockState::Nailed, 0),
        _ if space.lock(span) => (MlockState::Nailed, 0),
        before => (before, error(libc::ENOMEM)),
    };
    space.map.change(span, |attrs| attrs.locked = locked);
    answer
}

/// `munlock`.
pub fn munlock(addr: usize, len: usize) -> SyscallResult {
    let first = addr & !(PAGE - 1);
    let Some(target) = page_range(first, len.saturating_add(addr - first))
        .filter(|_| address_space::is_active() && len > 0)
    else {
        // SAFETY: the program asked for exactly this.
        return unsafe { syscall3(libc::SYS_munlock, addr, len, 0) };
    };
    let space = &mut address_space::lock();
    for piece in space.map.lookup(&target) {
        match piece.state.paged() {
            None if piece.state == Lookup::Free => return error(libc::ENOMEM),
            None => {
                shared_memory::unlock(&piece.span);
                // SAFETY: as above.
                let answer =
                    unsafe { syscall3(libc::SYS_munlock, piece.span.start, piece.span.len(), 0) };
                if is_error(answer) {
                    return answer;
                }
            }
            Some(attrs) => unlock_held(space, &piece.span, attrs),
        }
    }
    0
}

fn unlock_held(space: &mut AddressSpace, span: &AddrRange, attrs: MappingAttrs) {
    if attrs.locked == MlockState::Nailed {
        space.unlock(span);
    }
    space
        .map
        .change(span, |attrs| attrs.locked = MlockState::No);
}

/// `mlockall`: the kernel would bring every arena in, whole. A program that must not
/// page is not one to run under a contract smaller than itself.
pub fn mlockall(flags: c_int) -> SyscallResult {
    if !address_space::is_active() {
        // SAFETY: the program asked for exactly this.
        return unsafe { syscall3(libc::SYS_mlockall, flags as usize, 0, 0) };
    }
    let all = libc::MCL_CURRENT | libc::MCL_FUTURE;
    if flags & all == 0 || flags & !(all | libc::MCL_ONFAULT) != 0 {
        return error(libc::EINVAL);
    }
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        diagnostics::log(format_args!(
            "mlockall refused: all memory of a paged program cannot stay resident in its frames; mlock \
             what must"
        ));
    }
    error(libc::ENOMEM)
}

/// `munlockall`.
pub fn munlockall() -> SyscallResult {
    if address_space::is_active() {
        unlock_all(&mut address_space::lock());
    }
    shared_memory::unlock(&(0..usize::MAX));
    // SAFETY: what lies outside the arenas, as the program asked.
    unsafe { syscall3(libc::SYS_munlockall, 0, 0, 0) }
}

/// Unlocks all paged memory.
pub fn unlock_all(space: &mut AddressSpace) {
    let locked: Vec<_> = space
        .map
        .used()
        .filter(|(_, attrs)| attrs.locked != MlockState::No)
        .collect();
    for (span, attrs) in locked {
        unlock_held(space, &span, attrs);
    }
}
