//! A process's connection to its supervisor, once it has joined.

use crate::handshake::{ChildMessage, Message};
use host::seqpacket;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use rustix::net::SendFlags;

/// A process's own connection to the supervisor.
#[derive(Debug)]
pub struct Connection(pub(crate) OwnedFd);

impl Connection {
    /// For polling: readable, or hung up, when the supervisor has ended. It never
    /// sends anything after the welcome.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The descriptor, to be kept elsewhere.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sends what the supervisor keeps as long as the pager process serves
    /// ([`ChildMessage::Lifeline`]).
    pub fn send_lifeline(
        &self,
        socket: BorrowedFd<'_>,
        userfault: Option<BorrowedFd<'_>>,
        shared: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = ChildMessage::Lifeline.encode();
        let all = [
            socket,
            userfault.unwrap_or(socket),
            shared.unwrap_or(socket),
        ];
        let count = match (userfault, shared) {
            (None, _) => 1,
            (Some(_), None) => 2,
            (Some(_), Some(_)) => 3,
        };
        seqpacket::send(&self.0, bytes.as_slice(), &all[..count], SendFlags::empty())
    }

    /// Sends a message. Never blocks: a full queue loses the line, not the program's time.
    pub fn say(&self, what: ChildMessage) -> io::Result<()> {
        seqpacket::send(&self.0, what.encode().as_slice(), &[], SendFlags::DONTWAIT)
    }
}
