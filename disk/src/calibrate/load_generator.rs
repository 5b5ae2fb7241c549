//! Keeps a fixed number of transactions in flight, at random places, for a while.
//!
//! Uses the same kind of ring as the user-safe disk, because the measurement includes the kernel's
//! share of a client's cost.
//!
//! Rule: memory outlives what the device does to it. A load ends when nothing is in flight; if the
//! kernel does not report the completions, the memory is leaked.

use super::{CalibrateError, DEPTHS, SIZES};
use crate::cost_model::Op;
use crate::swapfs::Extent;
use crate::uring;
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};
use wired::WiredMemory;

const MAX_DEPTH: usize = DEPTHS[DEPTHS.len() - 1] as usize;
const _: () = assert!(
    MAX_DEPTH <= u128::BITS as usize,
    "slots in flight are bits of a word"
);

/// Bytes of the largest transaction, and of a block.
pub(super) const BLOCK: u32 = SIZES[SIZES.len() - 1];

/// The result of a load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct LoadResult {
    /// Transactions a second.
    pub rate: f64,
    /// Mean latency of a transaction.
    pub latency: Duration,
}

/// A ring, its buffers, and the blocks to read and write.
pub(super) struct LoadGenerator<'fd> {
    fd: BorrowedFd<'fd>,
    /// First byte on the device of each block of [`BLOCK`] bytes.
    places: Vec<u64>,
    ring: ManuallyDrop<IoUring>,
    buffers: ManuallyDrop<WiredMemory>,
    /// Buffers in use, as a bit set.
    busy: u128,
    started: [Instant; MAX_DEPTH],
    random: fastrand::Rng,
}

impl<'fd> LoadGenerator<'fd> {
    /// A generator over all of `extents`, which hold at least one block together.
    pub fn new(fd: BorrowedFd<'fd>, extents: &[Extent]) -> Result<Self, CalibrateError> {
        let in_extent = |extent: &Extent| {
            let device = extent.device;
            let whole = extent.len / u64::from(BLOCK);
            (0..whole).map(move |at| device + at * u64::from(BLOCK))
        };
        let places: Vec<u64> = extents.iter().flat_map(in_extent).collect();
        if places.is_empty() {
            return Err(CalibrateError::Small {
                there: extents.iter().map(|extent| extent.len).max().unwrap_or(0),
                least: BLOCK.into(),
            });
        }
        let ring =
            uring::build(MAX_DEPTH as u32, 2 * MAX_DEPTH as u32).map_err(CalibrateError::Ring)?;
        let buffers =
            WiredMemory::private(MAX_DEPTH * BLOCK as usize).map_err(CalibrateError::Memory)?;
        let mut load = Self {
            fd,
            places,
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            busy: 0,
            started: [Instant::now(); MAX_DEPTH],
            random: fastrand::Rng::with_seed(0),
        };
        load.scramble();
        Ok(load)
    }

    /// Random contents: disks that compress or recognise zero pages would distort the result.
    fn scramble(&mut self) {
        for at in (0..self.buffers.len()).step_by(8) {
            let word = self.random.u64(..);
            // SAFETY: inside the region, aligned, and nothing is in flight yet.
            unsafe { self.buffers.as_ptr().add(at).cast::<u64>().write(word) };
        }
    }

    /// Writes every block, or as many as possible in `time`, and uses only those.
    pub fn fill(&mut self, time: Duration) -> Result<(), CalibrateError> {
        let begun = Instant::now();
        let mut filled = 0;
        while filled < self.places.len() && (filled == 0 || begun.elapsed() < time) {
            if self.busy.count_ones() as usize == MAX_DEPTH {
                self.wait(&mut |_| {})?;
            }
            self.start(Op::Write, BLOCK, self.places[filled])?;
            filled += 1;
        }
        self.drain()?;
        self.places.truncate(filled);
        Ok(())
    }

