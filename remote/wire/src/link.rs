//! The stream between two hosts.

use remote_keys::{Fingerprint, KeyedStream};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::sockopt;
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A connected stream that does not block.
#[derive(Debug)]
pub struct Link {
    carrier: Carrier,
    peer: SocketAddr,
}

/// What carries the bytes.
#[derive(Debug)]
enum Carrier {
    /// In the clear, to any peer.
    Plain(TcpStream),
    /// To a peer that has proved its key.
    Keyed(Box<KeyedStream<TcpStream>>),
}

impl Link {
    /// A link in the clear over a connected socket.
    pub fn plain(stream: TcpStream) -> io::Result<Self> {
        Self::new(Carrier::Plain(stream))
    }

    /// A link with keys, after its handshake.
    pub fn keyed(stream: KeyedStream<TcpStream>) -> io::Result<Self> {
        Self::new(Carrier::Keyed(Box::new(stream)))
    }

    fn new(carrier: Carrier) -> io::Result<Self> {
        let stream = carrier.stream();
        stream.set_nonblocking(true)?;
        // A request is one small frame, whose reply the faulting thread waits for.
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok(Self { carrier, peer })
    }

    /// Declares the peer gone when bytes sent to it are not acknowledged, or it does not answer the
    /// kernel's probes, for `limit`: a host that lost power does not close its connections.
    pub fn set_peer_timeout(&self, limit: std::time::Duration) -> io::Result<()> {
        let stream = self.carrier.stream();
        let seconds = limit.as_secs().max(1);
        let probe = std::time::Duration::from_secs(seconds.div_ceil(3));
        sockopt::set_tcp_user_timeout(stream, limit.as_millis() as u32)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, probe)?;
        sockopt::set_tcp_keepintvl(stream, probe)?;
        sockopt::set_tcp_keepcnt(stream, 2)?;
        Ok(())
    }

    /// Has the socket take no more where it holds so many bytes that it has not sent: what is to go first finds a short
    /// queue on a slow link.
    pub fn set_unsent_limit(&self, bytes: u32) -> io::Result<()> {
        SockRef::from(self.carrier.stream()).set_tcp_notsent_lowat(bytes)
    }

    /// The peer's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Returns true if the peer is on this machine: its address is this end's. A loopback address says nothing, since a tunnel may
    /// begin there.
    pub fn is_within_machine(&self) -> bool {
        let own = self.carrier.stream().local_addr();
        let is_own = own.is_ok_and(|own| own.ip().to_canonical() == self.peer.ip().to_canonical());
        is_own && !self.peer.ip().to_canonical().is_loopback()
    }

    /// The key that the peer has proved to have, of a link with keys.
    pub fn peer_key(&self) -> Option<Fingerprint> {
        match &self.carrier {
            Carrier::Plain(_) => None,
            Carrier::Keyed(stream) => Some(stream.peer()),
        }
    }

    /// Reads bytes that have arrived; 0 at the end of the stream.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.carrier {
            Carrier::Plain(stream) => stream.read(into),
            Carrier::Keyed(stream) => stream.read(into),
        }
    }

    /// Takes bytes to be written.
    pub fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match &mut self.carrier {
            Carrier::Plain(stream) => stream.write(from),
            Carrier::Keyed(stream) => stream.write(from),
        }
    }

    /// Writes what the link itself has buffered. Returns true if nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        match &mut self.carrier {
            Carrier::Plain(_) => Ok(true),
            Carrier::Keyed(stream) => stream.flush(),
        }
    }

    /// Bytes that the link has taken and the socket has not.
    pub fn buffered_output(&self) -> usize {
        match &self.carrier {
            Carrier::Plain(_) => 0,
            Carrier::Keyed(stream) => stream.pending(),
        }
    }

    /// Returns true if bytes have been received that [`Link::read`] has not returned, so that the
    /// descriptor need not become readable for them.
    pub fn has_buffered_input(&self) -> bool {
        match &self.carrier {
            Carrier::Plain(_) => false,
            Carrier::Keyed(stream) => stream.has_buffered_input(),
        }
    }

    /// What to wait for on the descriptor, where the caller has (`true`) more to write.
    pub fn interest(&self, has_output: bool) -> PollFlags {
        match has_output || self.buffered_output() > 0 {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        }
    }
}

impl Carrier {
    fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Keyed(stream) => stream.stream(),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.carrier.stream().as_fd()
    }
}
