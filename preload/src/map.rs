//! `mmap`, `munmap`, `mremap` and `mprotect` as the kernel defines them, over arenas.
//!
//! Rule: results and error numbers are the kernel's own. What is not private anonymous
//! memory passes through; where it lands on an arena by MAP_FIXED, the arena gives way.

use crate::address_space::{AddressSpace, RW, WORTH_ADOPTING, page_range};
use crate::mlock::LockLimit;
use crate::raw_syscall::{SyscallResult, error, is_error, syscall3, syscall6};
use crate::vma_map::{AddrRange, Lookup, MappedRange, MappingAttrs, MappingKind, MlockState};
use crate::{address_space, mlock, paged_memory, pager_process};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use wired::PAGE;

/// Asks for memory with rules of its own (grows downwards, below 4 GiB, huge pages):
/// these stay the kernel's.
const UNPAGED: c_int = libc::MAP_GROWSDOWN | libc::MAP_32BIT | libc::MAP_HUGETLB;

const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// Access bits the map keeps.
const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// `mmap`.
pub fn mmap(
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
    let anonymous = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    let pageable = anonymous && flags & UNPAGED == 0;
    if flags & FIXED != 0 {
        let Some(to) = page_range(addr, len).filter(|_| addr.is_multiple_of(PAGE)) else {
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
        if addr == 0 && pager_process::is_pager() {
            let addr = wired::address_apart(len).expose_provenance();
            return address_space::map(addr, len, prot, flags, fd, offset);
        }
        let answer = through();
        if anonymous && !is_error(answer) {
            unpaged(len);
        }
        return answer;
    }
    let Some(len) = len.checked_next_multiple_of(PAGE) else {
        return error(libc::ENOMEM);
    };
    if !(offset as usize).is_multiple_of(PAGE) {
        return error(libc::EINVAL);
    }
    let space = &mut address_space::lock();
    if let Some(refused) = refused_locked(space, len, flags) {
        return refused;
    }
    if let Some(answer) = map_at_hint(space, addr, len, prot, flags) {
        return lock_if_requested(space, answer, len, flags);
    }
    match space.find_free(len) {
        Some(start) => {
            space.open(&(start..start + len), prot & ACCESS);
            lock_if_requested(space, start as SyscallResult, len, flags)
        }
        None => {
            let answer = through();
            if !is_error(answer) {
                unpaged(len);
            }
            answer
        }
    }
}

fn unpaged(len: usize) {
    address_space::UNPAGED.fetch_add(len as u64, Ordering::Relaxed);
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

/// MAP_LOCKED nails what it can, as the kernel does. MAP_POPULATE is a hint that would
/// only push other pages out: it is not taken.
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
        let flags = own_flags(len, flags);
        let answer = address_space::map(addr, len, prot, flags, -1, 0);
        if is_error(answer) {
            return None;
        }
        if answer as usize != addr {
            address_space::unmap(&(answer as usize..answer as usize + len));
            return None;
        }
        adopt(space, &wanted, prot);
        return Some(answer);
    }
    let free = space
        .map
        .lookup(&wanted)
        .iter()
        .all(|p| p.state == Lookup::Free);
    free.then(|| {
        space.open(&wanted, prot & ACCESS);
        addr as SyscallResult
    })
}

/// The flags for memory to be adopted: not yet populated, see [`lock_if_requested`].
fn own_flags(len: usize, flags: c_int) -> c_int {
    match len >= WORTH_ADOPTING {
        true => flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED),
        false => flags,
    }
}

/// A fresh mapping of the program's outside the arenas becomes a stretch if it is worth
/// it and can be.
fn adopt(space: &mut AddressSpace, fresh: &AddrRange, prot: c_int) {
    if fresh.len() >= WORTH_ADOPTING && paged_memory::adopt(fresh).is_ok() {
        paged_memory::access_changed(fresh);
        space
            .map
            .add_adopted(fresh.clone(), MappingAttrs::paged(prot & ACCESS));
    } else {
        unpaged(fresh.len());
    }
}

