//! Threads of the program, and the memory that the kernel writes when they end, unseen by the
//! pager.
//!
//! When a thread ends the kernel clears a word in its control block and marks the robust
//! mutexes it holds. It does not wait for a missing page then, but fails silently:
//! joins hang, and waiters never learn that the owner died. So the control block is
//! nailed where the program supplied the stack, and held robust mutexes at the end. Where too many threads
//! run for the frames, the control blocks of some are nailed at their end only.

mod nails;

use self::nails::NailedRanges;
use crate::mutexes::NailedMutexes;
use crate::raw_syscall::{SignalsBlocked, error, is_error, syscall3};
use crate::vma_map::AddrRange;
use crate::{address_space, exec, paged_memory, pager_process, raw_syscall, rseq};
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use wired::{Guard, Lock, PAGE};

/// Bytes of glibc's thread descriptor: the words the kernel knows (thread number, robust
/// list, rseq) lie in it.
const CONTROL: usize = 2304;

/// The control blocks of running threads are nailed in one of so many frames.
const NAILED: usize = 4;

/// Most robust mutexes visited, as many as the kernel itself visits.
const MAX_ROBUST: usize = 2048;

/// Rounds of destructors the C library runs: others may lock in theirs.
const ROUNDS: usize = 3;

type StartRoutine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// A thread as it starts: two words, read as such by `thread_entry`.
#[repr(C)]
struct ThreadStart {
    start: StartRoutine,
    arg: *mut c_void,
}

/// The threads that run, and what is nailed for them, for others that have ended and for mutexes.
pub struct ThreadRecord {
    /// Threads that run, with their control blocks.
    live: Vec<(i32, usize)>,
    nails: NailedRanges,
    pub mutexes: NailedMutexes,
}

static THREADS: Lock<ThreadRecord> = Lock::new(ThreadRecord {
    live: Vec::new(),
    nails: NailedRanges::new(),
    mutexes: NailedMutexes::new(),
});
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// True once the program has requested a robust mutex.
static ROBUST_USED: AtomicBool = AtomicBool::new(false);

/// Makes the key whose destructor reports a thread's end. In the constructor.
pub fn init() {
    let mut key = 0;
    // SAFETY: a fresh key; the destructor lives as long as the process.
    if unsafe { libc::pthread_key_create(&mut key, Some(on_thread_exit)) } == 0 {
        KEY.store(key, Ordering::Release);
    }
    rseq::init();
}

/// Has the record to itself, with signals blocked.
pub fn with_record<R>(f: impl FnOnce(&mut ThreadRecord) -> R) -> R {
    let _blocked = SignalsBlocked::new();
    f(&mut THREADS.lock())
}

fn whole_pages(from: usize, to: usize) -> AddrRange {
    from & !(PAGE - 1)..to.next_multiple_of(PAGE)
}

/// Nails what lies in an arena, until thread `tid` is gone; for one in [`NAILED`] frames, or whatever it takes.
/// Returns false if a part is not nailed.
fn nail(span: AddrRange, tid: i32, is_bounded: bool) -> bool {
    let space = address_space::lock();
    let mut nailed = true;
    for span in space.nailable(&span) {
        // A thread ends in several rounds.
        if with_record(|record| record.nails.is_nailed(tid, &span)) {
            continue;
        }
        let has_room = || {
            let nails = with_record(|record| record.nails.len());
            nails < paged_memory::most_frames() / NAILED
        };
        if (!is_bounded || has_room()) && paged_memory::nail(&span).is_ok() {
            with_record(|record| record.nails.push(tid, span));
        } else {
            nailed = false;
        }
    }
    nailed
}

/// Takes back the nails of threads that are gone.
pub fn release_dead_nails() {
    with_record(|record| record.nails.release_dead());
}

