//! `madvise`, `mlock`, `mincore` and `msync` over arenas.
//!
//! The pager carries out advice that discards contents. Advice about the kernel's own
//! paging (cold, huge, mergeable) succeeds without effect: the kernel would split mappings that
//! the pager moves in one piece otherwise.

use crate::address_space::{AddressSpace, page_range};
use crate::raw_syscall::{SyscallResult, error, is_error, syscall3, syscall6};
use crate::shared_memory;
use crate::vma_map::{AddrRange, Lookup, MappingAttrs, MlockState};
use crate::{address_space, mutexes, paged_memory, raw_syscall};
use host::process_tree::{PIDFD_GET_INFO, PIDFD_INFO_PID, PidfdInfo};
use std::ffi::c_int;
use wired::PAGE;

/// MADV_REMOVE. Shared memory that is paged has one remover, its pager: the kernel and the pager one after the other
/// would remove what another process writes in between.
fn remove(span: &AddrRange, advise: impl Fn(&AddrRange) -> SyscallResult) -> SyscallResult {
    let mut answer = 0;
    for (part, is_paged) in shared_memory::parts(span) {
        let removed = match is_paged {
            true => remove_paged(&part, &advise),
            false => advise(&part),
        };
        // Past holes the kernel continues.
        if removed == error(libc::ENOMEM) {
            answer = removed;
        } else if is_error(removed) {
            return removed;
        }
    }
    answer
}

/// The pager removes what lies before the first locked mapping, at which the kernel stops.
fn remove_paged(span: &AddrRange, advise: &impl Fn(&AddrRange) -> SyscallResult) -> SyscallResult {
    let is_locked = |len| shared_memory::has_locked(&(span.start..span.start + len));
    let mut removed = span.len();
    if is_locked(span.len()) {
        let mut refused = span.len();
        removed = 0;
        while refused - removed > PAGE {
            let half = removed + (refused - removed) / 2 / PAGE * PAGE;
            match is_locked(half) {
                true => refused = half,
                false => removed = half,
            }
        }
    }
    match remove_all(&(span.start..span.start + removed), advise) {
        answer if is_error(answer) && answer != error(libc::ENOMEM) => answer,
        _ if removed < span.len() => error(libc::EINVAL),
        answer => answer,
    }
}

/// Has the pager remove a range. What is not its own there any more (the program has mapped a file over it, say) is the
/// kernel's.
fn remove_all(span: &AddrRange, advise: &impl Fn(&AddrRange) -> SyscallResult) -> SyscallResult {
    if span.is_empty() || shared_memory::discard(span) {
        return 0;
    }
    if span.len() <= PAGE {
        return advise(span);
    }
    let middle = span.start + span.len() / PAGE / 2 * PAGE;
    match remove_all(&(span.start..middle), advise) {
        answer if is_error(answer) && answer != error(libc::ENOMEM) => answer,
        answer => match remove_all(&(middle..span.end), advise) {
            0 => answer,
            rest => rest,
        },
    }
}

/// The effect of advice on a piece of paged memory.
enum AdviceAction {
    /// Contents become zero.
    Discard,
    /// Only the map changes.
    Note(fn(&mut MappingAttrs)),
    /// The kernel leaves it out of core dumps, or not: it writes them.
    Dump(bool),
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
fn action_of(advice: c_int) -> Option<AdviceAction> {
    Some(match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => AdviceAction::Discard,
        libc::MADV_WILLNEED => AdviceAction::Fetch,
        libc::MADV_DONTFORK => AdviceAction::Note(|t| t.dont_fork = true),
        libc::MADV_DOFORK => AdviceAction::Note(|t| t.dont_fork = false),
        libc::MADV_WIPEONFORK => AdviceAction::Note(|t| t.wipe_on_fork = true),
        libc::MADV_KEEPONFORK => AdviceAction::Note(|t| t.wipe_on_fork = false),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => AdviceAction::Kernel,
        libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE => AdviceAction::Kernel,
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE => AdviceAction::Nothing,
        libc::MADV_DONTDUMP => AdviceAction::Dump(false),
        libc::MADV_DODUMP => AdviceAction::Dump(true),
        libc::MADV_COLD | libc::MADV_PAGEOUT => AdviceAction::Cool,
        // A hole can only be punched in shared memory.
        libc::MADV_REMOVE => AdviceAction::Refuse(libc::EINVAL),
        // Guard pages (102, 103) among them, as before 6.13: callers then use mprotect.
        _ => return None,
    })
}

