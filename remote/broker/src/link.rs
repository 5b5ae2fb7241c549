//! Connections of the control plane: the one place that connects and accepts.
//!
//! Links are in the clear: `--insecure`. Where links have keys they are made here, so nothing else of the
//! crate changes with them.

use rand::random;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long a connection may take to be made. A host on the same network answers in a fraction of it.
const CONNECT: Duration = Duration::from_millis(500);
/// A peer that acknowledges nothing for as long is not connected any more: a partition that heals is not
/// waited for by the kernel's doubling pauses.
const UNACKNOWLEDGED: Duration = Duration::from_millis(1000);

/// A connection.
pub type ControlLink = TcpStream;

/// Connects to a control port.
pub async fn connect(address: SocketAddr) -> io::Result<ControlLink> {
    let stream = timeout(CONNECT, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    prepare(stream)
}

/// Accepts a connection.
pub async fn accept(listener: &TcpListener) -> io::Result<(ControlLink, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    Ok((prepare(stream)?, peer))
}

fn prepare(stream: TcpStream) -> io::Result<ControlLink> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

/// A number that another process is unlikely to have.
pub fn nonce() -> u64 {
    random()
}
