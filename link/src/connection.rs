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

/// Sends a request by a process's connection, with at most one descriptor, and returns the answer.
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
    // The supervisor has the only other copy: where it ends, the answer does.
    drop(theirs);
    receive_answer(&ours)
}

/// Receives the answer to a request.
pub(crate) fn receive_answer(from: &OwnedFd) -> Result<Received, JoinError> {
    match seqpacket::receive(from, RecvFlags::empty()) {
        Ok(answer) if answer.len > 0 => Ok(answer),
        Ok(_) => Err(JoinError::Unreachable(Errno::PIPE)),
        Err(errno) => Err(JoinError::Unreachable(errno)),
    }
}

/// Gets an IO channel to the system's disk by a process's connection: its memory, the doorbell and the client's
/// bell. Waits for the system's daemon, if that is away.
pub fn open_channel(connection: BorrowedFd<'_>, depth: u32) -> Result<[OwnedFd; 3], JoinError> {
    let mut answer = request(connection, ChildMessage::Channel(depth), None)?;
    match Reply::decode(answer.as_slice()) {
        Some(Reply::Channel) => {}
        other => return Err(JoinError::of(other)),
    }
    let [memory, doorbell, bell, ..] = &mut answer.fds;
    match (memory.take(), doorbell.take(), bell.take()) {
        (Some(memory), Some(doorbell), Some(bell)) => Ok([memory, doorbell, bell]),
        // This process has no descriptors left.
        _ => Err(JoinError::Unreachable(Errno::MFILE)),
    }
}
