//! I/O to the disk: by an io_uring of the channel on the swap file, by plain system calls where the
//! kernel permits no ring, or by an IO channel to the daemon that has the disk.
//!
//! Each is an [`IoBackend`] in a file of its own; `DiskBacking` chooses the one of a new channel.

mod beyond_limit;
pub(crate) mod fault_injection;
mod io_channel;
pub(crate) mod op;
mod psync;
mod ring;
mod uring;

use beyond_limit::BeyondLimit;
use fault_injection::FaultInjection;
use iochannel::ChannelClient;
pub(crate) use iochannel::IoVec;
use psync::Psync;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use uring::Uring;

/// Maximum operations of a channel in flight.
pub(crate) const MAX_OPS: usize = 256;

/// Carries a channel's reads and writes to its disk. Operations are numbered by the caller, below
/// the number that the backend was made for; one is begun, then submitted, and completes once.
///
/// Rule: no allocation after setup, since this is on the page path. A backend is boxed once a
/// channel.
pub(crate) trait IoBackend: Send {
    /// Begins an operation, or returns its result (bytes, or a negative error number) if it
    /// completed or failed at once. It is in flight after [`IoBackend::submit`].
    ///
    /// The pieces are whole pages, but for the rest of an operation that ended short within a page.
    ///
    /// # Safety
    /// The pieces and their memory stay unchanged until the operation completes.
    unsafe fn begin(
        &mut self,
        op: usize,
        write: bool,
        pieces: &mut [IoVec],
        offset: u64,
    ) -> Option<i32>;

    /// Names the thread that waits for what is begun from now on, behind the calling one; 0 for
    /// none. A backend whose other side schedules threads passes it on.
    fn set_waiter(&mut self, _thread: u32) {}

    /// Submits the operations that were begun.
    fn submit(&mut self);

    /// The next completion: the operation and its result. With `wait`, sleeps until there is one,
    /// if any operation is in flight.
    fn reap(&mut self, wait: bool) -> Option<(usize, i32)>;

    /// Readable when completions wait; none if operations complete within [`IoBackend::begin`].
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns true if polling for a completion may pay.
    fn may_poll(&self) -> bool {
        true
    }

    /// Closes its descriptors. Only in the process that made it: elsewhere their numbers may be
    /// other files' by now.
    fn close(&mut self);
}

/// A backend for `ops` operations at once on the file behind `fd`, with the faults of a plan.
pub(crate) fn on_file(
    fd: BorrowedFd<'_>,
    ops: usize,
    plan: &'static [AtomicU64],
) -> Result<Box<dyn IoBackend>, Errno> {
    match Uring::new(fd, ops) {
        Ok(ring) => Ok(Box::new(FaultInjection::new(
            BeyondLimit::new(ring, fd),
            plan,
        ))),
        // Forbidden by a filter, a sysctl or a limit, not compiled in, or without a descriptor or memory for it.
        Err(
            Errno::PERM | Errno::NOSYS | Errno::ACCESS | Errno::MFILE | Errno::NFILE | Errno::NOMEM,
        ) => {
            let plain = BeyondLimit::new(Psync::new(fd), fd);
            Ok(Box::new(FaultInjection::new(plain, plan)))
        }
        Err(errno) => Err(errno),
    }
}

/// A backend for as many operations at once as the IO channel has slots.
pub(crate) fn behind(client: ChannelClient, plan: &'static [AtomicU64]) -> Box<dyn IoBackend> {
    Box::new(FaultInjection::new(client, plan))
}