/// MADV_GUARD_INSTALL of Linux 6.13: a page's use is a SIGSEGV, as if nothing were mapped.
pub const GUARD_INSTALL: c_int = host::seccomp::GUARD_INSTALL as c_int;

/// MADV_GUARD_REMOVE: the page is as before.
pub const GUARD_REMOVE: c_int = 103;

/// `madvise`.
pub fn madvise(addr: usize, len: usize, advice: c_int) -> SyscallResult {
    // Shared memory has no huge pages; the answer is the same.
    let advice = match advice {
        libc::MADV_HUGEPAGE | libc::MADV_COLLAPSE if shared_memory::is_used() => {
            libc::MADV_NOHUGEPAGE
        }
        advice => advice,
    };
    let advise = |s: &AddrRange| address_space::advise(s, advice);
    let kernel = |s: &AddrRange| match advice {
        libc::MADV_REMOVE if shared_memory::is_used() => remove(s, advise),
        _ => advise(s),
    };
    let Some(target) = page_range(addr, len)
        .filter(|_| address_space::is_active() && addr.is_multiple_of(PAGE) && len > 0)
    else {
        // SAFETY: the program asked for exactly this.
        return unsafe { wired::syscall::madvise(addr, len, advice) };
    };
    // A guard in the place of a page of shared memory looks to its pager as if the page were there.
    if advice == GUARD_INSTALL && shared_memory::is_used() {
        return error(libc::EINVAL);
    }
    let mut space = address_space::lock();
    if !space.map.touches(&target) {
        // Not under the lock: the kernel may wait for a thread of the program that serves these pages, or reads
        // what becomes of them (userfaultfd), and that thread may map memory meanwhile.
        drop(space);
        return kernel(&target);
    }
    let Some(action) = action_of(advice) else {
        return error(libc::EINVAL);
    };
    let mut hole = false;
    let mut pieces = space.map.lookup(&target).into_iter();
    while let Some(piece) = pieces.next() {
        let answer = match piece.state.paged() {
            None if piece.state == Lookup::Free => error(libc::ENOMEM),
            None => {
                drop(space);
                let answer = kernel(&piece.span);
                space = address_space::lock();
                let rest = piece.span.end..target.end;
                pieces = space.map.lookup(&rest).into_iter();
                answer
            }
            Some(attrs) => on_paged(&mut space, &piece.span, attrs, &action, advice, kernel),
        };
        match -answer as c_int {
            // Populating stops at a hole. Other advice continues past it, and the kernel reports
            // it at the end.
            libc::ENOMEM if is_error(answer) && !matches!(action, AdviceAction::Kernel) => {
                hole = true
            }
            _ if is_error(answer) => return answer,
            _ => {}
        }
    }
    if hole { error(libc::ENOMEM) } else { 0 }
}

fn on_paged(
    space: &mut AddressSpace,
    span: &AddrRange,
    attrs: MappingAttrs,
    action: &AdviceAction,
    advice: c_int,
    kernel: impl Fn(&AddrRange) -> SyscallResult,
) -> SyscallResult {
    match action {
        AdviceAction::Discard
            if attrs.locked != MlockState::No && advice != libc::MADV_DONTNEED_LOCKED =>
        {
            return error(libc::EINVAL);
        }
        AdviceAction::Cool if attrs.locked != MlockState::No => return error(libc::EINVAL),
        AdviceAction::Discard => {
            // A mutex ends with its contents.
            mutexes::forget(span);
            paged_memory::discard(span);
            // It stays locked.
            if attrs.locked == MlockState::Nailed && !space.lock(span) {
                space.map.change(span, |t| t.locked = MlockState::OnFault);
            }
        }
        AdviceAction::Note(change) => space.map.change(span, *change),
        AdviceAction::Dump(dump) => {
            let answer = kernel(span);
            if !is_error(answer) {
                space.map.change(span, |t| t.dont_dump = !*dump);
            }
            return answer;
        }
        AdviceAction::Kernel => return kernel(span),
        AdviceAction::Fetch if attrs.prot & libc::PROT_READ != 0 => paged_memory::will_need(span),
        AdviceAction::Fetch | AdviceAction::Cool | AdviceAction::Nothing => {}
        AdviceAction::Refuse(errno) => return error(*errno),
    }
    0
}

