//! Fork: the child must never see zeros where the parent had pages.
//!
//! A child inherits memory without its registration. So the pager pauses across the clone.
//! Before other code of the program runs in the child, the child joins the tree as a process
//! of its own, registers every arena again and starts its own threads.
//!
//! Rule: the gate closes in an atfork *prepare* handler registered before all others,
//! so that it runs last: closing it in an interposed `fork`, or before another handler,
//! would make that handler wait for pages that cannot come. And what the C library touches
//! between that handler and the child's must be resident first; it is nailed here.

use crate::mappings::Span;
use crate::raw::{self, Answer, Quiet, error};
use crate::space::{self, Held, Space};
use crate::{advise, allocated, heap, link, notice, pager, pthread, start};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use wired::{Guard, Lock, PAGE};

/// Resources that a fork holds from before the clone until after it, in both processes.
/// Fields are dropped in order.
struct Flight {
    /// None where the child has no room and must end.
    gate: Option<pager::Gate>,
    nails: Vec<Span>,
    stdio: bool,
    heap: Option<heap::HeldHeap>,
    space: Option<Held>,
    turn: Option<Guard<'static, ()>>,
    quiet: Option<Quiet>,
    /// The program's `errno`.
    errno: c_int,
}

/// One fork at a time.
static TURN: Lock<()> = Lock::new(());

/// The fork under way; only its thread touches it, while it holds its turn.
struct Under(UnsafeCell<Option<Flight>>);
// SAFETY: guarded by `TURN`.
unsafe impl Sync for Under {}
static FLIGHT: Under = Under(UnsafeCell::new(None));

/// Threads whose last fork was refused, though the kernel allowed it: the child ends.
static REFUSED: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Which of the C library's work lies between our handlers.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// `fork`: its standard I/O, its thread list, its name service.
    Library,
    /// The bare clone.
    Bare,
}

/// In the constructor.
pub fn register() {
    register_handlers();
    roots::find();
}

type Handler = Option<unsafe extern "C" fn()>;

crate::next::next! {
    /// The C library's own `__register_atfork`.
    fn __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) -> c_int
}

/// Registers the handlers, once.
fn register_handlers() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::AcqRel) {
        let library = std::ptr::from_ref(&DONE).cast_mut().cast();
        // SAFETY: functions that live as long as the process.
        unsafe { __register_atfork(Some(prepare), Some(parent), Some(child), library) };
    }
}

mod registration {
    use super::{Handler, c_int, c_void, register_handlers};

    /// What `pthread_atfork` calls. The loader's own allocations can bring a program's
    /// allocator here before any constructor runs.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn __register_atfork(
        prepare: Handler,
        parent: Handler,
        child: Handler,
        library: *mut c_void,
    ) -> c_int {
        register_handlers();
        // SAFETY: the caller's.
        unsafe { super::__register_atfork(prepare, parent, child, library) }
    }
}

unsafe extern "C" fn prepare() {
    if space::active() {
        before(How::Library, &[]);
        // From here to the handler in the parent only the clone sets it.
        raw::set_errno(0);
    }
}

unsafe extern "C" fn parent() {
    if space::active() {
        after_in_parent(raw::errno() == 0);
    }
}

unsafe extern "C" fn child() {
    if space::active() {
        after_in_child();
    }
}

fn before(how: How, also: &[Span]) {
    let errno = raw::errno();
    let quiet = Quiet::new();
    let turn = TURN.lock();
    let stdio = how == How::Library && !single_threaded();
    if stdio {
        // Held by us until after the clone: a thread that held it while it waited for a
        // page would keep the C library's fork waiting behind the closed gate.
        // SAFETY: the C library's lock for exactly this.
        unsafe { _IO_list_lock() };
    }
    let (nails, complete) = nail(stdio, also);
    let space = space::hold();
    let gate = match complete {
        true => pager::gate_close()
            .map_err(|why| notice::refuse(format_args!("fork refused: {why}")))
            .ok(),
        false => {
            notice::refuse(format_args!(
                "fork refused: the pages that it touches while the pager stands still do not fit \
                 into the frames; give the program more frames"
            ));
            None
        }
    };
    let heap = heap::HEAP.hold();
    let flight = Flight {
        gate,
        nails,
        stdio,
        heap: Some(heap),
        space: Some(space),
        turn: Some(turn),
        quiet: Some(quiet),
        errno,
    };
    // SAFETY: the turn is ours.
    unsafe { *FLIGHT.0.get() = Some(flight) };
}

