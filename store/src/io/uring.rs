//! I/O by an io_uring of the channel. The swap file is registered with the ring, so that the
//! channel needs no descriptor but the ring's.

use super::ring::Ring;
use super::{IoBackend, IoVec, MAX_OPS};
use iochannel::BitSet;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringOp, IoringSqeFlags, addr_or_splice_off_in_union, io_uring_ptr, io_uring_sqe,
    io_uring_user_data, len_union, off_or_addr2_union,
};
use std::mem::ManuallyDrop;
use wired::AdaptivePoll;

/// A ring and its operations.
pub(crate) struct Uring {
    /// Released by `close` alone: what the child of a fork inherits is its parent's.
    ring: Option<ManuallyDrop<Ring>>,
    queued: u32,
    /// Operations in flight.
    in_flight: BitSet<{ MAX_OPS / 64 }>,
    poll: AdaptivePoll,
    dead: Option<Errno>,
}

impl Uring {
    /// For `ops` operations at once on the file behind `fd`.
    pub fn new(fd: BorrowedFd<'_>, ops: usize) -> Result<Self, Errno> {
        let ring = Ring::new(ops.next_power_of_two() as u32)?;
        ring.register_file(fd)?;
        Ok(Self {
            ring: Some(ManuallyDrop::new(ring)),
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
        let opcode = match write {
            true => IoringOp::Writev,
            false => IoringOp::Readv,
        };
        let start = io_uring_ptr::new(pieces.as_ptr().cast_mut().cast());
        let count = pieces.len() as u32;
        let entry = io_uring_sqe {
            opcode,
            flags: IoringSqeFlags::FIXED_FILE,
            fd: 0,
            off_or_addr2: off_or_addr2_union { off: offset },
            addr_or_splice_off_in: addr_or_splice_off_in_union { addr: start },
            len: len_union { len: count },
            user_data: io_uring_user_data::from_u64(op as u64),
            ..io_uring_sqe::default()
        };
        // SAFETY: the caller's promise.
        if !unsafe { ring.push(entry) } {
            // Not so: the ring has an entry for every operation of the channel.
            return Err(Errno::BUSY);
        }
        self.queued += 1;
        self.in_flight.insert(op);
        Ok(())
    }

    fn enter(&mut self, wait_for: u32) {
        let Some(ring) = &self.ring else { return };
        match ring.enter(self.queued, wait_for) {
            Ok(taken) => self.queued -= taken.min(self.queued),
            Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
            // The program probably closed the descriptor. Completions of operations in flight
            // cannot arrive any more: they count as failed.
            Err(errno) => self.dead = Some(errno),
        }
    }

    fn reap_available(&mut self) -> Option<(usize, i32)> {
        let (token, result) = self.ring.as_mut()?.pop()?;
        let op = token as usize;
        self.in_flight.remove(op);
        Some((op, result))
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
        self.ring.as_ref().map(|ring| ring.as_fd())
    }

    fn close(&mut self) {
        if let Some(mut ring) = self.ring.take() {
            // SAFETY: taken out, so dropped once.
            unsafe { ManuallyDrop::drop(&mut ring) };
        }
    }
}
