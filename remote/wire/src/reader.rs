//! Frames out of a link.

use crate::buffer::Buffer;
use crate::error::FrameError;
use crate::header::{HEADER, Header, MAX_BODY};
use crate::link::Link;
use std::io::{self, ErrorKind};

/// Bytes of the buffer: the largest frame, and as much again of the next ones.
const BUFFER: usize = (2 * (HEADER + MAX_BODY)).next_multiple_of(wired::PAGE);

/// A frame, until the reader is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: &'a [u8],
}

/// Finds the frames in the bytes of one link.
pub struct FrameReader {
    buffer: Buffer,
    /// Length of the first frame, once its checksum was found right; zero before.
    checked: usize,
}

impl FrameReader {
    /// A reader with a wired buffer.
    pub fn new() -> io::Result<Self> {
        let buffer = Buffer::new(BUFFER)?;
        Ok(Self { buffer, checked: 0 })
    }

    /// Reads what the link has, as far as there is room; frames that are there are to be taken first.
    /// Returns false at the end of the stream, true when the link has nothing more now or the buffer
    /// is full.
    pub fn fill(&mut self, link: &mut Link) -> io::Result<bool> {
        while let Some(room) = self.buffer.room(1) {
            let len = room.len();
            match link.read(room) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    self.buffer.add(read);
                    // A short read has emptied the link: another one would only say so.
                    if read < len && !link.has_buffered_input() {
                        break;
                    }
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }

    /// Returns true if [`FrameReader::fill`] would read anything that the link has.
    pub fn has_room(&mut self) -> bool {
        self.buffer.room(1).is_some()
    }

    /// The next frame that has arrived as a whole. After an error the stream has to be closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let Some((header, len)) = self.check()? else {
            return Ok(None);
        };
        self.checked = 0;
        let frame = self.buffer.take(len);
        let body = &frame[HEADER..];
        Ok(Some(Frame { header, body }))
    }

    /// The next frame, as [`FrameReader::next_frame`] has it, which stays: for a request that has to wait for its
    /// turn where it is.
    pub fn peek_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let Some((header, len)) = self.check()? else {
            return Ok(None);
        };
        let body = &self.buffer.held()[HEADER..len];
        Ok(Some(Frame { header, body }))
    }

    /// The header and the length of the first frame, if it is there as a whole.
    fn check(&mut self) -> Result<Option<(Header, usize)>, FrameError> {
        let held = self.buffer.held();
        let Some(head) = held.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (header, body) = Header::decode(head)?;
        let len = HEADER + body;
        let Some(whole) = held.get(..len) else {
            return Ok(None);
        };
        if self.checked != len {
            Header::verify(head, &whole[HEADER..])?;
            self.checked = len;
        }
        Ok(Some((header, len)))
    }
}
