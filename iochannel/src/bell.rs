//! What wakes a side that sleeps: a doorbell for the server, a bell for each client.
//!
//! The two are made differently, because the server must never be made to wait, whatever a
//! client does with its end. The doorbell is an eventfd, which the server reads with
//! `RWF_NOWAIT`. The client's bell is a pair of sockets, to which the server sends with
//! `MSG_DONTWAIT`: whether a write to an eventfd waits is a flag that both ends share, and a
//! client could fill it and take the flag away. For the same reason the doorbell is no
//! socket: a client could send descriptors along whose closing waits.

use crate::error::{ChannelError, needs};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, fcntl_dupfd_cloexec, ioctl_fionread, preadv2};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, getpeername, recv, send,
    socketpair,
};

/// What clients ring when a server sleeps: one for all channels of a tenant, kept by the
/// tenant for the server's successor.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one.
    pub fn new() -> Result<Self, ChannelError> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(needs("a doorbell"))
    }

    /// One that a predecessor made, handed over by a tenant. Anything that is no eventfd is
    /// refused.
    /// What is refused is not closed either, since that may wait: that is the caller's.
    pub fn attach(fd: impl AsFd) -> Result<Self, ChannelError> {
        let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let what = "the doorbell";
        match std::fs::read_link(link) {
            Ok(target) if target.as_os_str() == "anon_inode:[eventfd]" => {
                let own =
                    fcntl_dupfd_cloexec(fd, 0).map_err(needs("a descriptor of the doorbell"))?;
                Ok(Self(own))
            }
            _ => Err(ChannelError::NotABell { what }),
        }
    }

    /// A descriptor of it, for a client or for whoever keeps it.
    pub fn share(&self) -> Result<OwnedFd, ChannelError> {
        fcntl_dupfd_cloexec(&self.0, 0).map_err(needs("a descriptor of the doorbell"))
    }

    /// It has been heard. Returns at once, whether it rang or not.
    pub fn clear(&self) {
        let mut count = [0; 8];
        let _ = preadv2(
            &self.0,
            &mut [IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> Self {
        doorbell.0
    }
}

impl AsFd for Doorbell {
    /// Readable when it rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The client's: rings the server's doorbell. An error says that it is no longer there.
pub(crate) fn ring_doorbell(doorbell: BorrowedFd<'_>) -> Result<(), Errno> {
    match rustix::io::retry_on_intr(|| rustix::io::write(doorbell, &1u64.to_ne_bytes())) {
        // Full: it has been ringing for long.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A client's bell: the end that is rung by the server, the end that the client hears.
pub(crate) fn bell() -> Result<(OwnedFd, OwnedFd), ChannelError> {
    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    socketpair(unix, stream, SocketFlags::CLOEXEC, None).map_err(needs("a bell"))
}

/// Whether a descriptor can be rung without waiting for anybody.
pub(crate) fn check_bell(fd: impl AsFd) -> Result<(), ChannelError> {
    let right = socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && socket_type(&fd) == Ok(SocketType::STREAM)
        && getpeername(&fd).is_ok()
        && ioctl_fionread(&fd) == Ok(0);
    let what = "a client's bell";
    right.then_some(()).ok_or(ChannelError::NotABell { what })
}

/// The server's: rings a client's bell. Where nobody hears it, or it is ringing without end,
/// that is the client's affair.
pub(crate) fn ring_bell(bell: impl AsFd) {
    let _ = send(bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The client's: its bell has been heard.
pub(crate) fn clear_bell(bell: impl AsFd) {
    let mut rings = [0; 64];
    let _ = recv(bell, &mut rings, RecvFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    fn rings(fd: impl AsFd) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_doorbell_rings_until_it_is_heard() {
        let doorbell = Doorbell::attach(Doorbell::new().unwrap().share().unwrap()).unwrap();
        assert!(!rings(&doorbell));
        ring_doorbell(doorbell.as_fd()).unwrap();
        ring_doorbell(doorbell.as_fd()).unwrap();
        assert!(rings(&doorbell));
        doorbell.clear();
        assert!(!rings(&doorbell));
    }

    #[test]
    fn a_client_cannot_make_the_server_wait_at_a_bell() {
        let doorbell = Doorbell::new().unwrap();
        // Its client makes reads of it wait, and it does not ring.
        fcntl_setfl(doorbell.share().unwrap(), OFlags::empty()).unwrap();
        doorbell.clear();
        let (server, client) = bell().unwrap();
        fcntl_setfl(&server, OFlags::empty()).unwrap();
        // More often than a socket holds, and nobody hears.
        (0..10_000).for_each(|_| ring_bell(&server));
        assert!(rings(&client));
        drop(client);
        ring_bell(&server);
    }

    #[test]
    fn a_bell_in_which_something_lies_is_refused() {
        let (server, _client) = bell().unwrap();
        check_bell(&server).unwrap();
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (forged, other) = socketpair(unix, stream, SocketFlags::CLOEXEC, None).unwrap();
        send(&other, &[1], SendFlags::NOSIGNAL).unwrap();
        assert!(check_bell(&forged).is_err());
        let listening = rustix::net::socket(unix, stream, None).unwrap();
        assert!(check_bell(&listening).is_err());
    }

    #[test]
    fn what_is_no_bell_is_refused() {
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(check_bell(&pipe).is_err());
        assert!(Doorbell::attach(pipe).is_err());
        let doorbell = Doorbell::new().unwrap();
        assert!(check_bell(&doorbell).is_err());
        let (server, _client) = bell().unwrap();
        check_bell(&server).unwrap();
        let error = Doorbell::attach(server).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the descriptor handed over as the doorbell is none"
        );
    }
}
