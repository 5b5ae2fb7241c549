//! Connects to a paging server, again and again: one thread a server, since connecting blocks.
//!
//! The thread that serves pages asks for a connection and goes on; the connection arrives with the
//! server's welcome in a queue, and a bell rings. Attempts that fail are repeated after pauses that
//! double. Each request names the address, since a server may come back at another one.

use crate::arrival::{Arrival, Arrivals};
use remote_keys::{
    Fingerprint, Handshake, HandshakeError, Keyring, Protocol, Trust, client_config, sharing,
};
use remote_policy::identity::Incarnation;
use remote_wire::control::{ControlReply, ControlRequest, decode, encode};
use remote_wire::identity::is_id_of_key;
use remote_wire::{Frame, FrameReader, FrameWriter, Header, Kind, Link, error_text};
use rustix::event::{PollFd, Timespec, poll};
use rustix::fd::AsFd;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pauses between attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(2)];
/// How often the list of members is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// After this long without a sign of the server its connection is given up.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// A server that answered.
pub struct ServerConnection {
    pub link: Link,
    pub reader: FrameReader,
    pub welcome: Welcome,
}

/// What it said.
pub struct Welcome {
    pub server: Incarnation,
    pub name: String,
    pub lendable_pages: u64,
    pub lease: Duration,
}

/// The outcome of an attempt.
pub struct Attempt {
    /// Index of the server.
    pub server: usize,
    /// Where it was made.
    pub address: String,
    pub begun: Instant,
    pub outcome: Result<ServerConnection, String>,
}

/// What a connector works with.
pub struct Connector {
    pub index: usize,
    /// HOST:PORT.
    pub address: String,
    pub client: Incarnation,
    /// This host's name, for people.
    pub name: String,
    /// This host's key and the members of its cluster; `None` for links in the clear.
    pub keys: Option<Arc<Keyring>>,
    /// An address here asks for a connection there, or for the next attempt at once.
    pub wanted: Receiver<String>,
    pub arrivals: Arrivals,
}

/// Starts connectors.
#[derive(Clone)]
pub struct Connectors {
    pub client: Incarnation,
    /// This host's name, for people.
    pub name: String,
    /// This host's key and the members of its cluster; `None` for links in the clear.
    pub keys: Option<Arc<Keyring>>,
    pub arrivals: Arrivals,
}

impl Connectors {
    /// Starts the connector of a server with an index, at an address. An address that is sent to what is returned
    /// asks for another connection.
    pub fn start(&self, index: usize, address: &str) -> io::Result<Sender<String>> {
        let (reconnect, wanted) = channel();
        let connector = Connector {
            index,
            address: address.to_owned(),
            client: self.client,
            name: self.name.clone(),
            keys: self.keys.clone(),
            wanted,
            arrivals: self.arrivals.clone(),
        };
        std::thread::Builder::new()
            .name("selfpage-link".into())
            .spawn(move || connector.run())?;
        Ok(reconnect)
    }
}

