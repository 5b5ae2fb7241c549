//! Messages of a supervisor and the client that carries its tree's pages.
//!
//! Each is a packet of a UNIX socket, with descriptors. When the socket closes, either side ends what
//! depends on the other: the client itself, the supervisor its tree, since its pages are out of reach. Where the
//! client's process is killed, its keeper has the socket, and another process goes on.
//!
//! Rule: a request counts for one process of the client. What a process that was killed had not read is in the
//! socket still, and the next one reads it: so a request has the *generation* of the process that it is for, and another
//! process drops it. The supervisor sends each process, after its [`ClientEvent::Ready`], all that it is to serve.

use host::seqpacket;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{self, Errno};
use rustix::net::SendFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most bytes of a text in a message: a packet has room for as many.
const MAX_TEXT: usize = 400;

/// How often a message that there was no room for is sent again: as often as the supervisor checks processes that end.
pub const RETRY: Duration = Duration::from_millis(2);

/// What the supervisor asks of one process of the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressedRequest {
    /// That of the process's [`ClientEvent::Ready`].
    pub generation: u64,
    /// The request.
    pub request: ClientRequest,
}

/// What the supervisor asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// An IO channel for so many requests at once.
    Open {
        /// The supervisor's own word for the request.
        cookie: u64,
        /// Requests at once.
        depth: u16,
    },
    /// A channel of an earlier process of the client: its memory and the server's end of its bell come with it.
    Attach {
        /// The channel.
        channel: u64,
    },
    /// Closes a channel: [`ClientEvent::Closed`] follows when none of its I/O is under way.
    Close {
        /// The channel.
        channel: u64,
    },
}

/// What the client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientEvent {
    /// It is connected to some server, and serves channels. The doorbell of all channels comes with it. A second one is
    /// of another process, which has no channels and no requests for one, and knows the pages.
    Ready {
        /// Which process of the client this is: no other has the same.
        generation: u64,
        /// Servers that are connected, and those that were named.
        connected: u32,
        /// Servers that were named.
        named: u32,
    },
    /// It serves nothing.
    Failed {
        /// Why.
        why: String,
    },
    /// A channel is open. Its memory and both ends of its bell come with it, the process's first.
    Opened {
        /// The request.
        cookie: u64,
        /// The channel.
        channel: u64,
    },
    /// A channel is not.
    NotOpened {
        /// The request.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// No I/O of a channel is under way any more.
    Closed {
        /// The channel.
        channel: u64,
    },
}

impl ClientRequest {
    /// For a process of the client.
    pub fn addressed_to(self, generation: u64) -> AddressedRequest {
        let request = self;
        AddressedRequest {
            generation,
            request,
        }
    }
}

/// Sends a message.
pub fn send(to: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    seqpacket::send(to, &encode(message)?, fds, SendFlags::empty())
}

/// Returns true if a message was not sent since its socket has no room for it, or the kernel none for more of this user's
/// descriptors in flight, and can be sent later.
pub fn has_no_room(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM
    )
}

/// Sends a message if there is room for it and its descriptors.
pub fn try_send(to: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    seqpacket::try_send(to, &encode(message)?, fds, SendFlags::DONTWAIT)
}

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|_| Errno::INVAL)
}

/// The message in a packet.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    postcard::from_bytes(bytes).ok()
}

/// As much of a text as a message has room for.
pub fn short(text: &str) -> String {
    let ends = text.char_indices().map(|(at, char)| at + char.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_TEXT).last();
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(short("a short one"), "a short one");
        assert_eq!(short(&"x".repeat(MAX_TEXT + 1)).len(), MAX_TEXT);
        assert_eq!(short(&"\u{20ac}".repeat(MAX_TEXT)).len(), MAX_TEXT / 3 * 3);
        assert_eq!(short(""), "");
    }
}
