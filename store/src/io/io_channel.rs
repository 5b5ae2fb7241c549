//! I/O by an IO channel to the daemon that has the disk.

use super::{IoBackend, IoVec};
use iochannel::ChannelClient;
use rustix::fd::BorrowedFd;

impl IoBackend for ChannelClient {
    unsafe fn begin(
        &mut self,
        op: usize,
        write: bool,
        pieces: &mut [IoVec],
        offset: u64,
    ) -> Option<i32> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(op, write, pieces, offset) };
        None
    }

    fn set_waiter(&mut self, thread: u32) {
        self.set_waiter(thread);
    }

    fn submit(&mut self) {
        self.flush();
    }

    fn reap(&mut self, wait: bool) -> Option<(usize, i32)> {
        self.reap(wait)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll_fd())
    }

    fn may_poll(&self) -> bool {
        self.is_server_awake()
    }

    /// Nothing: the client knows the process that made it, and closes when it is dropped there.
    fn close(&mut self) {}
}
