//! Connections of the control plane: the one place that connects and accepts.
//!
//! Rule: in a cluster a link has the keys of its two hosts, as links of pages have, and a message on it is of
//! the host that proved its key. In the clear (`--insecure`) a peer is what it says.

use crate::frame;
use crate::protocol::Reply;
use remote_keys::config::server_name;
use remote_keys::{
    Fingerprint, HandshakeError, Keyring, Protocol, Trust, client_config, peer_fingerprint,
    server_config, sharing,
};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a connection may take to be made, its handshake included. A host on the same network answers in a
/// fraction of it.
const CONNECT: Duration = Duration::from_millis(500);
/// A peer that acknowledges nothing for as long is not connected any more: a partition that heals is not
/// waited for by the kernel's doubling pauses.
const UNACKNOWLEDGED: Duration = Duration::from_millis(1000);
/// After this long without a message the kernel asks whether the peer is there still: a host that loses its power or
/// its network closes no connection, and one that is only read has nothing that could stay unacknowledged.
const SILENT: Duration = Duration::from_secs(5);

/// ContentType of the record that a handshake begins with (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// What a peer without keys receives.
const WITHOUT_KEYS: &str = "this host wants keys: leave out --insecure, or give it on both hosts";

/// Bytes both ways.
trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// A connection.
pub struct ControlLink {
    stream: Box<dyn Stream>,
    key: Option<Fingerprint>,
}

impl ControlLink {
    /// What carries the messages.
    pub fn stream(&mut self) -> &mut (impl AsyncRead + AsyncWrite + Unpin) {
        &mut self.stream
    }

    /// The key that the peer has proved to have; `None` in the clear.
    pub fn key(&self) -> Option<Fingerprint> {
        self.key
    }
}

/// Makes connections.
#[derive(Clone)]
pub struct ControlLinks(Option<Keys>);

#[derive(Clone)]
struct Keys {
    keyring: Arc<Keyring>,
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl ControlLinks {
    /// Links with the keys of a cluster; without a keyring in the clear.
    ///
    /// # Errors
    /// None in practice: rustls refuses combinations that are not used here.
    pub fn new(keyring: Option<Arc<Keyring>>) -> io::Result<Self> {
        let Some(keyring) = keyring else {
            return Ok(Self(None));
        };
        let trust = || Trust::Members(Arc::clone(&keyring));
        let client = client_config(keyring.key(), trust(), Protocol::Broker);
        let server = server_config(keyring.key(), trust(), &[Protocol::Broker]);
        Ok(Self(Some(Keys {
            connector: client.map_err(io::Error::other)?.into(),
            acceptor: server.map_err(io::Error::other)?.into(),
            keyring,
        })))
    }

    /// Links in the clear.
    pub fn in_clear() -> Self {
        Self(None)
    }

    /// Connects to a control port.
    ///
    /// # Errors
    /// What the socket has, or the handshake.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<ControlLink> {
        let connect = async {
            let stream = prepare(TcpStream::connect(address).await?)?;
            let Some(keys) = &self.0 else {
                return Ok(in_clear(stream));
            };
            let stream = keys.connector.connect(server_name(), stream).await;
            let stream = stream.map_err(explain_handshake)?;
            let key = peer_fingerprint(stream.get_ref().1);
            Ok(ControlLink {
                stream: Box::new(stream),
                key,
            })
        };
        let late = |_| io::Error::from(ErrorKind::TimedOut);
        timeout(CONNECT, connect).await.map_err(late)?
    }

    /// Makes a link of a connection that was accepted.
    ///
    /// # Errors
    /// What the handshake has.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<ControlLink> {
        let Some(keys) = &self.0 else {
            return Ok(in_clear(stream));
        };
        let stream = refuse_in_clear(stream).await?;
        let stream = keys
            .acceptor
            .accept(stream)
            .await
            .map_err(explain_handshake)?;
        let key = peer_fingerprint(stream.get_ref().1);
        Ok(ControlLink {
            stream: Box::new(stream),
            key,
        })
    }

    /// Shares lists of members with the peer, a host whose paging server is at `paging`, where the list lacks that.
    pub fn share_if_unlisted(&self, link: &ControlLink, paging: SocketAddr) {
        let (Some(keys), Some(key)) = (&self.0, link.key) else {
            return;
        };
        let keyring = Arc::clone(&keys.keyring);
        // It blocks for some seconds at most.
        spawn_blocking(move || {
            if let Err(why) = sharing::share_if_unlisted(&keyring, &key, &paging.to_string()) {
                tracing::debug!("{paging} did not share its list of members: {why}");
            }
        });
    }

    /// Returns true if the peer is a member still: one that was removed has its links ended.
    pub fn accepts(&self, link: &ControlLink) -> bool {
        let member = |key: Fingerprint| self.0.as_ref()?.keyring.is_member(&key).then_some(());
        self.0.is_none() || link.key.and_then(member).is_some()
    }
}

fn in_clear(stream: TcpStream) -> ControlLink {
    ControlLink {
        stream: Box::new(stream),
        key: None,
    }
}

/// Answers a peer that has no keys in the clear, so that it learns why it is refused.
async fn refuse_in_clear(mut stream: TcpStream) -> io::Result<TcpStream> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        let _ = frame::write(&mut stream, &Reply::Invalid(WITHOUT_KEYS.to_owned())).await;
        return Err(io::Error::new(
            ErrorKind::PermissionDenied,
            HandshakeError::Plain,
        ));
    }
    Ok(stream)
}

/// What ends a link after its handshake.
const ENDED: &str = "the peer closed the connection: its log says why";
/// What ends a handshake that rustls has no words for.
const CLOSED: &str = "the peer closed the connection during the handshake: give --insecure on both hosts or on neither, \
                      and the port of the peer's --control (4765 by default)";

/// Why a handshake has failed. In the clear the first answer is the only sign of one.
pub fn explain_handshake(why: io::Error) -> io::Error {
    explain(why, CLOSED)
}

/// Why a link has failed that had answers, or has keys: a refusal of this host's key comes after the handshake.
pub fn explain_end(why: io::Error) -> io::Error {
    explain(why, ENDED)
}

/// The words of the handshake for what rustls says, and those for an end without one.
fn explain(why: io::Error, end: &'static str) -> io::Error {
    let tls = why
        .get_ref()
        .and_then(|it| it.downcast_ref::<rustls::Error>());
    match (tls, why.kind()) {
        (Some(tls), kind) => io::Error::new(kind, HandshakeError::from(tls.clone())),
        (None, kind @ (ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)) => {
            io::Error::new(kind, end)
        }
        (None, _) => why,
    }
}

/// Takes the next connection.
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    Ok((prepare(stream)?, peer))
}

fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    let probes = TcpKeepalive::new().with_time(SILENT);
    socket.set_tcp_keepalive(&probes.with_interval(UNACKNOWLEDGED))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_only_read_notices_that_its_peer_is_gone() {
        let runtime = crate::test_member::runtime();
        let (stream, _peer) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap());
            let (accepted, peer) = tokio::join!(accept(&listener), peer);
            (accepted.unwrap().0, peer.unwrap())
        });
        assert!(SockRef::from(&stream).keepalive().unwrap());
    }
}
