//! Signals, read from a descriptor; and the signal mask and dispositions that `run` was started
//! with, which the program must inherit as it would without selfpage.

use super::ipc::SignalInfo;
use host::signals::{SignalFd, all, change_mask, is_ignored, set_of};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals of this process, all blocked and read here.
pub struct Signals {
    fd: SignalFd,
}

/// True if SIGPIPE was ignored when this process started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime, which ignores SIGPIPE before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_PIPE: extern "C" fn() = note_pipe;

extern "C" fn note_pipe() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// The mask and dispositions that `run` was started with.
#[derive(Clone, Copy)]
pub struct InheritedMask {
    mask: libc::sigset_t,
    child: libc::sighandler_t,
}

impl Signals {
    /// Blocks every signal and makes the descriptor. Child processes can be waited for
    /// from now on, even if `run` was started with SIGCHLD ignored.
    pub fn take() -> std::io::Result<(Self, InheritedMask)> {
        // SAFETY: a system call that affects this process alone.
        let child = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let mask = change_mask(libc::SIG_SETMASK, &all());
        Ok((Self::open()?, InheritedMask { mask, child }))
    }

    /// A descriptor of this process's own, after a fork.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self {
            fd: SignalFd::open(&all())?,
        })
    }

    /// Readable when a signal is pending.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The number of the descriptor.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    /// The next signal.
    pub fn next(&self) -> Option<SignalInfo> {
        let info = self.fd.next()?;
        Some(SignalInfo {
            signal: info.ssi_signo as i32,
            code: info.ssi_code,
            sender: info.ssi_pid as i32,
            value: info.ssi_ptr,
        })
    }
}

impl InheritedMask {
    /// Restores the mask and dispositions in the child that becomes the program, between fork and exec.
    pub fn restore(&self) {
        let pipe = match PIPE_IGNORED.load(Ordering::Relaxed) {
            true => libc::SIG_IGN,
            false => libc::SIG_DFL,
        };
        // SAFETY: plain system calls on this process alone.
        unsafe {
            libc::signal(libc::SIGCHLD, self.child);
            libc::signal(libc::SIGPIPE, pipe);
        }
        change_mask(libc::SIG_SETMASK, &self.mask);
    }
}

/// Ends this process by `signal`, as the program was ended, so that the waiting parent sees the
/// same status. Returns where the signal does not end a process.
pub fn die_by(signal: i32) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain system calls on this process alone; the core dump, if any, was the
    // program's.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
    change_mask(libc::SIG_UNBLOCK, &set_of(&[signal]));
}
