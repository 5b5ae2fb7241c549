//! Threads of the library's own.

use crate::error::SpaceError;
use rustix::io::Errno;
use std::thread::JoinHandle;

/// Bytes of a thread's stack: they do little, and saving an entry's copies takes some kilobytes.
const STACK: usize = 64 << 10;

/// Starts a thread that no signal of the program interrupts.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, SpaceError> {
    let thread = std::thread::Builder::new()
        .name(name.into())
        .stack_size(STACK);
    let started = thread.spawn(move || {
        block_signals();
        work();
    });
    started.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        SpaceError::system("starting a thread of an address space")(errno)
    })
}

fn block_signals() {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is filled before it is read.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}
