//! Signal dispositions and masks, so that an upcall always arrives.
//!
//! A thread that faults while SIGBUS is blocked is killed by the kernel, handler or not, and
//! worker threads often block all signals. So this library defines `sigprocmask`,
//! `pthread_sigmask` and `sigaction` over the C library's: a mask never blocks SIGBUS, also
//! where it is set before the first domain exists, and a program that installs a handler for
//! SIGBUS or SIGSEGV gets those signals that are not the pager's. A
//! program linked with this library gets these definitions because a static library's symbols
//! go before a shared one's.

mod interpose;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use wired::Lock;

/// Signals with a handler of the pager's: handlers of the program are adapted for them.
static OURS: AtomicU64 = AtomicU64::new(0);

/// The signal that no mask may block, from the program's start: a thread that blocked it before
/// the first domain would die of its first fault. (A program may block SIGSEGV, and then dies
/// of one, as it would without a pager.)
const PASSING: u64 = bit(libc::SIGBUS);

/// A handler with SA_SIGINFO. One of the program's may throw an exception past it.
pub(crate) type SignalAction = extern "C-unwind" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// The disposition that the program requested.
struct SavedHandler {
    lock: Lock<()>,
    handler: AtomicUsize,
    flags: AtomicUsize,
    mask: AtomicUsize,
}

impl SavedHandler {
    const fn new() -> Self {
        Self {
            lock: Lock::new(()),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicUsize::new(0),
            mask: AtomicUsize::new(0),
        }
    }
}

static BUS: SavedHandler = SavedHandler::new();
static SEGV: SavedHandler = SavedHandler::new();

fn previous(signal: i32) -> Option<&'static SavedHandler> {
    match signal {
        libc::SIGBUS => Some(&BUS),
        libc::SIGSEGV => Some(&SEGV),
        _ => None,
    }
}

/// The kernel's `struct sigaction` on 64-bit Linux.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelSigaction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// `SA_RESTORER`: the kernel's, which the C headers do not show.
const RESTORER: u64 = 0x0400_0000;

/// The signals the kernel counts: a set is 64 bits.
const SET_BYTES: usize = 8;

// Where a handler returns to. An unwinder (exceptions, `backtrace`, debuggers) has to get past
// it to the interrupted frame, whose registers the kernel has put in a `ucontext` at the stack
// pointer. Some unwinders recognise this function by its instructions, which are those of the
// C library's; others use unwind information, which gives the location of each register: DWARF
// number, offset from the stack pointer. A return address is looked up by the byte before it,
// hence the `nop`.
core::arch::global_asm!(
    ".pushsection .text.selfpage_sigreturn, \"ax\", @progbits",
    ".globl selfpage_sigreturn",
    ".hidden selfpage_sigreturn",
    ".type selfpage_sigreturn, @function",
    ".cfi_startproc",
    ".cfi_signal_frame",
    // DW_CFA_def_cfa_expression: the word at 160 from the stack pointer (DW_OP_breg7, deref).
    ".cfi_escape 0x0f, 0x04, 0x77, 0xa0, 0x01, 0x06",
    // DW_CFA_expression: register, its bytes, DW_OP_breg7, offset.
    ".macro selfpage_saved register, low, high",
    ".cfi_escape 0x10, \\register, 0x03, 0x77, \\low, \\high",
    ".endm",
    "selfpage_saved 8, 0xa8, 0x00",
    "selfpage_saved 9, 0xb0, 0x00",
    "selfpage_saved 10, 0xb8, 0x00",
    "selfpage_saved 11, 0xc0, 0x00",
    "selfpage_saved 12, 0xc8, 0x00",
    "selfpage_saved 13, 0xd0, 0x00",
    "selfpage_saved 14, 0xd8, 0x00",
    "selfpage_saved 15, 0xe0, 0x00",
    "selfpage_saved 5, 0xe8, 0x00",
    "selfpage_saved 4, 0xf0, 0x00",
    "selfpage_saved 6, 0xf8, 0x00",
    "selfpage_saved 3, 0x80, 0x01",
    "selfpage_saved 1, 0x88, 0x01",
    "selfpage_saved 0, 0x90, 0x01",
    "selfpage_saved 2, 0x98, 0x01",
    "selfpage_saved 7, 0xa0, 0x01",
    "selfpage_saved 16, 0xa8, 0x01",
    ".purgem selfpage_saved",
    "nop",
    "selfpage_sigreturn:",
    "mov rax, 15",
    "syscall",
    ".cfi_endproc",
    ".size selfpage_sigreturn, . - selfpage_sigreturn",
    ".popsection",
);

unsafe extern "C" {
    fn selfpage_sigreturn();
}

