//! The disk scheduler's trace, handed over as memory: what figures 7 to 9 of the paper plot.

use crate::protocol::{Ask, Say, decode};
use crate::seqpacket;
use crate::tenant::{TenantError, connect, send};
use disk::trace::{Event, TraceBatch};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{self, Errno};
use rustix::net::RecvFlags;
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Words of an event.
const WORDS: usize = 5;

/// Writes what was seen into new memory: the next event's number, the events lost, and the
/// events.
pub(crate) fn write(seen: &TraceBatch) -> io::Result<OwnedFd> {
    let mut bytes = Vec::with_capacity(16 + seen.events.len() * WORDS * 8);
    let words = seen.events.iter().flat_map(|event| event.to_words());
    for word in [seen.next, seen.lost].into_iter().chain(words) {
        bytes.extend(word.to_le_bytes());
    }
    let fd = memfd_create("selfpage-trace", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    let fail = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(&bytes).map_err(fail)?;
    Ok(file.into())
}

fn read(memory: OwnedFd) -> std::io::Result<TraceBatch> {
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
        events: events.map(|words| Event::from_words(*words)).collect(),
        next: head[0],
        lost: head[1],
    })
}

/// A way to the trace of a daemon that runs.
pub struct Tracer {
    connection: OwnedFd,
    next: u64,
}

impl Tracer {
    /// Of the daemon at a socket. What it did before counts too, as far as it remembers, from
    /// event number `from`.
    pub fn open(path: &Path, from: u64) -> Result<Self, TenantError> {
        let connection = connect(path).map_err(|why| TenantError::Nobody {
            path: path.into(),
            why,
        })?;
        Ok(Self {
            connection,
            next: from,
        })
    }

    /// What the scheduler did since this was last asked.
    pub fn read(&mut self) -> Result<TraceBatch, TenantError> {
        let ask = Ask::Trace { from: self.next };
        send(&self.connection, &ask, &[]).map_err(TenantError::Silent)?;
        let mut message = seqpacket::receive(&self.connection, RecvFlags::empty())
            .map_err(TenantError::Silent)?;
        match decode::<Say>(message.as_slice()) {
            Some(Say::Trace) => {
                let memory = message.fds[0]
                    .take()
                    .ok_or(TenantError::Silent(Errno::MFILE))?;
                let seen = read(memory).map_err(|_| TenantError::Silent(Errno::IO))?;
                self.next = seen.next;
                Ok(seen)
            }
            Some(Say::Refused(why)) => Err(TenantError::Refused(why)),
            _ if message.len == 0 => Err(TenantError::Silent(Errno::PIPE)),
            _ => Err(TenantError::OtherBuild),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::time::{Nanos, Time};

    #[test]
    fn what_is_written_is_read() {
        let events = vec![
            Event::Lax {
                from: Time(1),
                to: Time(2),
                client: 3,
            },
            Event::Transaction {
                started: Time(4),
                elapsed: Nanos(5),
                charge: Nanos(6),
                client: 7,
                op: disk::cost_model::Op::Write,
                bytes: 8,
                slack: true,
            },
        ];
        let seen = TraceBatch {
            events,
            next: 9,
            lost: 10,
        };
        assert_eq!(read(write(&seen).unwrap()).unwrap(), seen);
    }
}
