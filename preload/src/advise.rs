//! `madvise`, `mlock`, `mincore` and `msync` over arenas.
//!
//! The engine carries out advice that discards contents. Advice about the kernel's own
//! paging (cold, huge, mergeable) succeeds without effect: the kernel would split mappings that
//! the engine must be able to move in one piece.

use crate::mappings::{Kind, Locked, Piece, Span, Traits, What};
use crate::raw::{self, Answer, error};
use crate::space::{self, Space, span};
use crate::{notice, pager};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use wired::PAGE;

/// The effect of advice on a piece of paged memory.
enum Act {
    /// Contents become zero.
    Discard,
    /// Only the map changes.
    Note(fn(&mut Traits)),
    /// The kernel carries it out; the pager resolves its faults.
    Kernel,
    /// The pages are brought in.
    Fetch,
    /// Nothing, of memory that is not locked.
    Cool,
    /// Nothing.
    Nothing,
    /// The kernel's answer for private anonymous memory.
    Refuse(c_int),
}

/// The effect of `advice`; `None` for unknown advice.
fn act(advice: c_int) -> Option<Act> {
    Some(match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => Act::Discard,
        libc::MADV_WILLNEED => Act::Fetch,
        libc::MADV_DONTFORK => Act::Note(|t| t.dont_fork = true),
        libc::MADV_DOFORK => Act::Note(|t| t.dont_fork = false),
        libc::MADV_WIPEONFORK => Act::Note(|t| t.wipe_on_fork = true),
        libc::MADV_KEEPONFORK => Act::Note(|t| t.wipe_on_fork = false),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => Act::Kernel,
        libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE => Act::Kernel,
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => Act::Nothing,
        libc::MADV_COLD | libc::MADV_PAGEOUT => Act::Cool,
        // A hole can only be punched in shared memory.
        libc::MADV_REMOVE => Act::Refuse(libc::EINVAL),
        // Guard pages (102, 103) among them, as before 6.13: callers then use mprotect.
        _ => return None,
    })
}

/// `madvise`.
pub fn madvise(addr: usize, len: usize, advice: c_int) -> Answer {
    let kernel = |s: &Span| {
        // SAFETY: the program asked for exactly this.
        unsafe { raw::call3(libc::SYS_madvise, s.start, s.len(), advice as usize) }
    };
    let Some(target) =
        span(addr, len).filter(|_| space::active() && addr.is_multiple_of(PAGE) && len > 0)
    else {
        // SAFETY: as above.
        return unsafe { raw::call3(libc::SYS_madvise, addr, len, advice as usize) };
    };
    let space = &mut space::hold();
    if !space.map.touches(&target) {
        return kernel(&target);
    }
    let Some(act) = act(advice) else {
        return error(libc::EINVAL);
    };
    let mut hole = false;
    for piece in space.map.pieces(&target) {
        let answer = match piece.what {
            What::Outside
            | What::Used(
                Traits {
                    kind: Kind::Foreign,
                    ..
                },
                _,
            ) => kernel(&piece.span),
            What::Free => error(libc::ENOMEM),
            What::Used(traits, _) => on_paged(space, &piece.span, traits, &act, advice, kernel),
        };
        match -answer as c_int {
            // Populating stops at a hole. Other advice continues past it, and the kernel reports
            // it at the end.
            libc::ENOMEM if raw::failed(answer) && !matches!(act, Act::Kernel) => hole = true,
            _ if raw::failed(answer) => return answer,
            _ => {}
        }
    }
    if hole { error(libc::ENOMEM) } else { 0 }
}

fn on_paged(
    space: &mut Space,
    span: &Span,
    traits: Traits,
    act: &Act,
    advice: c_int,
    kernel: impl Fn(&Span) -> Answer,
) -> Answer {
    match act {
        Act::Discard if traits.locked != Locked::No && advice != libc::MADV_DONTNEED_LOCKED => {
            return error(libc::EINVAL);
        }
        Act::Cool if traits.locked != Locked::No => return error(libc::EINVAL),
        Act::Discard => pager::discard(span),
        Act::Note(change) => space.map.change(span, *change),
        Act::Kernel => return kernel(span),
        Act::Fetch if traits.prot & libc::PROT_READ != 0 => pager::will_need(span),
        Act::Fetch | Act::Cool | Act::Nothing => {}
        Act::Refuse(errno) => return error(*errno),
    }
    0
}

