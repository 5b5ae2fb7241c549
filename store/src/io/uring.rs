//! I/O by an io_uring of the channel.
//!
//! The `io-uring` crate builds it, raw system calls drive it: the crate's own calls report errors
//! through libc's `errno`, which is thread-local. The swap file is registered with the ring, so
//! that the channel needs no descriptor but the ring's.

use super::{IoBackend, IoVec, MAX_OPS};
use io_uring::{IoUring, opcode, types};
use iochannel::BitSet;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, io_uring_enter};
use std::mem::ManuallyDrop;
use wired::AdaptivePoll;

/// A ring and its operations.
pub(crate) struct Uring {
    ring: Option<ManuallyDrop<IoUring>>,
    queued: u32,
    /// Operations in flight.
    in_flight: BitSet<{ MAX_OPS / 64 }>,
    poll: AdaptivePoll,
    dead: Option<Errno>,
}

impl Uring {
    /// For `ops` operations at once on the file behind `fd`.
    pub fn new(fd: BorrowedFd<'_>, ops: usize) -> Result<Self, Errno> {
        Ok(Self {
            ring: Some(ManuallyDrop::new(build(fd, ops)?)),
            queued: 0,
            in_flight: BitSet::EMPTY,
            poll: AdaptivePoll::default(),
            dead: None,
        })
    }

    /// Queues an operation, or returns why it cannot.
    ///
    /// # Safety
    /// The pieces and their memory stay unchanged until the operation completes.
    unsafe fn queue(
        &mut self,
        op: usize,
        write: bool,
        pieces: &[IoVec],
        offset: u64,
    ) -> Result<(), Errno> {
        if let Some(errno) = self.dead {
            return Err(errno);
        }
        let ring = self.ring.as_mut().ok_or(Errno::BADF)?;
        let (start, count) = (pieces.as_ptr().cast(), pieces.len() as u32);
        let file = types::Fixed(0);
        let entry = if write {
            opcode::Writev::new(file, start, count)
                .offset(offset)
                .build()
        } else {
            opcode::Readv::new(file, start, count)
                .offset(offset)
                .build()
        };
        // SAFETY: the caller's promise. There is room: the ring has an entry for every operation of
        // the channel.
        unsafe { ring.submission().push(&entry.user_data(op as u64)) }.map_err(|_| Errno::BUSY)?;
        self.queued += 1;
        self.in_flight.insert(op);
        Ok(())
    }

    fn enter(&mut self, wait_for: u32) {
        let Some(ring) = &self.ring else { return };
        // SAFETY: the ring has the descriptor open as long as it lives.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let flags = if wait_for > 0 {
            IoringEnterFlags::GETEVENTS
        } else {
            IoringEnterFlags::empty()
        };
        // SAFETY: the entries' memory is kept by `begin`'s promise.
        match unsafe { io_uring_enter(fd, self.queued, wait_for, flags) } {
            Ok(taken) => self.queued -= taken.min(self.queued),
            Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
            // The program probably closed the descriptor. Completions of operations in flight
            // cannot arrive any more: they count as failed.
            Err(errno) => self.dead = Some(errno),
        }
    }

    fn reap_available(&mut self) -> Option<(usize, i32)> {
        let entry = self.ring.as_mut()?.completion().next()?;
        let op = entry.user_data() as usize;
        self.in_flight.remove(op);
        Some((op, entry.result()))
    }

    /// Polls for the completion of the only operation in flight.
    fn poll_once(&mut self) -> Option<(usize, i32)> {
        AdaptivePoll::poll(self, |ring| &mut ring.poll, Self::reap_available, |_| true)
    }

    fn fail_one(&mut self, errno: Errno) -> Option<(usize, i32)> {
        let op = self.in_flight.pop()?;
        Some((op, -errno.raw_os_error()))
    }
}

impl IoBackend for Uring {
    unsafe fn begin(
        &mut self,
        op: usize,
        write: bool,
        pieces: &mut [IoVec],
        offset: u64,
    ) -> Option<i32> {
        // SAFETY: the caller's promise.
        let queued = unsafe { self.queue(op, write, pieces, offset) };
        queued.err().map(|errno| -errno.raw_os_error())
    }

    fn submit(&mut self) {
        while self.queued > 0 && self.dead.is_none() {
            self.enter(0);
        }
    }

    /// With `wait`, polls for a moment if that pays ([`AdaptivePoll`]), then sleeps.
    fn reap(&mut self, wait: bool) -> Option<(usize, i32)> {
        loop {
            if let Some(over) = self.reap_available() {
                return Some(over);
            }
            if let Some(errno) = self.dead {
                return self.fail_one(errno);
            }
            let in_flight = self.in_flight.len();
            if !wait || in_flight == 0 {
                return None;
            }
            if in_flight == 1
                && let Some(over) = self.poll_once()
            {
                return Some(over);
            }
            self.enter(1);
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring has the descriptor open as long as it lives.
        self.ring
            .as_ref()
            .map(|ring| unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })
    }

    fn close(&mut self) {
        if let Some(mut ring) = self.ring.take() {
            // SAFETY: taken out, so dropped once.
            unsafe { ManuallyDrop::drop(&mut ring) };
        }
    }
}

fn build(fd: BorrowedFd<'_>, ops: usize) -> Result<IoUring, Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    let entries = ops.next_power_of_two() as u32;
    // Not inherited: a fork's child makes its own.
    let ring = IoUring::builder()
        .dontfork()
        .build(entries)
        .map_err(errno)?;
    ring.submitter()
        .register_files(&[fd.as_raw_fd()])
        .map_err(errno)?;
    Ok(ring)
}
