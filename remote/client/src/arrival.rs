//! What arrives at the thread that serves pages from the threads that wait for others.

use crate::broker_link::BrokerNews;
use crate::connector::Attempt;
use crate::process::MAX_SERVERS;
use crate::server::Server;
use crate::transport::RemoteTransport;
use disk::time::{Nanos, Time};
use remote_broker::protocol::Cluster;
use remote_policy::identity::HostId;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Something that arrived.
pub enum Arrival {
    /// From a connector.
    Attempt(Attempt),
    /// From the link to the broker.
    Broker(BrokerNews),
}

impl From<Attempt> for Arrival {
    fn from(attempt: Attempt) -> Self {
        Self::Attempt(attempt)
    }
}

impl From<BrokerNews> for Arrival {
    fn from(news: BrokerNews) -> Self {
        Self::Broker(news)
    }
}

/// The way in: a queue and a bell.
#[derive(Clone)]
pub struct Arrivals {
    pub queue: Sender<Arrival>,
    pub bell: Arc<OwnedFd>,
}

impl Arrivals {
    /// Queues something and rings. Returns false if the thread has ended.
    pub fn send(&self, arrival: Arrival) -> bool {
        let is_sent = self.queue.send(arrival).is_ok();
        // It fails only where the counter is full, and then the bell rings anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        is_sent
    }
}

/// A connector has a connection, or none.
pub fn on_attempt(
    transport: &mut RemoteTransport,
    Attempt {
        server,
        begun,
        outcome,
    }: Attempt,
    now: Time,
) {
    let connection = match outcome {
        Ok(connection) => connection,
        Err(why) => {
            let ago = Nanos::from(begun.elapsed());
            let begun = Time(now.0.saturating_sub(ago.0));
            let to = &mut transport.servers[server];
            to.presence.on_attempt_failed(begun);
            return tracing::debug!("{}: {why}", to.address);
        }
    };
    if transport.servers[server].is_up() {
        // A second one, of a connector that was told to hurry.
        return;
    }
    if let Some(known) = alias_of(transport, server, connection.welcome.server.host) {
        let name = known.name.clone();
        if transport.servers[server].on_alias(now) {
            let address = &transport.servers[server].address;
            tracing::warn!(
                "{address} is {name} again, and is not used: name other servers for more copies"
            );
        }
        return;
    }
    let (to, epoll) = (&mut transport.servers[server], &transport.epoll);
    let before = to
        .host()
        .filter(|host| *host != connection.welcome.server.host);
    if let Some(gone) = before {
        // Another host has the address now. Its copies are dropped as those of a server that starts again.
        let _ = transport.organizer.on_server_lost(gone);
    }
    match to.connect(connection, now, epoll, server) {
        Ok(is_other) => transport.on_connected(server, is_other, now),
        Err(why) => transport.on_link_lost(server, now, &why.to_string()),
    }
}

/// The hosts are these: servers that are new are connected to.
pub fn on_cluster(transport: &mut RemoteTransport, cluster: &Cluster) {
    for member in &cluster.members {
        let is_known = |server: &Server| server.is_at(member.host(), &member.paging.to_string());
        if transport.servers.len() >= MAX_SERVERS || transport.servers.iter().any(is_known) {
            continue;
        }
        let address = member.paging.to_string();
        match transport
            .connectors
            .start(transport.servers.len(), &address)
        {
            Ok(reconnect) => transport.servers.push(Server::new(address, reconnect)),
            Err(why) => tracing::warn!("{} is not used: {why}", member.name),
        }
    }
}

/// The server that has this host by another address: two copies of an object there were one.
fn alias_of(transport: &RemoteTransport, server: usize, host: HostId) -> Option<&Server> {
    let mut others = transport.servers.iter().enumerate();
    let is_same = |(at, other): &(usize, &Server)| *at != server && other.host() == Some(host);
    others.find(is_same).map(|(_, other)| other)
}
