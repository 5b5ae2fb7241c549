//! What the library asks of the engine, in one place.
//!
//! Everything here is a thin call into [`selfpage`]. In *plain* mode
//! (`SELFPAGE_PORT=plain`) there is no engine: memory is mapped and never paged, and
//! every emulated call can be tested against the kernel's own without any privilege.

use crate::mappings::Span;
use crate::raw;
use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use system::client::Joined;
use system::wire::Domain;

static PLAIN: AtomicBool = AtomicBool::new(false);

/// No engine: for tests of the emulation alone.
pub fn start_plain() {
    PLAIN.store(true, Ordering::Release);
}

/// Whether there is no engine.
pub fn plain() -> bool {
    PLAIN.load(Ordering::Acquire)
}

const RW: usize = (libc::PROT_READ | libc::PROT_WRITE) as usize;
const FRESH: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;

fn check(answer: raw::Answer) -> Result<usize> {
    match raw::failed(answer) {
        true => Err(Errno::from_raw_os_error(-answer as i32)),
        false => Ok(answer as usize),
    }
}

/// A new arena of `len` bytes: readable and writeable, zero, paged.
pub fn reserve(len: usize) -> Result<Span> {
    // SAFETY: a fresh mapping at an address the kernel chooses.
    let start = check(unsafe { raw::call(libc::SYS_mmap, [0, len, RW, FRESH, usize::MAX, 0]) })?;
    Ok(start..start + len)
}

/// A private anonymous mapping that is there already becomes a stretch.
pub fn adopt(_span: &Span) -> Result<()> {
    Ok(())
}

/// The contents become zero.
pub fn discard(span: &Span) {
    // SAFETY: the program gave these contents up.
    unsafe {
        raw::call3(libc::SYS_madvise, span.start, span.len(), libc::MADV_DONTNEED as usize);
    }
}

/// The addresses are no longer the engine's: the caller maps something else over them.
pub fn surrender(_span: &Span) {}

/// The contents of `from` move to `to`, which is zero and of the same length; `from` is
/// zero afterwards. Both are readable and writeable.
pub fn transfer(from: &Span, to: &Span) {
    // SAFETY: two mapped spans of one length that do not overlap, by the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(from.start as *const u8, to.start as *mut u8, from.len());
    }
    discard(from);
}

/// The pages become resident and stay.
pub fn nail(span: &Span) -> Result<()> {
    // SAFETY: pages are read into memory; nothing else changes.
    check(unsafe { raw::call3(libc::SYS_madvise, span.start, span.len(), libc::MADV_POPULATE_READ as usize) }).map(|_| ())
}

/// They may be paged again.
pub fn unnail(_span: &Span) {}

/// The program's access to a span is now `prot`.
pub fn access_changed(_span: &Span, _prot: i32) {}

/// A fork under way: the pager stands still.
pub struct Gate;

impl Gate {
    /// The child's domain; 0 in plain mode.
    pub fn child(&self) -> Domain {
        0
    }
}

/// Stops the pager for a fork.
pub fn gate_close() -> std::result::Result<Gate, String> {
    Ok(Gate)
}

/// The parent of a fork pages again. Returns the child's domain.
pub fn gate_open(gate: Gate) -> Domain {
    gate.child()
}

/// The fork failed after all.
pub fn unborn(_child: Domain) {}

/// The engine of a new image.
pub fn start(_joined: Joined) -> std::result::Result<(), String> {
    Err("no engine yet".into())
}

/// The engine of a fork's child: every arena is registered again.
pub fn child(_gate: Gate, _joined: Joined) -> std::result::Result<(), String> {
    Err("no engine yet".into())
}

/// A thread that reads faults, pinned to `cpu`.
pub fn entry_main(_cpu: usize) -> ! {
    sleep()
}

/// The thread that evicts.
pub fn evictor_main() -> ! {
    sleep()
}

fn sleep() -> ! {
    static NEVER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    loop {
        wired::futex::wait(&NEVER, 0, None);
    }
}