/// `mincore`: addresses that the program has not mapped are not there.
pub fn mincore(addr: usize, len: usize, to: usize) -> SyscallResult {
    // SAFETY: the program asked for exactly this.
    let kernel = |len: usize| unsafe { syscall3(libc::SYS_mincore, addr, len, to) };
    let Some(target) =
        page_range(addr, len).filter(|_| address_space::is_active() && addr.is_multiple_of(PAGE))
    else {
        return kernel(len);
    };
    let space = &mut address_space::lock();
    let pieces = space.map.lookup(&target);
    match pieces.iter().find(|piece| piece.state == Lookup::Free) {
        None => kernel(len),
        Some(hole) => match kernel(hole.span.start - addr) {
            answer if is_error(answer) => answer,
            _ => error(libc::ENOMEM),
        },
    }
}

/// `msync` over addresses that the program has not mapped or has locked, of which the kernel
/// has no record; elsewhere it is the kernel's.
pub fn msync(addr: usize, len: usize, flags: c_int) -> Option<SyscallResult> {
    let kernel = |addr: usize, len: usize| {
        // SAFETY: the program asked for exactly this.
        unsafe { syscall3(libc::SYS_msync, addr, len, flags as usize) }
    };
    let target = page_range(addr, len)
        .filter(|_| address_space::is_active() && addr.is_multiple_of(PAGE))?;
    let space = &mut address_space::lock();
    let locked = |state: Lookup| match state {
        Lookup::Used(attrs, _) => {
            attrs.locked != MlockState::No && flags & libc::MS_INVALIDATE != 0
        }
        _ => false,
    };
    let pieces = space.map.lookup(&target);
    if !pieces
        .iter()
        .any(|piece| piece.state == Lookup::Free || locked(piece.state))
    {
        return None;
    }
    let valid = kernel(addr, 0);
    if is_error(valid) {
        return Some(valid);
    }
    let mut hole = false;
    for piece in pieces {
        let answer = match piece.state {
            Lookup::Free => error(libc::ENOMEM),
            state if locked(state) => error(libc::EBUSY),
            _ => kernel(piece.span.start, piece.span.len()),
        };
        match -answer as c_int {
            // The kernel continues past a hole and reports it at the end.
            libc::ENOMEM if is_error(answer) => hole = true,
            _ if is_error(answer) => return Some(answer),
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
) -> SyscallResult {
    const MAX_PARTS: usize = 1024;
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
        unsafe { syscall6(libc::SYS_process_madvise, args) }
    };
    // Without parts the kernel checks the other arguments.
    let valid = kernel(0);
    if !address_space::is_active() || count > MAX_PARTS || is_error(valid) || !is_own(process) {
        return kernel(count);
    }
    let part = |n: usize| {
        let at = parts.wrapping_add(n * size_of::<libc::iovec>());
        let is_readable = raw_syscall::is_readable(at, size_of::<libc::iovec>());
        // SAFETY: readable.
        is_readable.then(|| unsafe { (at as *const libc::iovec).read_unaligned() })
    };
    // As the kernel, which checks all parts before it takes the first.
    for n in 0..count {
        match part(n) {
            None => return error(libc::EFAULT),
            Some(part) if part.iov_len > isize::MAX as usize => return error(libc::EINVAL),
            Some(_) => {}
        }
    }
    let is_there = |part: libc::iovec| {
        (part.iov_base as usize).saturating_add(part.iov_len) <= address_space::ADDRESSES
    };
    if !(0..count).all(|n| part(n).is_some_and(is_there)) {
        return error(libc::EFAULT);
    }
    let mut done = 0;
    for part in (0..count).map_while(part) {
        let answer = madvise(part.iov_base as usize, part.iov_len, advice);
        if is_error(answer) {
            return if done > 0 {
                done as SyscallResult
            } else {
                answer
            };
        }
        done += part.iov_len;
    }
    done as SyscallResult
}

/// Returns true if a pidfd is of this process. Before Linux 6.13 the kernel does not answer, and refuses
/// advice that discards.
fn is_own(process: c_int) -> bool {
    /// linux/pidfd.h: this thread, this process.
    const SELF: [c_int; 2] = [-10_000, -10_001];
    let mut info = PidfdInfo::default();
    info.mask = PIDFD_INFO_PID;
    let (request, to) = (PIDFD_GET_INFO as usize, &raw mut info as usize);
    // SAFETY: room for the answer.
    let of_descriptor = || unsafe { syscall3(libc::SYS_ioctl, process as usize, request, to) };
    SELF.contains(&process)
        || !is_error(of_descriptor())
            && info.mask & PIDFD_INFO_PID != 0
            && info.tgid == raw_syscall::pid() as u32
}
