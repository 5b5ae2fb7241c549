//! One event, and its encoding in five words.

use crate::cost_model::Op;
use crate::time::{Nanos, Time};

/// An action of the scheduler. Clients appear by [`crate::atropos::ClientId::number`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A transaction completed.
    Transaction {
        /// Start on the device.
        started: Time,
        /// Elapsed time on the device.
        elapsed: Nanos,
        /// Its charge.
        charge: Nanos,
        /// The client.
        client: u32,
        /// The operation.
        op: Op,
        /// Bytes moved.
        bytes: u32,
        /// True if it ran in slack time, charged to no slice.
        slack: bool,
    },
    /// The disk was held for a client with nothing to submit, which was charged for it.
    Lax {
        /// Start of the hold.
        from: Time,
        /// End of the hold.
        to: Time,
        /// The client.
        client: u32,
    },
    /// A client's period began.
    Allocation {
        /// Start of the period.
        at: Time,
        /// The client.
        client: u32,
        /// The client's remaining time in nanoseconds: a slice, plus or minus the rest of the last
        /// period.
        remaining: i64,
        /// End of the period.
        deadline: Time,
    },
}

const READ: u64 = 0;
const WRITE: u64 = 1;
const SLACK: u64 = 2;
const LAX: u64 = 4;
const ALLOCATION: u64 = 8;

impl TraceEvent {
    /// Start of the event.
    pub fn at(&self) -> Time {
        match *self {
            Self::Transaction { started, .. } => started,
            Self::Lax { from, .. } => from,
            Self::Allocation { at, .. } => at,
        }
    }

    /// The event's client.
    pub fn client(&self) -> u32 {
        match *self {
            Self::Transaction { client, .. }
            | Self::Lax { client, .. }
            | Self::Allocation { client, .. } => client,
        }
    }

    /// Encodes the event for shared memory.
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

    /// Decodes words; any bit pattern decodes to some event.
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
    fn every_event_survives_encoding() {
        let events = [
            TraceEvent::Transaction {
                started: Time(1),
                elapsed: Nanos(2),
                charge: Nanos(3),
                client: 4,
                op: Op::Write,
                bytes: u32::MAX,
                slack: true,
            },
            TraceEvent::Transaction {
                started: Time(u64::MAX),
                elapsed: Nanos(0),
                charge: Nanos(0),
                client: u32::MAX,
                op: Op::Read,
                bytes: 0,
                slack: false,
            },
            TraceEvent::Lax {
                from: Time(5),
                to: Time(6),
                client: 7,
            },
            TraceEvent::Allocation {
                at: Time(8),
                client: 9,
                remaining: -10,
                deadline: Time(11),
            },
        ];
        for event in events {
            assert_eq!(TraceEvent::from_words(event.to_words()), event);
        }
    }
}