/// The fork under way, of the thread that closed the gate, or its copy.
fn under_way() -> Option<&'static mut Flight> {
    // SAFETY: that thread holds the turn; in a child the pager process stands in for it while
    // it waits.
    unsafe { (*FLIGHT.0.get()).as_mut() }
}

fn landed() -> Option<Flight> {
    // SAFETY: as above.
    unsafe { (*FLIGHT.0.get()).take() }
}

/// `born`: the kernel has made the child.
fn after_in_parent(born: bool) {
    let Some(mut flight) = landed() else { return };
    let errno = if born { flight.errno } else { raw::errno() };
    drop(flight.heap.take());
    let child = flight.gate.take().map(|gate| pager::gate_open(gate, born));
    drop(flight.space.take());
    flight.finish(false);
    match (child, link::port()) {
        (None, _) => note_refused(),
        (Some(child), Some(port)) if !born => {
            let _ = port.release_child(link::domain(), child);
        }
        _ => {}
    }
    raw::set_errno(errno);
}

fn after_in_child() {
    let Some(flight) = under_way() else { return };
    drop(flight.heap.take());
    let Some(gate) = flight.gate.take() else {
        start::exit(start::FAILED)
    };
    pthread::forget_others();
    start::again(gate);
    let Some(mut flight) = landed() else { return };
    drop(flight.space.take());
    let errno = flight.errno;
    flight.finish(true);
    raw::set_errno(errno);
}

impl Flight {
    fn finish(mut self, child: bool) {
        for span in &self.nails {
            pager::unnail(span);
        }
        if self.stdio {
            // SAFETY: locked in `before`; in the child the C library has made it new.
            unsafe {
                if child {
                    _IO_list_resetlock()
                } else {
                    _IO_list_unlock()
                }
            };
        }
        drop(self.turn.take());
        drop(self.quiet.take());
    }
}

/// In the child's pager process, before the child or its parent goes on: what was advised not
/// to be inherited is not there, or zero.
pub fn lose_unforked() {
    let Some(space) = under_way().and_then(|flight| flight.space.as_mut()) else {
        return;
    };
    let marked: Vec<_> = space
        .map
        .used()
        .filter(|(_, traits)| traits.dont_fork || traits.wipe_on_fork)
        .collect();
    for (span, traits) in marked {
        if traits.dont_fork {
            for piece in space.map.pieces(&span) {
                space.release(&piece);
            }
        } else {
            pager::discard(&span);
        }
    }
    // Locks are not inherited.
    advise::unlock_all(space);
}

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
    static _IO_list_all: *const u8;
    static __libc_single_threaded: u8;
    fn __fork() -> libc::pid_t;
    fn __clone(
        entry: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        arg: *mut c_void,
        ptid: *mut c_void,
        tls: *mut c_void,
        ctid: *mut c_void,
    ) -> c_int;
}

fn single_threaded() -> bool {
    // SAFETY: a byte the C library keeps; volatile, since other threads change it.
    unsafe { std::ptr::from_ref(&__libc_single_threaded).read_volatile() != 0 }
}

/// Nails the pages that are touched while the gate is closed. Returns false if some of them
/// cannot be nailed.
fn nail(library: bool, also: &[Span]) -> (Vec<Span>, bool) {
    let mut pages = BTreeSet::new();
    let mut want = |span: Span| {
        let first = span.start & !(PAGE - 1);
        pages.extend((first..span.end).step_by(PAGE));
    };
    let here = std::ptr::from_ref(&pages_anchor()) as usize;
    // This thread's stack, where it is paged (a coroutine's, or one the program gave).
    want(here.saturating_sub(2 * PAGE)..here + 3 * PAGE);
    // Its thread-local storage, which lies on the same stack.
    roots::local(&mut want);
    also.iter().cloned().for_each(&mut want);
    let space = space::hold();
    if library {
        roots::each(&space, &mut want);
    }
    // Page by page: an unreadable page needs no nail, and must not keep its
    // neighbours from theirs. Nor does an unmapped one: the program break itself is
    // an address that the C library keeps.
    let mut nails: Vec<Span> = pages
        .into_iter()
        .filter(|page| allocated::allocated(*page))
        .flat_map(|page| space.nailable(&(page..page + PAGE)))
        .collect();
    let mut complete = true;
    nails.retain(|span| {
        let nailed = pager::nail(span).is_ok();
        // The use of a page that cannot be read is a signal, and waits for nothing.
        complete &= nailed || !raw::is_readable(span.start, size_of::<u64>());
        nailed
    });
    (nails, complete)
}

