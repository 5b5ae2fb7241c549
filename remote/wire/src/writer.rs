//! Frames into a link.

use crate::buffer::Buffer;
use crate::header::{HEADER, Header, MAX_BODY};
use crate::link::Link;
use std::io::{self, ErrorKind};

/// The buffer has no room for a frame until the peer has read earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another frame until the peer reads")]
pub struct NoRoom;

/// Queues the frames of one link and writes them.
pub struct FrameWriter(Buffer);

impl FrameWriter {
    /// A writer whose wired buffer has room for at least `frames` of the largest.
    pub fn new(frames: usize) -> io::Result<Self> {
        let bytes = frames.max(1) * (HEADER + MAX_BODY);
        Buffer::new(bytes.next_multiple_of(wired::PAGE)).map(Self)
    }

    /// Queues a frame with a body of one piece.
    pub fn push(&mut self, header: &Header, body: &[u8]) -> Result<(), NoRoom> {
        self.push_with(header, body.len(), |room| room.copy_from_slice(body))
    }

    /// Queues a frame whose body of `len` bytes `fill` writes. The checksum covers what was written
    /// here, so the source may be memory that others change.
    ///
    /// # Panics
    /// If `len` is more than [`MAX_BODY`].
    pub fn push_with(
        &mut self,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), NoRoom> {
        assert!(len <= MAX_BODY, "a body of {len} bytes");
        let room = self.0.room(HEADER + len).ok_or(NoRoom)?;
        let (head, body) = room[..HEADER + len].split_at_mut(HEADER);
        fill(body);
        head.copy_from_slice(&header.encode(body));
        self.0.add(HEADER + len);
        Ok(())
    }

    /// Returns true if a frame with a body of `len` bytes has room.
    pub fn has_room(&mut self, len: usize) -> bool {
        self.0.room(HEADER + len).is_some()
    }

    /// Bytes that are queued and not written.
    pub fn queued(&self) -> usize {
        self.0.held().len()
    }

    /// Writes what is queued, as far as the link takes it. Returns true if nothing is left.
    pub fn flush(&mut self, link: &mut Link) -> io::Result<bool> {
        while !self.0.held().is_empty() {
            match link.write(self.0.held()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => _ = self.0.take(written),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        link.flush()
    }
}