/// `mlock` and `mlock2`: nails pages. `on_fault` requests less than `mlock`, and has no
/// effect: pages that are brought in may be evicted.
pub fn mlock(addr: usize, len: usize, on_fault: bool) -> Answer {
    let kernel = |s: &Span| {
        let flags = usize::from(on_fault);
        // SAFETY: the program asked for exactly this.
        unsafe { raw::call3(libc::SYS_mlock2, s.start, s.len(), flags) }
    };
    let first = addr & !(PAGE - 1);
    let Some(target) =
        span(first, len.saturating_add(addr - first)).filter(|_| space::active() && len > 0)
    else {
        // SAFETY: as above.
        return unsafe { raw::call3(libc::SYS_mlock2, addr, len, usize::from(on_fault)) };
    };
    let space = &mut space::hold();
    let pieces = space.map.pieces(&target);
    let fresh = |piece: &Piece| match piece.what {
        What::Used(traits, _) if traits.kind == Kind::Paged && traits.locked == Locked::No => {
            piece.span.len()
        }
        _ => 0,
    };
    match room_for_locked(space, pieces.iter().map(fresh).sum()) {
        Room::Yes => {}
        Room::No => return error(libc::ENOMEM),
        Room::Never => return error(libc::EPERM),
    }
    let mut result = 0;
    for piece in pieces {
        let answer = match piece.what {
            What::Outside
            | What::Used(
                Traits {
                    kind: Kind::Foreign,
                    ..
                },
                _,
            ) => kernel(&piece.span),
            What::Free => return error(libc::ENOMEM),
            What::Used(traits, _) if on_fault => {
                if traits.locked == Locked::No {
                    space
                        .map
                        .change(&piece.span, |t| t.locked = Locked::OnFault);
                }
                0
            }
            What::Used(traits, _) => lock_held(space, &piece.span, traits),
        };
        // The kernel continues over holes, and reports them at the end.
        if raw::failed(answer) {
            result = answer;
        }
    }
    result
}

/// The answer of the process's RLIMIT_MEMLOCK to a further lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The limit allows it.
    Yes,
    /// The limit is lower.
    No,
    /// The limit forbids any lock.
    Never,
}

/// Checks if `more` bytes can be locked beyond those that are.
pub fn room_for_locked(space: &Space, more: usize) -> Room {
    let Some(limit) = getrlimit(Resource::Memlock).current else {
        return Room::Yes;
    };
    let locked = |(span, traits): (Span, Traits)| match traits.locked {
        Locked::No => 0,
        Locked::OnFault | Locked::Nailed => span.len(),
    };
    let all = || space.map.used().map(locked).sum::<usize>() + more;
    let privileged =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match limit {
        0 if !privileged() => Room::Never,
        limit if !privileged() && all() as u64 > limit => Room::No,
        _ => Room::Yes,
    }
}

/// Nails pages of paged memory that are not nailed yet; ENOMEM, as from the kernel, where
/// the contract has no frames for that.
pub fn lock_held(space: &mut Space, span: &Span, traits: Traits) -> Answer {
    let (locked, answer) = match traits.locked {
        // As the kernel: locked, though no page could be brought in.
        Locked::No if traits.prot == libc::PROT_NONE => (Locked::OnFault, error(libc::ENOMEM)),
        before if traits.prot == libc::PROT_NONE => (before, error(libc::ENOMEM)),
        Locked::Nailed => (Locked::Nailed, 0),
        _ if space.lock(span) => (Locked::Nailed, 0),
        before => (before, error(libc::ENOMEM)),
    };
    space.map.change(span, |traits| traits.locked = locked);
    answer
}

/// `munlock`.
pub fn munlock(addr: usize, len: usize) -> Answer {
    let first = addr & !(PAGE - 1);
    let Some(target) =
        span(first, len.saturating_add(addr - first)).filter(|_| space::active() && len > 0)
    else {
        // SAFETY: the program asked for exactly this.
        return unsafe { raw::call3(libc::SYS_munlock, addr, len, 0) };
    };
    let space = &mut space::hold();
    for piece in space.map.pieces(&target) {
        match piece.what {
            What::Outside
            | What::Used(
                Traits {
                    kind: Kind::Foreign,
                    ..
                },
                _,
            ) => {
                // SAFETY: as above.
                let answer =
                    unsafe { raw::call3(libc::SYS_munlock, piece.span.start, piece.span.len(), 0) };
                if raw::failed(answer) {
                    return answer;
                }
            }
            What::Free => return error(libc::ENOMEM),
            What::Used(traits, _) => unlock_held(space, &piece.span, traits),
        }
    }
    0
}

fn unlock_held(space: &mut Space, span: &Span, traits: Traits) {
    if traits.locked == Locked::Nailed {
        space.unlock(span);
    }
    space.map.change(span, |traits| traits.locked = Locked::No);
}

/// `mlockall`: the kernel would bring every arena in, whole. A program that must not
/// page is not one to run under a contract smaller than itself.
pub fn mlockall(flags: c_int) -> Answer {
    if !space::active() {
        // SAFETY: the program asked for exactly this.
        return unsafe { raw::call3(libc::SYS_mlockall, flags as usize, 0, 0) };
    }
    let all = libc::MCL_CURRENT | libc::MCL_FUTURE;
    if flags & all == 0 || flags & !(all | libc::MCL_ONFAULT) != 0 {
        return error(libc::EINVAL);
    }
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        notice::say(format_args!(
            "mlockall refused: all memory of a paged program cannot stay resident in its frames; mlock what must"
        ));
    }
    error(libc::ENOMEM)
}

