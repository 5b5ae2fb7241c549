//! A connection to a server that is there, and what waits to be sent on it.
//!
//! Rule: what is queued is sent in its order, so little is queued. A write waits in the table of requests
//! ([`crate::requests`]) until earlier ones have left, and a page-in that follows goes before it: on a link of 20 Mbit/s
//! the 2 MiB that may be under way take most of a second.

use remote_wire::{FrameReader, FrameWriter, HEADER, Header, Link, MAX_BODY};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io;

/// Frames of the largest size that the buffer holds: two of writes, a run of each job of the client's own, and requests
/// without pages.
const QUEUED: usize = 6;
/// Bytes of the buffer that requests of pages leave to control messages.
const RESERVE: usize = 4096;
/// Another write of a process is queued while fewer bytes are. The socket holds as many that it has not sent.
const BACKLOG: usize = HEADER + MAX_BODY;

pub struct OpenLink {
    pub link: Link,
    pub reader: FrameReader,
    writer: FrameWriter,
    has_output: bool,
}

impl OpenLink {
    /// Watches a connection under the number of its server.
    pub fn new(link: Link, reader: FrameReader, epoll: &OwnedFd, index: usize) -> io::Result<Self> {
        let writer = FrameWriter::new(QUEUED)?;
        link.set_unsent_limit(BACKLOG as u32)?;
        let data = EventData::new_u64(index as u64);
        epoll::add(epoll, &link, data, EventFlags::IN)?;
        Ok(Self {
            link,
            reader,
            writer,
            has_output: false,
        })
    }

    /// Queues a control message. Returns false if there is no room.
    pub fn push(&mut self, header: &Header, body: &[u8]) -> bool {
        self.writer.push(header, body).is_ok()
    }

    /// Returns true if another write of a process may be queued.
    pub fn takes_pages(&self) -> bool {
        self.writer.queued() + self.link.buffered_output() < BACKLOG
    }

    /// Queues a request of pages, which a write brings along. Returns false if there is no room.
    pub fn push_with(&mut self, header: &Header, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.writer.has_room(len + RESERVE) && self.writer.push_with(header, len, fill).is_ok()
    }

    /// Writes what is queued. Watches for room where the socket has none.
    pub fn flush(&mut self, epoll: &OwnedFd, index: usize) -> io::Result<()> {
        let has_output = !self.writer.flush(&mut self.link)?;
        if has_output != self.has_output {
            self.has_output = has_output;
            let flags = match has_output {
                true => EventFlags::IN | EventFlags::OUT,
                false => EventFlags::IN,
            };
            let data = EventData::new_u64(index as u64);
            epoll::modify(epoll, &self.link, data, flags)?;
        }
        Ok(())
    }

    /// Writes what the socket takes, before the connection ends.
    pub fn flush_last(&mut self) {
        // What is not written is not: the lease ends, too.
        let _ = self.writer.flush(&mut self.link);
    }
}
