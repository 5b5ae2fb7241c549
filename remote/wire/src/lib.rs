//! What hosts say to each other about pages in remote memory.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), section 3.2, had Mach's
//! messages and ports; here one TCP connection of a client and a paging server carries frames. A
//! frame is a [`Header`] and a body:
//!
//! | kind | pages, body | reply |
//! |---|---|---|
//! | read | 1 to [`MAX_RUN`]; none | a `u64` version for each page, then the pages |
//! | write | 1 to [`MAX_RUN`]; the pages, which get the header's version | no body |
//! | discard | any number of pages; none | no body |
//! | control | a [`control::ControlRequest`] | a [`control::ControlReply`] |
//! | notice | a [`control::ServerNotice`], from the server, unasked | none |
//!
//! Every request has a number, which its reply repeats, so replies come in any order. A request that
//! fails is answered by an error: a [`Status`] and its text.
//!
//! Rules:
//! - A [`FrameReader`] trusts no byte before it is checked: the length is bounded by [`MAX_BODY`],
//!   header and body are covered by one checksum. A stream with an invalid frame is closed, since
//!   the next frame cannot be found.
//! - Requests and replies of pages are on the page path: reader and writer have wired buffers of a
//!   fixed size and allocate nothing after setup. Control messages may allocate.
//! - Sockets do not block: a read or a write that would is tried again when the link is ready.

mod buffer;
pub mod control;
mod error;
mod header;
pub mod identity;
mod link;
mod network;
mod reader;
mod writer;

pub use error::{FrameError, Status, error_text};
pub use header::{HEADER, Header, Kind, MAX_BODY, MAX_RUN};
pub use link::Link;
pub use network::network_of;
pub use reader::{Frame, FrameReader};
pub use writer::{FrameWriter, NoRoom};

/// The port of a paging server, unless configured otherwise.
pub const PORT: u16 = 4763;
