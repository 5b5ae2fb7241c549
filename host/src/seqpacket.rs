//! Messages with descriptors over SOCK_SEQPACKET, without allocation.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    UCred, recvmsg, sendmsg, socketpair,
};
use rustix::thread::Timespec;
use std::mem::MaybeUninit;
use std::path::Path;

/// Bytes of the longest message.
pub const MESSAGE: usize = 512;

/// Most descriptors that a message carries.
pub const DESCRIPTORS: usize = 16;

/// A message as it arrived.
pub struct Received {
    /// Its bytes.
    pub bytes: [u8; MESSAGE],
    /// The number of bytes; 0 at the end of the connection.
    pub len: usize,
    /// The descriptors of the message, in order, then `None`.
    pub fds: [Option<OwnedFd>; DESCRIPTORS],
    /// True if the message had more descriptors than this process had room for (`ulimit -n`).
    pub fds_lost: bool,
    /// The sender's credentials, where the socket has SO_PASSCRED set.
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

/// Connects to the socket at `path`.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// As [`connect`], without blocking where the listener's backlog is full.
pub fn try_connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::empty())?;
    Ok(socket)
}

const MILLISECOND: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// Milliseconds for which a message waits while too many of the user's descriptors are in flight.
const IN_FLIGHT_LIMIT: usize = 1000;

/// Sends one message. The kernel lets a user have as many descriptors in flight as a process may have
/// open: where processes of that user have sent as many, the message waits for up to a second until
/// some are received, even with [`SendFlags::DONTWAIT`]: the limit is on the user, not on the peer.
pub fn send(
    to: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut waited = 0;
    loop {
        match try_send(&to, bytes, fds, flags) {
            Err(Errno::TOOMANYREFS) if waited < IN_FLIGHT_LIMIT => {
                waited += 1;
                let _ = rustix::thread::nanosleep(&MILLISECOND);
            }
            other => return other,
        }
    }
}

/// Sends one message. Fails with EPIPE, without a signal, where the peer has closed, and with
/// ETOOMANYREFS where too many descriptors are in flight.
pub fn try_send(
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

/// A message from an untrusted peer.
pub struct UntrustedMessage {
    /// The message.
    pub message: Received,
    /// Descriptors beyond those that [`Received`] has room for.
    pub more: Vec<OwnedFd>,
    /// True if none of its bytes were cut off.
    pub whole: bool,
}

/// Most descriptors of one message, by the kernel's limit (SCM_MAX_FD).
const MAX_FDS: usize = 253;

/// Receives one message; its descriptors are close-on-exec.
pub fn receive(from: impl AsFd, flags: RecvFlags) -> io::Result<Received> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS), ScmCredentials(1))];
    receive_into(from, flags, &mut space, drop).map(|(message, _)| message)
}

/// Receives one message with all its descriptors, up to the kernel's limit: the kernel would close those
/// without room before the call returns, and that close may block for ever.
pub fn receive_all(from: impl AsFd, flags: RecvFlags) -> io::Result<UntrustedMessage> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1))];
    let mut more = Vec::new();
    let (message, whole) = receive_into(from, flags, &mut space, |fd| more.push(fd))?;
    Ok(UntrustedMessage {
        message,
        more,
        whole,
    })
}

fn receive_into(
    from: impl AsFd,
    flags: RecvFlags,
    space: &mut [MaybeUninit<u8>],
    mut more: impl FnMut(OwnedFd),
) -> io::Result<(Received, bool)> {
    let mut it = Received {
        bytes: [0; MESSAGE],
        len: 0,
        fds: [const { None }; DESCRIPTORS],
        fds_lost: false,
        sender: None,
    };
    let mut control = RecvAncillaryBuffer::new(space);
    let received = loop {
        let mut into = [IoSliceMut::new(&mut it.bytes)];
        match recvmsg(
            &from,
            &mut into,
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        ) {
            // The peer closed with a message of ours unread. The kernel reports this error once, ahead of
            // messages that the peer sent before: a refusal, for example.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    it.len = received.bytes;
    it.fds_lost = received.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(fds) => {
                let mut places = it.fds.iter_mut().filter(|place| place.is_none());
                for fd in fds {
                    match places.next() {
                        Some(place) => *place = Some(fd),
                        None => more(fd),
                    }
                }
            }
            RecvAncillaryMessage::ScmCredentials(sender) => it.sender = Some(sender),
            _ => {}
        }
    }
    Ok((it, !received.flags.contains(ReturnFlags::TRUNC)))
}
