//! A connection for one request to the supervisor, made before what the request reports: that is not to happen where
//! no descriptor is free for the report.

// As in the client.
#![allow(clippy::result_large_err)]

use crate::client::SupervisorPort;
use crate::connection::Connection;
use crate::handshake::{Hello, Message, RawDomainId, Reply};
use crate::join_error::JoinError;
use crate::shared_request::SharedRequest;
use host::seqpacket::{self, Received};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags};

/// The connection.
#[derive(Debug)]
pub struct PreparedRequest<'a> {
    port: &'a SupervisorPort,
    ours: OwnedFd,
    /// The other end, where the request takes it through the port.
    theirs: Option<OwnedFd>,
}

impl<'a> PreparedRequest<'a> {
    pub(crate) fn new(port: &'a SupervisorPort) -> io::Result<Self> {
        let (ours, theirs) = match port.port() {
            Some(_) => seqpacket::pair().map(|(ours, theirs)| (ours, Some(theirs)))?,
            None => (port.connect()?, None),
        };
        Ok(Self { port, ours, theirs })
    }

    /// Requests something of shared memory; returns when it is done.
    pub fn ask_shared(
        self,
        domain: RawDomainId,
        request: SharedRequest,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), JoinError> {
        let (_, answer) = self.ask(Hello::Shared { domain, request }, fd.as_slice())?;
        match Reply::decode(answer.as_slice()) {
            Some(Reply::Shared) => Ok(()),
            other => Err(JoinError::of(other)),
        }
    }

    /// Sends the request, with at most one descriptor, and receives the answer.
    pub(crate) fn ask(
        self,
        hello: Hello,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Connection, Received), JoinError> {
        self.send(hello, fds)
            .map_err(JoinError::Unreachable)
            .and_then(receive)
    }

    fn send(self, hello: Hello, fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        let bytes = hello.encode();
        let connection = match self.theirs {
            None => self.ours,
            Some(theirs) => {
                let all = [theirs.as_fd(), *fds.first().unwrap_or(&theirs.as_fd())];
                let all = &all[..1 + fds.len().min(1)];
                let sent = self.port.port().ok_or(Errno::BADF).and_then(|port| {
                    seqpacket::send(port, bytes.as_slice(), all, SendFlags::empty())
                });
                match sent {
                    Ok(_) => return Ok(self.ours),
                    Err(_) => self.port.connect()?,
                }
            }
        };
        seqpacket::send(&connection, bytes.as_slice(), fds, SendFlags::empty())?;
        Ok(connection)
    }
}

/// Receives the answer to a request.
pub(crate) fn receive(connection: OwnedFd) -> Result<(Connection, Received), JoinError> {
    match seqpacket::receive(&connection, RecvFlags::empty()) {
        Ok(answer) if answer.len > 0 => Ok((Connection(connection), answer)),
        Ok(_) => Err(JoinError::Unreachable(Errno::PIPE)),
        Err(errno) => Err(JoinError::Unreachable(errno)),
    }
}
