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
pub struct FrameReader(Buffer);

impl FrameReader {
    /// A reader with a wired buffer.
    pub fn new() -> io::Result<Self> {
        Buffer::new(BUFFER).map(Self)
    }

    /// Reads what the link has, as far as there is room; frames that are there are to be taken first.
    /// Returns false at the end of the stream, true when the link has nothing more now or the buffer
    /// is full.
    pub fn fill(&mut self, link: &mut Link) -> io::Result<bool> {
        while let Some(room) = self.0.room(1) {
            let len = room.len();
            match link.read(room) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    self.0.add(read);
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

    /// The next frame that has arrived as a whole. After an error the stream has to be closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let held = self.0.held();
        let Some(head) = held.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (header, body) = Header::decode(head)?;
        let Some(whole) = held.get(..HEADER + body) else {
            return Ok(None);
        };
        Header::verify(head, &whole[HEADER..])?;
        let frame = self.0.take(HEADER + body);
        Ok(Some(Frame {
            header,
            body: &frame[HEADER..],
        }))
    }
}
