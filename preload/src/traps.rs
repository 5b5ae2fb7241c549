//! Faults on files, too, are counted and paced while a fault rate is in force.
//!
//! Each of the program's threads has an event that sends it a signal after every batch of its
//! faults; what the handler does is the pager's ([`selfpage::process::Process`]). One event is
//! opened before the program's first instruction, for the first thread, and every thread that
//! is started from then on inherits it, raw clones too. A fork's child opens its own. The
//! events are the keeper's, in its own descriptor table. It also follows the limits: within
//! [`STILL`](crate::threads) it changes the batch, switches off, or, where limits come later
//! than the program's threads, opens an event for each of those that run then.
//!
//! What is not counted: children of vfork until they exec, programs that run unpaged, threads
//! started in the moment in which limits come late. Programs of Go's runtime, which takes each
//! signal by system calls of its own, would die of ours, and are left alone. Any other program
//! that sets SIGTRAP's action by a bare system call cannot be told, and dies of the next batch.
//! A debugger stops at each signal.

use crate::raw;
use rustix::fs::{Mode, OFlags, RawDir, openat};
use selfpage::process::Process;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use translation::FaultEvent;

/// The text of this library: start and end.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether the program takes signals in ways that cannot be seen.
static PRIVATE_SIGNALS: AtomicBool = AtomicBool::new(false);

/// The note by which programs of Go are known.
const GO: &[u8] = b"Go\0\0";

/// Looks at what is loaded. In the constructor.
pub fn start() {
    let mut first = true;
    // SAFETY: the callback fits, and the flag lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(look), std::ptr::from_mut(&mut first).cast()) };
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

/// Whether one of the notes in a loaded segment has this owner.
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

/// The events of one process. The keeper's.
pub struct Traps {
    process: &'static Process,
    events: Vec<FaultEvent>,
    /// Faults in a batch; none where nothing is counted.
    batch: Option<u32>,
    /// It was tried, and cannot be.
    refused: bool,
}

impl Traps {
    /// None yet.
    pub fn new(process: &'static Process) -> Self {
        Self {
            process,
            events: Vec::new(),
            batch: None,
            refused: false,
        }
    }

    /// Does what the limits ask for now. `alone`: the program has one thread, its first, and
    /// that waits for us. Whether counting began, or cannot be, now.
    pub fn follow(&mut self, alone: bool) -> Option<bool> {
        let batch = self.process.limits().seen().setting.batch();
        if batch == self.batch || self.refused {
            return None;
        }
        if let Some(batch) = batch {
            self.process.set_fault_batch(batch);
        }
        let began = match (self.events.is_empty(), batch) {
            (true, Some(batch)) => Some(self.begin(batch, alone)),
            (_, batch) => {
                self.change(batch);
                None
            }
        };
        self.refused = began == Some(false);
        self.batch = batch;
        began
    }

    fn change(&self, batch: Option<u32>) {
        for event in &self.events {
            // An event whose thread has ended answers as any other.
            let _ = batch.map(|batch| event.set_every(batch));
            let _ = event.switch(batch.is_some());
        }
    }

    fn begin(&mut self, batch: u32, alone: bool) -> bool {
        if PRIVATE_SIGNALS.load(Ordering::Acquire) {
            return false;
        }
        let code = CODE[0].load(Ordering::Acquire)..CODE[1].load(Ordering::Acquire);
        let first = raw::pid();
        // Whether it is allowed is asked before a handler is put in place.
        let open = |thread| FaultEvent::open(thread, batch, Process::fault_signal());
        let asked = FaultEvent::open(raw::tid(), batch, 0);
        if asked.is_err() || self.process.pace_kernel_faults(code).is_err() {
            return false;
        }
        drop(asked);
        let threads = match alone {
            true => vec![first],
            false => threads(),
        };
        self.events
            .extend(threads.into_iter().filter_map(|thread| open(thread).ok()));
        !self.events.is_empty()
    }
}

/// The program's threads now.
fn threads() -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = openat(rustix::fs::CWD, c"/proc/self/task", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&folder, &mut buffer);
    let mut found = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let number = |name: &CStr| name.to_str().ok()?.parse().ok();
        found.extend(number(entry.file_name()).filter(|thread| !crate::threads::is_crew(*thread)));
    }
    found
}