/// rt_sigaction without the C library, whose own name this module defines.
fn kernel_action(
    signal: i32,
    new: Option<&KernelSigaction>,
    old: Option<&mut KernelSigaction>,
) -> i32 {
    let new = new.map(|a| {
        let mut action = *a;
        if action.flags & RESTORER == 0 {
            action.flags |= RESTORER;
            action.restorer = selfpage_sigreturn as *const () as usize;
        }
        action
    });
    let new_at = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let old_at = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both point to a kernel action or are null.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new_at, old_at, SET_BYTES) as i32 }
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Installs a handler of the pager's in front of the program's.
pub(crate) fn install(signal: i32, handler: SignalAction) -> std::io::Result<()> {
    let mut old = KernelSigaction::default();
    let new = KernelSigaction {
        handler: handler as *const () as usize,
        // SIGBUS on the thread's own stack: an alternate one is often just large
        // enough for a message, and a program's own handler may fault in its turn. SIGSEGV on
        // the alternate one: it may be the stack that is at its end.
        flags: (libc::SA_SIGINFO
            | libc::SA_NODEFER
            | libc::SA_RESTART
            | if signal == libc::SIGSEGV {
                libc::SA_ONSTACK
            } else {
                0
            }) as u64,
        restorer: 0,
        // No other handler may run while this one is inside a gate: it could fault, and wait
        // at the same gate behind a closer that waits for this one.
        mask: !(bit(libc::SIGBUS) | bit(libc::SIGSEGV)),
    };
    if kernel_action(signal, Some(&new), Some(&mut old)) != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if let Some(previous) = previous(signal) {
        remember(previous, &old);
    }
    OURS.fetch_or(bit(signal), Ordering::AcqRel);
    unblock_here();
    Ok(())
}

fn remember(previous: &SavedHandler, action: &KernelSigaction) {
    let _guard = previous.lock.lock();
    previous
        .flags
        .store(action.flags as usize, Ordering::Release);
    previous.mask.store(action.mask as usize, Ordering::Release);
    previous.handler.store(action.handler, Ordering::Release);
}

/// Unblocks the pager's signals on this thread.
pub(crate) fn unblock_here() {
    let set = OURS.load(Ordering::Acquire);
    // SAFETY: one word of signals.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_UNBLOCK,
            &raw const set,
            std::ptr::null_mut::<u64>(),
            SET_BYTES,
        );
    }
}

/// Blocks every signal on this thread: a pager thread's work is never interrupted.
pub(crate) fn block_all_here() {
    set_mask(u64::MAX, None);
}

/// Signals are blocked on this thread while it lives, but those that faults raise.
pub(crate) struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks them.
    pub(crate) fn new() -> Self {
        // The last two are the C library's own (to cancel a thread, and to change the user of all), which no program blocks.
        const RAISED: [i32; 7] = [
            libc::SIGBUS,
            libc::SIGSEGV,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            32,
            33,
        ];
        let raised = RAISED.iter().fold(0, |set, signal| set | bit(*signal));
        let mut before = 0;
        change_mask(libc::SIG_BLOCK, !raised, Some(&mut before));
        Self { before }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_mask(self.before, None);
    }
}

/// Runs a handler of the program's under the mask that was in force where the fault
/// happened, and what the handler's own mask adds. A handler that jumps away restores the
/// mask itself, as it would from the kernel's own frame.
///
/// # Safety
/// `context` is what the kernel passed to a signal handler.
pub(crate) unsafe fn with_program_mask<T>(
    context: *mut libc::c_void,
    and: u64,
    handler: impl FnOnce() -> T,
) -> T {
    let context: *const libc::ucontext_t = context.cast();
    // SAFETY: the caller's promise; the kernel's set is the first word.
    let interrupted = unsafe { *(&raw const (*context).uc_sigmask).cast::<u64>() };
    let mut kept = 0u64;
    set_mask((interrupted | and) & !PASSING, Some(&mut kept));
    let result = handler();
    set_mask(kept, None);
    result
}

fn set_mask(mask: u64, old: Option<&mut u64>) {
    change_mask(libc::SIG_SETMASK, mask, old);
}

fn change_mask(how: i32, mask: u64, old: Option<&mut u64>) {
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: words of signals.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const mask,
            old,
            SET_BYTES,
        )
    };
}

/// Forwards a signal that is not the pager's to the program's disposition.
///
/// # Safety
/// The arguments are the kernel's, in the handler of `signal`.
pub(crate) unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(previous) = previous(signal) else {
        return;
    };
    let handler = previous.handler.load(Ordering::Acquire);
    let flags = previous.flags.load(Ordering::Acquire);
    // SAFETY: the kernel's own pointer.
    let sent = unsafe { (*info).si_code } <= 0;
    match handler {
        libc::SIG_IGN if sent => {}
        // A fault cannot be ignored: the kernel kills for it, and so does this.
        libc::SIG_DFL | libc::SIG_IGN => {
            kernel_action(signal, Some(&KernelSigaction::default()), None);
            if sent {
                // SAFETY: the process's own id.
                unsafe { libc::kill(libc::getpid(), signal) };
            }
            // Otherwise returning repeats the access, which now ends the process with
            // the right address in its core.
        }
        _ => {
            if flags & libc::SA_RESETHAND as usize != 0 {
                previous.handler.store(libc::SIG_DFL, Ordering::Release);
            }
            let mask = previous.mask.load(Ordering::Acquire) as u64;
            // SAFETY: the kernel's own context; the handler is called as it asked to be.
            unsafe {
                with_program_mask(context, mask, || {
                    if flags & libc::SA_SIGINFO as usize != 0 {
                        let action = std::mem::transmute::<usize, SignalAction>(handler);
                        action(signal, info, context);
                    } else {
                        let action =
                            std::mem::transmute::<usize, extern "C-unwind" fn(i32)>(handler);
                        action(signal);
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unwinders of the C compiler's and debuggers compare these.
    #[test]
    fn handlers_return_by_the_instructions_that_unwinders_know() {
        let at = selfpage_sigreturn as *const () as *const u8;
        // SAFETY: the function is as long.
        let bytes = unsafe { std::slice::from_raw_parts(at, 9) };
        assert_eq!(bytes, [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
    }
}
