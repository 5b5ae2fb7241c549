//! What carries I/O to the swap file: a ring of the channel's own, or plain system calls
//! where the kernel gives no ring.
//!
//! The ring is built by the `io-uring` crate and driven by raw system calls: the crate's
//! own report errors through libc's `errno`, which is thread-local. The swap file is
//! registered with the ring, so that the channel needs no descriptor but the ring's.

use crate::inject::{Fault, Injector};
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, io_uring_enter};
use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;

/// Most operations a channel has under way.
pub(crate) const MAX_OPS: usize = 256;

/// Marks a completion whose data a test wants wrong.
const FLIP: u64 = 1 << 32;

/// One piece of memory of an operation; the system's `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Piece {
    pub start: *mut u8,
    pub len: usize,
}

/// An operation is over: which, what the system said (bytes, or a negative error number),
/// and whether its data is to be spoiled.
pub(crate) struct Over {
    pub op: usize,
    pub result: i32,
    pub flip: bool,
}

/// Carries operations.
pub(crate) struct Engine {
    ring: Option<ManuallyDrop<IoUring>>,
    fd: RawFd,
    queued: u32,
    /// Operations given to the ring and not over, as bits.
    under_way: [u64; MAX_OPS / 64],
    /// Operations that were over at once: (operation, result, flip).
    at_once: Queue,
    dead: Option<Errno>,
    inject: &'static [AtomicU64],
}

/// A small queue of fixed room.
struct Queue {
    items: [(u16, i32, bool); MAX_OPS],
    head: usize,
    len: usize,
}

impl Queue {
    fn push(&mut self, op: usize, result: i32, flip: bool) {
        debug_assert!(self.len < MAX_OPS);
        self.items[(self.head + self.len) % MAX_OPS] = (op as u16, result, flip);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Over> {
        if self.len == 0 {
            return None;
        }
        let (op, result, flip) = self.items[self.head];
        self.head = (self.head + 1) % MAX_OPS;
        self.len -= 1;
        Some(Over {
            op: usize::from(op),
            result,
            flip,
        })
    }
}

impl Engine {
    /// For `ops` operations at once on the file behind `fd`.
    pub fn new(
        fd: BorrowedFd<'_>,
        ops: usize,
        inject: &'static [AtomicU64],
    ) -> Result<Self, Errno> {
        let ring = match build(fd, ops) {
            Ok(ring) => Some(ManuallyDrop::new(ring)),
            // Forbidden by a filter or a sysctl, or not compiled in.
            Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => None,
            Err(errno) => return Err(errno),
        };
        Ok(Self {
            ring,
            fd: fd.as_raw_fd(),
            queued: 0,
            under_way: [0; MAX_OPS / 64],
            at_once: Queue {
                items: [(0, 0, false); MAX_OPS],
                head: 0,
                len: 0,
            },
            dead: None,
            inject,
        })
    }

    /// Whether I/O goes through a ring.
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// The ring's descriptor.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring has the descriptor open as long as it lives.
        self.ring
            .as_ref()
            .map(|ring| unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })
    }

    /// Begins an operation. It is under way after [`Engine::flush`].
    ///
    /// # Safety
    /// The pieces and their memory stay as they are until the operation is over.
    pub unsafe fn begin(&mut self, op: usize, write: bool, pieces: &mut [Piece], offset: u64) {
        let flip = match Injector(self.inject).next() {
            Some(Fault::Eio) => return self.at_once.push(op, -Errno::IO.raw_os_error(), false),
            Some(Fault::Enospc) => {
                return self.at_once.push(op, -Errno::NOSPC.raw_os_error(), false);
            }
            Some(Fault::Flip) => !write,
            None => false,
        };
        if let Some(errno) = self.dead {
            return self.at_once.push(op, -errno.raw_os_error(), false);
        }
        let Some(ring) = &mut self.ring else {
            let result = self.directly(write, pieces, offset);
            return self.at_once.push(op, result, flip);
        };
        let data = op as u64 | if flip { FLIP } else { 0 };
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
        // SAFETY: the caller's promise.
        let pushed = unsafe { ring.submission().push(&entry.user_data(data)) };
        match pushed {
            Ok(()) => {
                self.queued += 1;
                self.under_way[op / 64] |= 1 << (op % 64);
            }
            // Cannot be: the ring has room for every operation of the channel.
            Err(_) => self.at_once.push(op, -Errno::BUSY.raw_os_error(), false),
        }
    }

    fn directly(&self, write: bool, pieces: &mut [Piece], offset: u64) -> i32 {
        // SAFETY: the store keeps the swap file open while channels use it.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let (start, count) = (pieces.as_mut_ptr(), pieces.len());
        let result = loop {
            let result = if write {
                // SAFETY: IoSlice has the layout of iovec, which Piece has, too; the memory
                // is valid by `begin`'s promise.
                let slices =
                    unsafe { std::slice::from_raw_parts(start.cast::<IoSlice<'_>>(), count) };
                rustix::io::pwritev(fd, slices, offset)
            } else {
                // SAFETY: as above.
                let slices = unsafe {
                    std::slice::from_raw_parts_mut(start.cast::<IoSliceMut<'_>>(), count)
                };
                rustix::io::preadv(fd, slices, offset)
            };
            if result != Err(Errno::INTR) {
                break result;
            }
        };
        match result {
            Ok(bytes) => bytes as i32,
            Err(errno) => -errno.raw_os_error(),
        }
    }

    /// Hands what was begun to the kernel.
    pub fn flush(&mut self) {
        while self.queued > 0 && self.dead.is_none() {
            self.enter(0);
        }
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
            // The descriptor was closed under us, most likely. What is under way cannot be
            // heard of any more: it is told as failed.
            Err(errno) => self.dead = Some(errno),
        }
    }

    /// The next operation that is over; with `wait`, sleeps until one is, if any is under
    /// way.
    pub fn over(&mut self, wait: bool) -> Option<Over> {
        loop {
            if let Some(over) = self.at_once.pop() {
                return Some(over);
            }
            let next = self.ring.as_mut().and_then(|ring| ring.completion().next());
            if let Some(entry) = next {
                let op = (entry.user_data() & !FLIP) as usize;
                self.under_way[op / 64] &= !(1 << (op % 64));
                let flip = entry.user_data() & FLIP != 0;
                return Some(Over {
                    op,
                    result: entry.result(),
                    flip,
                });
            }
            if let Some(errno) = self.dead {
                return self.fail_one(errno);
            }
            if !wait || self.under_way.iter().all(|&word| word == 0) {
                return None;
            }
            self.enter(1);
        }
    }

    fn fail_one(&mut self, errno: Errno) -> Option<Over> {
        let at = self.under_way.iter().position(|&word| word != 0)?;
        let op = at * 64 + self.under_way[at].trailing_zeros() as usize;
        self.under_way[at] &= self.under_way[at] - 1;
        Some(Over {
            op,
            result: -errno.raw_os_error(),
            flip: false,
        })
    }

    /// Closes the ring. Only in the process that made it: elsewhere its descriptor may be
    /// another file by now.
    pub fn close(&mut self) {
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
