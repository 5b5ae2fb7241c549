//! `mremap` as the kernel defines it, over arenas. The rule of [`crate::map`] holds here, too.

mod flags;
mod transfer;

use crate::address_space::{ADDRESSES, AddressSpace, RW, is_beyond_addresses, page_range};
use crate::map::{displace, map_fixed, move_into_place};
use crate::mlock::{LockLimit, room_for_locked};
use crate::raw_syscall::{SyscallResult, error, is_error, syscall6};
use crate::shared_memory;
use crate::vma_map::{AddrRange, Lookup, MappedRange, MappingAttrs, MappingKind, MlockState};
use crate::{address_space, paged_memory};
use flags::Flags;
use std::ffi::c_int;
use transfer::{apply_attrs, move_mapping};
use wired::PAGE;

/// `mremap`.
pub fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> SyscallResult {
    let through = |to: usize| {
        let args = [old, old_len, new_len, flags as usize, to, 0];
        // SAFETY: the program asked for exactly this.
        unsafe { syscall6(libc::SYS_mremap, args) }
    };
    let range = page_range(old, old_len);
    if !address_space::is_active() || range.is_none_or(|range| is_beyond_addresses(&range)) {
        return through(new);
    }
    let keeps = flags & libc::MREMAP_DONTUNMAP != 0;
    // Until the pager of shared memory knows of the change: a fork's child has its shared memory where the pager has it.
    let mut space = address_space::lock();
    let is_shared = page_range(old, old_len.max(1)).is_some_and(|it| space.shared.touches(&it));
    let is_reported = shared_memory::is_used()
        && shared_memory::maps_more(old_len, new_len, keeps)
        && page_range(old, PAGE).is_some_and(|page| is_kernels(&space, &page));
    let is_outside = |at, len| page_range(at, len).is_some_and(|span| !space.map.touches(&span));
    let is_moved_to = flags & libc::MREMAP_FIXED != 0;
    if !is_shared
        && !is_reported
        && is_outside(old, old_len)
        && (!is_moved_to || is_outside(new, new_len))
    {
        // Not under the lock: the kernel waits until a userfaultfd's reader, perhaps the program's, has read of it.
        drop(space);
        return through(new);
    }
    let answer = remap(&mut space, [old, old_len, new_len, new], flags, through);
    if is_reported && !is_error(answer) {
        shared_memory::on_remapped(old, old_len, new_len, keeps, answer as usize);
    }
    if is_shared && !is_error(answer) {
        let span = |start: usize, len: usize| start..start + len.next_multiple_of(PAGE);
        space.shared.remove(&span(old, old_len));
        space.shared.insert(span(answer as usize, new_len));
        if keeps {
            space.shared.insert(span(old, old_len));
        }
    }
    answer
}

