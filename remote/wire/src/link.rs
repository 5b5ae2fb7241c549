//! The stream between two hosts.

use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A connected stream that does not block. What it carries is in the clear.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    peer: SocketAddr,
}

impl Link {
    /// A link over a connected socket.
    pub fn plain(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // A request is one small frame, whose reply the faulting thread waits for.
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok(Self { stream, peer })
    }

    /// Declares the peer gone when bytes sent to it are not acknowledged, or it does not answer the
    /// kernel's probes, for `limit`: a host that lost power does not close its connections.
    pub fn set_peer_timeout(&self, limit: std::time::Duration) -> io::Result<()> {
        let seconds = limit.as_secs().max(1);
        sockopt::set_tcp_user_timeout(&self.stream, limit.as_millis() as u32)?;
        sockopt::set_socket_keepalive(&self.stream, true)?;
        sockopt::set_tcp_keepidle(
            &self.stream,
            std::time::Duration::from_secs(seconds.div_ceil(3)),
        )?;
        sockopt::set_tcp_keepintvl(
            &self.stream,
            std::time::Duration::from_secs(seconds.div_ceil(3)),
        )?;
        sockopt::set_tcp_keepcnt(&self.stream, 2)?;
        Ok(())
    }

    /// The peer's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Reads bytes that have arrived; 0 at the end of the stream.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }

    /// Takes bytes to be written.
    pub fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.write(from)
    }

    /// Writes what the link itself has buffered. Returns true if nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns true if bytes have been received that [`Link::read`] has not returned, so that the
    /// descriptor need not become readable for them.
    pub fn has_buffered_input(&self) -> bool {
        false
    }

    /// What to wait for on the descriptor, where the caller has (`true`) more to write.
    pub fn interest(&self, has_output: bool) -> PollFlags {
        match has_output {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