/// Returns true if a thread of the process has ended.
fn is_gone(tid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    let answer = unsafe {
        syscall3(
            libc::SYS_tgkill,
            raw_syscall::pid() as usize,
            tid as usize,
            0,
        )
    };
    answer == error(libc::ESRCH)
}

/// Drops the nails in memory that is being unmapped. The caller holds the space.
pub fn forget_nails(span: &AddrRange) {
    with_record(|record| {
        record.nails.forget(span);
        record.mutexes.forget(span);
    });
}

/// Holds the record still.
pub type ThreadsGuard = Guard<'static, ThreadRecord>;

/// For the time of a fork, before the gate closes: a thread that has the record may wait for it.
pub fn hold() -> ThreadsGuard {
    THREADS.lock()
}

/// The child of a fork has one thread, which was the parent's thread `forked`. [`release_dead_nails`] takes back
/// the nails of the others, once the child has its pager.
pub fn forget_others(mut record: ThreadsGuard, forked: i32) {
    let (own, at) = (raw_syscall::tid(), pager_process::thread_pointer());
    record.live.clear();
    record.live.push((own, at));
    record.nails.forget_others(forked, own);
    drop(record);
    wired::pi::forget_waiters();
    rseq::forget_others();
}

/// Calls `look` for the control block of each thread that runs; those that the C library makes for
/// itself (for timers, for asynchronous I/O) are not among them. None of them ends
/// meanwhile: a thread's last step is to leave the list. What `look` waits for must not wait
/// for the list; the space's lock is taken before.
pub fn each_control_block(mut look: impl FnMut(AddrRange)) {
    let own = pager_process::thread_pointer();
    with_record(|record| {
        // A thread that ended by the system call alone has not left the list.
        record.live.retain(|(tid, _)| !is_gone(*tid));
        for (_, at) in record.live.iter().filter(|(_, at)| *at != own) {
            look(*at..*at + CONTROL);
        }
    });
    look(own..own + CONTROL);
}

crate::dlsym::next! {
    /// The C library's own `pthread_create`.
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: StartRoutine,
        arg: *mut c_void
    ) -> c_int
}

crate::dlsym::next! {
    /// The C library's own `thrd_create`.
    fn thrd_create(thread: *mut libc::pthread_t, start: StartRoutine, arg: *mut c_void) -> c_int
}

crate::dlsym::next! {
    /// The C library's own `pthread_mutexattr_setrobust`.
    fn pthread_mutexattr_setrobust(attributes: *mut libc::pthread_mutexattr_t, robust: c_int) -> c_int
}

/// Has the C library `make` a thread that begins in [`thread_entry`].
fn create(
    start: StartRoutine,
    arg: *mut c_void,
    make: impl FnOnce(StartRoutine, *mut c_void) -> c_int,
) -> c_int {
    if !address_space::is_active() {
        return make(start, arg);
    }
    release_dead_nails();
    let begin = Box::into_raw(Box::new(ThreadStart { start, arg }));
    // The new thread's to free.
    let answer = make(thread_entry, begin.cast());
    if answer != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(begin) });
    }
    answer
}

mod exports {
    use super::{Ordering, ROBUST_USED, StartRoutine, c_int, c_void, create};

    /// `pthread_create`.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: StartRoutine,
        arg: *mut c_void,
    ) -> c_int {
        create(start, arg, |start, arg| {
            // SAFETY: the caller's.
            unsafe { super::pthread_create(thread, attributes, start, arg) }
        })
    }

    /// `thrd_create`. What the thread's function returns, a number, passes through as it is.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn thrd_create(
        thread: *mut libc::pthread_t,
        start: StartRoutine,
        arg: *mut c_void,
    ) -> c_int {
        create(start, arg, |start, arg| {
            // SAFETY: the caller's.
            unsafe { super::thrd_create(thread, start, arg) }
        })
    }

    /// `pthread_mutexattr_setrobust`.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn pthread_mutexattr_setrobust(
        attributes: *mut libc::pthread_mutexattr_t,
        robust: c_int,
    ) -> c_int {
        ROBUST_USED.store(true, Ordering::Release);
        // SAFETY: the caller's.
        unsafe { super::pthread_mutexattr_setrobust(attributes, robust) }
    }
}

