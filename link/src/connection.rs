//! A process's connection to its supervisor, once it has joined.

// Refusals carry their text in place.
#![allow(clippy::result_large_err)]

use crate::handshake::{ChildMessage, Message, Reply};
use crate::join_error::JoinError;
use host::seqpacket::{self, Received};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags};

/// A process's own connection to the supervisor.
#[derive(Debug)]
pub struct Connection(pub(crate) OwnedFd);

impl Connection {
    /// For polling: readable, or hung up, when the supervisor has ended, which never
    /// sends anything after the welcome.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The descriptor, to be kept elsewhere.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sends the descriptors that the supervisor keeps as long as the pager process serves
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

    /// Sends a message. Never blocks: where the socket's queue is full the message is lost.
    pub fn send(&self, message: ChildMessage) -> io::Result<()> {
        seqpacket::send(
            &self.0,
            message.encode().as_slice(),
            &[],
            SendFlags::DONTWAIT,
        )
    }
}

/// Sends a request by a process's connection, with at most one descriptor, and returns the reply.
pub(crate) fn request(
    connection: BorrowedFd<'_>,
    request: ChildMessage<'_>,
    fd: Option<BorrowedFd<'_>>,
) -> Result<Received, JoinError> {
    let (ours, theirs) = seqpacket::pair().map_err(JoinError::Unreachable)?;
    let all = [theirs.as_fd(), fd.unwrap_or(theirs.as_fd())];
    let fds = &all[..1 + usize::from(fd.is_some())];
    let message = request.encode();
    seqpacket::send(connection, message.as_slice(), fds, SendFlags::empty())
        .map_err(JoinError::Unreachable)?;
    // The supervisor has the only other copy: if the supervisor ends, the receive fails.
    drop(theirs);
    receive_reply(&ours)
}

/// Receives the reply to a request.
pub(crate) fn receive_reply(from: &OwnedFd) -> Result<Received, JoinError> {
    match seqpacket::receive(from, RecvFlags::empty()) {
        Ok(reply) if reply.len > 0 => Ok(reply),
        Ok(_) => Err(JoinError::Unreachable(Errno::PIPE)),
        Err(errno) => Err(JoinError::Unreachable(errno)),
    }
}

/// Requests an IO channel to the daemon's disk by a process's connection: its memory, the doorbell and the client's
/// bell. Waits for the next daemon where no daemon runs.
pub fn open_channel(connection: BorrowedFd<'_>, depth: u32) -> Result<[OwnedFd; 3], JoinError> {
    let mut reply = request(connection, ChildMessage::Channel(depth), None)?;
    match Reply::decode(reply.as_slice()) {
        Some(Reply::Channel) => {}
        other => return Err(JoinError::of(other)),
    }
    let [memory, doorbell, bell, ..] = &mut reply.fds;
    match (memory.take(), doorbell.take(), bell.take()) {
        (Some(memory), Some(doorbell), Some(bell)) => Ok([memory, doorbell, bell]),
        // This process has no descriptors left.
        _ => Err(JoinError::Unreachable(Errno::MFILE)),
    }
}
