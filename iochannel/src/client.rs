//! The client's end of a channel: operations on the caller's pages, by way of page buffers.
//!
//! An operation uses the request slot of the same number. Data to write is copied into page
//! buffers when the operation begins, data read is copied out of them when it completes. Where no
//! buffers are free an operation is parked here; operations in flight free theirs as they
//! complete, and a run always fits, so no operation waits for ever.
//!
//! The client outlives servers: what is submitted stays submitted, and the doorbell stays readable
//! for the next server.

use crate::bitset::BitSet;
use crate::buffer_pool::BufferPool;
use crate::doorbell::{drain_bell, ring_server};
use crate::error::{ChannelError, needs};
use crate::geometry::{MAX_RUN, MAX_SLOTS};
use crate::memory::ChannelMemory;
use crate::request::{IoVec, Op};
use crate::slot::RawRequest;
use crate::submission_queue::SubmissionQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wired::{AdaptivePoll, ForkGuard, PAGE};

/// How long a client sleeps before it checks all its slots and rings again, in case a server died
/// between completing a request and ringing the bell.
const RECHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// How often a client checks while no server can ring: the server's end of the client's bell is closed.
const DEAD_SERVER_POLL: Duration = Duration::from_millis(1);

/// An operation.
#[derive(Clone, Copy)]
struct PendingOp {
    op: Op,
    offset: u64,
    /// The caller's memory.
    pieces: *const IoVec,
    count: usize,
    /// Page buffers, one for each piece, once the operation is submitted.
    pages: [u16; MAX_RUN],
    /// The error of an operation that fails without having been submitted.
    failed: Errno,
}

/// The client's end: used by one thread at a time.
pub struct ChannelClient {
    queue: SubmissionQueue<'static>,
    pool: BufferPool,
    ops: Box<[PendingOp]>,
    /// Operations parked until page buffers are free, in order; with room for all.
    parked: VecDeque<u16>,
    failed: BitSet<{ MAX_SLOTS / 64 }>,
    poll: AdaptivePoll,
    doorbell: ManuallyDrop<OwnedFd>,
    bell: ManuallyDrop<OwnedFd>,
    /// Requests were submitted since the server was last rung.
    needs_ring: bool,
    /// True if the last requests had to wake the server.
    rang: bool,
    /// The thread that faulted, if the thread that submits serves it; 0 if not.
    waiter: u32,
    dead: Option<Errno>,
    /// True while another server may take the place of one that has died.
    has_successor: Arc<AtomicBool>,
    fork_guard: ForkGuard,
    /// What `queue` points into: dropped last.
    memory: ChannelMemory,
}

// SAFETY: its pointers are to the caller's memory, promised until an operation completes.
unsafe impl Send for ChannelClient {}

impl ChannelClient {
    /// Attaches a new channel by the descriptors that its server made: [`crate::ClientFds::memory`],
    /// a descriptor of the [`crate::Doorbell`], and [`crate::ClientFds::bell`]. Allocates.
    pub fn attach(memory: OwnedFd, doorbell: OwnedFd, bell: OwnedFd) -> Result<Self, ChannelError> {
        let memory = ChannelMemory::attach(memory)?;
        // SAFETY: `ChannelClient` keeps the memory beside what points into it.
        let queue = SubmissionQueue::new(unsafe { memory.words() }).ok_or(ChannelError::Used)?;
        let pending = PendingOp {
            op: Op::Read,
            offset: 0,
            pieces: std::ptr::null(),
            count: 0,
            pages: [0; MAX_RUN],
            failed: Errno::INVAL,
        };
        Ok(Self {
            queue,
            pool: BufferPool::new(memory.geometry.pages()),
            ops: vec![pending; memory.geometry.slots()].into_boxed_slice(),
            parked: VecDeque::with_capacity(memory.geometry.slots()),
            failed: BitSet::EMPTY,
            poll: AdaptivePoll::default(),
            doorbell: ManuallyDrop::new(doorbell),
            bell: ManuallyDrop::new(bell),
            needs_ring: false,
            rang: false,
            waiter: 0,
            dead: None,
            has_successor: Arc::new(AtomicBool::new(true)),
            fork_guard: ForkGuard::new().map_err(needs("a mark"))?,
            memory,
        })
    }

    /// Fails operations with `EPIPE` once the server has died and `has_successor` is false: no other server will take
    /// over this channel. Only servers have the other end of the bell.
    pub fn fail_without(&mut self, has_successor: Arc<AtomicBool>) {
        self.has_successor = has_successor;
    }

