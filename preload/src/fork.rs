//! Fork: the child must never see zeros where the parent had pages.
//!
//! A child inherits memory without its registration. So the pager is quiesced across the clone.
//! Before other code of the program runs in the child, the child joins the tree as a process
//! of its own, registers every arena again and starts its own threads.
//!
//! Rule: the gate closes in an atfork *prepare* handler registered before all others,
//! so that it runs last: closing it in an interposed `fork`, or before another handler,
//! would make that handler wait for pages that cannot come. And what the C library touches
//! between that handler and the child's must be resident first; it is nailed here.

mod admission;
mod birth;
mod clone;
mod libc_data;
mod libc_forks;
mod locks;
mod quiesce;
mod thread_words;

use crate::cancellation::CancellationDisabled;
use crate::raw_syscall::{SignalsBlocked, SyscallResult, c_result, error, is_error};
use crate::vma_map::AddrRange;
use crate::{address_space, init, mlock, paged_memory, pthread, raw_syscall};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use wired::{Guard, Lock};

use admission::clone_admitted;
use locks::ForkLocks;
use quiesce::QuiescedPager;

pub use clone::{is_kernels_clone3, raw_clone3, raw_fork};

/// Resources that a fork holds from before the clone until after it, in both processes.
/// Fields are dropped in order.
struct ForkState {
    /// None where the child has no room and must end.
    pager: Option<QuiescedPager>,
    locks: ForkLocks,
    /// The call is this library's, and waits for the child.
    call_waits: bool,
    /// Outlives the locks, whose guards disable cancellation, too: the first guard restores the state.
    _uncancelled: CancellationDisabled,
    _turn: Guard<'static, ()>,
    _signals: SignalsBlocked,
    /// Of a `clone`.
    cloned: Option<clone::ClonedProgram>,
    /// The thread that forks.
    tid: i32,
    /// The program's `errno`.
    errno: c_int,
}

/// One fork at a time.
static FORK_LOCK: Lock<()> = Lock::new(());

/// The fork under way; only its thread touches it, while it holds its turn.
struct ForkCell(UnsafeCell<Option<ForkState>>);
// SAFETY: guarded by `FORK_LOCK`.
unsafe impl Sync for ForkCell {}
static STATE: ForkCell = ForkCell(UnsafeCell::new(None));

/// Which of the C library's work lies between our handlers.
#[derive(Clone, Copy, PartialEq)]
enum ForkKind {
    /// `fork`: its standard I/O, its thread list, its name service.
    Library,
    /// The bare clone.
    Bare,
}

/// In the constructor.
pub fn init() {
    register_handlers();
}

type Handler = Option<unsafe extern "C" fn()>;

crate::dlsym::next! {
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
    if address_space::is_active() {
        stop_for_clone(ForkKind::Library, &[]);
        // From here to the handler in the parent only the clone sets it.
        raw_syscall::set_errno(0);
    }
}

unsafe extern "C" fn parent() {
    if address_space::is_active() {
        after_in_parent(raw_syscall::errno() == 0);
    }
}

unsafe extern "C" fn child() {
    if address_space::is_active() {
        after_in_child();
    }
}

fn stop_for_clone(kind: ForkKind, written_by_clone: &[AddrRange]) {
    let errno = raw_syscall::errno();
    let signals = SignalsBlocked::new();
    let turn = FORK_LOCK.lock();
    let uncancelled = CancellationDisabled::new();
    let admitted = admission::take();
    let call_waits = admitted.is_some();
    let (pager, locks) = quiesce::quiesce(admitted, || ForkLocks::take(kind, written_by_clone));
    let state = ForkState {
        pager,
        locks,
        call_waits,
        _uncancelled: uncancelled,
        _turn: turn,
        _signals: signals,
        cloned: None,
        tid: raw_syscall::tid(),
        errno,
    };
    // SAFETY: the turn is ours.
    unsafe { *STATE.0.get() = Some(state) };
}

/// The fork under way, of the thread that closed the gate, or its copy.
fn state() -> Option<&'static mut ForkState> {
    // SAFETY: that thread holds the turn; in a child the pager process stands in for it while
    // it waits.
    unsafe { (*STATE.0.get()).as_mut() }
}

