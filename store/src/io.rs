//! What carries I/O to the disk: a ring of the channel's own on the swap file, plain system
//! calls where the kernel gives no ring, or an IO channel to the system that has the disk.
//!
//! Whichever it is, an operation is begun, is over with what the system said of it, and goes
//! wrong where a test wants it to.

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

/// Most operations a channel has under way.
pub(crate) const MAX_OPS: usize = 256;

/// An operation is over: which, what the system said (bytes, or a negative error number),
/// and whether its data is to be spoiled.
pub(crate) struct IoCompletion {
    pub op: usize,
    pub result: i32,
    pub flip: bool,
}

/// Who carries.
enum IoBackend {
    Uring(Box<Uring>),
    /// The descriptor: what is begun is over when the call returns.
    Calls(RawFd),
    Channel(Box<ChannelClient>),
}

/// Carries operations.
pub(crate) struct IoEngine {
    carrier: IoBackend,
    /// Operations that were over at once, with what is said of them.
    at_once: Queue,
    /// Operations whose data a test wants wrong, as bits.
    flips: [u64; MAX_OPS / 64],
    inject: &'static [AtomicU64],
}

/// A small queue of fixed room.
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

    /// Whether each operation is over when it is begun, for want of a ring.
    pub fn is_synchronous(&self) -> bool {
        matches!(self.carrier, IoBackend::Calls(_))
    }

    /// Whether an operation is over of which [`IoEngine::poll_fd`] does not tell.
    pub fn is_ready(&self) -> bool {
        self.at_once.len > 0
    }

    /// What to poll for operations that are over.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.carrier {
            IoBackend::Uring(ring) => ring.poll_fd(),
            IoBackend::Calls(_) => None,
            IoBackend::Channel(client) => Some(client.poll_fd()),
        }
    }

    /// Begins an operation: whole pages but for the rest of a short one, which a ring has.
    /// It is under way after [`IoEngine::flush`].
    ///
    /// # Safety
    /// The pieces and their memory stay as they are until the operation is over.
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
                // SAFETY: the caller's promise; the store keeps the swap file open while
                // channels use it.
                let result =
                    unsafe { psync::transfer(BorrowedFd::borrow_raw(*fd), write, pieces, offset) };
                self.at_once.push(op, result);
            }
            // SAFETY: the caller's promise.
            IoBackend::Channel(client) => unsafe { client.begin(op, write, pieces, offset) },
        }
    }

    /// Hands what was begun on.
    pub fn submit(&mut self) {
        match &mut self.carrier {
            IoBackend::Uring(ring) => ring.submit(),
            IoBackend::Calls(_) => {}
            IoBackend::Channel(client) => client.flush(),
        }
    }

    /// The next operation that is over; with `wait`, sleeps until one is, if any is under
    /// way.
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

    /// Closes what it carries by. Only in the process that made it: elsewhere a descriptor
    /// may be another file by now.
    pub fn close(&mut self) {
        // An IO channel knows by itself where it was made.
        if let IoBackend::Uring(ring) = &mut self.carrier {
            ring.close();
        }
    }
}