#[inline(never)]
fn pages_anchor() -> u8 {
    0
}

/// The heap memory that the C library reaches from its own data while it forks.
mod roots {
    use super::{_IO_list_all, AtomicUsize, Ordering, PAGE, Space, Span};
    use crate::{pager_process, pthread};
    use std::ffi::{CStr, c_int, c_void};

    /// Writeable data of the C library and the loader: start and end, in pairs.
    static DATA: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

    /// Thread-local storage of the C library and this one: how far below a thread's control
    /// block it begins, and bytes, in pairs. It is the same for all threads, since both were
    /// loaded with the program.
    static LOCAL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

    /// What an object reached from the C library's data may extend to: a FILE with its
    /// wide part, the name service's state, a block of thread-specific values.
    const REACH: usize = 1024;

    /// Longest chain of files walked: a cycle would be a damaged list.
    const FILES: usize = 65536;

    /// Offsets in glibc's FILE, part of its binary interface: next file, lock.
    const CHAIN: usize = 104;
    const LOCK: usize = 136;

    /// How many words of each are in use.
    #[derive(Default)]
    struct Found {
        data: usize,
        local: usize,
    }

    /// Finds the C library's data, and thread-local storage.
    pub fn find() {
        let mut found = Found::default();
        // SAFETY: the callback fits, and the counts live through the call.
        unsafe { crate::next::dl_iterate_phdr(library, std::ptr::from_mut(&mut found).cast()) };
    }

    unsafe extern "C" fn library(
        info: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's record, and the counts passed above.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: the loader's string.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
        // SAFETY: the loader's array of program headers.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let at = |header: &libc::Elf64_Phdr| info.dlpi_addr as usize + header.p_vaddr as usize;
        let own = std::ptr::from_ref(&DATA) as usize;
        let is_own = headers.iter().any(|header| {
            header.p_type == libc::PT_LOAD
                && (at(header)..at(header) + header.p_memsz as usize).contains(&own)
        });
        let is_c = file.starts_with(b"libc.so") || file.starts_with(b"ld-linux");
        for header in headers {
            let size = header.p_memsz as usize;
            let written = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0;
            if is_c && written && found.data + 1 < DATA.len() {
                DATA[found.data].store(at(header).next_multiple_of(8), Ordering::Release);
                DATA[found.data + 1].store((at(header) + size) & !7, Ordering::Release);
                found.data += 2;
            }
            let local = info.dlpi_tls_data as usize;
            let below = pager_process::thread_pointer().checked_sub(local);
            if let Some(below) = below
                && header.p_type == libc::PT_TLS
                && (is_c || is_own)
                && local != 0
                && found.local + 1 < LOCAL.len()
            {
                LOCAL[found.local].store(below, Ordering::Release);
                LOCAL[found.local + 1].store(size, Ordering::Release);
                found.local += 2;
            }
        }
        0
    }

    /// Calls `want` for the thread-local storage that this thread uses while it forks, as
    /// `errno`.
    pub fn local(want: &mut impl FnMut(Span)) {
        for pair in LOCAL.chunks(2) {
            let (below, size) = (
                pair[0].load(Ordering::Acquire),
                pair[1].load(Ordering::Acquire),
            );
            let start = pager_process::thread_pointer().wrapping_sub(below);
            want(start..start + size);
        }
    }

    /// Calls `want` for all memory that may be reached.
    pub fn each(space: &Space, want: &mut impl FnMut(Span)) {
        let mut reached = Vec::new();
        files(&mut reached);
        for pair in DATA.chunks(2) {
            let data = pair[0].load(Ordering::Acquire)..pair[1].load(Ordering::Acquire);
            words(space, data, &mut reached);
        }
        pthread::each_control_block(|block| words(space, block, &mut reached));
        for addr in reached {
            want(addr..addr + REACH);
        }
    }

