//! A mapping's contents and state at other addresses.

use crate::address_space::{self, AddressSpace, RW};
use crate::raw_syscall::{SyscallResult, is_error, syscall3};
use crate::vma_map::{AddrRange, Lookup, MappingAttrs, MlockState};
use crate::{mutexes, paged_memory};
use std::ffi::c_int;

/// Moves contents and state to `to`, which is free or freshly mapped.
pub fn move_mapping(
    space: &mut AddressSpace,
    from: &AddrRange,
    to: &AddrRange,
    attrs: MappingAttrs,
    keep: bool,
) -> SyscallResult {
    let is_free = space.map.lookup(to).iter().any(|p| p.state == Lookup::Free);
    if is_free {
        let answer = space.map_in_arena(to, RW);
        if is_error(answer) {
            return answer;
        }
    }
    let moved = from.len().min(to.len());
    let (head, target) = (from.start..from.start + moved, to.start..to.start + moved);
    // The kernel, too, unmaps what is too long before it moves the rest.
    let mut answer = space.release_all(&(head.end..from.end));
    if attrs.prot != RW && !is_error(answer) {
        answer = open_access(&head, to, attrs.prot);
    }
    if is_error(answer) {
        // As after the kernel's own failed mremap: a hole.
        space.release_all(to);
        return answer;
    }
    if attrs.locked == MlockState::Nailed {
        space.unlock(&head);
    }
    mutexes::forget(&head);
    move_contents(space, &head, &target);
    if keep {
        if attrs.prot != RW {
            address_space::protect_paged(&head, attrs.prot);
        }
        space.map.change(&head, |t| t.locked = MlockState::No);
    } else {
        space
            .map
            .change(&head, |t| (t.prot, t.locked) = (RW, MlockState::No));
        space.release_all(&head);
    }
    if attrs.prot != RW {
        // It was possible a moment ago; another thread may have taken the last mapping since.
        address_space::protect_paged(to, attrs.prot);
    }
    apply_attrs(space, to, attrs);
    to.start as SyscallResult
}

/// Makes both ends of a move writable. An error, where the kernel has no mapping left for what `prot` is to be at
/// the target or was at the source, changes nothing.
fn open_access(head: &AddrRange, to: &AddrRange, prot: c_int) -> SyscallResult {
    let mut answer = address_space::protect_paged(to, prot);
    if !is_error(answer) {
        answer = address_space::protect_paged(head, RW);
        if is_error(answer) {
            address_space::protect_paged(head, prot);
        }
    }
    address_space::protect_paged(to, RW);
    answer
}

/// Moves contents: as pages within paged memory; by a copy to memory that is the
/// kernel's, as a target too small to be adopted is.
fn move_contents(space: &AddressSpace, from: &AddrRange, to: &AddrRange) {
    for piece in space.map.lookup(to) {
        let start = from.start + (piece.span.start - to.start);
        let source = start..start + piece.span.len();
        if let Lookup::Used(..) = piece.state {
            paged_memory::transfer(&source, &piece.span);
        } else {
            let (start, target) = (source.start as *const u8, piece.span.start as *mut u8);
            // SAFETY: both are mapped, readable and writeable, and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(start, target, source.len()) };
            paged_memory::discard(&source);
        }
    }
}

/// New addresses of an old mapping have its state; those that are the kernel's, by its own
/// calls.
pub fn apply_attrs(space: &mut AddressSpace, to: &AddrRange, attrs: MappingAttrs) {
    for piece in space.map.lookup(to) {
        let Lookup::Used(..) = piece.state else {
            apply_attrs_unpaged(&piece.span, attrs);
            continue;
        };
        if attrs.dont_dump {
            address_space::advise(&piece.span, libc::MADV_DONTDUMP);
        }
        let locked = match attrs.locked {
            MlockState::Nailed if space.lock(&piece.span) => MlockState::Nailed,
            MlockState::Nailed | MlockState::OnFault => MlockState::OnFault,
            MlockState::No => MlockState::No,
        };
        space.map.change(&piece.span, |t| {
            *t = MappingAttrs {
                locked,
                keyed: t.keyed,
                ..attrs
            }
        });
    }
}

fn apply_attrs_unpaged(span: &AddrRange, attrs: MappingAttrs) {
    let call = |number, flags: c_int| {
        // SAFETY: the program's own memory, whose contents stay.
        unsafe { syscall3(number, span.start, span.len(), flags as usize) };
    };
    match attrs.locked {
        MlockState::Nailed => call(libc::SYS_mlock2, 0),
        MlockState::OnFault => call(libc::SYS_mlock2, libc::MLOCK_ONFAULT as c_int),
        MlockState::No => {}
    }
    if attrs.dont_fork {
        call(libc::SYS_madvise, libc::MADV_DONTFORK);
    }
    if attrs.wipe_on_fork {
        call(libc::SYS_madvise, libc::MADV_WIPEONFORK);
    }
    if attrs.dont_dump {
        call(libc::SYS_madvise, libc::MADV_DONTDUMP);
    }
}