/// `munlockall`.
pub fn munlockall() -> Answer {
    if space::active() {
        unlock_all(&mut space::hold());
    }
    // SAFETY: what lies outside the arenas, as the program asked.
    unsafe { raw::call3(libc::SYS_munlockall, 0, 0, 0) }
}

/// Unlocks all paged memory.
pub fn unlock_all(space: &mut Space) {
    let locked: Vec<_> = space
        .map
        .used()
        .filter(|(_, traits)| traits.locked != Locked::No)
        .collect();
    for (span, traits) in locked {
        unlock_held(space, &span, traits);
    }
}

/// `mincore`: addresses that the program has not mapped are not there.
pub fn mincore(addr: usize, len: usize, to: usize) -> Answer {
    // SAFETY: the program asked for exactly this.
    let kernel = |len: usize| unsafe { raw::call3(libc::SYS_mincore, addr, len, to) };
    let Some(target) = span(addr, len).filter(|_| space::active() && addr.is_multiple_of(PAGE))
    else {
        return kernel(len);
    };
    let space = &mut space::hold();
    let pieces = space.map.pieces(&target);
    match pieces.iter().find(|piece| piece.what == What::Free) {
        None => kernel(len),
        Some(hole) => match kernel(hole.span.start - addr) {
            answer if raw::failed(answer) => answer,
            _ => error(libc::ENOMEM),
        },
    }
}

/// `msync` over addresses that the program has not mapped or has locked, of which the kernel
/// has no record; elsewhere it is the kernel's.
pub fn msync(addr: usize, len: usize, flags: c_int) -> Option<Answer> {
    let kernel = |addr: usize, len: usize| {
        // SAFETY: the program asked for exactly this.
        unsafe { raw::call3(libc::SYS_msync, addr, len, flags as usize) }
    };
    let target = span(addr, len).filter(|_| space::active() && addr.is_multiple_of(PAGE))?;
    let space = &mut space::hold();
    let locked = |what: What| match what {
        What::Used(traits, _) => traits.locked != Locked::No && flags & libc::MS_INVALIDATE != 0,
        _ => false,
    };
    let pieces = space.map.pieces(&target);
    if !pieces
        .iter()
        .any(|piece| piece.what == What::Free || locked(piece.what))
    {
        return None;
    }
    let valid = kernel(addr, 0);
    if raw::failed(valid) {
        return Some(valid);
    }
    let mut hole = false;
    for piece in pieces {
        let answer = match piece.what {
            What::Free => error(libc::ENOMEM),
            what if locked(what) => error(libc::EBUSY),
            _ => kernel(piece.span.start, piece.span.len()),
        };
        match -answer as c_int {
            // The kernel continues past a hole and reports it at the end.
            libc::ENOMEM if raw::failed(answer) => hole = true,
            _ if raw::failed(answer) => return Some(answer),
            _ => {}
        }
    }
    Some(if hole { error(libc::ENOMEM) } else { 0 })
}

/// `process_madvise`: of this process, advice like any other. Of another it can only be advice
/// that keeps contents.
pub fn process_madvise(
    process: c_int,
    parts: usize,
    count: usize,
    advice: c_int,
    flags: u32,
) -> Answer {
    const MOST: usize = 1024;
    let kernel = |count: usize| {
        let args = [
            process as usize,
            parts,
            count,
            advice as usize,
            flags as usize,
            0,
        ];
        // SAFETY: the program asked for exactly this.
        unsafe { raw::call(libc::SYS_process_madvise, args) }
    };
    // Without parts the kernel checks the other arguments.
    let valid = kernel(0);
    if !space::active() || count > MOST || raw::failed(valid) || !is_own(process) {
        return kernel(count);
    }
    let mut done = 0;
    for n in 0..count {
        let at = parts.wrapping_add(n * size_of::<libc::iovec>());
        if !raw::is_readable(at, size_of::<libc::iovec>()) {
            return error(libc::EFAULT);
        }
        // SAFETY: readable.
        let part = unsafe { (at as *const libc::iovec).read_unaligned() };
        let answer = madvise(part.iov_base as usize, part.iov_len, advice);
        if raw::failed(answer) {
            return if done > 0 { done as Answer } else { answer };
        }
        done += part.iov_len;
    }
    done as Answer
}

/// Returns true if a pidfd is of this process.
fn is_own(process: c_int) -> bool {
    /// linux/pidfd.h: this thread, this process.
    const SELF: [c_int; 2] = [-10_000, -10_001];
    let of_table = || {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{process}")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        line.trim().parse().ok()
    };
    SELF.contains(&process) || of_table() == Some(raw::pid())
}
