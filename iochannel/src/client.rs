//! The client's end of a channel: operations on the caller's pages, by way of the page
//! buffers.
//!
//! An operation is a request slot of the same number. Data to be written is copied into page
//! buffers when the operation begins, data read is copied out of them when it is over. Where
//! no buffers are free an operation waits its turn here; those under way give theirs back as
//! they are over, and a run always fits, so nothing waits for ever.
//!
//! The client outlives servers: what is submitted stays so, and the doorbell keeps ringing
//! for whoever hears it next.

use crate::asking::Asking;
use crate::bell::{check_bell, clear_bell, ring_doorbell};
use crate::bits::Bits;
use crate::error::{ChannelError, needs};
use crate::memory::Memory;
use crate::pool::Pool;
use crate::request::{Op, Piece};
use crate::shape::{MAX_SLOTS, RUN};
use crate::slot::Ask;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::time::Duration;
use wired::{AdaptivePoll, ForkGuard, PAGE};

/// How long a client sleeps before it looks at all its slots and rings again, in case a
/// server died with the bell in its hand.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// How often it looks where nobody is left to ring: the server's end of its bell is closed.
const UNRUNG: Duration = Duration::from_millis(1);

/// An operation.
#[derive(Clone, Copy)]
struct Job {
    op: Op,
    offset: u64,
    /// The caller's memory.
    pieces: *const Piece,
    count: usize,
    /// Page buffers, as many as pieces, once it is submitted.
    pages: [u16; RUN],
    /// Of an operation that is over without having been submitted.
    failed: Errno,
}

/// Operations that wait for page buffers, in order.
struct Waiting {
    ops: [u16; MAX_SLOTS],
    head: usize,
    len: usize,
}

/// The client's end: used by one thread at a time.
pub struct Client {
    asking: Asking<'static>,
    pool: Pool,
    jobs: Box<[Job]>,
    waiting: Waiting,
    failed: Bits<{ MAX_SLOTS / 64 }>,
    poll: AdaptivePoll,
    doorbell: ManuallyDrop<OwnedFd>,
    bell: ManuallyDrop<OwnedFd>,
    /// Something was submitted that the server has not been rung for.
    unsaid: bool,
    dead: Option<Errno>,
    fork_guard: ForkGuard,
    /// What `asking` points into: dropped last.
    memory: Memory,
}

// SAFETY: the pointers in it are to the caller's memory, promised until an operation is over.
unsafe impl Send for Client {}

impl Client {
    /// Joins a new channel by the descriptors its server made: [`crate::Ends::memory`], a
    /// descriptor of the [`crate::Doorbell`], and [`crate::Ends::bell`]. Allocates.
    pub fn attach(memory: OwnedFd, doorbell: OwnedFd, bell: OwnedFd) -> Result<Self, ChannelError> {
        check_bell(&bell)?;
        let memory = Memory::attach(memory)?;
        // SAFETY: `Client` keeps the memory beside what points into it.
        let asking = Asking::new(unsafe { memory.words() }).ok_or(ChannelError::Used)?;
        let job = Job {
            op: Op::Read,
            offset: 0,
            pieces: std::ptr::null(),
            count: 0,
            pages: [0; RUN],
            failed: Errno::INVAL,
        };
        Ok(Self {
            asking,
            pool: Pool::new(memory.shape.pages()),
            jobs: vec![job; memory.shape.slots()].into_boxed_slice(),
            waiting: Waiting {
                ops: [0; MAX_SLOTS],
                head: 0,
                len: 0,
            },
            failed: Bits::EMPTY,
            poll: AdaptivePoll::default(),
            doorbell: ManuallyDrop::new(doorbell),
            bell: ManuallyDrop::new(bell),
            unsaid: false,
            dead: None,
            fork_guard: ForkGuard::new().map_err(needs("a mark"))?,
            memory,
        })
    }

    /// Operations at once: numbers below this.
    pub fn slots(&self) -> usize {
        self.jobs.len()
    }

    /// Begins operation number `op`, which is not under way: the pieces, whole pages and
    /// page aligned, at most [`RUN`], to or from `offset`, a multiple of the page size. It
    /// is under way after [`Client::flush`]. One that cannot be is over at once, with
    /// `EINVAL`.
    ///
    /// # Safety
    /// The pieces and their memory stay as they are until the operation is over.
    pub unsafe fn begin(&mut self, op: usize, write: bool, pieces: &[Piece], offset: u64) {
        let job = &mut self.jobs[op];
        job.op = if write { Op::Write } else { Op::Read };
        job.offset = offset;
        job.pieces = pieces.as_ptr();
        job.count = pieces.len();
        let whole = |piece: &Piece| piece.len == PAGE && piece.start.addr().is_multiple_of(PAGE);
        let can_be = (1..=RUN).contains(&pieces.len())
            && pieces.iter().all(whole)
            && offset.is_multiple_of(PAGE as u64);
        if !can_be || self.dead.is_some() {
            job.failed = self.dead.unwrap_or(Errno::INVAL);
            return self.failed.insert(op);
        }
        if self.waiting.len > 0 || !self.submit(op) {
            let at = (self.waiting.head + self.waiting.len) % MAX_SLOTS;
            self.waiting.ops[at] = op as u16;
            self.waiting.len += 1;
        }
    }

    /// Submits an operation if there are page buffers for it.
    fn submit(&mut self, op: usize) -> bool {
        let job = &mut self.jobs[op];
        if !self.pool.take(&mut job.pages[..job.count]) {
            return false;
        }
        if job.op == Op::Write {
            for at in 0..job.count {
                // SAFETY: a page of the caller's, kept as it is by `begin`'s promise; the
                // buffer is a page of the channel that was free.
                unsafe {
                    let piece = *job.pieces.add(at);
                    let buffer = buffer(&self.memory, job.pages[at]);
                    std::ptr::copy_nonoverlapping(piece.start, buffer, PAGE);
                }
            }
        }
        let ask = Ask {
            op: job.op.code(),
            count: job.count as u32,
            offset: job.offset,
            pages: job.pages,
        };
        self.asking.submit(op, &ask);
        self.unsaid = true;
        true
    }

