//! The memory operations behind an emulated call: thin calls into [`selfpage::embedding`].
//!
//! In *plain* mode (`SELFPAGE_PORT=plain`) there is no pager: memory is mapped and never paged, and
//! every emulated call can be tested against the kernel's own without any privilege.

use crate::raw_syscall::{SyscallResult, is_error};
use crate::vma_map::AddrRange;
use crate::{address_space, process_pager};
use rustix::io::{Errno, Result};
use selfpage::embedding::ProcessError;
use std::sync::atomic::{AtomicBool, Ordering};
use wired::PAGE;

static PLAIN: AtomicBool = AtomicBool::new(false);

/// No pager: for tests of the emulation alone.
pub fn start_plain() {
    PLAIN.store(true, Ordering::Release);
}

/// Returns true in plain mode.
pub fn is_plain() -> bool {
    PLAIN.load(Ordering::Acquire)
}

fn check(answer: SyscallResult) -> Result<usize> {
    match is_error(answer) {
        true => Err(Errno::from_raw_os_error(-answer as i32)),
        false => Ok(answer as usize),
    }
}

fn advise(span: &AddrRange, advice: i32) -> Result<()> {
    check(address_space::advise(span, advice)).map(|_| ())
}

/// A new arena of `len` bytes: readable and writeable, zero, paged.
pub fn reserve(len: usize) -> Result<AddrRange> {
    match process_pager::get() {
        Some(pager) => pager.process.reserve(len).map_err(|_| Errno::NOMEM),
        None => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let start = check(address_space::map(0, len, libc::PROT_NONE, flags, -1, 0))?;
            Ok(start..start + len)
        }
    }
}

/// An existing private anonymous mapping becomes paged, even where memory was surrendered at its
/// addresses before.
pub fn adopt(span: &AddrRange) -> std::result::Result<(), ProcessError> {
    match process_pager::get() {
        Some(pager) => pager.process.adopt(span.clone()),
        None => Ok(()),
    }
}

/// The contents become zero.
pub fn discard(span: &AddrRange) {
    match process_pager::get() {
        Some(pager) => pager.process.discard(span.clone()),
        None => {
            let _ = advise(span, libc::MADV_DONTNEED);
        }
    }
}

/// Removes the addresses from the pager: the caller makes another mapping over them.
pub fn surrender(span: &AddrRange) {
    if let Some(pager) = process_pager::get() {
        pager.process.surrender(span.clone());
    }
}

/// The contents of `from` move to `to`, which is zero and of the same length; `from` is
/// zero afterwards. Both are readable and writeable.
pub fn transfer(from: &AddrRange, to: &AddrRange) {
    match process_pager::get() {
        Some(pager) => pager.process.transfer(from.clone(), to.start),
        None => {
            // SAFETY: two mapped spans of one length that do not overlap, by the caller.
            unsafe {
                let (from_ptr, to_ptr) = (from.start as *const u8, to.start as *mut u8);
                std::ptr::copy_nonoverlapping(from_ptr, to_ptr, from.len());
            }
            let _ = advise(from, libc::MADV_DONTNEED);
        }
    }
}

/// Nails the pages, which are readable.
pub fn nail(span: &AddrRange) -> Result<()> {
    match process_pager::get() {
        Some(pager) if pager.process.nail(span.clone()) => Ok(()),
        Some(_) => Err(Errno::NOMEM),
        None => advise(span, libc::MADV_POPULATE_READ),
    }
}

/// Bytes that may still be nailed for the program.
pub fn lockable() -> usize {
    match process_pager::get() {
        Some(pager) => pager.process.lockable_frames() as usize * PAGE,
        None => usize::MAX,
    }
}

/// Frames that the process can have at most.
pub fn most_frames() -> usize {
    process_pager::get().map_or(usize::MAX, |pager| pager.process.most_frames() as usize)
}

/// Removes the nails.
pub fn unnail(span: &AddrRange) {
    if let Some(pager) = process_pager::get() {
        pager.process.unnail(span.clone());
    }
}

/// The program's access to a span has changed.
pub fn access_changed(span: &AddrRange) {
    if let Some(pager) = process_pager::get() {
        pager.process.access_changed(span.clone());
    }
}

/// The pages will be wanted soon.
pub fn will_need(span: &AddrRange) {
    if let Some(pager) = process_pager::get() {
        pager.process.will_need(span.clone());
    }
}
