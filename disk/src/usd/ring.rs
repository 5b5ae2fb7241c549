//! The device, the doorbells and sleep, by one io_uring.
//!
//! Rule: a doorbell is watched by one poll request at a time, renewed after each ring, so that the
//! kernel checks it anew each time and no ring is lost.

use super::UsdError;
use crate::atropos::WORKERS;
use crate::uring;
use io_uring::squeue::Entry;
use io_uring::types::{self, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use iochannel::{IoVec, Op};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::time::Duration;

/// Submission entries.
const SUBMITTED: u32 = 256;
/// Completion entries. More in flight would not be lost, only slower.
const COMPLETED: u32 = 2048;

/// Attempts to submit: the kernel refuses only while it is short of memory.
const TRIES: usize = 1000;

/// A completion of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingEvent {
    /// A part of a transaction: the client's index, and the transaction's in its window.
    Part { client: u32, transaction: u32 },
    /// A client's doorbell rings, or its watch ended.
    Bell { client: u32, number: u32 },
    /// The owner has sent commands.
    CommandSender,
    /// The transport has something to receive.
    Transport,
    /// A completion without effect.
    Nothing,
}

const KIND: u32 = 62;
const HALF: u32 = 31;
const LOW: u32 = (1 << HALF) - 1;

/// The number of a doorbell watched after the one of number `last`. Numbers repeat after 2^31
/// doorbells.
pub(super) fn next_doorbell_id(last: u32) -> u32 {
    last.wrapping_add(1) & LOW
}

impl RingEvent {
    fn pack(self) -> u64 {
        let (kind, high, low) = match self {
            Self::Part {
                client,
                transaction,
            } => (0, client, transaction),
            Self::Bell { client, number } => (1, client, number & LOW),
            Self::CommandSender => (2, 0, 0),
            Self::Nothing => (3, 0, 0),
            Self::Transport => (3, 0, 1),
        };
        (kind << KIND) | (u64::from(high) << HALF) | u64::from(low)
    }

    fn unpack(word: u64) -> Self {
        let low = word as u32 & LOW;
        let high = (word >> HALF) as u32 & LOW;
        match word >> KIND {
            0 => Self::Part {
                client: high,
                transaction: low,
            },
            1 => Self::Bell {
                client: high,
                number: low,
            },
            2 => Self::CommandSender,
            _ if low == 1 => Self::Transport,
            _ => Self::Nothing,
        }
    }
}

pub(super) struct Ring {
    ring: IoUring,
    in_flight: usize,
}

impl Ring {
    /// Creates the ring of the calling thread; no other thread may use it.
    pub(super) fn new() -> Result<Self, UsdError> {
        let ring = uring::build(SUBMITTED, COMPLETED).map_err(|errno| UsdError::Ring { errno })?;
        // An operation that finds its file locked takes a kernel thread until it gets the lock. By default there are four
        // a processor, and one client's would take all. A kernel that refuses keeps its own limit.
        let _ = ring
            .submitter()
            .register_iowq_max_workers(&mut [WORKERS, 0]);
        Ok(Self { ring, in_flight: 0 })
    }

    /// Parts of transactions in flight on the device.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Hands a part of a transaction to the device.
    ///
    /// # Safety
    /// The pieces' memory stays until the part completes. The pieces themselves may go when this
    /// returns and [`Ring::submit`] was called.
    pub(super) unsafe fn start(
        &mut self,
        op: Op,
        fd: RawFd,
        pieces: &[IoVec],
        at: u64,
        then: RingEvent,
    ) -> Result<(), Errno> {
        let (fd, count) = (types::Fd(fd), pieces.len() as u32);
        let entry = match (op, pieces) {
            (Op::Read, [one]) => opcode::Read::new(fd, one.start, one.len as u32)
                .offset(at)
                .build(),
            (Op::Write, [one]) => opcode::Write::new(fd, one.start, one.len as u32)
                .offset(at)
                .build(),
            (Op::Read, _) => opcode::Readv::new(fd, pieces.as_ptr().cast(), count)
                .offset(at)
                .build(),
            (Op::Write, _) => opcode::Writev::new(fd, pieces.as_ptr().cast(), count)
                .offset(at)
                .build(),
        };
        // SAFETY: the memory stays, as the caller promises.
        unsafe { self.push(entry.user_data(then.pack()))? };
        self.in_flight += 1;
        Ok(())
    }

    /// Polls a descriptor until it is readable, once.
    pub(super) fn watch(&mut self, fd: RawFd, then: RingEvent) -> Result<(), Errno> {
        const READABLE: u32 = 1;
        let entry = opcode::PollAdd::new(types::Fd(fd), READABLE).build();
        // SAFETY: the entry refers to no memory.
        unsafe { self.push(entry.user_data(then.pack())) }
    }

    /// Cancels a poll.
    pub(super) fn unwatch(&mut self, then: RingEvent) {
        let entry = opcode::PollRemove::new(then.pack()).build();
        // SAFETY: the entry refers to no memory. A ring that still arrives has an unknown number.
        let _ = unsafe { self.push(entry.user_data(RingEvent::Nothing.pack())) };
    }

    /// # Safety
    /// The memory that the entry points to stays as long as the kernel uses it.
    unsafe fn push(&mut self, entry: Entry) -> Result<(), Errno> {
        for _ in 0..TRIES {
            if !self.ring.submission().is_full() {
                break;
            }
            self.submit();
            std::thread::yield_now();
        }
        // SAFETY: as the caller promises.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno::AGAIN)
    }

    /// Submits queued entries and lets the kernel post completions. Entries without room stay
    /// queued.
    pub(super) fn submit(&mut self) {
        let submission = self.ring.submission();
        let any = !submission.is_empty() || submission.taskrun();
        drop(submission);
        if any {
            let _ = self.ring.submit();
        }
    }

    /// Sleeps until a completion arrives, or for that time.
    pub(super) fn sleep(&mut self, time: Option<Duration>) {
        let timespec = time.map(Timespec::from);
        let args = SubmitArgs::new();
        let args = match &timespec {
            Some(timespec) => args.timespec(timespec),
            None => args,
        };
        // The cause of the wake-up does not matter: the caller checks everything.
        let _ = self.ring.submitter().submit_with_args(1, &args);
    }

    /// Reaps all completions, with their results.
    pub(super) fn reap(&mut self, all: &mut Vec<(RingEvent, i32)>) {
        for completion in self.ring.completion() {
            let ended = RingEvent::unpack(completion.user_data());
            if let RingEvent::Part { .. } = ended {
                self.in_flight -= 1;
            }
            all.push((ended, completion.result()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_known_by_its_word() {
        let parts = RingEvent::Part {
            client: 77,
            transaction: 63,
        };
        let bell = RingEvent::Bell {
            client: 5,
            number: 9,
        };
        let alone = [
            RingEvent::CommandSender,
            RingEvent::Transport,
            RingEvent::Nothing,
        ];
        for ended in [parts, bell].into_iter().chain(alone) {
            assert_eq!(RingEvent::unpack(ended.pack()), ended);
        }
    }

    #[test]
    fn a_bell_is_known_however_many_there_were_before() {
        for last in [0, 1 << 31, LOW - 1, LOW, u32::MAX] {
            let number = next_doorbell_id(last);
            let bell = RingEvent::Bell { client: 5, number };
            assert_eq!(RingEvent::unpack(bell.pack()), bell);
            assert_ne!(number, last & LOW);
        }
    }
}