/// `mremap` but for the paging of shared memory.
fn remap(
    space: &mut AddressSpace,
    [old, old_len, new_len, new]: [usize; 4],
    flags: c_int,
    through: impl Fn(usize) -> SyscallResult,
) -> SyscallResult {
    let range = page_range(old, old_len);
    let len = new_len.checked_next_multiple_of(PAGE);
    if !space.map.contains(old) {
        let crosses = |from: &AddrRange| space.map.touches(from) && is_kernels(space, from);
        return match (range.filter(crosses), len) {
            (Some(from), Some(len @ 1..)) if old.is_multiple_of(PAGE) => {
                remap_in_arena(space, &from, flags, new, len, through)
            }
            _ => {
                let from = old..old.saturating_add(old_len);
                remap_foreign(space, &from, new_len, flags, new, through)
            }
        };
    }
    let (Some(from), Some(len @ 1..=ADDRESSES), Some(parsed)) = (range, len, Flags::parse(flags))
    else {
        return error(libc::EINVAL);
    };
    if parsed.keep && from.len() != len || !old.is_multiple_of(PAGE) {
        return error(libc::EINVAL);
    }
    if old_len == 0 {
        // A second mapping of what is shared; private memory has none.
        return match space.map.lookup(&(old..old + PAGE))[0].state {
            Lookup::Free | Lookup::Outside => error(libc::EFAULT),
            state if state.is_kernels() => {
                remap_foreign(space, &from, new_len, flags, new, through)
            }
            Lookup::Used(..) => error(libc::EINVAL),
        };
    }
    if len <= from.len() && !parsed.fixed && !parsed.keep {
        return shrink(space, &from, len);
    }
    let to = page_range(new, len).filter(|to| {
        let is_apart = from.end <= to.start || to.end <= from.start;
        new.is_multiple_of(PAGE) && to.end <= ADDRESSES && is_apart
    });
    if parsed.fixed && to.is_none() || parsed.keep && !new.is_multiple_of(PAGE) {
        return error(libc::EINVAL);
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
    let to = to.filter(|to| {
        // Without MREMAP_FIXED it is a hint.
        let is_hint = parsed.keep && space.map.is_in_one_arena(to) && space.map.is_free(to);
        parsed.fixed || is_hint
    });
    remap_paged(space, from, len, to, attrs, parsed)
}

/// Moves paged memory, or changes its size.
fn remap_paged(
    space: &mut AddressSpace,
    from: AddrRange,
    len: usize,
    to: Option<AddrRange>,
    attrs: MappingAttrs,
    flags: Flags,
) -> SyscallResult {
    let more = len.saturating_sub(from.len());
    let is_locked = attrs.locked != MlockState::No;
    if more > 0 && is_locked && room_for_locked(space, more) != LockLimit::Fits {
        return error(libc::EAGAIN);
    }
    match to {
        Some(to) => {
            let answer = make_room(space, &to);
            if is_error(answer) {
                return answer;
            }
            // The kernel cuts what is longer before it moves.
            move_mapping(space, &from, &to, attrs, flags.keep)
        }
        None if flags.keep => match space.find_free(len) {
            Some(start) => move_mapping(space, &from, &(start..start + len), attrs, true),
            None => error(libc::ENOMEM),
        },
        None => resize(space, from, len, attrs, flags.may_move),
    }
}

/// Unmaps what lies behind the first `len` bytes. The kernel asks for a mapping at the start alone: others, and
/// holes, may follow.
fn shrink(space: &mut AddressSpace, from: &AddrRange, len: usize) -> SyscallResult {
    let first = space.map.lookup(&(from.start..from.start + PAGE))[0].state;
    if matches!(first, Lookup::Free | Lookup::Outside) {
        return error(libc::EFAULT);
    }
    let tail = from.start + len..from.end;
    let answer = match tail.is_empty() {
        true => 0,
        false => space.release_all(&tail),
    };
    match is_error(answer) {
        true => answer,
        false => from.start as SyscallResult,
    }
}

/// Returns true if all of `from` is the kernel's, on addresses of ours and beside them: one
/// mapping of the kernel's may cross the edge.
pub fn is_kernels(space: &AddressSpace, from: &AddrRange) -> bool {
    let pieces = space.map.lookup(from);
    pieces.iter().all(|piece| piece.state.is_kernels())
}

/// Makes room at a given target.
fn make_room(space: &mut AddressSpace, to: &AddrRange) -> SyscallResult {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    map_fixed(space, to.clone(), RW, flags)
}

/// Makes a mapping longer.
fn resize(
    space: &mut AddressSpace,
    from: AddrRange,
    len: usize,
    attrs: MappingAttrs,
    may_move: bool,
) -> SyscallResult {
    let more = from.end..from.start + len;
    let whole = from.start..more.end;
    if space.map.is_in_one_arena(&whole) && space.map.is_free(&more) {
        let answer = space.map_in_arena(&more, attrs.prot);
        if is_error(answer) {
            return answer;
        }
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
    move_into_place(space, scratch, &to)
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
    let room = flags & libc::MREMAP_FIXED == 0 && space.map.is_free(&more);
    if room && !more.is_empty() {
        displace(space, &pieces);
        address_space::unmap(&more);
    }
    let answer = remap_foreign(space, from, len, flags, new, through);
    if room && answer != from.start as SyscallResult {
        for piece in space.map.lookup(&more) {
            space.fill_hole(&piece);
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
        for piece in space.map.lookup(&(kept..from.end)) {
            space.fill_hole(&piece);
        }
    }
    answer
}
