//! `mmap`, `munmap`, `mremap` and `mprotect` as the kernel defines them, over arenas.
//!
//! Rule: results and error numbers are the kernel's own. What is not private anonymous
//! memory passes through; where it lands on an arena by MAP_FIXED, the arena gives way.

use crate::advise::{self, Room};
use crate::mappings::{Kind, Locked, Piece, Span, Traits, What};
use crate::raw::{self, Answer, error};
use crate::space::{self, RW, Space, WORTH_ADOPTING, span};
use crate::{pager, pager_process};
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
pub fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> Answer {
    let through = || space::map(addr, len, prot, flags, fd, offset);
    if !space::active() || len == 0 {
        return through();
    }
    let anonymous = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    let pageable = anonymous && flags & UNPAGED == 0;
    if flags & FIXED != 0 {
        let Some(to) = span(addr, len).filter(|_| addr.is_multiple_of(PAGE)) else {
            return through();
        };
        return match pageable {
            true => fixed(&mut space::hold(), to, prot, flags),
            false => foreign(&mut space::hold(), to, flags, |addr, flags| {
                space::map(addr, len, prot, flags, fd, offset)
            }),
        };
    }
    if !pageable {
        if addr == 0 && pager_process::is_pager() {
            let addr = wired::address_apart(len).expose_provenance();
            return space::map(addr, len, prot, flags, fd, offset);
        }
        let answer = through();
        if anonymous && !raw::failed(answer) {
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
    let space = &mut space::hold();
    if let Some(refused) = refused_locked(space, len, flags) {
        return refused;
    }
    if let Some(answer) = at_hint(space, addr, len, prot, flags) {
        return finish(space, answer, len, flags);
    }
    match space.place(len) {
        Some(start) => {
            space.open(&(start..start + len), prot & ACCESS);
            finish(space, start as Answer, len, flags)
        }
        None => {
            let answer = through();
            if !raw::failed(answer) {
                unpaged(len);
            }
            answer
        }
    }
}

fn unpaged(len: usize) {
    space::UNPAGED.fetch_add(len as u64, Ordering::Relaxed);
}

/// The kernel's error for MAP_LOCKED beyond the process's limit.
fn refused_locked(space: &Space, len: usize, flags: c_int) -> Option<Answer> {
    if flags & libc::MAP_LOCKED == 0 {
        return None;
    }
    match advise::room_for_locked(space, len) {
        Room::Yes => None,
        Room::No => Some(error(libc::EAGAIN)),
        Room::Never => Some(error(libc::EPERM)),
    }
}

/// MAP_LOCKED nails what it can, as the kernel does. MAP_POPULATE is a hint that would
/// only push other pages out: it is not taken.
fn finish(space: &mut Space, start: Answer, len: usize, flags: c_int) -> Answer {
    if flags & libc::MAP_LOCKED != 0 {
        let span = start as usize..start as usize + len;
        for piece in space.map.pieces(&span) {
            if let What::Used(traits, _) = piece.what {
                advise::lock_held(space, &piece.span, traits);
            }
        }
    }
    start
}

/// A mapping at the address that the program prefers, if that is free.
fn at_hint(
    space: &mut Space,
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
) -> Option<Answer> {
    let addr = addr & !(PAGE - 1);
    if addr == 0 {
        return None;
    }
    let wanted = span(addr, len)?;
    if !space.map.touches(&wanted) {
        // By the kernel's own rules: it keeps a distance from stacks that may grow.
        let flags = own_flags(len, flags);
        let answer = space::map(addr, len, prot, flags, -1, 0);
        if raw::failed(answer) {
            return None;
        }
        if answer as usize != addr {
            space::unmap(&(answer as usize..answer as usize + len));
            return None;
        }
        adopt(space, &wanted, prot);
        return Some(answer);
    }
    let free = space
        .map
        .pieces(&wanted)
        .iter()
        .all(|p| p.what == What::Free);
    free.then(|| {
        space.open(&wanted, prot & ACCESS);
        addr as Answer
    })
}

/// The flags for memory to be adopted: not yet populated, see [`finish`].
fn own_flags(len: usize, flags: c_int) -> c_int {
    match len >= WORTH_ADOPTING {
        true => flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED),
        false => flags,
    }
}

/// A fresh mapping of the program's outside the arenas becomes a stretch if it is worth
/// it and can be.
fn adopt(space: &mut Space, fresh: &Span, prot: c_int) {
    if fresh.len() >= WORTH_ADOPTING && pager::adopt(fresh).is_ok() {
        pager::access_changed(fresh);
        space
            .map
            .add_adopted(fresh.clone(), Traits::paged(prot & ACCESS));
    } else {
        unpaged(fresh.len());
    }
}

/// Private anonymous memory at a given address.
fn fixed(space: &mut Space, to: Span, prot: c_int, flags: c_int) -> Answer {
    if let Some(refused) = refused_locked(space, to.len(), flags) {
        return refused;
    }
    let pieces = space.map.pieces(&to);
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        if pieces.iter().any(|p| matches!(p.what, What::Used(..))) {
            return error(libc::EEXIST);
        }
        if let Some(answer) = hold_outside(&pieces) {
            return answer;
        }
    }
    let flags = flags & !FIXED | libc::MAP_FIXED;
    for piece in &pieces {
        let answer = match piece.what {
            What::Outside => {
                let (start, len) = (piece.span.start, piece.span.len());
                let answer = space::map(start, len, prot, own_flags(len, flags), -1, 0);
                if !raw::failed(answer) {
                    adopt(space, &piece.span, prot);
                }
                answer
            }
            _ => space.renew(piece, prot & ACCESS),
        };
        if raw::failed(answer) {
            return answer;
        }
    }
    finish(space, to.start as Answer, to.len(), flags)
}

