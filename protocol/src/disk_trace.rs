//! The disk scheduler's trace, handed over as memory: what figures 7 to 9 of the paper plot.

use disk::trace::{TraceBatch, TraceEvent};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{self, Errno};
use std::io::{Read, Seek, Write};

/// Words of an event.
const WORDS: usize = 5;

/// Writes a batch into a new memfd: the next event's number, the number of lost events, and the
/// events.
pub fn write(batch: &TraceBatch) -> io::Result<OwnedFd> {
    let mut bytes = Vec::with_capacity(16 + batch.events.len() * WORDS * 8);
    let words = batch.events.iter().flat_map(|event| event.to_words());
    for word in [batch.next, batch.lost].into_iter().chain(words) {
        bytes.extend(word.to_le_bytes());
    }
    let fd = memfd_create("selfpage-trace", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    let fail = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(&bytes).map_err(fail)?;
    Ok(file.into())
}

/// Reads what [`write()`] wrote.
pub fn read(memory: OwnedFd) -> std::io::Result<TraceBatch> {
    let mut file = std::fs::File::from(memory);
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let words: Vec<u64> = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect();
    let (head, rest) = words.split_at_checked(2).unwrap_or((&[0, 0], &[]));
    let events = rest.as_chunks::<WORDS>().0.iter();
    Ok(TraceBatch {
        events: events.map(|words| TraceEvent::from_words(*words)).collect(),
        next: head[0],
        lost: head[1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::time::{Nanos, Time};

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let events = vec![
            TraceEvent::Lax {
                from: Time(1),
                to: Time(2),
                client: 3,
            },
            TraceEvent::Transaction {
                started: Time(4),
                elapsed: Nanos(5),
                charge: Nanos(6),
                client: 7,
                op: disk::cost_model::Op::Write,
                bytes: 8,
                slack: true,
            },
        ];
        let batch = TraceBatch {
            events,
            next: 9,
            lost: 10,
        };
        assert_eq!(read(write(&batch).unwrap()).unwrap(), batch);
    }
}
