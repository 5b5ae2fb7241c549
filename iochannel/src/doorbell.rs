//! Wake-ups of a sleeping side: a doorbell for the server, a bell for each client.
//!
//! The two differ because the server must never block, whatever a client does with its end. The
//! doorbell is an eventfd, which the server reads with `RWF_NOWAIT`. The client's bell is a pair
//! of sockets, to which the server sends with `MSG_DONTWAIT`: whether a write to an eventfd blocks
//! is a flag that both ends share, and a client could fill the eventfd and clear the flag. The
//! doorbell is no socket for the same reason: a client could send descriptors through it whose
//! closing blocks. The server's end of a bell receives nothing.

use crate::error::{ChannelError, needs};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, fcntl_dupfd_cloexec, ioctl_fionread, preadv2};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, getpeername, recv,
    send, shutdown, socketpair,
};

/// The eventfd that wakes a server: one for all channels of a tenant, which keeps it for the
/// server's successor.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new doorbell.
    pub fn new() -> Result<Self, ChannelError> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(needs("a doorbell"))
    }

    /// A predecessor's doorbell, passed on by a tenant. Another descriptor than an eventfd is
    /// refused, and left to the caller to close, since closing may block.
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

    /// A new descriptor of the doorbell, for a client or for the tenant to keep.
    pub fn share(&self) -> Result<OwnedFd, ChannelError> {
        fcntl_dupfd_cloexec(&self.0, 0).map_err(needs("a descriptor of the doorbell"))
    }

    /// Drains the eventfd. Never blocks.
    pub fn drain(&self) {
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
    /// Readable when it was rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For the client: rings the server's doorbell. An error means that the doorbell no longer exists.
pub(crate) fn ring_server(doorbell: BorrowedFd<'_>) -> Result<(), Errno> {
    match rustix::io::retry_on_intr(|| rustix::io::write(doorbell, &1u64.to_ne_bytes())) {
        // Full: rung often and not drained.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A client's bell: the server's end, to ring, and the client's end, to poll.
pub(crate) fn bell_pair() -> Result<(OwnedFd, OwnedFd), ChannelError> {
    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    let pair = socketpair(unix, stream, SocketFlags::CLOEXEC, None);
    let (server, client) = pair.map_err(needs("a bell"))?;
    shutdown(&server, Shutdown::Read).map_err(needs("a bell"))?;
    Ok((server, client))
}

/// Checks that a descriptor can be rung, and closed, without blocking, and shuts it down for reading.
pub(crate) fn check_bell(fd: impl AsFd) -> Result<(), ChannelError> {
    let is_bell = socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && socket_type(&fd) == Ok(SocketType::STREAM)
        && getpeername(&fd).is_ok()
        && shutdown(&fd, Shutdown::Read).is_ok()
        && ioctl_fionread(&fd) == Ok(0)
        && !holds_descriptors(fd.as_fd()).map_err(needs("a check of a bell"))?;
    let what = "a client's bell";
    is_bell.then_some(()).ok_or(ChannelError::NotABell { what })
}

/// Returns true if a Unix socket holds descriptors: those sent with an out-of-band byte stay after the byte is read.
/// An error where this process lacks a descriptor for the check.
pub fn holds_descriptors(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let shown = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let shown = shown.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
    let mut count = shown
        .lines()
        .filter_map(|line| line.strip_prefix("scm_fds:"));
    Ok(count.any(|count| count.trim() != "0"))
}

/// For the server: rings a client's bell. Best effort: a closed or saturated bell affects only the client.
pub(crate) fn ring_client(bell: impl AsFd) {
    let _ = send(bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// For the client: drains its bell.
pub(crate) fn drain_bell(bell: impl AsFd) {
    let mut rings = [0; 64];
    let _ = recv(bell, &mut rings, RecvFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    fn is_rung(fd: impl AsFd) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_doorbell_is_readable_until_it_is_drained() {
        let doorbell = Doorbell::attach(Doorbell::new().unwrap().share().unwrap()).unwrap();
        assert!(!is_rung(&doorbell));
        ring_server(doorbell.as_fd()).unwrap();
        ring_server(doorbell.as_fd()).unwrap();
        assert!(is_rung(&doorbell));
        doorbell.drain();
        assert!(!is_rung(&doorbell));
    }

    #[test]
    fn a_client_cannot_make_the_server_block_at_a_bell() {
        let doorbell = Doorbell::new().unwrap();
        // The client makes reads of an unrung doorbell block.
        fcntl_setfl(doorbell.share().unwrap(), OFlags::empty()).unwrap();
        doorbell.drain();
        let (server, client) = bell_pair().unwrap();
        fcntl_setfl(&server, OFlags::empty()).unwrap();
        // More often than a socket holds, and never drained.
        (0..10_000).for_each(|_| ring_client(&server));
        assert!(is_rung(&client));
        drop(client);
        ring_client(&server);
    }

    #[test]
    fn a_client_cannot_leave_a_descriptor_in_a_bell_whose_close_blocks() {
        let (_server, client) = bell_pair().unwrap();
        assert_eq!(send(&client, &[1], SendFlags::NOSIGNAL), Err(Errno::PIPE));
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (attached, client) = socketpair(unix, stream, SocketFlags::CLOEXEC, None).unwrap();
        check_bell(&attached).unwrap();
        assert_eq!(send(&client, &[1], SendFlags::NOSIGNAL), Err(Errno::PIPE));
        assert!(!is_rung(&client));
        ring_client(&attached);
        assert!(is_rung(&client));
    }

    #[test]
    fn a_bell_that_holds_descriptors_of_an_out_of_band_byte_is_refused() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (forged, other) = socketpair(unix, stream, SocketFlags::CLOEXEC, None).unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut sent = SendAncillaryBuffer::new(&mut space);
        let fds = [other.as_fd()];
        assert!(sent.push(SendAncillaryMessage::ScmRights(&fds)));
        let byte = [std::io::IoSlice::new(&[1])];
        if sendmsg(&other, &byte, &mut sent, SendFlags::OOB).is_err() {
            return eprintln!("skipped: this kernel has no out-of-band bytes of UNIX sockets");
        }
        recv(&forged, &mut [0], RecvFlags::OOB).unwrap();
        assert_eq!(ioctl_fionread(&forged), Ok(0));
        assert!(check_bell(&forged).is_err());
    }

    #[test]
    fn a_bell_with_data_in_it_is_refused() {
        let (server, _client) = bell_pair().unwrap();
        check_bell(&server).unwrap();
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (forged, other) = socketpair(unix, stream, SocketFlags::CLOEXEC, None).unwrap();
        send(&other, &[1], SendFlags::NOSIGNAL).unwrap();
        assert!(check_bell(&forged).is_err());
        let listening = rustix::net::socket(unix, stream, None).unwrap();
        assert!(check_bell(&listening).is_err());
    }

    #[test]
    fn a_descriptor_of_another_kind_is_refused_as_a_bell() {
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(check_bell(&pipe).is_err());
        assert!(Doorbell::attach(pipe).is_err());
        let doorbell = Doorbell::new().unwrap();
        assert!(check_bell(&doorbell).is_err());
        let (server, _client) = bell_pair().unwrap();
        check_bell(&server).unwrap();
        let error = Doorbell::attach(server).unwrap_err();
        assert_eq!(error.to_string(), "invalid descriptor for the doorbell");
    }
}