/// Claims the addresses outside the arenas for a mapping that may replace nothing; an
/// error gives those claimed back.
fn hold_outside(pieces: &[Piece]) -> Option<Answer> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let outside = || {
        pieces
            .iter()
            .filter(|p| p.what == What::Outside)
            .map(|p| &p.span)
    };
    for (n, gap) in outside().enumerate() {
        let answer = space::map(gap.start, gap.len(), libc::PROT_NONE, flags, -1, 0);
        if raw::failed(answer) {
            outside().take(n).for_each(|gap| {
                space::unmap(gap);
            });
            return Some(answer);
        }
    }
    None
}

/// Any other mapping at a given address: the arena gives way.
fn foreign(
    space: &mut Space,
    to: Span,
    flags: c_int,
    map: impl Fn(usize, c_int) -> Answer,
) -> Answer {
    if !space.map.touches(&to) {
        return map(to.start, flags);
    }
    let pieces = space.map.pieces(&to);
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        if pieces.iter().any(|p| matches!(p.what, What::Used(..))) {
            return error(libc::EEXIST);
        }
        if let Some(answer) = hold_outside(&pieces) {
            return answer;
        }
    }
    // A mapping that fails must not destroy the old one: try it elsewhere first.
    let trial = map(0, flags & !FIXED);
    if raw::failed(trial) {
        return trial;
    }
    space::unmap(&(trial as usize..trial as usize + to.len()));
    give_way(space, &pieces);
    let answer = map(to.start, flags & !FIXED | libc::MAP_FIXED);
    if raw::failed(answer) {
        // What lay here is gone, as it may be after the kernel's own failed MAP_FIXED.
        for piece in space.map.pieces(&to) {
            if !matches!(piece.what, What::Outside) {
                space.release(&piece);
            }
        }
    }
    answer
}

/// Other mappings take the place of the arena's pieces.
fn give_way(space: &mut Space, pieces: &[Piece]) {
    for piece in pieces {
        match piece.what {
            What::Outside => {}
            What::Used(
                Traits {
                    kind: Kind::Foreign,
                    ..
                },
                _,
            ) => {}
            _ => {
                pager::surrender(&piece.span);
                crate::pthread::forget_nails(&piece.span);
                space.map.set(piece.span.clone(), Traits::FOREIGN);
            }
        }
    }
}