fn take_state() -> Option<ForkState> {
    // SAFETY: as above.
    unsafe { (*STATE.0.get()).take() }
}

/// `is_cloned`: the kernel has made the child.
fn after_in_parent(is_cloned: bool) {
    let Some(mut state) = take_state() else {
        return;
    };
    let errno = if is_cloned {
        state.errno
    } else {
        raw_syscall::errno()
    };
    match state.pager.take().map(|pager| pager.end(is_cloned)) {
        None if state.call_waits => birth::record_refusal(),
        None | Some(None) => {}
        Some(Some(child)) => {
            let waits_later = state.call_waits && birth::record_child(child);
            let is_refused = !waits_later && !birth::await_pager(child, || false);
            if is_refused && state.call_waits {
                birth::record_refusal();
            }
        }
    }
    state.locks.release(false);
    drop(state);
    raw_syscall::set_errno(errno);
}

fn after_in_child() {
    let Some(state) = state() else { return };
    let Some(gate) = state.pager.take().map(QuiescedPager::into_gate) else {
        init::exit_group(init::EXIT_FAILED)
    };
    admission::forget_all();
    birth::forget_all();
    if let Some(threads) = state.locks.threads.take() {
        pthread::forget_others(threads, state.tid);
    }
    init::attach_child(gate);
    pthread::release_dead_nails();
    let Some(mut state) = take_state() else {
        return;
    };
    let errno = state.errno;
    state.locks.release(true);
    drop(state);
    raw_syscall::set_errno(errno);
}

/// In the child's pager process, before the child or its parent goes on: what was advised not
/// to be inherited is not there, or zero.
pub fn lose_unforked() {
    let Some(space) = state().and_then(|state| state.locks.space.as_mut()) else {
        return;
    };
    let marked: Vec<_> = space
        .map
        .used()
        .filter(|(_, attrs)| attrs.dont_fork || attrs.wipe_on_fork)
        .collect();
    for (span, attrs) in marked {
        if attrs.dont_fork {
            for piece in space.map.lookup(&span) {
                space.release(&piece);
            }
        } else {
            paged_memory::discard(&span);
        }
    }
    // Locks are not inherited.
    mlock::unlock_all(space);
}

/// In the child's pager process: where its parent has, or had, shared memory.
pub fn shared_spans() -> Vec<AddrRange> {
    let space = state().and_then(|state| state.locks.space.as_ref());
    space.map_or(Vec::new(), |space| space.shared.iter().cloned().collect())
}

unsafe extern "C" {
    fn __fork() -> libc::pid_t;
}

/// After a bare clone, in both processes.
fn finish_clone(answer: SyscallResult) -> SyscallResult {
    match answer {
        0 => after_in_child(),
        _ => after_in_parent(!is_error(answer)),
    }
    answer
}

/// A C function's result as the kernel would give it.
fn to_result(pid: libc::pid_t) -> SyscallResult {
    if pid < 0 {
        error(raw_syscall::errno())
    } else {
        pid as SyscallResult
    }
}

/// `fork`: refused with EAGAIN where the contract has no room for another process.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn fork() -> libc::pid_t {
    // SAFETY: the program's own call; our handlers run in it.
    let pid = clone_admitted(|| to_result(unsafe { __fork() }));
    c_result(pid) as libc::pid_t
}

crate::dlsym::next! {
    #[expect(non_snake_case, reason = "the C library's name")]
    /// The C library's own `_Fork`.
    fn _Fork() -> libc::pid_t
}

mod bare {
    use super::{ForkKind, address_space, finish_clone, stop_for_clone};

    /// `_Fork`: runs no handlers, so it is gated here.
    #[allow(non_snake_case, reason = "the C library's name")]
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn _Fork() -> libc::pid_t {
        if !address_space::is_active() {
            // SAFETY: the program's own call.
            return unsafe { super::_Fork() };
        }
        let pid = super::clone_admitted(|| {
            stop_for_clone(ForkKind::Bare, &[]);
            // SAFETY: the program's own call.
            finish_clone(super::to_result(unsafe { super::_Fork() }))
        });
        super::c_result(pid) as libc::pid_t
    }
}
