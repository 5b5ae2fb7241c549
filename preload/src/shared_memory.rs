//! Shared anonymous memory: objects of the tree, which the supervisor's pager serves
//! (`manager::shared_memory`).
//!
//! The kernel maps it first, by its own rules, and errors. Then a memfd of the supervisor's takes its place, and the
//! pager process's second userfaultfd, which the supervisor holds, receives its faults. Where
//! that cannot be, the mapping stays the kernel's own. Shared memory that has a descriptor (memfds, POSIX and
//! System V shared memory, files) stays the kernel's: processes outside of the tree may have it, too.
//!
//! Rule: shares and forks exclude each other by the lock of the address space. What a child inherits is kept for it before
//! the clone, since its parent may be killed before the child joins; the child has it before other code runs there.

mod spans;

use crate::address_space::WORTH_ADOPTING;
use crate::pager_process::requests;
use crate::raw_syscall::{SyscallResult, error, is_error, syscall3};
use crate::vma_map::AddrRange;
use crate::{address_space, diagnostics, fork, process_pager, supervisor};
use frames::DomainId;
use link::client::JoinError;
use link::shared_request::SharedRequest;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use translation::{Capabilities, UserfaultOptions};
use wired::{Lock, PAGE};

pub use spans::SharedSpans;

/// This process, or one that it descends from by forks, has shared memory.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The userfaultfd of shared memory, in the pager process's table, until the supervisor has it.
static USERFAULT: Lock<Option<OwnedFd>> = Lock::new(None);

/// Returns true if this process may have shared memory that is paged.
pub fn is_used() -> bool {
    IS_USED.load(Ordering::Acquire)
}

/// Returns true if a new mapping with these flags is to be paged.
pub fn is_wanted(len: usize, flags: c_int) -> bool {
    let kernels = libc::MAP_LOCKED | libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    flags & libc::MAP_TYPE == libc::MAP_SHARED
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & kernels == 0
        && len >= WORTH_ADOPTING
        && supervisor::port().is_some()
}

/// Has a fresh shared anonymous mapping paged.
pub fn page(span: &AddrRange, prot: c_int) {
    let mut space = address_space::lock();
    let is_paged = requests::make(ProgramRequest::Page {
        start: span.start,
        len: span.len(),
        prot,
    });
    if is_paged {
        space.shared.insert(span.clone());
    }
}

/// The parts of a range, in order: those that are paged, and the others.
pub fn parts(range: &AddrRange) -> Vec<(AddrRange, bool)> {
    address_space::lock().shared.parts(range)
}

/// A request of a program's thread, which the pager process makes.
#[derive(Clone, Copy)]
pub enum ProgramRequest {
    /// Page a fresh shared anonymous mapping.
    Page {
        /// Its first byte.
        start: usize,
        /// Bytes.
        len: usize,
        /// Its protection.
        prot: c_int,
    },
    /// Follow a change that the kernel has made.
    Change(SharedRequest),
}

impl ProgramRequest {
    /// Makes the request, in the pager process. Returns true if it is done.
    pub fn make(self, connection: BorrowedFd<'_>) -> bool {
        let (what, made) = match self {
            Self::Page { start, len, prot } => (
                "shared memory is not paged",
                page_mapping(connection, &(start..start + len), prot),
            ),
            Self::Change(change) => {
                let what = match change {
                    SharedRequest::Lock { .. } => "mlock refused",
                    SharedRequest::Fork { .. } => "fork refused",
                    _ => "shared memory is not paged",
                };
                let made = change.send(connection, None).map(|_| ());
                if let SharedRequest::Discard { .. } = change {
                    return made.is_ok();
                }
                (what, made)
            }
        };
        made.map_err(|why| diagnostics::log(format_args!("{what}: {why}")))
            .is_ok()
    }
}