/// `munmap`.
pub fn munmap(addr: usize, len: usize) -> Answer {
    // SAFETY: the program asked for exactly this.
    let through = || unsafe { raw::call3(libc::SYS_munmap, addr, len, 0) };
    let Some(gone) =
        span(addr, len).filter(|_| space::active() && addr.is_multiple_of(PAGE) && len > 0)
    else {
        return through();
    };
    let space = &mut space::hold();
    if !space.map.touches(&gone) {
        return through();
    }
    for piece in space.map.pieces(&gone) {
        space.release(&piece);
    }
    0
}

/// `mprotect` and `pkey_mprotect` (`key` other than -1).
pub fn mprotect(addr: usize, len: usize, prot: c_int, key: c_int) -> Answer {
    let change = |s: &Span| {
        let args = [s.start, s.len(), prot as usize, key as usize, 0, 0];
        let number = if key == -1 {
            libc::SYS_mprotect
        } else {
            libc::SYS_pkey_mprotect
        };
        // SAFETY: the program asked for exactly this.
        unsafe { raw::call(number, args) }
    };
    let grows = prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) != 0;
    let Some(target) = span(addr, len)
        .filter(|_| space::active() && !grows && addr.is_multiple_of(PAGE) && len > 0)
    else {
        return change(&(addr..addr.wrapping_add(len)));
    };
    let space = &mut space::hold();
    if !space.map.touches(&target) {
        return change(&target);
    }
    for piece in space.map.pieces(&target) {
        if piece.what == What::Free {
            return error(libc::ENOMEM);
        }
        let paged = matches!(piece.what, What::Used(traits, _) if traits.kind == Kind::Paged);
        if paged {
            // Before it is so: the evictor reads what it takes right after this.
            pager::access_changed(&piece.span);
        }
        let answer = change(&piece.span);
        if raw::failed(answer) {
            return answer;
        }
        if paged {
            space.map.change(&piece.span, |traits| {
                traits.prot = prot & ACCESS;
                traits.keyed |= key > 0;
            });
        }
    }
    0
}

/// `mremap`.
pub fn mremap(old: usize, old_len: usize, new_len: usize, flags: c_int, new: usize) -> Answer {
    let through = |to: usize| {
        // SAFETY: the program asked for exactly this.
        unsafe {
            raw::call(
                libc::SYS_mremap,
                [old, old_len, new_len, flags as usize, to, 0],
            )
        }
    };
    if !space::active() {
        return through(new);
    }
    let space = &mut space::hold();
    if !space.map.contains(old) {
        let whole = span(old, old_len).filter(|from| space.map.touches(from));
        let len = new_len.checked_next_multiple_of(PAGE).unwrap_or(0);
        return match whole {
            Some(from) if old.is_multiple_of(PAGE) && len > 0 && over_edge(space, &from) => {
                leave_arena(space, &from, flags, new, len, through)
            }
            _ => {
                let from = old..old.saturating_add(old_len);
                move_foreign(space, &from, new_len, flags, new, through)
            }
        };
    }
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (may_move, fixed, keep) = (
        flags & libc::MREMAP_MAYMOVE != 0,
        flags & libc::MREMAP_FIXED != 0,
        flags & libc::MREMAP_DONTUNMAP != 0,
    );
    let (Some(from), Some(len)) = (span(old, old_len), new_len.checked_next_multiple_of(PAGE))
    else {
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
        return match space.map.pieces(&(old..old + PAGE))[..] {
            [
                Piece {
                    what:
                        What::Used(
                            Traits {
                                kind: Kind::Foreign,
                                ..
                            },
                            _,
                        ),
                    ..
                },
            ] => move_foreign(space, &from, new_len, flags, new, through),
            [
                Piece {
                    what: What::Used(..),
                    ..
                },
            ] => error(libc::EINVAL),
            _ => error(libc::EFAULT),
        };
    }
    let to = fixed.then(|| span(new, len));
    if let Some(to) = &to {
        let Some(to) = to else {
            return error(libc::EINVAL);
        };
        if !new.is_multiple_of(PAGE) || to.start < from.end && from.start < to.end {
            return error(libc::EINVAL);
        }
    }
    let traits = match &space.map.pieces(&from)[..] {
        [
            Piece {
                what: What::Used(traits, _),
                ..
            },
        ] => *traits,
        _ if over_edge(space, &from) => Traits::FOREIGN,
        _ => return error(libc::EFAULT),
    };
    if traits.kind == Kind::Foreign {
        return leave_arena(space, &from, flags, new, len, through);
    }
    match to.flatten() {
        Some(to) => {
            let answer = fixed_target(space, &to);
            if raw::failed(answer) {
                return answer;
            }
            // The kernel cuts what is longer before it moves.
            shift(space, &from, &to, traits, keep)
        }
        None if keep => match space.place(len) {
            Some(start) => shift(space, &from, &(start..start + len), traits, keep),
            None => error(libc::ENOMEM),
        },
        None => resize(space, from, len, traits, may_move),
    }
}

