//! Signals that a process blocks, and reads from a descriptor.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io;
use std::mem::MaybeUninit;

/// A set of signals.
pub fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set before it is used.
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
    // SAFETY: sigfillset initializes the set.
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

/// Changes this thread's mask as `sigprocmask` does; returns the mask before. By the system call, since the
/// `sigprocmask` of the preload library never blocks SIGBUS in a program that pages by upcalls.
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

/// Blocks the signals of a set, for this thread and those that it starts.
pub fn block(set: &libc::sigset_t) {
    change_mask(libc::SIG_BLOCK, set);
}

/// Blocks SIGXFSZ, for this thread and those that it starts: a write beyond the limit on the size of files then fails
/// with EFBIG, and does not kill the service.
pub fn block_file_size() {
    block(&set_of(&[libc::SIGXFSZ]));
}

/// Blocks the signals that request an end: for a process that ends with another process, which receives them, too.
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
    /// Opens the descriptor. A read returns signals of the reading process, but a poll reports those of
    /// the process that opened it: a fork's child opens one of its own.
    pub fn open(set: &libc::sigset_t) -> io::Result<Self> {
        // SAFETY: reads the set.
        let fd = unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(crate::last_errno());
        }
        // SAFETY: a descriptor that the kernel just returned.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next pending signal.
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