/// Has a memfd of the supervisor's take the place of a mapping.
#[allow(
    clippy::result_large_err,
    reason = "a refusal carries its text in place"
)]
fn page_mapping(
    connection: BorrowedFd<'_>,
    span: &AddrRange,
    prot: c_int,
) -> Result<(), JoinError> {
    let (addr, len) = bytes(span);
    let memory = SharedRequest::Create { len }.send(connection, None)?;
    // The kernel has mapped as much before.
    let cannot_map = JoinError::Unreachable(Errno::NOMEM);
    let mapped = memory.filter(|memory| replace(span, prot, memory.as_fd()));
    let memory = mapped.ok_or(cannot_map)?;
    let request = SharedRequest::Share { addr, len };
    let shared = request.send(connection, Some(memory.as_fd()));
    // A fork's child need not inherit what the pager has refused, and may fork without it.
    if !matches!(shared, Err(JoinError::Refused(_))) {
        IS_USED.store(true, Ordering::Release);
    }
    shared.map(|_| ())
}

/// Maps the memfd in place of the kernel's own memory, which is empty still.
fn replace(span: &AddrRange, prot: c_int, memory: BorrowedFd<'_>) -> bool {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let fd = memory.as_raw_fd();
    let mapped = address_space::map(span.start, span.len(), prot, flags, fd, 0);
    if is_error(mapped) {
        return false;
    }
    refuse_huge_pages(span);
    true
}

/// Keeps huge pages out of a mapping of shared memory: a part of one cannot be evicted, since the kernel clears it in place
/// (`manager::shared_memory`). A kernel without huge pages refuses the advice.
pub fn refuse_huge_pages(span: &AddrRange) {
    let (addr, len) = (span.start, span.len());
    // SAFETY: the contents stay as they are.
    let _ = unsafe { syscall3(libc::SYS_madvise, addr, len, libc::MADV_NOHUGEPAGE as usize) };
}

/// An address and a length, as requests have them.
fn bytes(span: &AddrRange) -> (u64, u64) {
    (span.start as u64, span.len() as u64)
}

/// Has the tree's pager of shared memory follow a change. Returns false if it does not.
fn report(change: SharedRequest) -> bool {
    !is_used() || requests::make(ProgramRequest::Change(change))
}

/// The contents of a range end for all processes (MADV_REMOVE). Returns false if a part of it is not the pager's: then
/// none end.
pub fn discard(span: &AddrRange) -> bool {
    let (addr, len) = bytes(span);
    report(SharedRequest::Discard { addr, len })
}

/// `mremap` has moved a mapping to `to`. The kernel reports the move, and not that the process maps more.
pub fn on_remapped(from: usize, old_len: usize, new_len: usize, keeps: bool, to: usize) {
    let page = |len: usize| len.next_multiple_of(PAGE);
    let (old_len, new_len) = (page(old_len), page(new_len));
    let (from, offset, to, len) = match old_len {
        // A second mapping.
        0 => (from, 0, to, new_len),
        _ if keeps => (to, 0, from, old_len),
        _ => (to, old_len, to + old_len, new_len - old_len),
    };
    report(SharedRequest::Extend {
        from: from as u64,
        offset: offset as u64,
        to: to as u64,
        len: len as u64,
    });
}

/// Pages from `page` on of the object that is mapped at `like` are mapped at `to` now.
pub fn on_pages_remapped(like: usize, page: usize, to: &AddrRange) {
    let (to, len) = bytes(to);
    report(SharedRequest::Remap {
        like: like as u64,
        page: page as u64,
        to,
        len,
    });
}

/// Returns true if an `mremap` leaves the process with more of a mapping than it had.
pub fn maps_more(old_len: usize, new_len: usize, keeps: bool) -> bool {
    let pages = |len: usize| len.div_ceil(PAGE);
    old_len == 0 || keeps || pages(new_len) > pages(old_len)
}