/// Returns true if all of `from` is the kernel's, on addresses of ours and beside them: one
/// mapping of the kernel's may cross the edge.
fn over_edge(space: &Space, from: &Span) -> bool {
    let pieces = space.map.pieces(from);
    pieces.iter().all(|piece| match piece.what {
        What::Outside => true,
        What::Used(traits, _) => traits.kind == Kind::Foreign,
        What::Free => false,
    })
}

/// Makes room at a given target.
fn fixed_target(space: &mut Space, to: &Span) -> Answer {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    fixed(space, to.clone(), RW, flags)
}

fn resize(space: &mut Space, from: Span, len: usize, traits: Traits, may_move: bool) -> Answer {
    let end = from.start + len;
    if len <= from.len() {
        if len < from.len() {
            for piece in space.map.pieces(&(end..from.end)) {
                space.release(&piece);
            }
        }
        return from.start as Answer;
    }
    let more = from.end..end;
    if space.map.pieces(&more).iter().all(|p| p.what == What::Free) {
        space.open(&more, traits.prot);
        inherit(space, &more, traits);
        return from.start as Answer;
    }
    if grow_adopted(space, &more, traits) {
        return from.start as Answer;
    }
    if !may_move {
        return error(libc::ENOMEM);
    }
    match space.place(len) {
        Some(start) => shift(space, &from, &(start..start + len), traits, false),
        None => error(libc::ENOMEM),
    }
}

