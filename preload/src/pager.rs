//! The library's interface to the engine.
//!
//! Everything here is a thin call into [`selfpage::embedding`]. In *plain* mode
//! (`SELFPAGE_PORT=plain`) there is no engine: memory is mapped and never paged, and
//! every emulated call can be tested against the kernel's own without any privilege.

use crate::mappings::Span;
use crate::{engine, raw, space};
use ::link::client::{Connection, Joined};
use ::link::handshake::RawDomainId;
use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use wired::PAGE;

pub use engine::{Paced, again, handle_fault_signals, start};

static PLAIN: AtomicBool = AtomicBool::new(false);

/// No engine: for tests of the emulation alone.
pub fn start_plain() {
    PLAIN.store(true, Ordering::Release);
}

/// Returns true in plain mode.
pub fn plain() -> bool {
    PLAIN.load(Ordering::Acquire)
}

fn check(answer: raw::Answer) -> Result<usize> {
    match raw::failed(answer) {
        true => Err(Errno::from_raw_os_error(-answer as i32)),
        false => Ok(answer as usize),
    }
}

fn advise(span: &Span, advice: i32) -> Result<()> {
    let (start, len) = (span.start, span.len());
    // SAFETY: advice on memory the program gave up, or that changes no contents.
    check(unsafe { raw::call3(libc::SYS_madvise, start, len, advice as usize) }).map(|_| ())
}

/// A new arena of `len` bytes: readable and writeable, zero, paged.
pub fn reserve(len: usize) -> Result<Span> {
    match engine::get() {
        Some(engine) => engine.process.reserve(len).map_err(|_| Errno::NOMEM),
        None => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let start = check(space::map(0, len, libc::PROT_NONE, flags, -1, 0))?;
            Ok(start..start + len)
        }
    }
}

/// An existing private anonymous mapping becomes paged, even where memory was surrendered at its
/// addresses before.
pub fn adopt(span: &Span) -> Result<()> {
    match engine::get() {
        Some(engine) => {
            let adopted = engine.process.adopt(span.clone());
            adopted.map_err(|_| Errno::NOMEM)
        }
        None => Ok(()),
    }
}

/// The contents become zero.
pub fn discard(span: &Span) {
    match engine::get() {
        Some(engine) => engine.process.discard(span.clone()),
        None => {
            let _ = advise(span, libc::MADV_DONTNEED);
        }
    }
}

/// Removes the addresses from the engine: the caller makes another mapping over them.
pub fn surrender(span: &Span) {
    if let Some(engine) = engine::get() {
        engine.process.surrender(span.clone());
    }
}

/// The contents of `from` move to `to`, which is zero and of the same length; `from` is
/// zero afterwards. Both are readable and writeable.
pub fn transfer(from: &Span, to: &Span) {
    match engine::get() {
        Some(engine) => engine.process.transfer(from.clone(), to.start),
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
pub fn nail(span: &Span) -> Result<()> {
    match engine::get() {
        Some(engine) if engine.process.nail(span.clone()) => Ok(()),
        Some(_) => Err(Errno::NOMEM),
        None => advise(span, libc::MADV_POPULATE_READ),
    }
}

/// Bytes that may still be nailed for the program.
pub fn lockable() -> usize {
    match engine::get() {
        Some(engine) => engine.process.lockable_frames() as usize * PAGE,
        None => usize::MAX,
    }
}

/// Removes the nails.
pub fn unnail(span: &Span) {
    if let Some(engine) = engine::get() {
        engine.process.unnail(span.clone());
    }
}

/// The program's access to a span has changed.
pub fn access_changed(span: &Span) {
    if let Some(engine) = engine::get() {
        engine.process.access_changed(span.clone());
    }
}

/// The pages will be wanted soon.
pub fn will_need(span: &Span) {
    if let Some(engine) = engine::get() {
        engine.process.will_need(span.clone());
    }
}

/// A fork in progress: the pager is paused.
pub struct Gate(Option<selfpage::embedding::ForkGuard>);

impl Gate {
    /// The child's domain; 0 in plain mode.
    pub fn child(&self) -> RawDomainId {
        self.0.as_ref().map_or(0, engine::child_of)
    }

    /// The engine's state for the child.
    pub fn into_fork(self) -> Option<selfpage::embedding::ForkGuard> {
        self.0
    }
}

/// Stops the pager for a fork, or returns the reason that the child has no room.
pub fn gate_close() -> std::result::Result<Gate, selfpage::embedding::ForkError> {
    engine::get()
        .map(engine::Engine::close)
        .transpose()
        .map(Gate)
}

/// Restarts the pager of a fork's parent. Returns the child's domain, which is the caller's to
/// release where no child was `born`.
pub fn gate_open(gate: Gate, born: bool) -> RawDomainId {
    let child = gate.child();
    if let (Some(engine), Some(fork)) = (engine::get(), gate.0) {
        engine.open(fork, born);
    }
    child
}

/// The child of a fork has what it inherits.
pub fn inherited() {
    if let Some(engine) = engine::get() {
        engine.inherited();
    }
}

/// Joins the tree: the engine of a new image, or, with a gate, of a fork's child.
pub fn come_in(gate: Option<Gate>, joined: Joined) -> std::result::Result<Connection, String> {
    match gate.and_then(Gate::into_fork) {
        Some(fork) => again(fork, joined),
        None => start(joined),
    }
}

/// Unblocks the signals that pace the calling thread's faults; its parent may have blocked them.
pub fn let_signals_through() {
    if engine::get().is_some() {
        selfpage::embedding::ProcessPager::unblock_signals();
    }
}

/// The userfaultfd, of the pager process's own table.
pub fn userfault() -> Option<std::os::fd::BorrowedFd<'static>> {
    engine::get().map(|engine| engine.process.userfault())
}

/// Returns true if [`prepare_entry`] must be called before the pager process gives up its rights.
pub fn entries_need_rights() -> bool {
    engine::get().is_some_and(engine::Engine::entries_need_rights)
}

/// Creates the resources of the `n`th thread that reads faults, before it runs.
pub fn prepare_entry(n: usize, cpu: usize) -> std::result::Result<(), String> {
    engine::get().map_or(Ok(()), |engine| engine.prepare_entry(n, cpu))
}

/// All threads run: the descriptors are theirs alone from now on.
pub fn threads_run() {
    if let Some(engine) = engine::get() {
        engine.process.threads_run();
    }
}

/// The `n`th thread that reads faults.
pub fn entry_main(n: usize) -> ! {
    match engine::get() {
        Some(engine) => engine.entry_main(n),
        None => sleep(),
    }
}

/// The thread that evicts.
pub fn evictor_main() -> ! {
    match engine::get() {
        Some(engine) => engine.process.evictor_main(),
        None => sleep(),
    }
}

fn sleep() -> ! {
    static NEVER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    loop {
        wired::futex::wait(&NEVER, 0, None);
    }
}
