//! How a connection that was accepted becomes a link.

use crate::server::ServerHandle;
use remote_wire::Link;
use std::io;
use std::net::TcpStream;

/// What a connection is once it was accepted.
pub enum Accepted {
    /// A link.
    Link(Link),
    /// A link after a handshake, which the server receives by [`ServerHandle::add_link`], or nothing.
    Later,
}

/// Makes links of connections. The server's thread calls it: it does not block.
pub trait Accept: Send {
    /// The server has started.
    ///
    /// # Errors
    /// Where threads or descriptors are missing.
    fn start(&mut self, _server: ServerHandle) -> io::Result<()> {
        Ok(())
    }

    /// Takes a connection.
    ///
    /// # Errors
    /// Why it is closed.
    fn accept(&mut self, stream: TcpStream) -> io::Result<Accepted>;
}

/// A way that needs no handshake.
impl<F: FnMut(TcpStream) -> io::Result<Link> + Send> Accept for F {
    fn accept(&mut self, stream: TcpStream) -> io::Result<Accepted> {
        self(stream).map(Accepted::Link)
    }
}
