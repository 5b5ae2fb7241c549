//! Reads and writes of pages of the disk file, by one io_uring.
//!
//! Rule: a page's frame stays as it is from the start of an operation to its completion. The page is
//! busy for as long, which `page_memory` keeps to.

use crate::disk_file::DiskFile;
use crate::page_index::PageId;
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;
use wired::PAGE;

/// Operations in flight.
pub(crate) const DEPTH: u32 = 256;
/// Of these, writes: so many that writes never keep a read waiting for a place.
const WRITES: u32 = 128;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// The page's frame to the disk.
    Store,
    /// The disk to the page's frame.
    Load,
}

/// An operation that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub transfer: Transfer,
    pub page: PageId,
    /// The number that it was started for.
    pub request: u32,
    /// Why it failed.
    pub error: Option<i32>,
}

/// The disk of a server.
pub(crate) struct DiskIo {
    file: DiskFile,
    ring: IoUring,
    stores: u32,
    loads: u32,
    is_submitted: bool,
}

const STORE: u64 = 1 << 63;

impl DiskIo {
    /// The disk by its file.
    pub fn new(file: DiskFile) -> io::Result<Self> {
        Ok(Self {
            file,
            ring: IoUring::new(DEPTH)?,
            stores: 0,
            loads: 0,
            is_submitted: true,
        })
    }

    /// The file.
    pub fn file(&self) -> &DiskFile {
        &self.file
    }

    /// Readable when operations have completed.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open as long as the ring is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> u32 {
        self.stores + self.loads
    }

    /// Returns true if as many more operations can be started.
    pub fn has_room(&self, transfer: Transfer, count: u32) -> bool {
        match transfer {
            Transfer::Store => self.stores + count <= WRITES,
            Transfer::Load => self.loads + count <= DEPTH - WRITES,
        }
    }

    /// Starts an operation, for which there is room, for a request below 2^31.
    ///
    /// # Safety
    /// `frame` is a page's bytes, which stay, and which nothing else writes (or reads, if it is loaded)
    /// until the operation completes.
    pub unsafe fn start(&mut self, transfer: Transfer, page: PageId, frame: *mut u8, request: u32) {
        let fd = types::Fd(self.file.file().as_fd().as_raw_fd());
        let offset = DiskFile::offset(page.0);
        let word = u64::from(request) << 32 | u64::from(page.0);
        let entry = match transfer {
            Transfer::Store => {
                self.stores += 1;
                opcode::Write::new(fd, frame, PAGE as u32)
                    .offset(offset)
                    .build()
                    .user_data(word | STORE)
            }
            Transfer::Load => {
                self.loads += 1;
                opcode::Read::new(fd, frame, PAGE as u32)
                    .offset(offset)
                    .build()
                    .user_data(word)
            }
        };
        // SAFETY: the caller keeps the frame; the queue has as many entries as there are operations.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "more operations than the ring has entries");
        self.is_submitted = false;
    }

    /// Hands the kernel what was started.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.is_submitted {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(_) => self.is_submitted = self.ring.submission().is_empty(),
            // The kernel is short of memory for a moment, or interrupted: the next turn submits again.
            Err(why) if is_passing(&why) => {}
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Returns true if the kernel has not taken all that was started.
    pub fn has_unsubmitted(&self) -> bool {
        !self.is_submitted
    }

    /// The next operation that has completed.
    pub fn reap(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        let word = entry.user_data();
        let transfer = match word & STORE {
            0 => Transfer::Load,
            _ => Transfer::Store,
        };
        match transfer {
            Transfer::Store => self.stores -= 1,
            Transfer::Load => self.loads -= 1,
        }
        let error = match entry.result() {
            moved if moved == PAGE as i32 => None,
            // A file that was truncated behind the server's back gives fewer bytes.
            short if short >= 0 => Some(libc::EIO),
            errno => Some(-errno),
        };
        Some(Completion {
            transfer,
            page: PageId(word as u32),
            request: ((word & !STORE) >> 32) as u32,
            error,
        })
    }
}

/// Waits until nothing is in flight, since frames go next.
impl Drop for DiskIo {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if let Err(why) = self.ring.submit_and_wait(1)
                && !is_passing(&why)
            {
                return;
            }
            while self.reap().is_some() {}
        }
    }
}

fn is_passing(why: &io::Error) -> bool {
    matches!(
        why.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}