/// Pages of a range are not to be evicted. Returns false if they do not fit into the frames.
pub fn lock(span: &AddrRange) -> bool {
    let (addr, len) = bytes(span);
    report(SharedRequest::Lock { addr, len })
}

/// Returns true if the kernel has locked a mapping in a range: it refuses that advice of locked memory.
pub fn has_locked(span: &AddrRange) -> bool {
    let advice = libc::MADV_COLD as usize;
    // SAFETY: the contents stay as they are.
    let answer = unsafe { syscall3(libc::SYS_madvise, span.start, span.len(), advice) };
    answer == error(libc::EINVAL)
}

/// Pages of a range may be evicted again that the kernel has not locked.
pub fn unlock_unlocked(span: &AddrRange) {
    if !is_used() || span.is_empty() {
        return;
    }
    if !has_locked(span) {
        return unlock(span);
    }
    if span.len() > PAGE {
        let middle = span.start + span.len() / PAGE / 2 * PAGE;
        unlock_unlocked(&(span.start..middle));
        unlock_unlocked(&(middle..span.end));
    }
}

/// Pages of a range may be evicted again.
pub fn unlock(span: &AddrRange) {
    let (addr, len) = bytes(span);
    report(SharedRequest::Unlock { addr, len });
}

/// Opens the userfaultfd of shared memory, in the pager process; without it none is paged.
pub fn open_userfault(device: Option<&OwnedFd>, capabilities: &Capabilities) {
    let options = UserfaultOptions {
        reports_changes: true,
        ..UserfaultOptions::default()
    };
    let opened = process_pager::open_userfault(device, capabilities, options);
    *USERFAULT.lock() = opened.ok().map(OwnedFd::from);
}

/// Before a fork: the child inherits what this process shares. Returns false if it cannot. With the address space locked.
pub fn keep_for_child(child: DomainId) -> bool {
    report(SharedRequest::Fork { child: child.raw() })
}

/// In the pager process of a fork's child: the child has what its parent has kept for it.
pub fn inherit(connection: BorrowedFd<'_>) -> Result<(), String> {
    if !is_used() {
        return Ok(());
    }
    let userfault = USERFAULT.lock();
    let userfault = userfault
        .as_ref()
        .ok_or("no userfaultfd for shared memory")?;
    let inherited = SharedRequest::Inherit.send(connection, Some(userfault.as_fd()));
    inherited.map_err(unpaged)?;
    for span in fork::shared_spans() {
        for hole in spans::holes(&span, &is_mapped, &is_free) {
            let (addr, len) = bytes(&hole);
            let unmapped = SharedRequest::Unmapped { addr, len };
            unmapped.send(connection, None).map_err(unpaged)?;
        }
    }
    Ok(())
}

fn unpaged(why: JoinError) -> String {
    format!("its shared memory cannot be paged: {why}")
}

/// Returns true if all of a span is mapped.
pub fn is_mapped(span: &AddrRange) -> bool {
    let flags = libc::MS_ASYNC as usize;
    // SAFETY: looks for the mappings, and does nothing else.
    let answer = unsafe { syscall3(libc::SYS_msync, span.start, span.len(), flags) };
    answer != error(libc::ENOMEM)
}

/// Returns true if nothing of a span is mapped.
fn is_free(span: &AddrRange) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let mapped = address_space::map(span.start, span.len(), libc::PROT_NONE, flags, -1, 0);
    let is_free = !is_error(mapped);
    if is_free {
        let start = mapped as usize;
        address_space::unmap(&(start..start + span.len()));
    }
    is_free
}

/// Takes the userfaultfd, for the supervisor to hold.
pub fn take_userfault() -> Option<OwnedFd> {
    USERFAULT.lock().take()
}

/// Has the mapping paged that a call has made.
pub fn page_mapped(answer: SyscallResult, len: usize, prot: c_int) {
    if !is_error(answer) {
        let start = answer as usize;
        page(&(start..start + len.next_multiple_of(PAGE)), prot);
    }
}