/// Private anonymous memory at a given address.
fn map_fixed(space: &mut AddressSpace, to: AddrRange, prot: c_int, flags: c_int) -> SyscallResult {
    if let Some(refused) = refused_locked(space, to.len(), flags) {
        return refused;
    }
    let pieces = space.map.lookup(&to);
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        if pieces.iter().any(|p| matches!(p.state, Lookup::Used(..))) {
            return error(libc::EEXIST);
        }
        if let Some(answer) = reserve_outside(&pieces) {
            return answer;
        }
    }
    let flags = flags & !FIXED | libc::MAP_FIXED;
    for piece in &pieces {
        let answer = match piece.state {
            Lookup::Outside => {
                let (start, len) = (piece.span.start, piece.span.len());
                let answer = address_space::map(start, len, prot, own_flags(len, flags), -1, 0);
                if !is_error(answer) {
                    adopt(space, &piece.span, prot);
                }
                answer
            }
            _ => space.renew(piece, prot & ACCESS),
        };
        if is_error(answer) {
            return answer;
        }
    }
    lock_if_requested(space, to.start as SyscallResult, to.len(), flags)
}

/// Claims the addresses outside the arenas for a mapping that may replace nothing; an
/// error gives those claimed back.
fn reserve_outside(pieces: &[MappedRange]) -> Option<SyscallResult> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let outside = || {
        pieces
            .iter()
            .filter(|p| p.state == Lookup::Outside)
            .map(|p| &p.span)
    };
    for (n, gap) in outside().enumerate() {
        let answer = address_space::map(gap.start, gap.len(), libc::PROT_NONE, flags, -1, 0);
        if is_error(answer) {
            outside().take(n).for_each(|gap| {
                address_space::unmap(gap);
            });
            return Some(answer);
        }
    }
    None
}

/// Any other mapping at a given address: the arena gives way.
fn map_foreign(
    space: &mut AddressSpace,
    to: AddrRange,
    flags: c_int,
    map: impl Fn(usize, c_int) -> SyscallResult,
) -> SyscallResult {
    if !space.map.touches(&to) {
        return map(to.start, flags);
    }
    let pieces = space.map.lookup(&to);
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        if pieces.iter().any(|p| matches!(p.state, Lookup::Used(..))) {
            return error(libc::EEXIST);
        }
        if let Some(answer) = reserve_outside(&pieces) {
            return answer;
        }
    }
    // A mapping that fails must not destroy the old one: try it elsewhere first.
    let trial = map(0, flags & !FIXED);
    if is_error(trial) {
        return trial;
    }
    address_space::unmap(&(trial as usize..trial as usize + to.len()));
    displace(space, &pieces);
    let answer = map(to.start, flags & !FIXED | libc::MAP_FIXED);
    if is_error(answer) {
        // What lay here is gone, as it may be after the kernel's own failed MAP_FIXED.
        for piece in space.map.lookup(&to) {
            if !matches!(piece.state, Lookup::Outside) {
                space.release(&piece);
            }
        }
    }
    answer
}

/// Other mappings take the place of the arena's pieces.
fn displace(space: &mut AddressSpace, pieces: &[MappedRange]) {
    for piece in pieces {
        match piece.state {
            Lookup::Outside => {}
            Lookup::Used(
                MappingAttrs {
                    kind: MappingKind::Foreign,
                    ..
                },
                _,
            ) => {}
            _ => {
                paged_memory::surrender(&piece.span);
                crate::pthread::forget_nails(&piece.span);
                space.map.set(piece.span.clone(), MappingAttrs::FOREIGN);
            }
        }
    }
}

