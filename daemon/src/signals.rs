//! Requests to end and to read the configuration again, as something to poll.

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::{self, Errno};
use std::mem::MaybeUninit;

/// The signals that the daemon handles.
const HEARD: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Signals that wait.
pub struct Signals(OwnedFd);

impl Signals {
    /// From now on they wait here, for this thread and those it starts.
    pub fn open() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is made before it is used; the descriptor is new.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in HEARD {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            match libc::signalfd(-1, set.as_ptr(), flags) {
                -1 => {
                    Err(Errno::from_io_error(&std::io::Error::last_os_error())
                        .unwrap_or(Errno::INVAL))
                }
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Readable when one waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The next that waits.
    pub fn next(&self) -> Option<i32> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        let read = io::read(&self.0, &mut info).ok()?;
        let number = info.first_chunk::<4>().filter(|_| read == info.len())?;
        Some(i32::from_ne_bytes(*number))
    }
}
