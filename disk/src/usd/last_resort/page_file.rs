//! Reads and writes pages of the paging file, by an io_uring of its own.
//!
//! Rules:
//! - Nothing allocates or blocks once the ring is there. A completion makes the eventfd readable, which the transport's
//!   owner polls.
//! - Two processes never write the file at once. The kernel may carry out writes of a killed process when the next one has
//!   started. So each opens a description of its own and locks it; a request in flight is a reference to the description, so
//!   that the lock ends with the last of them, and the next process waits for it.

use super::places::SlotId;
use io_uring::{IoUring, opcode, types};
use iochannel::{IoVec, Op};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_getfl, flock, open};
use rustix::io::Errno;
use wired::PAGE;

/// Pages in flight; others wait in the transport.
const ENTRIES: u32 = 256;

/// The file, allocated whole by its owner.
pub(super) struct PageFile {
    ring: IoUring,
    file: OwnedFd,
    bell: OwnedFd,
    in_flight: u32,
    /// The eventfd was drained with nothing in flight, and nothing was started since.
    is_drained: bool,
}

/// A description of the file of this process's own, once no request of another one's is in flight.
fn own_description(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = fcntl_getfl(file)? & (OFlags::RDWR | OFlags::DIRECT);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let own = open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
    flock(&own, FlockOperation::LockExclusive)?;
    Ok(own)
}

impl PageFile {
    /// Takes the file, once no request of an earlier process is left.
    pub fn new(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let file = own_description(file)?;
        // The thread that reaps is not the one that makes the transport, so the ring has no single issuer.
        let ring = IoUring::new(ENTRIES);
        let ring = ring.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let registered = ring.submitter().register_eventfd(bell.as_raw_fd());
        registered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self {
            ring,
            file,
            bell,
            in_flight: 0,
            is_drained: false,
        })
    }

    /// Returns true if another page may be started.
    pub fn has_room(&self) -> bool {
        self.in_flight < ENTRIES
    }

    /// Starts a page; `word` names it.
    ///
    /// # Safety
    /// The page's memory stays until it was reaped.
    pub unsafe fn start(
        &mut self,
        op: Op,
        slot: SlotId,
        page: IoVec,
        word: u64,
    ) -> Result<(), Errno> {
        let (fd, len) = (types::Fd(self.file.as_raw_fd()), page.len as u32);
        let entry = match op {
            Op::Read => opcode::Read::new(fd, page.start, len)
                .offset(slot.offset())
                .build(),
            Op::Write => opcode::Write::new(fd, page.start, len)
                .offset(slot.offset())
                .build(),
        };
        // SAFETY: the memory stays, as the caller promises.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(word)) };
        pushed.map_err(|_| Errno::AGAIN)?;
        self.in_flight += 1;
        self.is_drained = false;
        Ok(())
    }

    /// Submits what was started. Returns false where some of it is still to be submitted.
    pub fn submit(&mut self) -> bool {
        if !self.ring.submission().is_empty() {
            // What the kernel does not take now, short of memory, stays queued.
            let _ = self.ring.submit();
        }
        self.ring.submission().is_empty()
    }

    /// The next page that completed. A part of a page is an error: the file has its whole length.
    pub fn reap(&mut self) -> Option<(u64, Result<(), Errno>)> {
        let mut completion = self.ring.completion().next();
        if completion.is_none() && !self.is_drained {
            let mut count = [0; size_of::<u64>()];
            // It has a count only where there was a completion, which is looked for again.
            let _ = rustix::io::read(&self.bell, &mut count);
            completion = self.ring.completion().next();
            self.is_drained = completion.is_none() && self.in_flight == 0;
        }
        Some(self.complete(&completion?))
    }

    fn complete(&mut self, completion: &io_uring::cqueue::Entry) -> (u64, Result<(), Errno>) {
        self.in_flight -= 1;
        let result = match completion.result() {
            moved if moved == PAGE as i32 => Ok(()),
            failed if failed < 0 => Err(Errno::from_raw_os_error(-failed)),
            _ => Err(Errno::IO),
        };
        (completion.user_data(), result)
    }

    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        // The kernel moves the pages' memory until they complete.
        while self.in_flight > 0 && self.ring.submit_and_wait(1).is_ok() {
            while self.reap().is_some() {}
        }
    }
}