/// `munmap`.
pub fn munmap(addr: usize, len: usize) -> SyscallResult {
    // SAFETY: the program asked for exactly this.
    let through = || unsafe { syscall3(libc::SYS_munmap, addr, len, 0) };
    let Some(gone) = page_range(addr, len)
        .filter(|_| address_space::is_active() && addr.is_multiple_of(PAGE) && len > 0)
    else {
        return through();
    };
    let space = &mut address_space::lock();
    if !space.map.touches(&gone) {
        return through();
    }
    for piece in space.map.lookup(&gone) {
        space.release(&piece);
    }
    0
}

/// `mprotect` and `pkey_mprotect` (`key` other than -1).
pub fn mprotect(addr: usize, len: usize, prot: c_int, key: c_int) -> SyscallResult {
    let change = |s: &AddrRange| {
        let args = [s.start, s.len(), prot as usize, key as usize, 0, 0];
        let number = if key == -1 {
            libc::SYS_mprotect
        } else {
            libc::SYS_pkey_mprotect
        };
        // SAFETY: the program asked for exactly this.
        unsafe { syscall6(number, args) }
    };
    let grows = prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) != 0;
    let Some(target) = page_range(addr, len)
        .filter(|_| address_space::is_active() && !grows && addr.is_multiple_of(PAGE) && len > 0)
    else {
        return change(&(addr..addr.wrapping_add(len)));
    };
    let space = &mut address_space::lock();
    if !space.map.touches(&target) {
        return change(&target);
    }
    for piece in space.map.lookup(&target) {
        if piece.state == Lookup::Free {
            return error(libc::ENOMEM);
        }
        let paged =
            matches!(piece.state, Lookup::Used(attrs, _) if attrs.kind == MappingKind::Paged);
        if paged {
            // Before it is so: the evictor reads what it takes right after this.
            paged_memory::access_changed(&piece.span);
        }
        let answer = change(&piece.span);
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

/// `mremap`.
pub fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> SyscallResult {
    let through = |to: usize| {
        // SAFETY: the program asked for exactly this.
        unsafe {
            syscall6(
                libc::SYS_mremap,
                [old, old_len, new_len, flags as usize, to, 0],
            )
        }
    };
    if !address_space::is_active() {
        return through(new);
    }
    let space = &mut address_space::lock();
    if !space.map.contains(old) {
        let whole = page_range(old, old_len).filter(|from| space.map.touches(from));
        let len = new_len.checked_next_multiple_of(PAGE).unwrap_or(0);
        return match whole {
            Some(from) if old.is_multiple_of(PAGE) && len > 0 && is_kernels(space, &from) => {
                remap_in_arena(space, &from, flags, new, len, through)
            }
            _ => {
                let from = old..old.saturating_add(old_len);
                remap_foreign(space, &from, new_len, flags, new, through)
            }
        };
    }
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (may_move, fixed, keep) = (
        flags & libc::MREMAP_MAYMOVE != 0,
        flags & libc::MREMAP_FIXED != 0,
        flags & libc::MREMAP_DONTUNMAP != 0,
    );
    let (Some(from), Some(len)) = (
        page_range(old, old_len),
        new_len.checked_next_multiple_of(PAGE),
    ) else {
        return error(libc::EINVAL);
    };
    let wrong = flags & !known != 0
        || (fixed || keep) && !may_move
        || keep && from.len() != len
        || !old.is_multiple_of(PAGE)
        || len == 0;
    if wrong {
        return error(libc::EINVAL);
    }
    if old_len == 0 {
        // A second mapping of what is shared; private memory has none.
        return match space.map.lookup(&(old..old + PAGE))[..] {
            [
                MappedRange {
                    state:
                        Lookup::Used(
                            MappingAttrs {
                                kind: MappingKind::Foreign,
                                ..
                            },
                            _,
                        ),
                    ..
                },
            ] => remap_foreign(space, &from, new_len, flags, new, through),
            [
                MappedRange {
                    state: Lookup::Used(..),
                    ..
                },
            ] => error(libc::EINVAL),
            _ => error(libc::EFAULT),
        };
    }
    let to = fixed.then(|| page_range(new, len));
    if let Some(to) = &to {
        let Some(to) = to else {
            return error(libc::EINVAL);
        };
        if !new.is_multiple_of(PAGE) || to.start < from.end && from.start < to.end {
            return error(libc::EINVAL);
        }
    }
    let attrs = match &space.map.lookup(&from)[..] {
        [
            MappedRange {
                state: Lookup::Used(attrs, _),
                ..
            },
        ] => *attrs,
        _ if is_kernels(space, &from) => MappingAttrs::FOREIGN,
        _ => return error(libc::EFAULT),
    };
    if attrs.kind == MappingKind::Foreign {
        return remap_in_arena(space, &from, flags, new, len, through);
    }
    match to.flatten() {
        Some(to) => {
            let answer = make_room(space, &to);
            if is_error(answer) {
                return answer;
            }
            // The kernel cuts what is longer before it moves.
            move_mapping(space, &from, &to, attrs, keep)
        }
        None if keep => match space.find_free(len) {
            Some(start) => move_mapping(space, &from, &(start..start + len), attrs, keep),
            None => error(libc::ENOMEM),
        },
        None => resize(space, from, len, attrs, may_move),
    }
}

/// Returns true if all of `from` is the kernel's, on addresses of ours and beside them: one
/// mapping of the kernel's may cross the edge.
fn is_kernels(space: &AddressSpace, from: &AddrRange) -> bool {
    let pieces = space.map.lookup(from);
    pieces.iter().all(|piece| match piece.state {
        Lookup::Outside => true,
        Lookup::Used(attrs, _) => attrs.kind == MappingKind::Foreign,
        Lookup::Free => false,
    })
}

/// Makes room at a given target.
fn make_room(space: &mut AddressSpace, to: &AddrRange) -> SyscallResult {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    map_fixed(space, to.clone(), RW, flags)
}

fn resize(
    space: &mut AddressSpace,
    from: AddrRange,
    len: usize,
    attrs: MappingAttrs,
    may_move: bool,
) -> SyscallResult {
    let end = from.start + len;
    if len <= from.len() {
        if len < from.len() {
            for piece in space.map.lookup(&(end..from.end)) {
                space.release(&piece);
            }
        }
        return from.start as SyscallResult;
    }
    let more = from.end..end;
    if space
        .map
        .lookup(&more)
        .iter()
        .all(|p| p.state == Lookup::Free)
    {
        space.open(&more, attrs.prot);
        apply_attrs(space, &more, attrs);
        return from.start as SyscallResult;
    }
    if grow_adopted(space, &more, attrs) {
        return from.start as SyscallResult;
    }
    if !may_move {
        return error(libc::ENOMEM);
    }
    match space.find_free(len) {
        Some(start) => move_mapping(space, &from, &(start..start + len), attrs, false),
        None => error(libc::ENOMEM),
    }
}

/// Adds fresh memory behind adopted memory, where nothing else is mapped. Returns true if
/// it is there.
fn grow_adopted(space: &mut AddressSpace, more: &AddrRange, attrs: MappingAttrs) -> bool {
    if space.map.touches(more) {
        return false;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let answer = address_space::map(more.start, more.len(), attrs.prot, flags, -1, 0);
    if is_error(answer) {
        return false;
    }
    let start = answer as usize;
    // However small: an mremap of the whole is to find one kind of memory.
    if start != more.start || paged_memory::adopt(more).is_err() {
        address_space::unmap(&(start..start + more.len()));
        return false;
    }
    paged_memory::access_changed(more);
    space
        .map
        .add_adopted(more.clone(), MappingAttrs::paged(attrs.prot));
    apply_attrs(space, more, attrs);
    true
}

/// Moves contents and state to `to`, which is free or freshly mapped.
fn move_mapping(
    space: &mut AddressSpace,
    from: &AddrRange,
    to: &AddrRange,
    attrs: MappingAttrs,
    keep: bool,
) -> SyscallResult {
    if space.map.lookup(to).iter().any(|p| p.state == Lookup::Free) {
        space.open(to, RW);
    }
    let moved = from.len().min(to.len());
    let (head, target) = (from.start..from.start + moved, to.start..to.start + moved);
    if attrs.locked == MlockState::Nailed {
        space.unlock(from);
    }
    if attrs.prot != RW {
        address_space::protect_paged(&head, RW);
    }
    move_contents(space, &head, &target);
    if keep {
        if attrs.prot != RW {
            address_space::protect_paged(&head, attrs.prot);
        }
        space.map.change(from, |t| t.locked = MlockState::No);
    } else {
        space
            .map
            .change(&head, |t| (t.prot, t.locked) = (RW, MlockState::No));
        for piece in space.map.lookup(from) {
            space.release(&piece);
        }
    }
    if attrs.prot != RW {
        address_space::protect_paged(to, attrs.prot);
    }
    apply_attrs(space, to, attrs);
    to.start as SyscallResult
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
fn apply_attrs(space: &mut AddressSpace, to: &AddrRange, attrs: MappingAttrs) {
    for piece in space.map.lookup(to) {
        let Lookup::Used(..) = piece.state else {
            apply_attrs_unpaged(&piece.span, attrs);
            continue;
        };
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
}

/// Moves a mapping that is not ours; its target may lie on an arena.
fn remap_foreign(
    space: &mut AddressSpace,
    from: &AddrRange,
    new_len: usize,
    flags: c_int,
    new: usize,
    through: impl Fn(usize) -> SyscallResult,
) -> SyscallResult {
    let to = match flags & libc::MREMAP_FIXED != 0 && new.is_multiple_of(PAGE) && new_len > 0 {
        true => page_range(new, new_len)
            .filter(|to| space.map.touches(to) && (to.end <= from.start || from.end <= to.start)),
        false => None,
    };
    let Some(to) = to else { return through(new) };
    // A move that fails must not destroy the target's mapping: move elsewhere first.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let scratch = address_space::map(0, to.len(), libc::PROT_NONE, flags, -1, 0);
    if is_error(scratch) {
        return scratch;
    }
    let scratch = scratch as usize;
    let answer = through(scratch);
    if is_error(answer) {
        address_space::unmap(&(scratch..scratch + to.len()));
        return answer;
    }
    let pieces = space.map.lookup(&to);
    displace(space, &pieces);
    let place = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    let args = [scratch, to.len(), to.len(), place, to.start, 0];
    // SAFETY: the target has given way, and what moves is what the program asked for.
    unsafe { syscall6(libc::SYS_mremap, args) }
}

/// A file or shared mapping that lies on an arena's addresses moves or changes size.
fn remap_in_arena(
    space: &mut AddressSpace,
    from: &AddrRange,
    flags: c_int,
    new: usize,
    len: usize,
    through: impl Fn(usize) -> SyscallResult,
) -> SyscallResult {
    // To the kernel the free addresses behind it are in use: unmap them first.
    let more = from.end..from.start + len.max(from.len());
    let pieces = space.map.lookup(&more);
    let room = flags & libc::MREMAP_FIXED == 0 && pieces.iter().all(|p| p.state == Lookup::Free);
    if room && !more.is_empty() {
        displace(space, &pieces);
        address_space::unmap(&more);
    }
    let answer = remap_foreign(space, from, len, flags, new, through);
    if room && answer != from.start as SyscallResult {
        for piece in space.map.lookup(&more) {
            space.release(&piece);
        }
    }
    if is_error(answer) {
        return answer;
    }
    let start = answer as usize;
    let kept = if start == from.start {
        from.start + len.min(from.len())
    } else {
        from.start
    };
    if kept < from.end && flags & libc::MREMAP_DONTUNMAP == 0 {
        // The kernel has unmapped what lies outside.
        let pieces = space.map.lookup(&(kept..from.end));
        for piece in pieces.iter().filter(|piece| piece.state != Lookup::Outside) {
            space.release(piece);
        }
    }
    answer
}
