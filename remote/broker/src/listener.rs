//! The control port: connections of hosts and of clients.
//!
//! Rule: what a connection can hold is bounded: its number of all, the time until its Hello, the length of
//! each message, one request at a time. A connection that sends what is no message is closed, with a line. Peers
//! that send no Hello have few descriptors of all, and peers of one address a part: they keep no other peer out.

use crate::address_limit::AddressLimit;
use crate::frame::{self, FrameError, MAX_HELLO, MAX_MESSAGE};
use crate::host::Event;
use crate::link::{self, ControlLink, ControlLinks};
use crate::peer_log::PeerLog;
use crate::protocol::{Hello, HostMessage, Member, Reply, Request};
use remote_policy::identity::{HostId, Incarnation};
use remote_wire::identity::is_id_of_key;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Most connections at once: each has a descriptor and a message.
const MAX_CONNECTIONS: usize = 1024;
/// Most connections of one address that have introduced themselves, so that no host keeps others out: those of a host's
/// programs, and many times its own.
const MAX_OF_ADDRESS: usize = 256;
/// A long message, and most of them of one address at once: each may take ten seconds, and a megabyte meanwhile.
const LONG: usize = 64 << 10;
const MAX_LONG: usize = 16;
/// Most connections that have not introduced themselves: the next takes the place of the oldest.
const MAX_GREETING: usize = 256;
/// How long a connection may take to introduce itself.
const HELLO: Duration = Duration::from_secs(2);
/// How long a client may send nothing, or leave a reply unread.
const IDLE: Duration = Duration::from_secs(60);
/// How long a request for a permit waits for its server, before the client is left to ask again.
const ANSWER: Duration = Duration::from_secs(2);

/// The connections that have not introduced themselves, the oldest first.
#[derive(Default)]
struct Greeting(VecDeque<AbortHandle>);

impl Greeting {
    /// Adds one.
    fn push(&mut self, greeting: AbortHandle) {
        self.0.retain(|it| !it.is_finished());
        if self.0.len() >= MAX_GREETING
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(greeting);
    }
}

/// What all connections share.
struct Port {
    links: ControlLinks,
    events: Sender<Event>,
    /// Links of hosts until now.
    host_links: AtomicU64,
    log: PeerLog,
    addresses: Arc<AddressLimit>,
    long: Arc<AddressLimit>,
}