/// The start of a program's thread. It continues in the program's function without
/// a frame of ours below: `pthread_exit` and cancellation unwind the stack, and must
/// not meet one.
#[unsafe(naked)]
unsafe extern "C-unwind" fn thread_entry(begin: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 24",
        "mov rsi, rsp",
        "call {on_thread_start}",
        "pop rax",
        "pop rdi",
        "add rsp, 8",
        "jmp rax",
        on_thread_start = sym on_thread_start,
    )
}

/// The thread's first steps; leaves the program's function and argument in `to`.
unsafe extern "C" fn on_thread_start(begin: *mut ThreadStart, to: *mut ThreadStart) {
    // Before the first word that may have been paged out.
    rseq::register();
    // SAFETY: made by `pthread_create` for this thread alone; `to` has room.
    unsafe { to.write(*Box::from_raw(begin)) };
    let (tid, own) = (raw_syscall::tid(), pager_process::thread_pointer());
    with_record(|record| {
        // One that ended by the system call alone may have had the number before.
        record.live.retain(|(live, _)| *live != tid);
        record.live.push((tid, own));
    });
    // More threads than frames may run: what is not nailed now is when its thread ends.
    if !nail(whole_pages(own, own + CONTROL), tid, true) {
        rseq::unregister(tid);
    }
    let key = KEY.load(Ordering::Acquire);
    if key != u32::MAX {
        // SAFETY: our key; any value but null makes the destructor run.
        unsafe { libc::pthread_setspecific(key, ROUNDS as *const c_void) };
    }
}

/// A thread of the program's on_thread_exit, by returning, by `pthread_exit` or cancelled.
unsafe extern "C" fn on_thread_exit(round: *mut c_void) {
    let round = round as usize;
    if ROBUST_USED.load(Ordering::Acquire) {
        nail_robust_mutexes();
    }
    if round > 1 {
        let key = KEY.load(Ordering::Acquire);
        // SAFETY: our key. Once more, after the destructors that follow this one.
        unsafe { libc::pthread_setspecific(key, (round - 1) as *const c_void) };
        return;
    }
    exec::unmap_leftovers();
    let (tid, own) = (raw_syscall::tid(), pager_process::thread_pointer());
    nail(whole_pages(own, own + CONTROL), tid, false);
    rseq::unregister(tid);
    with_record(|record| {
        record.live.retain(|(live, _)| *live != tid);
        record.nails.on_thread_exit(tid);
        record.nails.release_dead();
    });
}

/// The head of a thread's list of robust mutexes, as the kernel defines it.
#[repr(C)]
struct RobustListHead {
    next: usize,
    futex_offset: isize,
    pending: usize,
}

/// Makes the robust mutexes this thread holds resident, and keeps them so.
fn nail_robust_mutexes() {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: two words that live through the call.
    let answer = unsafe {
        let (head, len) = (
            std::ptr::from_mut(&mut head) as usize,
            std::ptr::from_mut(&mut len) as usize,
        );
        syscall3(libc::SYS_get_robust_list, 0, head, len)
    };
    if is_error(answer) || head == 0 {
        return;
    }
    let tid = raw_syscall::tid();
    // SAFETY: the list the C library keeps for this thread; only this thread changes it.
    unsafe {
        let list = &*(head as *const RobustListHead);
        let mut entry = list.next;
        for _ in 0..MAX_ROBUST {
            // The lowest bit tells the kind of mutex.
            let at = entry & !1;
            if at == 0 || at == head {
                break;
            }
            let word = at.wrapping_add_signed(list.futex_offset);
            nail(whole_pages(at.min(word), at.max(word) + 8), tid, false);
            entry = *(at as *const usize);
        }
    }
}