impl Connector {
    /// Serves requests for connections until the other side is gone. The first needs no request.
    pub fn run(mut self) {
        loop {
            let mut pause = PAUSES[0];
            let mut has_shared = false;
            let mut peer;
            loop {
                let mut begun = Instant::now();
                let mut outcome = self.connect();
                let is_unknown = |why: &io::Error| why.kind() == ErrorKind::PermissionDenied;
                if outcome.as_ref().is_err_and(is_unknown) && !has_shared {
                    has_shared = true;
                    self.share_members();
                    begun = Instant::now();
                    outcome = self.connect();
                }
                peer = outcome.as_ref().ok().and_then(|(_, peer)| *peer);
                let is_connected = outcome.is_ok();
                let attempt = Attempt {
                    server: self.index,
                    address: self.address.clone(),
                    begun,
                    outcome: match outcome {
                        Ok((connection, _)) => Ok(connection),
                        Err(why) => Err(why.to_string()),
                    },
                };
                // The requests for this connection, too.
                while is_connected && let Ok(address) = self.wanted.try_recv() {
                    self.address = address;
                }
                if !self.arrivals.send(attempt.into()) {
                    return;
                }
                if is_connected {
                    break;
                }
                match self.wanted.recv_timeout(pause) {
                    Ok(address) => self.address = address,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                pause = (pause * 2).min(PAUSES[1]);
            }
            self.share_if_unlisted(peer);
            if !self.await_request(peer) {
                return;
            }
        }
    }

    /// Waits until another connection is wanted. A host that is removed from the cluster meanwhile is no server any more.
    /// Returns false if the client has ended.
    fn await_request(&mut self, mut peer: Option<Fingerprint>) -> bool {
        let keys = self.keys.as_ref();
        let is_removed = |key: &mut Fingerprint| keys.is_some_and(|keys| keys.is_removed(key));
        loop {
            match self.wanted.recv_timeout(LOOK) {
                Ok(address) => {
                    self.address = address;
                    return true;
                }
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {
                    if peer.take_if(is_removed).is_some() {
                        self.arrivals.send(Arrival::Removed(self.index));
                    }
                }
            }
        }
    }

    /// Connects, and returns the key of the server's host, too; `None` in the clear.
    fn connect(&self) -> io::Result<(ServerConnection, Option<Fingerprint>)> {
        let addresses: Vec<SocketAddr> = self.address.to_socket_addrs()?.collect();
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, ATTEMPT) {
                Ok(stream) => {
                    let (link, peer) = self.link(stream)?;
                    return Ok((self.greet(link)?, peer));
                }
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    /// Makes a link of a connection: with keys, where this host has some, and then to a host whose key it has.
    fn link(&self, stream: TcpStream) -> io::Result<(Link, Option<Fingerprint>)> {
        let Some(keyring) = &self.keys else {
            return Ok((Link::plain(stream)?, None));
        };
        stream.set_nodelay(true)?;
        let trust = Trust::Members(Arc::clone(keyring));
        let config = client_config(keyring.key(), trust, Protocol::Pages);
        let handshake = config
            .map_err(HandshakeError::from)
            .and_then(|config| Handshake::client(&config));
        match handshake.and_then(|it| it.complete(stream, ATTEMPT)) {
            Ok(stream) => {
                let peer = stream.peer();
                Ok((Link::keyed(stream)?, Some(peer)))
            }
            Err(why @ HandshakeError::NotAccepted(_)) => {
                Err(io::Error::new(ErrorKind::PermissionDenied, why))
            }
            Err(why) => Err(io::Error::other(why)),
        }
    }

    /// Learns of members that this host does not know, and has others learn of this host.
    fn share_members(&self) {
        let Some(keyring) = &self.keys else {
            return;
        };
        for (name, why) in sharing::share_with_all(keyring).unwrap_or_default() {
            tracing::debug!("{name} did not share its list of members: {why}");
        }
    }

    /// Learns the address of a member that joined before it served: the list is shared with those that have one.
    fn share_if_unlisted(&self, peer: Option<Fingerprint>) {
        if let (Some(keyring), Some(peer)) = (&self.keys, peer)
            && let Err(why) = sharing::share_if_unlisted(keyring, &peer, &self.address)
        {
            let address = &self.address;
            tracing::debug!("{address} did not share its list of members: {why}");
        }
    }

    /// Says who the client is.
    fn greet(&self, mut link: Link) -> io::Result<ServerConnection> {
        link.set_peer_timeout(PEER_TIMEOUT)?;
        let hello = ControlRequest::Hello {
            client: self.client,
            name: self.name.clone(),
        };
        let body = encode(&hello).map_err(io::Error::other)?;
        let mut writer = FrameWriter::new(1)?;
        let header = Header::control(Kind::Control, 0);
        writer.push(&header, &body).map_err(io::Error::other)?;
        let begun = Instant::now();
        while !writer.flush(&mut link)? {
            wait(&link, true, begun)?;
        }
        let mut reader = FrameReader::new()?;
        loop {
            let is_open = reader.fill(&mut link)?;
            let frame = reader.next_frame().map_err(io::Error::other)?;
            if let Some(frame) = frame {
                let welcome = Welcome::of(&frame)?;
                let server = welcome.server.host;
                if !is_id_of_key(server, link.peer_key()) {
                    let text = format!("it says that it is {server}, and has another key");
                    return Err(io::Error::other(text));
                }
                return Ok(ServerConnection {
                    link,
                    reader,
                    welcome,
                });
            }
            if !is_open {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            wait(&link, false, begun)?;
        }
    }
}

impl Welcome {
    fn of(frame: &Frame<'_>) -> io::Result<Self> {
        if frame.header.kind == Kind::ErrorReply {
            return Err(io::Error::other(error_text(frame.body)));
        }
        match decode(frame.body) {
            Ok(ControlReply::Welcome {
                server,
                name,
                lendable_pages,
                lease,
                ..
            }) if frame.header.kind == Kind::ControlReply => Ok(Self {
                server,
                name,
                lendable_pages,
                lease,
            }),
            _ => Err(io::Error::other("its first frame is no welcome")),
        }
    }
}

/// Waits until the link is ready, for as long as an attempt may take.
fn wait(link: &Link, has_output: bool, begun: Instant) -> io::Result<()> {
    let left = ATTEMPT.saturating_sub(begun.elapsed());
    let left = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(
        link.as_fd(),
        link.interest(has_output),
    )];
    match poll(&mut fds, Some(&left)) {
        Ok(0) => Err(ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