    /// Keeps `depth` transactions in flight for `time`, and counts once the first of them have
    /// completed, or half of the time has passed: the start is not the steady state.
    pub fn run(
        &mut self,
        op: Op,
        bytes: u32,
        depth: u32,
        time: Duration,
    ) -> Result<LoadResult, CalibrateError> {
        for _ in 0..depth {
            let at = self.anywhere(bytes);
            self.start(op, bytes, at)?;
        }
        let begun = Instant::now();
        let (mut early, mut counting) = (0, None);
        let (mut count, mut waited) = (0u32, Duration::ZERO);
        let counted = loop {
            let mut ended = 0;
            let mut took = Duration::ZERO;
            self.wait(&mut |latency| {
                ended += 1;
                took += latency;
            })?;
            let now = Instant::now();
            match counting {
                Some(since) => {
                    count += ended;
                    waited += took;
                    if count > 0 && now - begun >= time {
                        let elapsed = now.duration_since(since).as_secs_f64().max(1e-9);
                        break LoadResult {
                            rate: f64::from(count) / elapsed,
                            latency: waited / count,
                        };
                    }
                }
                None => {
                    early += ended;
                    if early >= depth || now - begun >= time / 2 {
                        counting = Some(now);
                    }
                }
            }
            for _ in 0..ended {
                let at = self.anywhere(bytes);
                self.start(op, bytes, at)?;
            }
        };
        self.drain()?;
        Ok(counted)
    }

    fn anywhere(&mut self, bytes: u32) -> u64 {
        let place = self.random.usize(..self.places.len());
        let within = self.random.u64(..u64::from(BLOCK / bytes));
        self.places[place] + within * u64::from(bytes)
    }

    /// Queues a transaction. One buffer must be free.
    fn start(&mut self, op: Op, bytes: u32, at: u64) -> Result<(), CalibrateError> {
        let slot = self.busy.trailing_ones() as usize;
        let fd = types::Fd(self.fd.as_raw_fd());
        // SAFETY: there are `MAX_DEPTH` buffers, and one is free.
        let buffer = unsafe { self.buffers.as_ptr().add(slot * BLOCK as usize) };
        let entry = match op {
            Op::Read => opcode::Read::new(fd, buffer, bytes).offset(at).build(),
            Op::Write => opcode::Write::new(fd, buffer, bytes).offset(at).build(),
        };
        // The expected length travels in the user data: a short transaction is a failed one.
        let entry = entry.user_data((slot as u64) << 32 | u64::from(bytes));
        // SAFETY: the buffer stays until the transaction completes: see `drop`.
        let queued = unsafe { self.ring.submission().push(&entry) };
        queued.map_err(|_| CalibrateError::Io(Errno::AGAIN))?;
        self.busy |= 1 << slot;
        self.started[slot] = Instant::now();
        Ok(())
    }

    /// Waits for a completion and passes the latency of each transaction that completed.
    fn wait(&mut self, ended: &mut dyn FnMut(Duration)) -> Result<(), CalibrateError> {
        while let Err(error) = self.ring.submit_and_wait(1) {
            let errno = errno(&error);
            if errno != Errno::INTR {
                return Err(CalibrateError::Io(errno));
            }
        }
        let now = Instant::now();
        let mut failed = None;
        for completion in self.ring.completion() {
            let slot = (completion.user_data() >> 32) as usize;
            self.busy &= !(1 << slot);
            let (result, bytes) = (completion.result(), completion.user_data() as u32);
            if result < 0 {
                failed = Some(Errno::from_raw_os_error(-result));
            } else if result as u32 != bytes {
                failed = Some(Errno::IO);
            }
            ended(now - self.started[slot]);
        }
        failed.map_or(Ok(()), |errno| Err(CalibrateError::Io(errno)))
    }

    fn drain(&mut self) -> Result<(), CalibrateError> {
        while self.busy != 0 {
            self.wait(&mut |_| {})?;
        }
        Ok(())
    }
}

impl Drop for LoadGenerator<'_> {
    fn drop(&mut self) {
        // Failed transactions complete, too. Each may be one wait's failure.
        let tries = self.busy.count_ones();
        for _ in 0..tries {
            let _ = self.drain();
        }
        if self.busy == 0 {
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
            // SAFETY: as above; nothing is in flight to or from it.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
