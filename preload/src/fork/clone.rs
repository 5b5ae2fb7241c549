//! The clones that a program makes by itself: `clone`, and the system calls. Those that copy memory
//! are forks.

use super::{
    ForkKind, after_in_child, after_in_parent, clone_admitted, finish_clone, state, stop_for_clone,
    to_result,
};
use crate::raw_syscall::{SyscallResult, c_result, error, is_error, syscall3, syscall6};
use crate::vma_map::AddrRange;
use crate::{address_space, diagnostics, init, raw_syscall};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use wired::{PAGE, WiredMemory};

type Entry = extern "C" fn(*mut c_void) -> c_int;

crate::dlsym::next! {
    /// The C library's own `clone`.
    fn __clone(entry: Entry, stack: *mut c_void, flags: c_int, arg: *mut c_void, ptid: *mut c_void, tls: *mut c_void, ctid: *mut c_void) -> c_int
}

/// Words the kernel writes for a clone.
fn written_words(addresses: [usize; 2]) -> [AddrRange; 2] {
    addresses.map(|addr| addr..addr + usize::from(addr != 0) * 4)
}

/// The word in shared memory that is paged in which the child's number is to be: the child stores it. The kernel would
/// before the child's mapping is registered, and bring a fresh page in where that one is paged out.
struct ChildWord(usize);

impl ChildWord {
    /// Takes the request for it out of the flags.
    fn take(flags: &mut usize, addr: usize) -> Option<Self> {
        let word = addr..addr.saturating_add(size_of::<libc::pid_t>());
        let asked = *flags & libc::CLONE_CHILD_SETTID as usize != 0;
        let taken = asked && address_space::lock().shared.touches(&word);
        taken.then(|| {
            *flags &= !(libc::CLONE_CHILD_SETTID as usize);
            Self(addr)
        })
    }

    /// In the child.
    fn store(&self) {
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: the program has the kernel store it there.
        unsafe { (self.0 as *mut libc::pid_t).write_unaligned(number) };
    }
}

/// Has the child store its number, if it is the child's to store, and passes the answer on.
fn after_clone(pid: SyscallResult, word: Option<&ChildWord>) -> SyscallResult {
    if pid == 0 {
        word.inspect(|word| word.store());
    }
    pid
}

/// The system call `clone` (or `fork`) without shared memory: flags, and stack, parent's
/// and child's word, thread storage.
pub fn raw_fork(flags: usize, rest: [usize; 4]) -> SyscallResult {
    let [stack, ptid, ctid, tls] = rest;
    let call = |flags: usize| {
        // SAFETY: the program asked for exactly this; the child returns on its copy of
        // this stack.
        unsafe { syscall6(libc::SYS_clone, [flags, stack, ptid, ctid, tls, 0]) }
    };
    if !address_space::is_active() {
        return call(flags);
    }
    if stack != 0 {
        return refuse_stack();
    }
    let mut flags = flags;
    let word = ChildWord::take(&mut flags, ctid);
    clone_admitted(|| {
        stop_for_clone(ForkKind::Bare, &written_words([ptid, ctid]));
        after_clone(finish_clone(call(flags)), word.as_ref())
    })
}

fn refuse_stack() -> SyscallResult {
    diagnostics::log(format_args!(
        "syscall(SYS_clone) with a copy of memory and another stack refused: use clone(), or no stack"
    ));
    error(libc::ENOSYS)
}

/// Words of the structure of `clone3`, as of Linux 6.18.
const WORDS: usize = 11;

/// Bytes of its first version.
const FIRST_VERSION: usize = 64;

/// Whether `clone3` with these arguments is the kernel's alone: it shares memory, or cannot
/// succeed.
pub extern "C" fn is_kernels_clone3(args: usize, size: usize) -> bool {
    if !(FIRST_VERSION..=PAGE).contains(&size) || !raw_syscall::is_readable(args, size) {
        return true;
    }
    // SAFETY: readable.
    let flags = unsafe { (args as *const u64).read_unaligned() };
    flags & libc::CLONE_VM as u64 != 0
}

