//! Threads of the library's own.

use crate::error::SpaceError;
use host::signals;
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
        signals::block(&signals::all());
        work();
    });
    started.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        SpaceError::system("starting a thread of an address space")(errno)
    })
}
