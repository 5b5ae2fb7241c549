//! Handshakes of links with keys, in a thread of their own.
//!
//! A handshake takes both ends some hundred microseconds of computation and two round trips: the
//! thread that serves pages would delay others' pages meanwhile. One thread does all handshakes without
//! blocking in any of them. Rule: there is a bounded number of handshakes, each for a bounded time, whatever peers
//! send or do not send; and one that goes on at once is over before peers that do not can take its place.

use crate::accept::{Accept, Accepted};
use crate::log_limit::LogLimit;
use crate::member_watch;
use crate::poller::Poller;
use crate::server::ServerHandle;
use remote_keys::{
    Handshake, HandshakeError, KeyedStream, Keyring, Progress, Protocol, Trust, server_config,
    sharing,
};
use remote_wire::{Header, Kind, Link, Status};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long a handshake may take: two round trips of a slow link, many times over.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a peer that was refused may take to read why.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most handshakes at once.
const MAX_HANDSHAKES: usize = 64;
/// Most hosts that share their lists of members at once.
const MAX_SHARING: u32 = 4;
/// The longest sleep.
const TICK: Duration = Duration::from_secs(1);

const DOORBELL: u64 = u64::MAX;

/// Accepts links with the keys of a cluster's members, and no others.
pub struct KeyedAcceptor {
    keyring: Arc<Keyring>,
    streams: Option<Sender<TcpStream>>,
    doorbell: Arc<OwnedFd>,
}

impl KeyedAcceptor {
    /// An acceptor with a host's key and its list of members.
    ///
    /// # Errors
    /// Where descriptors are missing.
    pub fn new(keyring: Arc<Keyring>) -> io::Result<Self> {
        Ok(Self {
            keyring,
            streams: None,
            doorbell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        })
    }

    fn ring(&self) {
        // It fails only where the counter is full, and then the bell rings anyway.
        let _ = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
    }
}

impl Accept for KeyedAcceptor {
    fn start(&mut self, server: ServerHandle) -> io::Result<()> {
        let (streams, arriving) = channel();
        let trust = Trust::Members(Arc::clone(&self.keyring));
        let protocols = [Protocol::Pages, Protocol::Members];
        let config = server_config(self.keyring.key(), trust, &protocols);
        let poller = Poller::new()?;
        poller.add(&*self.doorbell, DOORBELL)?;
        let wanted = member_watch::start(Arc::clone(&self.keyring), server.clone())?;
        let handshakes = Handshakes {
            keyring: Arc::clone(&self.keyring),
            config: config.map_err(io::Error::other)?,
            poller,
            doorbell: Arc::clone(&self.doorbell),
            arriving,
            server,
            wanted,
            sharing: Arc::new(AtomicU32::new(0)),
            pending: BTreeMap::new(),
            next: 0,
            log: LogLimit::default(),
            began: Instant::now(),
        };
        std::thread::Builder::new()
            .name("selfpage-keys".to_owned())
            .spawn(move || handshakes.run())?;
        self.streams = Some(streams);
        Ok(())
    }

    fn accept(&mut self, stream: TcpStream) -> io::Result<Accepted> {
        let streams = self.streams.as_ref();
        let is_sent = streams.is_some_and(|streams| streams.send(stream).is_ok());
        self.ring();
        match is_sent {
            true => Ok(Accepted::Later),
            false => Err(io::Error::other("the thread of handshakes has ended")),
        }
    }
}

impl Drop for KeyedAcceptor {
    fn drop(&mut self) {
        self.streams = None;
        self.ring();
    }
}

/// A connection before its link.
struct Pending {
    stream: TcpStream,
    peer: SocketAddr,
    /// `None` once it was refused: the peer reads why, and its last bytes are read, since closing a
    /// socket with unread bytes takes back what was sent.
    handshake: Option<Handshake>,
    until: Instant,
}

