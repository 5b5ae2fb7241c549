//! Signals that wait for a thread to take them, and interrupt none.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io;
use std::mem::MaybeUninit;

/// A set of signals.
pub fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is made before it is used.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// The set of all signals.
pub fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: fills the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Returns true if this process ignores a signal.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: changes nothing and, where it succeeds, fills `action`.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Changes this thread's mask as `sigprocmask` does; returns the mask before. By the system call: in a program that pages
/// by upcalls the library's own `sigprocmask` blocks no SIGBUS.
pub fn change_mask(how: i32, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = set_of(&[]);
    // SAFETY: the kernel reads and writes the first word of each set.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            std::ptr::from_ref(set),
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}

/// Has the signals of a set wait, for this thread and those that it starts.
pub fn block(set: &libc::sigset_t) {
    change_mask(libc::SIG_BLOCK, set);
}

/// Makes a write beyond the limit on the size of files an error of that write (EFBIG), for this thread and those that
/// it starts: the signal that comes with it ends no service.
pub fn block_file_size() {
    block(&set_of(&[libc::SIGXFSZ]));
}

/// Has requests to end wait for ever: for a process that ends with another one, which they reach, too.
pub fn block_requests_to_end() {
    block(&set_of(&[
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
    ]));
}

/// The blocked signals of a set, read from a descriptor.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Makes the descriptor. It reads the signals of the process that reads, but wakes up for the
    /// process that made it: a fork's child makes one of its own.
    pub fn open(set: &libc::sigset_t) -> io::Result<Self> {
        // SAFETY: reads the set.
        let fd = unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(crate::last_errno());
        }
        // SAFETY: a descriptor that the kernel just returned.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that waits.
    pub fn next(&self) -> Option<libc::signalfd_siginfo> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: reads into `info`, whose size that is.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        // SAFETY: the kernel filled it all.
        (read == size as isize).then(|| unsafe { info.assume_init() })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