    fn files(reached: &mut Vec<usize>) {
        // SAFETY: the list is held still, and files are readable memory.
        unsafe {
            let mut file = _IO_list_all as usize;
            for _ in 0..FILES {
                if file == 0 {
                    break;
                }
                reached.push(file);
                reached.push(*((file + LOCK) as *const usize));
                file = *((file + CHAIN) as *const usize);
            }
        }
    }

    /// Every word that may be an address of ours: more than needed, never less.
    fn words(space: &Space, span: Span, reached: &mut Vec<usize>) {
        let mut last = 0;
        for at in span.step_by(8) {
            // SAFETY: the C library's data, or a live thread's control block.
            let word = unsafe { (at as *const usize).read_volatile() };
            // Neighbouring words often point into one buffer.
            if word & !(PAGE - 1) != last && word > PAGE && space.map.contains(word) {
                last = word & !(PAGE - 1);
                reached.push(word);
            }
        }
    }
}

fn note_refused() {
    let tid = raw::tid();
    for place in &REFUSED {
        let put = place.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed);
        if put.is_ok() {
            return;
        }
    }
}

fn take_refused() -> bool {
    let tid = raw::tid();
    REFUSED.iter().any(|place| {
        let taken = place.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    })
}

/// The result for the program of a fork that returned `pid`: EAGAIN where the contract had no
/// room for the child.
fn settle(pid: Answer) -> Answer {
    if pid == 0 || !take_refused() {
        return pid;
    }
    if !raw::failed(pid) {
        // It ends at once, by our own handler.
        let mut status = 0;
        let (child, to) = (pid as usize, std::ptr::from_mut(&mut status) as usize);
        let any_kind = libc::__WALL as usize;
        // SAFETY: our own child and a local word.
        unsafe { raw::call(libc::SYS_wait4, [child, to, any_kind, 0, 0, 0]) };
    }
    error(libc::EAGAIN)
}

/// A C function's result as the kernel would give it.
fn answer(pid: libc::pid_t) -> Answer {
    if pid < 0 {
        error(raw::errno())
    } else {
        pid as Answer
    }
}

/// `fork`: refused with EAGAIN where the contract has no room for another process.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn fork() -> libc::pid_t {
    take_refused();
    // SAFETY: the program's own call; our handlers run in it.
    let pid = unsafe { __fork() };
    raw::give(settle(answer(pid))) as libc::pid_t
}

crate::next::next! {
    #[expect(non_snake_case, reason = "the C library's name")]
    /// The C library's own `_Fork`.
    fn _Fork() -> libc::pid_t
}

mod bare {
    use super::{How, after_in_child, after_in_parent, before, space};

    /// `_Fork`: runs no handlers, so it is gated here.
    #[allow(non_snake_case, reason = "the C library's name")]
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn _Fork() -> libc::pid_t {
        if !space::active() {
            // SAFETY: the program's own call.
            return unsafe { super::_Fork() };
        }
        before(How::Bare, &[]);
        // SAFETY: the program's own call.
        match unsafe { super::_Fork() } {
            0 => {
                after_in_child();
                0
            }
            pid => {
                let pid = super::answer(pid);
                after_in_parent(!crate::raw::failed(pid));
                crate::raw::give(super::settle(pid)) as libc::pid_t
            }
        }
    }
}

/// Words the kernel writes for a clone: pages they lie in.
fn written(addresses: [usize; 2]) -> [Span; 2] {
    addresses.map(|addr| addr..addr + usize::from(addr != 0) * 4)
}

/// The system call `clone` (or `fork`) without shared memory: flags, and stack, parent's
/// and child's word, thread storage.
pub fn raw_fork(flags: usize, rest: [usize; 4]) -> Answer {
    let [stack, ptid, ctid, tls] = rest;
    let call = || {
        // SAFETY: the program asked for exactly this; the child returns on its copy of
        // this stack.
        unsafe { raw::call(libc::SYS_clone, [flags, stack, ptid, ctid, tls, 0]) }
    };
    if !space::active() {
        return call();
    }
    if stack != 0 {
        return refuse_stack();
    }
    before(How::Bare, &written([ptid, ctid]));
    gated(call())
}

fn refuse_stack() -> Answer {
    notice::refuse(format_args!(
        "syscall(SYS_clone) with a copy of memory and another stack refused: use clone(), or no stack"
    ));
    error(libc::ENOSYS)
}

