//! What arrives at the thread that serves pages: from servers, and from the threads that wait for others.

use crate::broker_link::BrokerNews;
use crate::connector::{Attempt, ServerConnection};
use crate::objects::bit;
use crate::permits;
use crate::process::MAX_SERVERS;
use crate::server::Server;
use crate::transport::RemoteTransport;
use disk::time::{Nanos, Time};
use remote_broker::protocol::{Cluster, Member};
use remote_policy::identity::HostId;
use remote_wire::Kind;
use remote_wire::identity::is_id_of_key;
use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Of so many probes all but one are of the server that was sent to last, by a read that finds nothing:
/// epoll takes a system call to say so of all, and another to read what has come. Polling for one page took 76
/// calls of epoll_wait (`perf stat -e syscalls:sys_enter_epoll_wait`).
const PROBES: u32 = 8;
/// The bell of the connectors among the descriptors that are polled.
pub const BELL: u64 = u64::MAX;

/// Something that arrived.
pub enum Arrival {
    /// From a connector.
    Attempt(Attempt),
    /// From the link to the broker.
    Broker(BrokerNews),
    /// The host of the server with this index is no member of the cluster any more.
    Removed(usize),
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

/// Receives what has arrived: most times from the server that was sent to last.
pub fn receive(transport: &mut RemoteTransport, now: Time) {
    transport.probes = (transport.probes + 1) % PROBES;
    // What the client does by itself has replies of other servers, which a read of the program need not wait for.
    let is_alone = transport.requests.parts_in_use() == 0 && transport.is_copying();
    if transport.probes == 0 || is_alone || transport.degraded.is_busy() {
        return receive_all(transport, now);
    }
    // Without a request only what comes unasked is awaited.
    if transport.requests.parts_in_use() > 0 {
        receive_from(transport, transport.recent, now);
    }
}

/// Receives what has arrived, on links and from connectors.
pub fn receive_all(transport: &mut RemoteTransport, now: Time) {
    let mut ready = [const { MaybeUninit::uninit() }; 16];
    let zero = Timespec::default();
    let Ok((events, _)) = epoll::wait(&transport.epoll, &mut ready, Some(&zero)) else {
        return;
    };
    for event in events {
        match event.data.u64() {
            BELL => on_arrivals(transport, now),
            index => receive_from(transport, index as usize, now),
        }
    }
}

fn receive_from(transport: &mut RemoteTransport, index: usize, now: Time) {
    // The frames borrow the link's buffer, and their handling the transport.
    let Some(mut open) = transport
        .servers
        .get_mut(index)
        .and_then(|server| server.open.take())
    else {
        return;
    };
    let mut failed = None;
    match open.reader.fill(&mut open.link) {
        Ok(true) => {}
        Ok(false) => failed = Some("it closed the connection".to_owned()),
        Err(why) => failed = Some(why.to_string()),
    }
    let mut later = Vec::new();
    let mut has_frame = false;
    loop {
        let frame = open.reader.next_frame();
        has_frame |= matches!(frame, Ok(Some(_)));
        match frame {
            Ok(Some(frame)) if matches!(frame.header.kind, Kind::ControlReply | Kind::Notice) => {
                later.push((frame.header, frame.body.to_vec()));
            }
            Ok(Some(frame)) => {
                if let Err(why) = transport.on_page_frame(now, index, &frame, &mut later) {
                    failed = Some(why);
                    break;
                }
            }
            // The buffer was full, and the link has more that the socket has handed over. Buffers have sizes by which
            // that is never so: a server that sends without a pause has the thread for one fill at a time.
            Ok(None) if failed.is_none() && open.link.has_buffered_input() => {
                match open.reader.fill(&mut open.link) {
                    Ok(true) => {}
                    Ok(false) => failed = Some("it closed the connection".to_owned()),
                    Err(why) => failed = Some(why.to_string()),
                }
            }
            Ok(None) => break,
            Err(why) => {
                failed = Some(why.to_string());
                break;
            }
        }
    }
    transport.servers[index].open = Some(open);
    if has_frame {
        transport.servers[index].is_suspected = false;
    }
    for (header, body) in later {
        permits::on_control_frame(transport, now, index, &header, &body);
    }
    if let Some(why) = failed {
        transport.on_link_lost(index, now, &why);
    }
}

fn on_arrivals(transport: &mut RemoteTransport, now: Time) {
    let _ = rustix::io::read(&transport.bell, &mut [0; 8]);
    while let Ok(arrival) = transport.arrivals.try_recv() {
        match arrival {
            Arrival::Attempt(attempt) => on_attempt(transport, attempt, now),
            Arrival::Broker(news) => permits::on_broker_news(transport, news, now),
            Arrival::Removed(server) => {
                transport.on_link_lost(server, now, "its host was removed from the cluster");
            }
        }
    }
}

/// A connector has a connection, or none.
pub fn on_attempt(
    transport: &mut RemoteTransport,
    Attempt {
        server,
        address,
        begun,
        outcome,
    }: Attempt,
    now: Time,
) {
    if address != transport.servers[server].address {
        // It was begun before the server moved: what is there now may be another host.
        return transport.servers[server].retry();
    }
    let ago = Nanos::from(begun.elapsed());
    let begun = Time(now.0.saturating_sub(ago.0));
    let connection = match outcome {
        Ok(connection) => connection,
        Err(why) => {
            let to = &mut transport.servers[server];
            to.presence.on_attempt_failed(begun);
            return tracing::debug!("{}: {why}", to.address);
        }
    };
    if transport.servers[server].is_up() {
        // A second one, of a connector that was told to hurry.
        return;
    }
    let host = connection.welcome.server.host;
    if is_of_other_machine(&transport.servers[server], &connection) && has_copies(transport, server)
    {
        // What has its pages may be elsewhere, or come back.
        let to = &mut transport.servers[server];
        to.presence.on_attempt_failed(begun);
        if to.on_alias(now) {
            let (name, other) = (&to.name, &connection.welcome.name);
            tracing::warn!("{other} is at {address}, where {name} was, and has none of its pages");
        }
        return;
    }
    if let Some(known) = alias_of(transport, server, host) {
        let name = known.name.clone();
        if transport.servers[server].on_alias(now) {
            tracing::warn!(
                "{address} is {name} again, and is not used: name other servers for more copies"
            );
        }
        return;
    }
    let (to, epoll) = (&mut transport.servers[server], &transport.epoll);
    let before = to.host().filter(|before| *before != host);
    if let Some(gone) = before {
        // Another host has the address now.
        let _ = transport.organizer.on_server_lost(gone);
    }
    match to.connect(connection, now, epoll, server) {
        Ok(is_other) => transport.on_connected(server, is_other, now),
        Err(why) => transport.on_link_lost(server, now, &why.to_string()),
    }
}

/// The hosts are these, those that the broker has links to first: servers that are new are connected to, and those that
/// are elsewhere are connected to there.
pub fn on_cluster(transport: &mut RemoteTransport, cluster: &Cluster, now: Time) {
    for member in &cluster.members {
        let mut servers = transport.servers.iter_mut();
        if let Some(known) = servers.find(|server| server.host() == Some(member.host())) {
            known.move_to(&member.paging.to_string());
            known.control = Some(member.control);
        }
    }
    let wanted = &cluster.members[..cluster.members.len().min(MAX_SERVERS)];
    for member in wanted {
        if !transport.servers.iter().any(|it| it.is_of(member)) {
            add_server(transport, member, wanted, now);
        }
    }
}

/// Adds a server, where there is no room in the place of one that is not wanted.
fn add_server(transport: &mut RemoteTransport, member: &Member, wanted: &[Member], now: Time) {
    let address = member.paging.to_string();
    let index = transport.servers.len();
    if index < MAX_SERVERS {
        match transport.connectors.start(index, &address) {
            Ok(reconnect) => transport.servers.push(Server::new(address, reconnect)),
            Err(why) => tracing::warn!("{} is not used: {why}", member.name),
        }
    } else if let Some(index) = (0..index).find(|at| is_needless(transport, *at, wanted)) {
        transport.lose_server(index, now);
        transport.servers[index].replace(address);
    }
}

/// Returns true if a server is away and has no copy, and is none of those that are wanted.
fn is_needless(transport: &RemoteTransport, index: usize, wanted: &[Member]) -> bool {
    let server = &transport.servers[index];
    let is_away = !server.is_up() && !wanted.iter().any(|member| server.is_of(member));
    is_away && !has_copies(transport, index)
}

/// Returns true if a server has a copy of an object.
fn has_copies(transport: &RemoteTransport, server: usize) -> bool {
    let mut objects = transport.objects.iter();
    objects.any(|(_, of)| of.servers(|_| true) & bit(server) != 0)
}

/// Returns true if another machine is at a server's address. Its own machine has another id once it has booted again, and
/// none of the pages: it is known by its key, in the clear by its name.
fn is_of_other_machine(server: &Server, found: &ServerConnection) -> bool {
    let (key, welcome) = (found.link.peer_key(), &found.welcome);
    let is_other = |known: HostId| match key {
        Some(_) => !is_id_of_key(known, key),
        // The name of one that was restored is not known.
        None => {
            let is_named = server.name != server.address;
            is_named && known != welcome.server.host && server.name != welcome.name
        }
    };
    server.host().is_some_and(is_other)
}

/// The server that has this host by another address: two copies of an object there were one.
fn alias_of(transport: &RemoteTransport, server: usize, host: HostId) -> Option<&Server> {
    let mut others = transport.servers.iter().enumerate();
    let is_same = |(at, other): &(usize, &Server)| *at != server && other.host() == Some(host);
    others.find(is_same).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OBJECT_PAGES;
    use crate::objects::{ObjectMap, SpaceSize};
    use crate::restore::tests::{CLIENT, transport_of};
    use remote_policy::identity::Incarnation;
    use std::net::SocketAddr;
    use std::sync::mpsc::channel;
    use wired::PAGE;

    #[test]
    fn a_host_that_has_the_address_of_another_one_gets_a_place_of_its_own() {
        let space = SpaceSize {
            bytes: OBJECT_PAGES * PAGE as u64,
            has_stripes: false,
        };
        let state = ObjectMap::new_state(space, false).unwrap();
        let mut transport = transport_of(ObjectMap::new(CLIENT.host, space, None, state));
        let [address, control]: [SocketAddr; 2] = [1, 2].map(|at| ([127, 0, 1, at], 1).into());
        let mut first = Server::new(address.to_string(), channel().0);
        first.incarnation = Some(Incarnation::new(HostId(7), 1, 1));
        assert!(first.on_alias(Time(0)));
        transport.servers.push(first);
        let member = |host, paging| Member {
            server: Incarnation::new(HostId(host), 1, 1),
            name: format!("server{host}"),
            paging,
            control,
            since: 0,
        };
        let cluster = |members| Cluster {
            broker: None,
            members,
        };
        on_cluster(&mut transport, &cluster(vec![member(8, address)]), Time(0));
        let addresses = |transport: &RemoteTransport| -> Vec<String> {
            let servers = transport.servers.iter();
            servers.map(|server| server.address.clone()).collect()
        };
        assert_eq!(
            addresses(&transport),
            [address, address].map(|at| at.to_string())
        );
        // The first one is elsewhere.
        let moved: SocketAddr = ([127, 0, 1, 3], 1).into();
        transport.servers[1].incarnation = Some(Incarnation::new(HostId(8), 1, 1));
        let members = vec![member(7, moved), member(8, address)];
        on_cluster(&mut transport, &cluster(members), Time(0));
        assert_eq!(
            addresses(&transport),
            [moved, address].map(|at| at.to_string())
        );
    }
}
