//! Messages with descriptors over SOCK_SEQPACKET, without allocation.

use crate::wire::{DESCRIPTORS, MESSAGE};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, UCred, recvmsg, sendmsg, socketpair,
};
use std::mem::MaybeUninit;

/// A message as it arrived.
pub struct Received {
    /// Its bytes.
    pub bytes: [u8; MESSAGE],
    /// How many; 0 at the end of the connection.
    pub len: usize,
    /// Descriptors that came along, in order, then `None`.
    pub fds: [Option<OwnedFd>; DESCRIPTORS],
    /// Who sent it, where the socket asks the kernel for that.
    pub sender: Option<UCred>,
}

impl Received {
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Two ends of a connection, both close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Sends one message. A peer that has gone is an error (EPIPE), not a signal.
pub fn send(
    to: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(
            &to,
            &[IoSlice::new(bytes)],
            &mut control,
            flags | SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Receives one message; its descriptors are close-on-exec.
pub fn receive(from: impl AsFd, flags: RecvFlags) -> io::Result<Received> {
    let mut it = Received {
        bytes: [0; MESSAGE],
        len: 0,
        fds: [const { None }; DESCRIPTORS],
        sender: None,
    };
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    it.len = loop {
        let mut into = [IoSliceMut::new(&mut it.bytes)];
        match recvmsg(
            &from,
            &mut into,
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(fds) => {
                for (place, fd) in it.fds.iter_mut().filter(|f| f.is_none()).zip(fds) {
                    *place = Some(fd);
                }
            }
            RecvAncillaryMessage::ScmCredentials(sender) => it.sender = Some(sender),
            _ => {}
        }
    }
    Ok(it)
}