    /// Number of concurrent operations: operation numbers are below it.
    pub fn slots(&self) -> usize {
        self.ops.len()
    }

    /// Starts operation number `op`, which is not in flight: moves the pieces, whole pages and page
    /// aligned, at most [`MAX_RUN`], to or from `offset`, a multiple of the page size. The server
    /// sees it after [`ChannelClient::flush`]. An invalid one completes at once with `EINVAL`.
    ///
    /// # Safety
    /// The pieces and their memory stay unchanged until the operation completes.
    pub unsafe fn begin(&mut self, op: usize, write: bool, pieces: &[IoVec], offset: u64) {
        let pending = &mut self.ops[op];
        pending.op = if write { Op::Write } else { Op::Read };
        pending.offset = offset;
        pending.pieces = pieces.as_ptr();
        pending.count = pieces.len();
        let whole = |piece: &IoVec| piece.len == PAGE && piece.start.addr().is_multiple_of(PAGE);
        let is_valid = (1..=MAX_RUN).contains(&pieces.len())
            && pieces.iter().all(whole)
            && offset.is_multiple_of(PAGE as u64);
        if !is_valid || self.dead.is_some() {
            pending.failed = self.dead.unwrap_or(Errno::INVAL);
            return self.failed.insert(op);
        }
        if !self.parked.is_empty() || !self.submit(op) {
            self.parked.push_back(op as u16);
        }
    }

    /// Submits an operation if there are page buffers for it. Returns true if it did.
    fn submit(&mut self, op: usize) -> bool {
        let pending = &mut self.ops[op];
        if !self.pool.take(&mut pending.pages[..pending.count]) {
            return false;
        }
        if pending.op == Op::Write {
            for at in 0..pending.count {
                // SAFETY: a page of the caller's, unchanged by `begin`'s contract; the buffer is a
                // page of the channel that was free.
                unsafe {
                    let piece = *pending.pieces.add(at);
                    let buffer = buffer(&self.memory, pending.pages[at]);
                    std::ptr::copy_nonoverlapping(piece.start, buffer, PAGE);
                }
            }
        }
        let request = RawRequest {
            op: pending.op.code(),
            count: pending.count as u32,
            offset: pending.offset,
            pages: pending.pages,
        };
        self.queue.submit(op, &request);
        self.needs_ring = true;
        true
    }

    /// Rings the server if it sleeps and requests were submitted.
    pub fn flush(&mut self) {
        if !std::mem::take(&mut self.needs_ring) {
            return;
        }
        self.memory.threads().publish(self.waiter);
        self.rang = self.queue.words.server.take();
        if self.rang {
            self.ring();
        }
    }

    /// Names the thread that waits for the requests that follow, behind the thread that submits
    /// them; 0 for none.
    pub fn set_waiter(&mut self, thread: u32) {
        self.waiter = thread;
    }

    fn ring(&mut self) {
        if let Err(errno) = ring_server(self.doorbell.as_fd()) {
            // Most likely the descriptor was closed by the program. Operations in flight can no
            // longer be reaped and fail.
            self.dead = Some(errno);
        }
    }

    /// The next completed operation, with the server's result: bytes moved, whole pages, or a
    /// negative error number. With `wait`, waits for one if any is in flight: polls for a moment
    /// if that pays ([`AdaptivePoll`]), then sleeps.
    ///
    /// After this returned, with or without an operation, [`ChannelClient::poll_fd`] becomes
    /// readable when another operation has completed.
    pub fn reap(&mut self, wait: bool) -> Option<(usize, i32)> {
        loop {
            if let Some(op) = self.failed.pop() {
                return Some((op, -self.ops[op].failed.raw_os_error()));
            }
            if let Some(completed) = self.reap_ready() {
                return Some(completed);
            }
            if self.dead.is_some() {
                self.fail_all();
                if self.failed.is_empty() {
                    return None;
                }
                continue;
            }
            if self.queue.in_flight().is_empty() {
                // Polling may have reaped what the bell rang for: a thread that polls the bell would not sleep.
                if !wait {
                    drain_bell(self.bell.as_fd());
                }
                return None;
            }
            self.flush();
            if wait && let Some(completed) = self.poll_completion() {
                return Some(completed);
            }
            // Drained before the last check, so that a later ring is not lost.
            drain_bell(self.bell.as_fd());
            self.queue.words.client.set();
            if let Some(completed) = self.reap_ready() {
                return Some(completed);
            }
            if !wait {
                return None;
            }
            self.sleep();
        }
    }

