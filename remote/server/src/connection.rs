//! One connection of a client.

use crate::refusal::Refusal;
use remote_policy::identity::Incarnation;
use remote_policy::permit::PermitId;
use remote_wire::control::ControlRequest;
use remote_wire::{FrameReader, FrameWriter, HEADER, Header, Kind, Link};
use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Largest frames that the buffer of replies holds.
const REPLIES: usize = 4;

/// Which connection, in a place that later ones use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    /// Its place.
    pub slot: u32,
    /// Tells it from others that had the place.
    pub stamp: u32,
}

impl ConnectionId {
    /// As a number.
    pub fn pack(self) -> u64 {
        u64::from(self.stamp) << 32 | u64::from(self.slot)
    }

    /// Of a number.
    pub fn unpack(word: u64) -> Self {
        Self {
            slot: word as u32,
            stamp: (word >> 32) as u32,
        }
    }
}

/// A request in the schedule.
#[derive(Debug)]
pub(crate) enum ScheduledRequest {
    /// Of pages.
    Pages,
    /// Of names, permits, objects or state.
    Control(ControlRequest),
    /// One that is refused for this reason.
    Refused(Refusal),
}

/// A connection.
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub link: Link,
    pub reader: FrameReader,
    pub writer: FrameWriter,
    /// The client, once it has named itself.
    pub client: Option<Incarnation>,
    pub presented: BTreeSet<PermitId>,
    /// What the schedule is to start: the first request of the reader.
    pub scheduled: Option<ScheduledRequest>,
    /// Its first request waits for the disk to complete something.
    pub is_blocked: bool,
    /// It is in the list of connections to look at.
    pub is_queued: bool,
    /// What the kernel watches it for: input, output.
    pub watched: (bool, bool),
    /// Another request may be ready to be looked at.
    pub has_more: bool,
    /// The peer has closed its end.
    pub is_ended: bool,
    /// Replies that the disk has to complete first, and the bytes that they will have.
    pub pending: u32,
    pub pending_bytes: usize,
    /// When it was made, or its last byte was written.
    pub last_progress: Duration,
    /// When the last bytes arrived, in nanoseconds of the server's clock.
    pub arrived: u64,
}

impl Connection {
    pub fn new(id: ConnectionId, link: Link, now: Duration) -> io::Result<Self> {
        Ok(Self {
            id,
            link,
            reader: FrameReader::new()?,
            writer: FrameWriter::new(REPLIES)?,
            client: None,
            presented: BTreeSet::new(),
            scheduled: None,
            is_blocked: false,
            is_queued: false,
            watched: (true, false),
            has_more: false,
            is_ended: false,
            pending: 0,
            pending_bytes: 0,
            last_progress: now,
            arrived: 0,
        })
    }

    /// Returns true if a reply with a body of `len` bytes has room beside those that are pending.
    pub fn has_room(&mut self, len: usize) -> bool {
        self.writer.has_room(len + self.pending_bytes)
    }

    /// Replies with an error. Returns false where there is no room for it.
    pub fn refuse(&mut self, request: &Header, why: &Refusal) -> bool {
        let head = Header {
            pages: why.status as u16,
            ..request.reply(Kind::ErrorReply)
        };
        self.writer.push(&head, why.text.as_bytes()).is_ok()
    }

    /// Bytes of replies that the peer has not taken.
    pub fn queued(&self) -> usize {
        self.writer.queued() + self.link.buffered_output()
    }

    /// Writes replies as far as the peer reads. Returns true if none is left.
    pub fn flush(&mut self, now: Duration) -> io::Result<bool> {
        let before = self.queued();
        let is_empty = self.writer.flush(&mut self.link)?;
        if is_empty || self.queued() < before {
            self.last_progress = now;
        }
        Ok(is_empty)
    }

    /// Takes the first frame out of the reader.
    pub fn take_frame(&mut self) {
        // The frame was looked at before, so it is valid.
        let _ = self.reader.next_frame();
    }

    /// What the kernel should watch the connection for.
    pub fn wanted(&mut self) -> (bool, bool) {
        let interest = self.link.interest(self.writer.queued() > 0);
        let input = interest.contains(PollFlags::IN) && !self.is_ended && self.reader.has_room();
        (input, interest.contains(PollFlags::OUT))
    }

    /// Reads what has arrived, as far as the reader has room.
    pub fn fill(&mut self) -> io::Result<()> {
        self.is_ended |= !self.reader.fill(&mut self.link)?;
        Ok(())
    }

    /// Reads what has arrived, as the kernel reports it.
    ///
    /// # Errors
    /// Those of the link; and where the peer `has_failed` and nothing more can be read: requests that wait have no peer
    /// that receives their replies, and the kernel would report it until they are served.
    pub fn on_ready(&mut self, has_failed: bool) -> io::Result<()> {
        self.fill()?;
        match has_failed && (self.is_ended || !self.reader.has_room()) {
            true => Err(ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        }
    }

    /// Returns true if the link has bytes for the reader that the kernel has handed over already.
    pub fn has_unread_input(&mut self) -> bool {
        self.link.has_buffered_input() && self.reader.has_room()
    }

    /// Why it is to be closed: its client leaves its replies unread, does not name itself, or is silent and has no permit.
    pub fn overdue(&self, now: Duration, patience: Duration, lease: Duration) -> Option<String> {
        let silent = now.saturating_sub(self.last_progress);
        match (self.queued(), self.client) {
            (0, None) if silent > patience => Some(format!("it sent no Hello for {patience:?}")),
            (0, Some(_)) if self.presented.is_empty() && silent > lease => Some(format!(
                "it has presented no permit, and was silent for {lease:?}"
            )),
            (0, _) => None,
            (queued, _) if silent > patience => Some(format!(
                "{queued} bytes of replies were not read for {patience:?}"
            )),
            _ => None,
        }
    }

    /// Counts a reply that the disk has to complete first.
    pub fn add_pending(&mut self, body: usize) {
        self.pending += 1;
        self.pending_bytes += HEADER + body;
    }

    /// The reply is due now.
    pub fn remove_pending(&mut self, body: usize) {
        self.pending -= 1;
        self.pending_bytes -= HEADER + body;
    }
}
