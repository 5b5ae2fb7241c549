//! The device, the last_doorbell and sleep, by one io_uring.
//!
//! Rule: a bell is listened to once at a time, and again after it has been heard, so that the
//! kernel looks at it anew each time and no ringing is lost.

use super::UsdError;
use crate::uring;
use io_uring::squeue::Entry;
use io_uring::types::{self, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use iochannel::{Op, Piece};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::time::Duration;

/// Entries that are handed over at once.
const SUBMITTED: u32 = 256;
/// Completions that have room. More in flight would still not be lost, only slower.
const COMPLETED: u32 = 2048;

/// How often the kernel is asked to take entries: it refuses only while it is short of memory.
const TRIES: usize = 1000;

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingEvent {
    /// A part of a transaction: the client's place, the transaction's in its window.
    Part { client: u32, transaction: u32 },
    /// A client's bell rings, or is not listened to any more.
    Bell { client: u32, number: u32 },
    /// The owner has control.
    CommandSender,
    /// Nothing to be notifier of.
    Nothing,
}

const KIND: u32 = 62;
const HALF: u32 = 31;
const LOW: u32 = (1 << HALF) - 1;

/// The number of a bell that is listened to after the one of number `last`. It comes back as
/// it is; those of 2^31 last_doorbell later are the same.
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
            _ => Self::Nothing,
        }
    }
}

pub(super) struct Ring {
    ring: IoUring,
    in_flight: usize,
}

impl Ring {
    /// Of the thread that calls this, and of no other.
    pub(super) fn new() -> Result<Self, UsdError> {
        let ring = uring::build(SUBMITTED, COMPLETED).map_err(|errno| UsdError::Ring { errno })?;
        // Without it a sleep would need a timer of its own.
        if !ring.params().is_feature_ext_arg() {
            return Err(UsdError::Ring {
                errno: Errno::OPNOTSUPP,
            });
        }
        Ok(Self { ring, in_flight: 0 })
    }

    /// UsdParts of transactions that the device has.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether that many more parts have room.
    pub(super) fn has_room(&self, parts: usize) -> bool {
        self.in_flight + parts < COMPLETED as usize
    }

    /// Hands a part of a transaction to the device.
    ///
    /// # Safety
    /// The pieces' memory stays until the part has ended. The pieces themselves may go when
    /// this returns and [`Ring::submit`] was called.
    pub(super) unsafe fn start(
        &mut self,
        op: Op,
        fd: RawFd,
        pieces: &[Piece],
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

    /// Tells when a descriptor becomes readable, once.
    pub(super) fn watch(&mut self, fd: RawFd, then: RingEvent) -> Result<(), Errno> {
        const READABLE: u32 = 1;
        let entry = opcode::PollAdd::new(types::Fd(fd), READABLE).build();
        // SAFETY: it has no memory.
        unsafe { self.push(entry.user_data(then.pack())) }
    }

    /// Does not tell any more.
    pub(super) fn unwatch(&mut self, then: RingEvent) {
        let entry = opcode::PollRemove::new(then.pack()).build();
        // SAFETY: it has no memory. A bell that is heard once more is one nobody knows.
        let _ = unsafe { self.push(entry.user_data(RingEvent::Nothing.pack())) };
    }

    /// # Safety
    /// What the entry points to stays as long as the kernel uses it.
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

    /// Hands over what was queued, and lets the kernel say what has ended. What it has no room
    /// for stays queued.
    pub(super) fn submit(&mut self) {
        let submission = self.ring.submission();
        let any = !submission.is_empty() || submission.taskrun();
        drop(submission);
        if any {
            let _ = self.ring.submit();
        }
    }

    /// Sleeps until something has ended, or that long.
    pub(super) fn sleep(&mut self, time: Option<Duration>) {
        let timespec = time.map(Timespec::from);
        let args = SubmitArgs::new();
        let args = match &timespec {
            Some(timespec) => args.timespec(timespec),
            None => args,
        };
        // Whatever it is that wakes it: the caller looks at everything.
        let _ = self.ring.submitter().submit_with_args(1, &args);
    }

    /// What has ended, and how.
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
        for ended in [parts, bell, RingEvent::CommandSender, RingEvent::Nothing] {
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