/// Accepts connections until the host ends.
pub async fn listen(listener: TcpListener, links: ControlLinks, events: Sender<Event>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let port = Arc::new(Port {
        links,
        events,
        host_links: AtomicU64::new(0),
        log: PeerLog::default(),
        addresses: AddressLimit::new(MAX_OF_ADDRESS),
        long: AddressLimit::new(MAX_LONG),
    });
    let mut greeting = Greeting::default();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match link::accept(&listener).await {
            Ok((stream, peer)) => {
                let port = Arc::clone(&port);
                let links = port.links.clone();
                let greeted = tokio::spawn(timeout(HELLO, greet(links, stream)));
                greeting.push(greeted.abort_handle());
                tokio::spawn(async move {
                    // Otherwise it was late, or was closed for another.
                    if let Ok(Ok(greeted)) = greeted.await {
                        port.serve(greeted, peer).await;
                    }
                    drop(place);
                });
            }
            Err(why) => {
                port.log.warn(format_args!(
                    "the control port accepts no connection: {why}"
                ));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Receives a peer's introduction.
async fn greet(links: ControlLinks, stream: TcpStream) -> Result<(ControlLink, Hello), FrameError> {
    let mut link = links.accept(stream).await?;
    let hello = frame::read(link.stream(), MAX_HELLO).await;
    if let Err(FrameError::Version(_)) = hello {
        // So that the peer says which version it is to be.
        frame::write_version(link.stream()).await?;
    }
    Ok((link, hello?))
}

impl Port {
    async fn serve(&self, greeted: Result<(ControlLink, Hello), FrameError>, peer: SocketAddr) {
        let Some(_place) = self.addresses.take(peer.ip()) else {
            return self.log.warn(format_args!(
                "the control connection of {peer} is closed: its address has {MAX_OF_ADDRESS}, the most of one"
            ));
        };
        let served = match greeted {
            Ok((link, Hello::Host(member))) => self.serve_host(link, member, peer.ip()).await,
            Ok((link, Hello::Client { client, name })) => {
                self.serve_client(link, client, &name, peer.ip()).await
            }
            Err(why) => Err(why),
        };
        match served {
            Err(FrameError::Stream(why)) => tracing::debug!("{peer}: {why}"),
            Err(why) => self.log.warn(format_args!(
                "the control connection of {peer} is closed: {why}"
            )),
            Ok(()) => {}
        }
    }

    async fn serve_host(
        &self,
        mut link: ControlLink,
        member: Member,
        address: IpAddr,
    ) -> Result<(), FrameError> {
        let from = member.host();
        if !is_id_of_key(from, link.key()) {
            return Err(not_own(from));
        }
        self.links.share_if_unlisted(&link, member.paging);
        let number = self.host_links.fetch_add(1, Ordering::Relaxed);
        let connected = Event::Connected {
            member,
            link: number,
        };
        if self.events.send(connected).await.is_err() {
            return Ok(());
        }
        let served = self.receive_from_host(&mut link, from, address).await;
        let disconnected = Event::Disconnected {
            host: from,
            link: number,
        };
        let _ = self.events.send(disconnected).await;
        served
    }

    async fn receive_from_host(
        &self,
        link: &mut ControlLink,
        from: HostId,
        address: IpAddr,
    ) -> Result<(), FrameError> {
        loop {
            let message: HostMessage = self.read(link, address).await?;
            self.check(link, from)?;
            let event = Event::FromHost { from, message };
            if self.events.send(event).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Reads a message, if its peer's address has no more long ones under way than it may have.
    async fn read<M: DeserializeOwned>(
        &self,
        link: &mut ControlLink,
        address: IpAddr,
    ) -> Result<M, FrameError> {
        let length = frame::read_length(link.stream(), MAX_MESSAGE).await?;
        let place = match length > LONG {
            true => Some(self.long.take(address).ok_or_else(too_many)?),
            false => None,
        };
        let message = frame::read_body(link.stream(), length).await;
        drop(place);
        message
    }

    /// Refuses a peer that was removed from the cluster, or uses the name of another.
    fn check(&self, link: &ControlLink, name: HostId) -> Result<(), FrameError> {
        match self.links.accepts(link) && is_id_of_key(name, link.key()) {
            true => Ok(()),
            false => Err(not_own(name)),
        }
    }

    async fn serve_client(
        &self,
        mut link: ControlLink,
        client: Option<Incarnation>,
        name: &str,
        address: IpAddr,
    ) -> Result<(), FrameError> {
        let name = remote_wire::control::short_name(name);
        loop {
            let request = self.read::<Request>(&mut link, address);
            let Ok(request) = timeout(IDLE, request).await else {
                return Ok(());
            };
            let request = request?;
            match client {
                Some(client) => self.check(&link, client.host)?,
                None if !self.links.accepts(&link) => return Ok(()),
                None => {}
            }
            let (reply, replied) = oneshot::channel();
            let event = Event::FromClient {
                client,
                name: name.clone(),
                request,
                reply,
            };
            if self.events.send(event).await.is_err() {
                return Ok(());
            }
            let Ok(Ok(reply)) = timeout(ANSWER, replied).await else {
                // The client sees the end of the connection, and asks again.
                return Ok(());
            };
            let is_last = matches!(reply, Reply::Invalid(_));
            match timeout(IDLE, frame::write(link.stream(), &reply)).await {
                Ok(written) => written?,
                Err(_) => return Ok(()),
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

fn too_many() -> FrameError {
    let text = format!("its address has {MAX_LONG} messages of more than {LONG} bytes under way");
    io::Error::new(ErrorKind::QuotaExceeded, text).into()
}

fn not_own(name: HostId) -> FrameError {
    let text = format!("{name} is not the name of this peer, or the peer is no member any more");
    io::Error::new(ErrorKind::PermissionDenied, text).into()
}

#[cfg(test)]
mod tests;