/// Adds fresh memory behind adopted memory, where nothing else is mapped. Returns true if
/// it is there.
fn grow_adopted(space: &mut Space, more: &Span, traits: Traits) -> bool {
    if space.map.touches(more) {
        return false;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let answer = space::map(more.start, more.len(), traits.prot, flags, -1, 0);
    if raw::failed(answer) {
        return false;
    }
    let start = answer as usize;
    // However small: an mremap of the whole is to find one kind of memory.
    if start != more.start || pager::adopt(more).is_err() {
        space::unmap(&(start..start + more.len()));
        return false;
    }
    pager::access_changed(more);
    space
        .map
        .add_adopted(more.clone(), Traits::paged(traits.prot));
    inherit(space, more, traits);
    true
}

/// Moves contents and state to `to`, which is free or freshly mapped.
fn shift(space: &mut Space, from: &Span, to: &Span, traits: Traits, keep: bool) -> Answer {
    if space.map.pieces(to).iter().any(|p| p.what == What::Free) {
        space.open(to, RW);
    }
    let moved = from.len().min(to.len());
    let (head, target) = (from.start..from.start + moved, to.start..to.start + moved);
    if traits.locked == Locked::Nailed {
        space.unlock(from);
    }
    if traits.prot != RW {
        space::protect_paged(&head, RW);
    }
    transfer(space, &head, &target);
    if keep {
        if traits.prot != RW {
            space::protect_paged(&head, traits.prot);
        }
        space.map.change(from, |t| t.locked = Locked::No);
    } else {
        space
            .map
            .change(&head, |t| (t.prot, t.locked) = (RW, Locked::No));
        for piece in space.map.pieces(from) {
            space.release(&piece);
        }
    }
    if traits.prot != RW {
        space::protect_paged(to, traits.prot);
    }
    inherit(space, to, traits);
    to.start as Answer
}

/// Moves contents: as pages within paged memory; by a copy to memory that is the
/// kernel's, as a target too small to be adopted is.
fn transfer(space: &Space, from: &Span, to: &Span) {
    for piece in space.map.pieces(to) {
        let start = from.start + (piece.span.start - to.start);
        let source = start..start + piece.span.len();
        if let What::Used(..) = piece.what {
            pager::transfer(&source, &piece.span);
        } else {
            let (start, target) = (source.start as *const u8, piece.span.start as *mut u8);
            // SAFETY: both are mapped, readable and writeable, and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(start, target, source.len()) };
            pager::discard(&source);
        }
    }
}

/// New addresses of an old mapping have its state; those that are the kernel's, by its own
/// calls.
fn inherit(space: &mut Space, to: &Span, traits: Traits) {
    for piece in space.map.pieces(to) {
        let What::Used(..) = piece.what else {
            inherit_unpaged(&piece.span, traits);
            continue;
        };
        let locked = match traits.locked {
            Locked::Nailed if space.lock(&piece.span) => Locked::Nailed,
            Locked::Nailed | Locked::OnFault => Locked::OnFault,
            Locked::No => Locked::No,
        };
        space.map.change(&piece.span, |t| {
            *t = Traits {
                locked,
                keyed: t.keyed,
                ..traits
            }
        });
    }
}

fn inherit_unpaged(span: &Span, traits: Traits) {
    let call = |number, flags: c_int| {
        // SAFETY: the program's own memory, whose contents stay.
        unsafe { raw::call3(number, span.start, span.len(), flags as usize) };
    };
    match traits.locked {
        Locked::Nailed => call(libc::SYS_mlock2, 0),
        Locked::OnFault => call(libc::SYS_mlock2, libc::MLOCK_ONFAULT as c_int),
        Locked::No => {}
    }
    if traits.dont_fork {
        call(libc::SYS_madvise, libc::MADV_DONTFORK);
    }
    if traits.wipe_on_fork {
        call(libc::SYS_madvise, libc::MADV_WIPEONFORK);
    }
}

/// Moves a mapping that is not ours; its target may lie on an arena.
fn move_foreign(
    space: &mut Space,
    from: &Span,
    new_len: usize,
    flags: c_int,
    new: usize,
    through: impl Fn(usize) -> Answer,
) -> Answer {
    let to = match flags & libc::MREMAP_FIXED != 0 && new.is_multiple_of(PAGE) && new_len > 0 {
        true => span(new, new_len)
            .filter(|to| space.map.touches(to) && (to.end <= from.start || from.end <= to.start)),
        false => None,
    };
    let Some(to) = to else { return through(new) };
    // A move that fails must not destroy the target's mapping: move elsewhere first.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let scratch = space::map(0, to.len(), libc::PROT_NONE, flags, -1, 0);
    if raw::failed(scratch) {
        return scratch;
    }
    let scratch = scratch as usize;
    let answer = through(scratch);
    if raw::failed(answer) {
        space::unmap(&(scratch..scratch + to.len()));
        return answer;
    }
    let pieces = space.map.pieces(&to);
    give_way(space, &pieces);
    let place = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    let args = [scratch, to.len(), to.len(), place, to.start, 0];
    // SAFETY: the target has given way, and what moves is what the program asked for.
    unsafe { raw::call(libc::SYS_mremap, args) }
}

/// A file or shared mapping that lies on an arena's addresses moves or changes size.
fn leave_arena(
    space: &mut Space,
    from: &Span,
    flags: c_int,
    new: usize,
    len: usize,
    through: impl Fn(usize) -> Answer,
) -> Answer {
    // To the kernel the free addresses behind it are in use: unmap them first.
    let more = from.end..from.start + len.max(from.len());
    let pieces = space.map.pieces(&more);
    let room = flags & libc::MREMAP_FIXED == 0 && pieces.iter().all(|p| p.what == What::Free);
    if room && !more.is_empty() {
        give_way(space, &pieces);
        space::unmap(&more);
    }
    let answer = move_foreign(space, from, len, flags, new, through);
    if room && answer != from.start as Answer {
        for piece in space.map.pieces(&more) {
            space.release(&piece);
        }
    }
    if raw::failed(answer) {
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
        let pieces = space.map.pieces(&(kept..from.end));
        for piece in pieces.iter().filter(|piece| piece.what != What::Outside) {
            space.release(piece);
        }
    }
    answer
}