/// The system call `clone3` without shared memory.
pub fn raw_clone3(args: usize, size: usize) -> SyscallResult {
    const FLAGS: usize = 0;
    const PIDFD: usize = 1;
    const CHILD_TID: usize = 2;
    const PARENT_TID: usize = 3;
    const STACK: usize = 5;
    const STACK_SIZE: usize = 6;
    const SET_TID: usize = 8;
    const SET_TID_SIZE: usize = 9;
    /// Levels of process namespaces: the kernel reads no more numbers.
    const LEVELS: usize = 32;
    if !address_space::is_active() {
        // SAFETY: the program asked for exactly this.
        return unsafe { syscall3(libc::SYS_clone3, args, size, 0) };
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
    if (copy[STACK] == 0) != (copy[STACK_SIZE] == 0) {
        return error(libc::EINVAL);
    }
    if copy[STACK] != 0 {
        return refuse_stack();
    }
    let [child_tid, parent_tid] = written_words([copy[CHILD_TID], copy[PARENT_TID]]);
    let [pidfd, _] = written_words([copy[PIDFD], 0]);
    let numbers = copy[SET_TID_SIZE].min(LEVELS) * size_of::<libc::pid_t>();
    let set_tid = copy[SET_TID]..copy[SET_TID].saturating_add(numbers);
    let child_tid_at = copy[CHILD_TID];
    let word = ChildWord::take(&mut copy[FLAGS], child_tid_at);
    let at = std::ptr::from_ref(&copy) as usize;
    clone_admitted(|| {
        stop_for_clone(ForkKind::Bare, &[child_tid, parent_tid, pidfd, set_tid]);
        // SAFETY: the program's arguments.
        let pid = finish_clone(unsafe { syscall3(libc::SYS_clone3, at, known, 0) });
        after_clone(pid, word.as_ref())
    })
}

/// What the child of `clone` is to run, on the program's stack for it.
pub struct ClonedProgram {
    entry: Entry,
    arg: *mut c_void,
    stack: usize,
    word: Option<ChildWord>,
}

/// Bytes of the stack of a child until it has its pager. The program's own may be small, and lie in its caller's, which
/// the program may read first.
const CHILD_STACK: usize = 256 << 10;

/// The end of that stack, which the first `clone` makes. Forks take turns, and each child has a copy.
fn child_stack() -> Option<*mut c_void> {
    static START: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
    let mut start = START.load(Ordering::Acquire);
    if start.is_null() {
        start = WiredMemory::private(CHILD_STACK).ok()?.leak();
        START.store(start, Ordering::Release);
    }
    Some(start.wrapping_add(CHILD_STACK).cast())
}

extern "C" fn cloned(_: *mut c_void) -> c_int {
    let program = state().and_then(|state| state.cloned.take());
    after_in_child();
    match program {
        Some(program) => {
            program.word.as_ref().inspect(|word| word.store());
            program.enter()
        }
        None => init::exit_group(init::EXIT_FAILED),
    }
}

impl ClonedProgram {
    /// Calls it as the C library's `clone` does, and ends the process with what it returns: the C library would end this
    /// thread alone, and the pager's would live on.
    fn enter(self) -> ! {
        extern "C" fn end(status: c_int) -> ! {
            init::exit_group(status)
        }
        // SAFETY: the stack that the program gave for exactly this; nothing returns to the one before.
        unsafe {
            std::arch::asm!(
                "mov rsp, {stack}",
                "xor ebp, ebp",
                "call {entry}",
                "mov edi, eax",
                "call {end}",
                stack = in(reg) self.stack & !15,
                entry = in(reg) self.entry,
                end = sym end,
                in("rdi") self.arg,
                options(noreturn),
            )
        }
    }
}

/// The C library's `clone`: one that copies memory is a fork.
fn clone_by_library(
    entry: Entry,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    ptid: *mut c_void,
    tls: *mut c_void,
    ctid: *mut c_void,
) -> c_int {
    if !address_space::is_active() || flags & libc::CLONE_VM != 0 || stack.is_null() {
        // SAFETY: the program's own call.
        return unsafe { __clone(entry, stack, flags, arg, ptid, tls, ctid) };
    }
    let top = stack as usize;
    // The C library's `clone` writes there first. Where that is a SIGSEGV, it is one before
    // anything is held.
    // SAFETY: the program's own stack for its child; nothing changes.
    unsafe { wired::rewrite(((top & !15) - 16) as *mut u64) };
    let used = |flag: c_int, at: *mut c_void| if flags & flag != 0 { at as usize } else { 0 };
    let [parent, child] = written_words([
        used(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD, ptid),
        used(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID, ctid),
    ]);
    let mut kernel_flags = flags as usize;
    let mut word = ChildWord::take(&mut kernel_flags, ctid as usize);
    let flags = kernel_flags as c_int;
    let Some(own_top) = child_stack() else {
        return c_result(error(libc::ENOMEM)) as c_int;
    };
    let pid = clone_admitted(|| {
        stop_for_clone(ForkKind::Bare, &[parent, child]);
        if let Some(state) = state() {
            let stack = top;
            let word = word.take();
            state.cloned = Some(ClonedProgram {
                entry,
                arg,
                stack,
                word,
            });
        }
        // SAFETY: the program's own call, entered by way of ours.
        let pid = to_result(unsafe { __clone(cloned, own_top, flags, arg, ptid, tls, ctid) });
        after_in_parent(!is_error(pid));
        pid
    });
    c_result(pid) as c_int
}

mod exports {
    use super::{Entry, c_int, c_result, c_void, clone_by_library, error};

    /// Defines the function under both of its public names.
    macro_rules! clone {
        ($($name:ident)*) => {$(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            extern "C" fn $name(
                entry: Option<Entry>,
                stack: *mut c_void,
                flags: c_int,
                arg: *mut c_void,
                ptid: *mut c_void,
                tls: *mut c_void,
                ctid: *mut c_void,
            ) -> c_int {
                match entry {
                    Some(entry) => clone_by_library(entry, stack, flags, arg, ptid, tls, ctid),
                    None => c_result(error(libc::EINVAL)) as c_int,
                }
            }
        )*};
    }
    clone!(clone __clone);
}
