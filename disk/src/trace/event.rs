//! One event, and how it is kept in five words.

use crate::cost_model::Op;
use crate::time::{Nanos, Time};

/// Something that the scheduler did. Clients are named by
/// [`crate::atropos::ClientId::number`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A transaction ended.
    Transaction {
        /// When the device was given it.
        started: Time,
        /// How long the device had it.
        elapsed: Nanos,
        /// What it was charged.
        charge: Nanos,
        /// Whose it was.
        client: u32,
        /// What was done.
        op: Op,
        /// How much was moved.
        bytes: u32,
        /// Whether it was done in slack time, and charged to no slice.
        slack: bool,
    },
    /// The disk was kept for a client with nothing to submit, which was charged for it.
    Lax {
        /// From then.
        from: Time,
        /// To then.
        to: Time,
        /// The client.
        client: u32,
    },
    /// A client's period began.
    Allocation {
        /// When.
        at: Time,
        /// The client.
        client: u32,
        /// What it has of the disk's time now, in nanoseconds: a slice, more or less what it
        /// brings from the last period.
        remaining: i64,
        /// When the period ends.
        deadline: Time,
    },
}

const READ: u64 = 0;
const WRITE: u64 = 1;
const SLACK: u64 = 2;
const LAX: u64 = 4;
const ALLOCATION: u64 = 8;

impl Event {
    /// When it began.
    pub fn at(&self) -> Time {
        match *self {
            Self::Transaction { started, .. } => started,
            Self::Lax { from, .. } => from,
            Self::Allocation { at, .. } => at,
        }
    }

    /// The client it is of.
    pub fn client(&self) -> u32 {
        match *self {
            Self::Transaction { client, .. }
            | Self::Lax { client, .. }
            | Self::Allocation { client, .. } => client,
        }
    }

    /// As words, for memory that others read.
    pub fn to_words(self) -> [u64; 5] {
        match self {
            Self::Transaction {
                started,
                elapsed,
                charge,
                client,
                op,
                bytes,
                slack,
            } => {
                let op = match op {
                    Op::Read => READ,
                    Op::Write => WRITE,
                };
                let kind = op | if slack { SLACK } else { 0 };
                [started.0, elapsed.0, charge.0, pair(client, bytes), kind]
            }
            Self::Lax { from, to, client } => [from.0, to.0, 0, pair(client, 0), LAX],
            Self::Allocation {
                at,
                client,
                remaining,
                deadline,
            } => [
                at.0,
                deadline.0,
                remaining as u64,
                pair(client, 0),
                ALLOCATION,
            ],
        }
    }

    /// From words; any are some event.
    pub fn from_words(words: [u64; 5]) -> Self {
        let [a, b, c, who, kind] = words;
        let (client, bytes) = ((who >> 32) as u32, who as u32);
        match kind {
            LAX => Self::Lax {
                from: Time(a),
                to: Time(b),
                client,
            },
            ALLOCATION => Self::Allocation {
                at: Time(a),
                client,
                remaining: c as i64,
                deadline: Time(b),
            },
            _ => Self::Transaction {
                started: Time(a),
                elapsed: Nanos(b),
                charge: Nanos(c),
                client,
                op: match kind & WRITE {
                    READ => Op::Read,
                    _ => Op::Write,
                },
                bytes,
                slack: kind & SLACK != 0,
            },
        }
    }
}

fn pair(high: u32, low: u32) -> u64 {
    (u64::from(high) << 32) | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_survives_its_words() {
        let events = [
            Event::Transaction {
                started: Time(1),
                elapsed: Nanos(2),
                charge: Nanos(3),
                client: 4,
                op: Op::Write,
                bytes: u32::MAX,
                slack: true,
            },
            Event::Transaction {
                started: Time(u64::MAX),
                elapsed: Nanos(0),
                charge: Nanos(0),
                client: u32::MAX,
                op: Op::Read,
                bytes: 0,
                slack: false,
            },
            Event::Lax {
                from: Time(5),
                to: Time(6),
                client: 7,
            },
            Event::Allocation {
                at: Time(8),
                client: 9,
                remaining: -10,
                deadline: Time(11),
            },
        ];
        for event in events {
            assert_eq!(Event::from_words(event.to_words()), event);
        }
    }
}
