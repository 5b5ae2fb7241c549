//! I/O to the disk: by an io_uring of the channel on the swap file, by plain system calls where the
//! kernel permits no ring, or by an IO channel to the daemon that has the disk.
//!
//! In each case an operation begins, completes with the result, and fails where a test injects a
//! fault.

pub(crate) mod op;
mod psync;
mod uring;

use crate::fault_injection::{InjectedFault, Injector};
use iochannel::ChannelClient;
pub(crate) use iochannel::IoVec;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use uring::Uring;

/// Maximum operations of a channel in flight.
pub(crate) const MAX_OPS: usize = 256;

/// A completed operation: its index, the result (bytes, or a negative error number), and whether a
/// test corrupts its data.
pub(crate) struct IoCompletion {
    pub op: usize,
    pub result: i32,
    pub flip: bool,
}

/// The mechanism.
enum IoBackend {
    Uring(Box<Uring>),
    /// The descriptor: an operation completes within the call.
    Calls(RawFd),
    Channel(Box<ChannelClient>),
}

/// Runs operations by one of the mechanisms.
pub(crate) struct IoEngine {
    carrier: IoBackend,
    /// Operations that completed at once, with their results.
    at_once: Queue,
    /// Operations whose data a test corrupts, as bits.
    flips: [u64; MAX_OPS / 64],
    inject: &'static [AtomicU64],
}

/// A small queue of fixed capacity.
struct Queue {
    items: [(u16, i32); MAX_OPS],
    head: usize,
    len: usize,
}

impl Queue {
    fn push(&mut self, op: usize, result: i32) {
        debug_assert!(self.len < MAX_OPS);
        self.items[(self.head + self.len) % MAX_OPS] = (op as u16, result);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<(usize, i32)> {
        if self.len == 0 {
            return None;
        }
        let (op, result) = self.items[self.head];
        self.head = (self.head + 1) % MAX_OPS;
        self.len -= 1;
        Some((usize::from(op), result))
    }
}

impl IoEngine {
    /// For `ops` operations at once on the file behind `fd`.
    pub fn on_file(
        fd: BorrowedFd<'_>,
        ops: usize,
        inject: &'static [AtomicU64],
    ) -> Result<Self, Errno> {
        let carrier = match Uring::new(fd, ops) {
            Ok(ring) => IoBackend::Uring(Box::new(ring)),
            // Forbidden by a filter or a sysctl, or not compiled in.
            Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => IoBackend::Calls(fd.as_raw_fd()),
            Err(errno) => return Err(errno),
        };
        Ok(Self::new(carrier, inject))
    }

    /// For as many operations at once as the IO channel has slots.
    pub fn behind(client: ChannelClient, inject: &'static [AtomicU64]) -> Self {
        Self::new(IoBackend::Channel(Box::new(client)), inject)
    }

    fn new(carrier: IoBackend, inject: &'static [AtomicU64]) -> Self {
        Self {
            carrier,
            at_once: Queue {
                items: [(0, 0); MAX_OPS],
                head: 0,
                len: 0,
            },
            flips: [0; MAX_OPS / 64],
            inject,
        }
    }

    /// Returns true if operations complete within [`IoEngine::begin`], for lack of a ring.
    pub fn is_synchronous(&self) -> bool {
        matches!(self.carrier, IoBackend::Calls(_))
    }

    /// Returns true if a completion waits that [`IoEngine::poll_fd`] does not signal.
    pub fn is_ready(&self) -> bool {
        self.at_once.len > 0
    }

    /// Readable when completions wait.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.carrier {
            IoBackend::Uring(ring) => ring.poll_fd(),
            IoBackend::Calls(_) => None,
            IoBackend::Channel(client) => Some(client.poll_fd()),
        }
    }

    /// Begins an operation: whole pages but for the rest of a short one, which only a ring has. It
    /// is in flight after [`IoEngine::submit`].
    ///
    /// # Safety
    /// The pieces and their memory stay unchanged until the operation completes.
    pub unsafe fn begin(&mut self, op: usize, write: bool, pieces: &mut [IoVec], offset: u64) {
        match Injector(self.inject).next() {
            Some(InjectedFault::Eio) => return self.at_once.push(op, -Errno::IO.raw_os_error()),
            Some(InjectedFault::Enospc) => {
                return self.at_once.push(op, -Errno::NOSPC.raw_os_error());
            }
            Some(InjectedFault::Flip) if !write => self.flips[op / 64] |= 1 << (op % 64),
            Some(InjectedFault::Flip) | None => {}
        }
        match &mut self.carrier {
            IoBackend::Uring(ring) => {
                // SAFETY: the caller's promise.
                if let Err(errno) = unsafe { ring.begin(op, write, pieces, offset) } {
                    self.at_once.push(op, -errno.raw_os_error());
                }
            }
            IoBackend::Calls(fd) => {
                // SAFETY: the caller's promise; the store keeps the swap file open while channels
                // use it.
                let result =
                    unsafe { psync::transfer(BorrowedFd::borrow_raw(*fd), write, pieces, offset) };
                self.at_once.push(op, result);
            }
            // SAFETY: the caller's promise.
            IoBackend::Channel(client) => unsafe { client.begin(op, write, pieces, offset) },
        }
    }

    /// Submits queued operations.
    pub fn submit(&mut self) {
        match &mut self.carrier {
            IoBackend::Uring(ring) => ring.submit(),
            IoBackend::Calls(_) => {}
            IoBackend::Channel(client) => client.flush(),
        }
    }

    /// The next completion; with `wait`, sleeps until there is one, if any operation is in flight.
    pub fn reap(&mut self, wait: bool) -> Option<IoCompletion> {
        let (op, result) = self.at_once.pop().or_else(|| match &mut self.carrier {
            IoBackend::Uring(ring) => ring.reap(wait),
            IoBackend::Calls(_) => None,
            IoBackend::Channel(client) => client.reap(wait),
        })?;
        let flip = self.flips[op / 64] & 1 << (op % 64) != 0;
        self.flips[op / 64] &= !(1 << (op % 64));
        Some(IoCompletion { op, result, flip })
    }

    /// Closes the ring. Only in the process that made it: elsewhere its descriptor may be another
    /// file by now.
    pub fn close(&mut self) {
        // An IO channel itself knows the process that made it.
        if let IoBackend::Uring(ring) = &mut self.carrier {
            ring.close();
        }
    }
}