fn gated(answer: Answer) -> Answer {
    match answer {
        0 => after_in_child(),
        _ => after_in_parent(!raw::failed(answer)),
    }
    settle(answer)
}

/// Words of the structure of `clone3`, as of Linux 6.18.
const WORDS: usize = 11;

/// Bytes of its first version.
const FIRST_VERSION: usize = 64;

/// Whether `clone3` with these arguments is the kernel's alone: it shares memory, or cannot
/// succeed.
pub extern "C" fn is_kernels_clone3(args: usize, size: usize) -> bool {
    if !(FIRST_VERSION..=PAGE).contains(&size) || !raw::is_readable(args, size) {
        return true;
    }
    // SAFETY: readable.
    let flags = unsafe { (args as *const u64).read_unaligned() };
    flags & libc::CLONE_VM as u64 != 0
}

/// The system call `clone3` without shared memory.
pub fn raw_clone3(args: usize, size: usize) -> Answer {
    const PIDFD: usize = 1;
    const CHILD_TID: usize = 2;
    const PARENT_TID: usize = 3;
    const STACK: usize = 5;
    if !space::active() {
        // SAFETY: the program asked for exactly this.
        return unsafe { raw::call3(libc::SYS_clone3, args, size, 0) };
    }
    let mut copy = [0usize; WORDS];
    let known = size.min(size_of_val(&copy));
    // SAFETY: the program's structure, `size` bytes, seen to be readable.
    let unknown = unsafe {
        // On this stack, which is resident, not where the program has it.
        std::ptr::copy_nonoverlapping(args as *const u8, copy.as_mut_ptr().cast(), known);
        std::slice::from_raw_parts((args + known) as *const u8, size - known)
    };
    if unknown.iter().any(|byte| *byte != 0) {
        return error(libc::E2BIG);
    }
    if copy[STACK] != 0 {
        return refuse_stack();
    }
    let [child_tid, parent_tid] = written([copy[CHILD_TID], copy[PARENT_TID]]);
    let [pidfd, _] = written([copy[PIDFD], 0]);
    before(How::Bare, &[child_tid, parent_tid, pidfd]);
    let at = std::ptr::from_ref(&copy) as usize;
    // SAFETY: the program's arguments.
    gated(unsafe { raw::call3(libc::SYS_clone3, at, known, 0) })
}

/// The arguments of the child of `clone`.
struct Cloned {
    entry: extern "C" fn(*mut c_void) -> c_int,
    arg: *mut c_void,
}

extern "C" fn cloned(arg: *mut c_void) -> c_int {
    // SAFETY: passed below; the child has a copy of the stack it lies on.
    let it = unsafe { &*arg.cast::<Cloned>() };
    after_in_child();
    let status = (it.entry)(it.arg);
    // The C library would end this thread alone, and the pager's would live on.
    start::exit(status)
}

/// The C library's `clone`: one that copies memory is a fork.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn clone(
    entry: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    ptid: *mut c_void,
    tls: *mut c_void,
    ctid: *mut c_void,
) -> c_int {
    if !space::active() || flags & libc::CLONE_VM != 0 || stack.is_null() {
        // SAFETY: the program's own call.
        return unsafe { __clone(entry, stack, flags, arg, ptid, tls, ctid) };
    }
    let it = Cloned { entry, arg };
    let top = stack as usize;
    // The C library's `clone` writes there first. Where that is a SIGSEGV, it is one before
    // anything is held.
    // SAFETY: the program's own stack for its child; nothing changes.
    unsafe { wired::rewrite(((top & !15) - 16) as *mut u64) };
    let used = |flag: c_int, at: *mut c_void| if flags & flag != 0 { at as usize } else { 0 };
    let [parent, child] = written([
        used(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD, ptid),
        used(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID, ctid),
    ]);
    before(How::Bare, &[top - 2 * PAGE..top, parent, child]);
    let arg = std::ptr::from_ref(&it).cast_mut().cast();
    // SAFETY: the program's own call, entered by way of ours.
    let pid = answer(unsafe { __clone(cloned, stack, flags, arg, ptid, tls, ctid) });
    after_in_parent(!raw::failed(pid));
    raw::give(settle(pid)) as c_int
}

const _: () = assert!(size_of::<c_ulong>() == size_of::<usize>());