    /// Polls for the completion of the only operation in flight while the server is awake.
    fn poll_completion(&mut self) -> Option<(usize, i32)> {
        if self.queue.in_flight().len() != 1 {
            return None;
        }
        let may_complete = Self::is_server_awake;
        AdaptivePoll::poll(
            self,
            |client| &mut client.poll,
            Self::reap_ready,
            may_complete,
        )
    }

    /// Returns true if the server was awake when the last requests were submitted, and still is: polling for
    /// their completions may pay. A server that had to be woken may wait for this very processor.
    pub fn is_server_awake(&self) -> bool {
        !self.rang && !self.queue.words.server.is_set()
    }

    fn reap_ready(&mut self) -> Option<(usize, i32)> {
        let (op, result) = self.queue.reap()?;
        Some((op, self.complete(op, result)))
    }

    /// Completes an operation: copies its data out and frees its buffers.
    fn complete(&mut self, op: usize, result: i32) -> i32 {
        let pending = &self.ops[op];
        // Whole pages: the caller continues after a short result at a page boundary.
        let pages = (result.max(0) as usize / PAGE).min(pending.count);
        if pending.op == Op::Read {
            for at in 0..pages {
                // SAFETY: the caller's page, granted by `begin`'s contract until now; the buffer
                // is a page of the channel that the server no longer writes.
                unsafe {
                    let piece = *pending.pieces.add(at);
                    let buffer = buffer(&self.memory, pending.pages[at]);
                    std::ptr::copy_nonoverlapping(buffer, piece.start, PAGE);
                }
            }
        }
        self.pool.give(&pending.pages[..pending.count]);
        self.submit_parked();
        if result < 0 {
            return result;
        }
        (pages * PAGE) as i32
    }

    fn submit_parked(&mut self) {
        while let Some(&op) = self.parked.front() {
            if !self.submit(usize::from(op)) {
                break;
            }
            self.parked.pop_front();
        }
        self.flush();
    }

    fn sleep(&mut self) {
        let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        let polled = poll(&mut fds, Some(&RECHECK_INTERVAL));
        let hung_up = fds[0].revents().contains(PollFlags::HUP);
        match polled {
            Ok(0) => {
                self.queue.suspect_all();
                self.ring();
            }
            Ok(_) if hung_up && !self.has_successor.load(Ordering::Acquire) => {
                self.dead = Some(Errno::PIPE);
            }
            Ok(_) if hung_up => {
                let fifo = self.queue.words.completions;
                wired::futex::wait(fifo.tail_word(), fifo.tail(), Some(DEAD_SERVER_POLL));
            }
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => {}
            Err(errno) => self.dead = Some(errno),
        }
    }

    /// Fails everything in flight or parked; its buffers are not used again.
    fn fail_all(&mut self) {
        let failed = self.dead.unwrap_or(Errno::IO);
        let abandoned = std::iter::from_fn(|| self.queue.abandon());
        for op in abandoned.chain(self.parked.drain(..).map(usize::from)) {
            self.ops[op].failed = failed;
            self.failed.insert(op);
        }
    }

    /// Readable when an operation may have completed.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A page buffer of the channel.
fn buffer(memory: &ChannelMemory, page: u16) -> *mut u8 {
    memory.pages().wrapping_add(usize::from(page) * PAGE)
}

impl Drop for ChannelClient {
    fn drop(&mut self) {
        // In a fork's child the descriptors' numbers may be other files', and the channel is the parent's.
        if self.fork_guard.is_same_process() {
            // With operations in flight the server closes the channel when its tenant requests it.
            if self.queue.in_flight().is_empty() && self.parked.is_empty() && self.dead.is_none() {
                self.queue.end();
                self.needs_ring = true;
                self.flush();
            }
            // SAFETY: dropped once, here.
            unsafe {
                ManuallyDrop::drop(&mut self.doorbell);
                ManuallyDrop::drop(&mut self.bell);
            }
        }
    }
}

impl std::fmt::Debug for ChannelClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelClient")
            .field("geometry", &self.memory.geometry)
            .field("in_flight", &self.queue.in_flight().len())
            .field("parked", &self.parked.len())
            .finish_non_exhaustive()
    }
}