/// The thread.
struct Handshakes {
    keyring: Arc<Keyring>,
    config: Arc<remote_keys::ServerConfig>,
    poller: Poller,
    doorbell: Arc<OwnedFd>,
    arriving: Receiver<TcpStream>,
    server: ServerHandle,
    /// Asks for the lists of other members.
    wanted: Sender<()>,
    sharing: Arc<AtomicU32>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    log: LogLimit,
    began: Instant,
}

impl Handshakes {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            let due = self.pending.values().map(|it| it.until).min();
            let left = due.map_or(TICK, |due| due.saturating_duration_since(now));
            // Rounded up, so that what is due then is.
            let timeout = left.min(TICK) + Duration::from_millis(1);
            if let Err(why) = self.poller.wait(timeout) {
                tracing::error!("no more handshakes: {why}");
                return;
            }
            while let Some(ready) = self.poller.next_ready() {
                match ready.name {
                    DOORBELL => {
                        if !self.take_arriving() {
                            return;
                        }
                    }
                    id => self.advance(id),
                }
            }
            self.expire();
        }
    }

    /// Takes new connections. Returns false once the server has ended.
    fn take_arriving(&mut self) -> bool {
        let _ = rustix::io::read(&*self.doorbell, &mut [0; 8]);
        loop {
            match self.arriving.try_recv() {
                Ok(stream) => {
                    if let Err(why) = self.begin(stream) {
                        self.warn(format_args!("a connection was not accepted: {why}"));
                    }
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn begin(&mut self, stream: TcpStream) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        self.make_room();
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let handshake = Handshake::server(&self.config).map_err(io::Error::other)?;
        let id = self.next;
        self.next += 1;
        self.poller.add(&stream, id)?;
        let pending = Pending {
            stream,
            peer,
            handshake: Some(handshake),
            until: Instant::now() + HANDSHAKE_LIMIT,
        };
        self.pending.insert(id, pending);
        self.advance(id);
        Ok(())
    }

    /// Where there are as many handshakes as may be, closes the oldest of the network that has the most: a peer with
    /// a key needs no longer than two round trips, and one without can hold all places.
    fn make_room(&mut self) {
        if self.pending.len() < MAX_HANDSHAKES {
            return;
        }
        let mut crowds = BTreeMap::new();
        for it in self.pending.values() {
            *crowds.entry(network(it.peer.ip())).or_insert(0) += 1;
        }
        let crowd = |it: &Pending| crowds.get(&network(it.peer.ip())).copied();
        // Numbers rise, and of several the last is taken.
        let oldest = self.pending.iter().rev().max_by_key(|(_, it)| crowd(it));
        let Some((id, peer)) = oldest.map(|(id, it)| (*id, it.peer)) else {
            return;
        };
        self.pending.remove(&id);
        self.warn(format_args!(
            "connection of {peer} closed: {MAX_HANDSHAKES} handshakes are under way, the most at once, and this one is the oldest of its network"
        ));
    }

    fn advance(&mut self, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        let Some(handshake) = &mut pending.handshake else {
            if drain(&mut pending.stream) {
                self.pending.remove(&id);
            }
            return;
        };
        match handshake.advance(&mut pending.stream) {
            Ok(Progress::Wait { output }) => {
                if self.poller.set(&pending.stream, id, true, output).is_err() {
                    self.pending.remove(&id);
                }
            }
            Ok(Progress::Done) => self.finish(id),
            Err(why) => self.refuse(id, &why),
        }
    }

    /// Hands over the link.
    fn finish(&mut self, id: u64) {
        let Some(Pending {
            stream,
            peer,
            handshake: Some(handshake),
            ..
        }) = self.pending.remove(&id)
        else {
            return;
        };
        // The server's thread waits for it from now on.
        let removed = self.poller.remove(&stream);
        let outcome = removed
            .map_err(HandshakeError::from)
            .and_then(|()| handshake.into_stream(stream));
        match outcome {
            // Removed since it sent its certificate: the list of that change found no link of its.
            Ok(stream) if !self.keyring.is_member(&stream.peer()) => {
                self.warn(format_args!(
                    "connection of {peer} closed: it was removed from the cluster"
                ));
            }
            Ok(stream) if stream.protocol() == Protocol::Members => self.share(peer, stream),
            Ok(stream) => match Link::keyed(stream) {
                Ok(link) => self.server.add_link(link),
                Err(why) => self.warn(format_args!("connection of {peer} closed: {why}")),
            },
            Err(why) => self.warn(format_args!("connection of {peer} closed: {why}")),
        }
    }

    /// Shares lists of members, in a thread of its own.
    fn share(&mut self, peer: SocketAddr, mut stream: KeyedStream<TcpStream>) {
        if self.sharing.fetch_add(1, Ordering::Relaxed) >= MAX_SHARING {
            self.sharing.fetch_sub(1, Ordering::Relaxed);
            return self.warn(format_args!(
                "{peer} did not share its list of members: {MAX_SHARING} others do"
            ));
        }
        let (keyring, sharing) = (Arc::clone(&self.keyring), Arc::clone(&self.sharing));
        let share = move || {
            let blocks = stream.stream().set_nonblocking(false).and_then(|()| {
                stream.stream().set_read_timeout(Some(sharing::LIMIT))?;
                stream.stream().set_write_timeout(Some(sharing::LIMIT))
            });
            let outcome = blocks
                .map_err(sharing::SharingError::from)
                .and_then(|()| sharing::answer(&keyring, &mut stream));
            if let Err(why) = outcome {
                tracing::debug!("{peer} did not share its list of members: {why}");
            }
            drop(stream);
            sharing.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("selfpage-members".to_owned());
        if thread.spawn(share).is_err() {
            self.sharing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends a handshake, and lets the peer read why.
    fn refuse(&mut self, id: u64, why: &HandshakeError) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        pending.handshake = None;
        pending.until = Instant::now() + FAREWELL;
        let peer = pending.peer;
        if let HandshakeError::Plain = why {
            let _ = pending.stream.write(&refusal_in_the_clear());
        }
        let _ = pending.stream.shutdown(Shutdown::Write);
        let is_over = drain(&mut pending.stream)
            || self.poller.set(&pending.stream, id, true, false).is_err();
        if is_over {
            self.pending.remove(&id);
        }
        if let HandshakeError::NotAccepted(_) = why {
            // It may be a member that this host has not learned of.
            let _ = self.wanted.send(());
        }
        self.warn(format_args!("connection of {peer} closed: {why}"));
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let late = self.pending.iter().filter(|(_, it)| it.until <= now);
        let late: Vec<_> = late
            .map(|(id, it)| (*id, it.peer, it.handshake.is_some()))
            .collect();
        for (id, peer, is_under_way) in late {
            self.pending.remove(&id);
            if is_under_way {
                let why = HandshakeError::Late(HANDSHAKE_LIMIT);
                self.warn(format_args!("connection of {peer} closed: {why}"));
            }
        }
    }

    fn warn(&mut self, line: std::fmt::Arguments<'_>) {
        self.log.warn(self.began.elapsed(), line);
    }
}

/// The network of an address: a host has the addresses of a /64 of IPv6 for nothing, and may have those of a /24.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) & !0xff).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
    }
}

/// Reads what is left, as far as it has arrived. Returns true at the end of the stream.
fn drain(stream: &mut TcpStream) -> bool {
    // A peer that goes on sending is closed by the clock.
    for _ in 0..16 {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(why) if why.kind() == ErrorKind::WouldBlock => return false,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
    false
}

/// A frame that a peer without keys understands.
fn refusal_in_the_clear() -> Vec<u8> {
    let text = "this server wants links with keys: leave out --insecure here, and join its cluster (`selfpage cluster join`)";
    let header = Header {
        pages: Status::Invalid as u16,
        ..Header::control(Kind::ErrorReply, 0)
    };
    [&header.encode(text.as_bytes())[..], text.as_bytes()].concat()
}
