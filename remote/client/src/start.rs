//! How a client finds its servers when it starts, and when it goes on.

use crate::arrival::Arrival;
use crate::broker_link::{BrokerLink, BrokerNews, ServerSource};
use crate::client_state::SavedServer;
use crate::connector::{Attempt, Connectors};
use crate::process::{ClientError, MAX_SERVERS, call};
use crate::server::Server;
use remote_keys::Fingerprint;
use remote_policy::identity::{HostId, Incarnation};
use remote_wire::identity::{id_of_key, own_incarnation};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the first connection may take.
const FIRST: Duration = Duration::from_secs(5);

/// The link to the broker of a client that goes on: its servers are known. The hosts that were named may be gone.
pub fn resumed_broker(
    source: &ServerSource,
    servers: &[SavedServer],
    connectors: &Connectors,
) -> Result<Option<BrokerLink>, ClientError> {
    let former = servers.iter().filter_map(|server| server.control);
    match source {
        ServerSource::Broker(named) => {
            start_broker_link(named, former.collect(), connectors).map(Some)
        }
        ServerSource::Alone(_) => Ok(None),
    }
}

fn start_broker_link(
    named: &[String],
    former: Vec<SocketAddr>,
    connectors: &Connectors,
) -> Result<BrokerLink, ClientError> {
    let Connectors {
        client,
        name,
        keys,
        arrivals,
    } = connectors.clone();
    let link = BrokerLink::start(client, name, named.to_vec(), former, keys, arrivals);
    link.map_err(|_| call("start a thread")(Errno::AGAIN))
}

/// The link to the broker, the servers that there are, and how many of them answered.
pub fn first_servers(
    source: &ServerSource,
    connectors: &Connectors,
    arrived: &Receiver<Arrival>,
) -> Result<(Option<BrokerLink>, Vec<Server>, u32), ClientError> {
    let (broker, addresses) = find_servers(source, connectors, arrived)?;
    let mut servers = Vec::new();
    for (index, address) in addresses.into_iter().enumerate() {
        let reconnect = connectors.start(index, &address);
        let reconnect = reconnect.map_err(|_| call("start a thread")(Errno::AGAIN))?;
        servers.push(Server::new(address, reconnect));
    }
    let first = first_arrivals(servers.len(), arrived)?;
    let is_connected = |arrival: &&Arrival| matches!(arrival, Arrival::Attempt(_));
    let connected = first.iter().filter(is_connected).count() as u32;
    // The transport takes them as it takes later ones.
    first
        .into_iter()
        .for_each(|arrival| _ = connectors.arrivals.send(arrival));
    Ok((broker, servers, connected))
}

/// The link to the broker, and the addresses of the servers that there are.
fn find_servers(
    source: &ServerSource,
    connectors: &Connectors,
    arrived: &Receiver<Arrival>,
) -> Result<(Option<BrokerLink>, Vec<String>), ClientError> {
    let named = match source {
        ServerSource::Broker(named) => named,
        ServerSource::Alone(servers) => {
            return match servers.len() {
                1..=MAX_SERVERS => Ok((None, servers.clone())),
                count => Err(ClientError::Servers(count)),
            };
        }
    };
    let link = start_broker_link(named, Vec::new(), connectors)?;
    let begun = Instant::now();
    let mut addresses = Vec::new();
    let mut last = format!("none answers within {FIRST:?}");
    // Hosts that were named are to know each other first: one server is one copy.
    let wanted = named.len().max(1);
    while addresses.len() < wanted {
        let left = FIRST.saturating_sub(begun.elapsed());
        match arrived.recv_timeout(left) {
            Ok(Arrival::Broker(BrokerNews::Cluster(cluster))) => {
                let members = cluster.members.iter().take(MAX_SERVERS);
                addresses = members.map(|member| member.paging.to_string()).collect();
            }
            Ok(Arrival::Broker(BrokerNews::NoHost(why))) => last = why,
            Ok(_) => {}
            Err(_) if !addresses.is_empty() => break,
            Err(_) if named.is_empty() => return Err(ClientError::NoHost(last)),
            Err(_) => return Err(ClientError::NoNamedHost(named.join(", "), last)),
        }
    }
    Ok((Some(link), addresses))
}

/// What arrives until each server was tried, or as many as answer in time; one must have succeeded.
fn first_arrivals(
    servers: usize,
    arrived: &Receiver<Arrival>,
) -> Result<Vec<Arrival>, ClientError> {
    let begun = Instant::now();
    let mut first = Vec::new();
    let mut connected = BTreeSet::new();
    let mut failures = BTreeMap::new();
    while connected.len() + failures.len() < servers || connected.is_empty() {
        let left = FIRST.saturating_sub(begun.elapsed());
        match arrived.recv_timeout(left) {
            Ok(Arrival::Attempt(Attempt {
                server,
                outcome: Err(why),
                ..
            })) => _ = failures.insert(server, why),
            Ok(arrival) => {
                if let Arrival::Attempt(attempt) = &arrival {
                    failures.remove(&attempt.server);
                    connected.insert(attempt.server);
                }
                first.push(arrival);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    if connected.is_empty() {
        let last = failures.into_values().next_back();
        let why = last.unwrap_or_else(|| format!("no answer within {FIRST:?}"));
        return Err(ClientError::NoServer(why));
    }
    Ok(first)
}

/// A client that is no other: each tree is one of its own, as its permits die with it. Nothing that a process reads of
/// itself tells it from all others: in PID namespaces its number, and the /proc that it sees, may be those of another.
pub(crate) fn new_client(key: Option<Fingerprint>) -> Result<Incarnation, ClientError> {
    let mut host = [0; size_of::<u64>()];
    getrandom(&mut host, GetRandomFlags::empty()).map_err(call("get random bytes"))?;
    let host = id_of_key(HostId(u64::from_ne_bytes(host)), key);
    Ok(own_incarnation(host))
}
