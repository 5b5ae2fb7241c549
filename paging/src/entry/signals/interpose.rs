//! The definitions that take the C library's place in a linked program.

use super::{KernelSigaction, OURS, PASSING, SET_BYTES, bit, kernel_action, previous, remember};
use std::ops::BitOr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The two signals below the first real-time ones, by which the C library cancels threads and has all of
/// them change their user: no program blocks or handles them.
const RESERVED: [i32; 2] = [32, 33];

/// # Safety
/// As `sigprocmask(2)`.
unsafe fn change_mask(how: i32, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> i64 {
    let mut wanted;
    let mut at: *const u64 = std::ptr::null();
    if !set.is_null() {
        // SAFETY: the caller's set; the kernel's set is its first word.
        wanted = unsafe { *set.cast::<u64>() };
        if how != libc::SIG_UNBLOCK {
            wanted &= !RESERVED.map(bit).into_iter().fold(PASSING, BitOr::bitor);
        }
        at = &raw const wanted;
    }
    let mut seen = 0u64;
    // SAFETY: pointers to words on this stack.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, at, &raw mut seen, SET_BYTES) };
    if result == 0 && !old.is_null() {
        // SAFETY: the caller's set, cleared as the C library does.
        unsafe {
            libc::sigemptyset(old);
            *old.cast::<u64>() = seen;
        }
    }
    result
}

/// `sigprocmask(2)`, which never blocks SIGBUS.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: i32,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { change_mask(how, set, old) as i32 }
}

/// `pthread_sigmask(3)`, which never blocks SIGBUS.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: i32,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { change_mask(how, set, old) } {
        0 => 0,
        // SAFETY: errno of this thread.
        _ => unsafe { *libc::__errno_location() },
    }
}

/// Signals whose handlers are to interrupt system calls: what `siginterrupt` has set.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Sets a handler as the calls do that take nothing but it; the one before.
fn handle(number: i32, handler: libc::sighandler_t, flags: i32) -> libc::sighandler_t {
    // SAFETY: plain data; a zeroed action is a value.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: all on this stack.
    let set = unsafe {
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut new.sa_mask, number);
        }
        sigaction(number, &raw const new, &raw mut old)
    };
    match set {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// `signal(3)`, as the C library's: kept after delivery, restarting but for what `siginterrupt` says.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: i32, handler: libc::sighandler_t) -> libc::sighandler_t {
    let interrupts = is_signal(number) && INTERRUPTING.load(Ordering::Relaxed) & bit(number) != 0;
    handle(
        number,
        handler,
        if interrupts { 0 } else { libc::SA_RESTART },
    )
}

fn is_signal(number: i32) -> bool {
    (1..=64).contains(&number)
}

/// `siginterrupt(3)`: for the handler that is set, and those that `signal` sets later.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(number: i32, interrupts: i32) -> i32 {
    // SAFETY: plain data on this stack.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if sigaction(number, std::ptr::null(), &raw mut action) != 0 {
            return -1;
        }
        if interrupts != 0 {
            INTERRUPTING.fetch_or(bit(number), Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(number), Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        sigaction(number, &raw const action, std::ptr::null_mut())
    }
}

/// `signal(3)` under the name it had on BSD.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(
    number: i32,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

/// What `signal` is in programs built for strict X/Open: a handler for one delivery, not
/// blocked meanwhile.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(
    number: i32,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    handle(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

/// The same.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(
    number: i32,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { __sysv_signal(number, handler) }
}

/// What `sigset` takes and gives for a signal that is blocked.
const SIG_HOLD: libc::sighandler_t = 2;

/// `sigset(3)`: a handler for a signal that is let through, or the signal held back.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(number: i32, handler: libc::sighandler_t) -> libc::sighandler_t {
    let hold = handler == SIG_HOLD;
    let how = if hold {
        libc::SIG_BLOCK
    } else {
        libc::SIG_UNBLOCK
    };
    // SAFETY: plain data; a zeroed action is a value, and sets are filled before they are
    // read.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    let action = if hold {
        std::ptr::null()
    } else {
        &raw const new
    };
    // SAFETY: all on this stack.
    unsafe {
        if sigaction(number, action, &raw mut old) != 0 {
            return libc::SIG_ERR;
        }
        let (mut one, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&raw mut one);
        libc::sigaddset(&raw mut one, number);
        if change_mask(how, &raw const one, &raw mut before) != 0 {
            return libc::SIG_ERR;
        }
        match libc::sigismember(&raw const before, number) {
            1 => SIG_HOLD,
            _ => old.sa_sigaction,
        }
    }
}

/// `sigaction(2)`: a program's handler for a signal of the pager's goes behind the
/// pager's, and no handler's mask blocks SIGBUS.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> i32 {
    if RESERVED.contains(&signal) {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    let ours = OURS.load(Ordering::Acquire);
    let wanted = (!new.is_null()).then(|| {
        // SAFETY: the caller's action.
        let new = unsafe { &*new };
        KernelSigaction {
            handler: new.sa_sigaction,
            // As the C library, which sets its own.
            flags: new.sa_flags as u32 as u64 & !super::RESTORER,
            restorer: 0,
            // SAFETY: the kernel's set is the first word.
            mask: unsafe { *std::ptr::from_ref(&new.sa_mask).cast::<u64>() } & !PASSING,
        }
    });
    let mut seen = KernelSigaction::default();
    match previous(signal) {
        Some(previous) if ours & bit(signal) != 0 => {
            seen.handler = previous.handler.load(Ordering::Acquire);
            seen.flags = previous.flags.load(Ordering::Acquire) as u64;
            seen.mask = previous.mask.load(Ordering::Acquire) as u64;
            // As the kernel has it of a handler that was set.
            if seen.handler != libc::SIG_DFL {
                seen.flags |= super::RESTORER;
                seen.restorer = super::selfpage_sigreturn as *const () as usize;
            }
            if let Some(wanted) = &wanted {
                remember(previous, wanted);
            }
        }
        _ => {
            let result = kernel_action(signal, wanted.as_ref(), Some(&mut seen));
            if result != 0 {
                return result;
            }
        }
    }
    if !old.is_null() {
        // SAFETY: the caller's action; sigemptyset clears what the kernel's word
        // does not cover.
        unsafe {
            let old = &mut *old;
            old.sa_sigaction = seen.handler;
            old.sa_flags = seen.flags as i32;
            libc::sigemptyset(&raw mut old.sa_mask);
            *std::ptr::from_mut(&mut old.sa_mask).cast::<u64>() = seen.mask;
            // Programs hand it on to the system call.
            old.sa_restorer = std::mem::transmute::<usize, Option<extern "C" fn()>>(seen.restorer);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_sets_a_handler_of_the_c_librarys_signals() {
        for number in RESERVED {
            // SAFETY: plain data on this stack.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let refused = |answer: i32| {
                    let errno = std::io::Error::last_os_error().raw_os_error();
                    answer == -1 && errno == Some(libc::EINVAL)
                };
                assert!(refused(sigaction(
                    number,
                    std::ptr::null(),
                    &raw mut action
                )));
                assert!(refused(sigaction(
                    number,
                    &raw const action,
                    std::ptr::null_mut()
                )));
                assert_eq!(signal(number, libc::SIG_IGN), libc::SIG_ERR);
                assert_eq!(sigset(number, libc::SIG_IGN), libc::SIG_ERR);
                assert!(refused(siginterrupt(number, 1)));
            }
        }
    }
}