    /// Lets the server know of what was begun.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unsaid) && self.asking.words.server.answer() {
            self.ring();
        }
    }

    fn ring(&mut self) {
        if let Err(errno) = ring_doorbell(self.doorbell.as_fd()) {
            // Closed under us, most likely. What is under way cannot be heard of any more:
            // it is told as failed.
            self.dead = Some(errno);
        }
    }

    /// The next operation that is over, with the server's answer: bytes moved, whole pages,
    /// or a negative error number. With `wait`, waits until one is, if any is under way:
    /// looks for it for a moment if that pays ([`AdaptivePoll`]), then sleeps.
    ///
    /// After `None`, and after any other answer too, [`Client::poll_fd`] becomes readable
    /// when there is another.
    pub fn over(&mut self, wait: bool) -> Option<(usize, i32)> {
        loop {
            if let Some(op) = self.failed.pop() {
                return Some((op, -self.jobs[op].failed.raw_os_error()));
            }
            if let Some(over) = self.hear() {
                return Some(over);
            }
            if self.dead.is_some() {
                self.fail_all();
                if self.failed.is_empty() {
                    return None;
                }
                continue;
            }
            if self.asking.under_way().is_empty() {
                return None;
            }
            self.flush();
            if wait && let Some(over) = self.look() {
                return Some(over);
            }
            // Heard first, so that what rings later is not mistaken for what is heard.
            clear_bell(self.bell.as_fd());
            self.asking.words.client.raise();
            if let Some(over) = self.hear() {
                return Some(over);
            }
            if !wait {
                return None;
            }
            self.sleep();
        }
    }

    /// Looks for the answer of the one operation under way while the server is awake.
    fn look(&mut self) -> Option<(usize, i32)> {
        if self.asking.under_way().len() != 1 || self.server_sleeps() {
            return None;
        }
        let awake = |client: &Self| !client.server_sleeps();
        AdaptivePoll::poll(self, |client| &mut client.poll, Self::hear, awake)
    }

    fn server_sleeps(&self) -> bool {
        self.asking.words.server.is_raised()
    }

    fn hear(&mut self) -> Option<(usize, i32)> {
        let (op, result) = self.asking.hear()?;
        Some((op, self.take_in(op, result)))
    }

    /// An operation is over: its data is copied out, its buffers are free.
    fn take_in(&mut self, op: usize, result: i32) -> i32 {
        let job = &self.jobs[op];
        // Whole pages: what goes on after a short answer is page aligned again.
        let pages = (result.max(0) as usize / PAGE).min(job.count);
        if job.op == Op::Read {
            for at in 0..pages {
                // SAFETY: the caller's page, its by `begin`'s promise until now; the buffer
                // is a page of the channel that the server no longer writes.
                unsafe {
                    let piece = *job.pieces.add(at);
                    let buffer = buffer(&self.memory, job.pages[at]);
                    std::ptr::copy_nonoverlapping(buffer, piece.start, PAGE);
                }
            }
        }
        self.pool.give(&job.pages[..job.count]);
        self.submit_waiting();
        if result < 0 {
            return result;
        }
        (pages * PAGE) as i32
    }

    fn submit_waiting(&mut self) {
        while self.waiting.len > 0 {
            if !self.submit(usize::from(self.waiting.ops[self.waiting.head])) {
                break;
            }
            self.waiting.head = (self.waiting.head + 1) % MAX_SLOTS;
            self.waiting.len -= 1;
        }
        self.flush();
    }

    fn sleep(&mut self) {
        let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        let heard = poll(&mut fds, Some(&PATIENCE));
        let hung_up = fds[0].revents().contains(PollFlags::HUP);
        match heard {
            Ok(0) => {
                self.asking.suspect_all();
                self.ring();
            }
            Ok(_) if hung_up => {
                let tail = self.asking.words.completions;
                wired::futex::wait(tail.tail_word(), tail.tail(), Some(UNRUNG));
            }
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => {}
            Err(errno) => self.dead = Some(errno),
        }
    }

    /// Everything under way is told as failed; its buffers are not used again.
    fn fail_all(&mut self) {
        let failed = self.dead.unwrap_or(Errno::IO);
        while let Some(op) = self.asking.give_up() {
            self.jobs[op].failed = failed;
            self.failed.insert(op);
        }
        while self.waiting.len > 0 {
            let op = usize::from(self.waiting.ops[self.waiting.head]);
            self.waiting.head = (self.waiting.head + 1) % MAX_SLOTS;
            self.waiting.len -= 1;
            self.jobs[op].failed = failed;
            self.failed.insert(op);
        }
    }

    /// Readable when an operation may be over.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A page buffer of the channel.
fn buffer(memory: &Memory, page: u16) -> *mut u8 {
    memory.pages().wrapping_add(usize::from(page) * PAGE)
}

impl Drop for Client {
    fn drop(&mut self) {
        // In a fork's child the descriptors' numbers may be other files'.
        if self.fork_guard.is_same_process() {
            // SAFETY: dropped once, here.
            unsafe {
                ManuallyDrop::drop(&mut self.doorbell);
                ManuallyDrop::drop(&mut self.bell);
            }
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("shape", &self.memory.shape)
            .field("under_way", &self.asking.under_way().len())
            .field("waiting", &self.waiting.len)
            .finish_non_exhaustive()
    }
}
