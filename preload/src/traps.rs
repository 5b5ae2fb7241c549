//! Faults on files, too, are counted and paced while a fault rate is in force.
//!
//! Each of the program's threads has an event that sends it a signal after every batch of its
//! faults; the handler is the pager's ([`selfpage::embedding::ProcessPager`]). One event is
//! opened before the program's first instruction, for the first thread, and every thread that
//! is started from then on inherits it, raw clones too. A fork's child opens its own. The
//! event is the pager process's, opened before that gives up its rights, and switched off as
//! long as there is no limit. The pager process also follows the limits, within a second.
//!
//! What is not counted: children of vfork until they exec, programs that run unpaged. Programs of
//! Go's runtime, which takes each signal by system calls of its own, would die of ours, and are
//! left alone. Any other program that sets SIGTRAP's action by a bare system call goes undetected,
//! and dies of the next batch. A debugger stops at each signal.

use selfpage::embedding::ProcessPager;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use translation::FaultEvent;

/// Faults in a batch while no limit is set: the event is switched off.
const ANY: u32 = 1009;

/// The text of this library: start and end.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// True if the program takes signals in ways that cannot be seen.
static PRIVATE_SIGNALS: AtomicBool = AtomicBool::new(false);

/// The ELF note that identifies programs in Go.
const GO: &[u8] = b"Go\0\0";

/// Inspects the loaded objects. In the constructor.
pub fn start() {
    let mut first = true;
    // SAFETY: the callback fits, and the flag lives through the call.
    unsafe { crate::dlsym::dl_iterate_phdr(look, std::ptr::from_mut(&mut first).cast()) };
}

/// The text of this library.
pub fn code() -> Range<usize> {
    CODE[0].load(Ordering::Acquire)..CODE[1].load(Ordering::Acquire)
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, first: *mut c_void) -> c_int {
    // SAFETY: the loader's record, and the flag passed above; the program comes first.
    let (info, first) = unsafe { (&*info, &mut *first.cast::<bool>()) };
    // SAFETY: the loader's array of program headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_program = std::mem::take(first);
    for header in headers {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        let span = start..start + header.p_memsz as usize;
        let text = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        if text && span.contains(&(look as *const () as usize)) {
            CODE[0].store(span.start, Ordering::Release);
            CODE[1].store(span.end, Ordering::Release);
        }
        if is_program && header.p_type == libc::PT_NOTE && has_note(&span, GO) {
            PRIVATE_SIGNALS.store(true, Ordering::Release);
        }
    }
    0
}

/// Returns true if one of the notes in a loaded segment has this owner.
fn has_note(span: &Range<usize>, owner: &[u8]) -> bool {
    /// Lengths of the owner and of the note, and a type, each of four bytes.
    const HEAD: usize = 12;
    // SAFETY: a segment of notes that the loader mapped.
    let mut rest = unsafe { std::slice::from_raw_parts(span.start as *const u8, span.len()) };
    while rest.len() >= HEAD {
        let word = |at: usize| {
            u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]) as usize
        };
        let (name, note) = (word(0), word(4));
        if rest[HEAD..].get(..name) == Some(owner) {
            return true;
        }
        let next = HEAD + name.next_multiple_of(4) + note.next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
}

/// The events of one process. The pager process's.
pub struct Traps {
    process: &'static ProcessPager,
    event: FaultEvent,
    /// Faults in a batch; `None` where no faults are counted.
    batch: Option<u32>,
}

impl Traps {
    /// Of a program that has one thread, `first`. None where the kernel does not allow it, or
    /// the program's signals cannot be shared with it.
    pub fn begin(process: &'static ProcessPager, first: i32) -> Option<Self> {
        if PRIVATE_SIGNALS.load(Ordering::Acquire) {
            return None;
        }
        let batch = process.limits().snapshot().limits.batch();
        let every = batch.unwrap_or(ANY);
        process.set_fault_batch(every);
        let event = FaultEvent::open(first, every, ProcessPager::fault_signal()).ok()?;
        event.switch(false).ok()?;
        Some(Self {
            process,
            event,
            batch: None,
        })
    }

    /// Applies the current limits. The program has the handler of the signals.
    pub fn follow(&mut self) {
        let batch = self.process.limits().snapshot().limits.batch();
        if batch == self.batch {
            return;
        }
        if let Some(batch) = batch {
            self.process.set_fault_batch(batch);
            let _ = self.event.set_every(batch);
        }
        // An event whose thread has ended answers as any other.
        let _ = self.event.switch(batch.is_some());
        self.batch = batch;
    }
}
