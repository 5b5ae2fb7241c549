//! How this process reaches the store's disk: a descriptor of the swap file, or a transport.

use crate::disk_transport::DiskTransport;
use crate::io::{self, IoBackend};
use crate::swap_file::wait_for_io;
use crate::{StoreError, backoff};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{fstat, ftruncate};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;
use wired::ForkGuard;

/// Longer than a device takes to complete an I/O.
const ANY_IO: Duration = Duration::from_secs(1);

/// The disk access of new channels.
pub(crate) struct DiskBacking {
    /// True if I/O goes by a transport: then there never is a descriptor.
    by_daemon: bool,
    /// The swap file; -1 without one.
    swap: AtomicI32,
    transport: AtomicPtr<Box<dyn DiskTransport>>,
    /// The process that mapped the store.
    fork_guard: ForkGuard,
}

impl DiskBacking {
    /// The store closes the swap file's descriptor, if there is one.
    pub fn new(by_daemon: bool, swap: Option<OwnedFd>) -> Result<Self, Errno> {
        Ok(Self {
            by_daemon,
            swap: AtomicI32::new(swap.map_or(-1, IntoRawFd::into_raw_fd)),
            transport: AtomicPtr::new(std::ptr::null_mut()),
            fork_guard: ForkGuard::new()?,
        })
    }

    /// The I/O backend of a new channel, for `ops` operations, with the faults of a plan.
    pub fn open_backend(
        &self,
        ops: usize,
        plan: &'static [AtomicU64],
    ) -> Result<Box<dyn IoBackend>, StoreError> {
        let fail = |what, errno: Errno| StoreError::Channel {
            what,
            errno: errno.raw_os_error(),
        };
        if !self.by_daemon {
            let swap = self.swap.load(Ordering::Acquire);
            // SAFETY: the store keeps it open, or got another by `reopen`.
            let swap = unsafe { BorrowedFd::borrow_raw(swap) };
            return io::on_file(swap, ops, plan).map_err(|errno| fail("its ring", errno));
        }
        let fail = |errno| fail("its IO channel", errno);
        let transport = self.transport().ok_or(fail(Errno::NOTCONN))?;
        let client = transport.open(ops).map_err(fail)?;
        match client.slots() < ops {
            true => Err(fail(Errno::INVAL)),
            false => Ok(io::behind(client, plan)),
        }
    }

    fn transport(&self) -> Option<&dyn DiskTransport> {
        let transport = self.transport.load(Ordering::Acquire);
        // SAFETY: null, or from `set_transport`, which frees none; the last is freed with `self`.
        unsafe { transport.as_ref() }.map(|transport| &**transport)
    }

    /// Sets the transport of new channels. The former one is kept: another thread may be opening a
    /// channel by it.
    pub fn set_transport(&self, transport: Box<dyn DiskTransport>) {
        let transport = Box::into_raw(Box::new(transport));
        self.transport.store(transport, Ordering::Release);
    }

    /// Sets the descriptor of new channels; the former one is not closed.
    pub fn reopen(&self, swap: OwnedFd) {
        if !self.by_daemon {
            self.swap.store(swap.into_raw_fd(), Ordering::Release);
        }
    }

    /// Gives up the descriptor.
    pub fn take_swap(&self) -> Option<RawFd> {
        let swap = self.swap.swap(-1, Ordering::AcqRel);
        (swap >= 0).then_some(swap)
    }

    /// Frees the room of a swap file that has no name.
    pub fn free_room(&self) {
        let swap = self.swap.load(Ordering::Acquire);
        if swap < 0 {
            return;
        }
        // SAFETY: the store keeps it open.
        let swap = unsafe { BorrowedFd::borrow_raw(swap) };
        if fstat(swap).is_ok_and(|stat| stat.st_nlink == 0) {
            let _ = ftruncate(swap, 0);
        }
    }

    /// Waits until no I/O of a dead process can reach the disk any more.
    pub fn wait_for_io(&self) {
        let swap = self.swap.load(Ordering::Acquire);
        match self.transport() {
            Some(transport) => transport.wait_for_io(),
            // SAFETY: the store keeps the swap file open, or got another by `reopen`.
            None if swap >= 0 && wait_for_io(unsafe { BorrowedFd::borrow_raw(swap) }) => {}
            // No transport, or a file system that waits for none: there is time alone to wait for.
            None => backoff::sleep(ANY_IO),
        }
    }
}

impl Drop for DiskBacking {
    fn drop(&mut self) {
        if !self.fork_guard.is_same_process() {
            return;
        }
        if let Some(swap) = self.take_swap() {
            // SAFETY: the store owns the descriptor, in this process.
            drop(unsafe { OwnedFd::from_raw_fd(swap) });
        }
        let transport = *self.transport.get_mut();
        if !transport.is_null() {
            // SAFETY: from `set_transport`, and no other thread has the store any more.
            drop(unsafe { Box::from_raw(transport) });
        }
    }
}
