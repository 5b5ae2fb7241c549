//! Why a frame is invalid, and why a request is refused.

use crate::header::MAX_BODY;

/// A stream that does not follow the framing. It is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another protocol.
    #[error("frame begins with {0:#010x}: the peer does not speak this protocol")]
    Magic(u32),
    /// The peer begins a handshake: its links have keys.
    #[error(
        "the peer wants a link with keys, this host serves in the clear: give --insecure on both hosts or on neither"
    )]
    Keyed,
    /// Another version.
    #[error(
        "wire version {there}; this program speaks {}: install the same release on both hosts",
        crate::header::VERSION
    )]
    Version {
        /// The peer's version.
        there: u8,
    },
    /// An unknown kind of frame.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// A body longer than any frame's.
    #[error("a body of {0} bytes is longer than the {MAX_BODY} of the largest frame")]
    Body(u32),
    /// A number of pages that the kind of frame cannot have, or a body of another length.
    #[error("{pages} pages in a body of {body} bytes do not fit the kind of frame")]
    Shape {
        /// Pages in the header.
        pages: u16,
        /// Length of the body.
        body: u32,
    },
    /// Header or body changed on the way.
    #[error("the checksum of a frame does not match")]
    Checksum,
    /// A control message that does not decode.
    #[error("a control message does not decode")]
    Control,
}

/// Characters of an error's text that are shown.
const SHOWN: usize = 400;

/// The text of an error reply. It goes to terminals and logs, and a peer must not write lines of its own there.
pub fn error_text(body: &[u8]) -> String {
    let shown = &body[..body.len().min(4 * SHOWN)];
    one_line(&String::from_utf8_lossy(shown), SHOWN)
}

/// The first `most` characters of a peer's text, as terminals and logs may have them.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(most).collect()
}

/// Why a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// No such object here, or another client's.
    NoObject = 1,
    /// The permit is unknown, ended, forged, or another connection's.
    NoPermit = 2,
    /// The permit's pages are all written.
    Full = 3,
    /// The sender knows a generation of the object that is not this copy's.
    Generation = 4,
    /// An epoch lower than the server's.
    Epoch = 5,
    /// The server's disk failed.
    Disk = 6,
    /// A request that no correct client makes.
    Invalid = 7,
    /// The server cannot do it now; the client may ask again.
    Busy = 8,
    /// The server ends.
    Ending = 9,
    /// The server or the broker has fewer pages to lend than were asked for.
    NoPages = 10,
}

impl Status {
    /// The status of an error reply; `None` where it is unknown.
    pub fn from_code(code: u16) -> Option<Self> {
        use Status::*;
        let all = [
            NoObject, NoPermit, Full, Generation, Epoch, Disk, Invalid, Busy, Ending, NoPages,
        ];
        all.into_iter().find(|status| *status as u16 == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_is_a_short_line() {
        assert_eq!(error_text(b"no such object"), "no such object");
        assert_eq!(error_text(b"a\x1b[31mb\r\nforged: c"), "a[31mbforged: c");
        assert_eq!(error_text(&[b'x'; 100_000]), "x".repeat(SHOWN));
        assert_eq!(error_text(&[0xff, b'y']), "\u{fffd}y");
    }
}
