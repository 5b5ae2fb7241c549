//! The client's side: finds the broker, asks it, and goes on when there is another.
//!
//! Rule: an answer is believed from a broker that knows as many servers as the hosts do. A broker that was
//! regenerated a moment ago has one server, and its refusal says nothing about the others. Nor does that of a broker that is
//! cut off from hosts which this client reaches: the broker that those have is asked, too.

use crate::discovery;
use crate::link::ControlLinks;
use crate::protocol::{Cluster, Reply, Request};
use crate::resolver::Resolver;
use remote_policy::broker::Refusal;
use remote_policy::identity::{Epoch, HostId, Incarnation};
use remote_wire::control::SealedPermit;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

mod host_link;
mod known_hosts;

use host_link::ANSWER;
pub use host_link::{ClientError, HostLink, find_cluster, status};
use known_hosts::KnownHosts;

/// How long answers on the link are waited for.
const ON_LINK: Duration = Duration::from_millis(300);
/// Most hosts that are asked at once where the broker does not answer.
const MAX_ASKED: usize = 8;
/// Pause between attempts to find a broker.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a refusal is not believed while the broker lacks servers that the hosts know.
const REGENERATION: Duration = Duration::from_secs(3);

/// Of several answers the one with the latest broker is right, and of those the one with most hosts.
fn rank(cluster: &Cluster) -> (Option<u64>, usize) {
    let epoch = cluster.broker().and(cluster.broker);
    (epoch.map(|(_, epoch)| epoch.number), cluster.members.len())
}

/// The outcome of a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitAnswer {
    /// The permit.
    Granted(SealedPermit),
    /// None.
    Refused(Refusal),
}

/// Finds the broker for one client, again and again. Each copy asks by a connection of its own, so that no
/// request waits for another's answer; what one learns of the hosts all know.
pub struct BrokerFinder {
    shared: Arc<Shared>,
    link: Option<(SocketAddr, HostLink)>,
    resolver: Resolver,
}

struct Shared {
    client: Incarnation,
    name: String,
    /// Control ports, HOST:PORT, to begin with; without any, hosts on the link are asked for.
    named: Vec<String>,
    /// Control ports that an earlier process of the client knew, which may be all that there are by now.
    former: Vec<SocketAddr>,
    links: ControlLinks,
    cluster: Mutex<Cluster>,
    known: Mutex<KnownHosts>,
    /// The broker whose refusals are doubted, with the servers that it has reports of, and since when.
    doubt: Mutex<Option<Doubt>>,
    /// A broker did not know this host's key, and a line says so.
    is_key_refused: AtomicBool,
}

/// A broker and servers that it knows of, and when it first refused with no more.
type Doubt = ((Option<(HostId, Epoch)>, Option<usize>), Instant);

impl Clone for BrokerFinder {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            link: None,
            resolver: Resolver::default(),
        }
    }
}

impl BrokerFinder {
    /// A client that begins with the hosts at `named`.
    pub fn new(client: Incarnation, name: String, named: Vec<String>, links: ControlLinks) -> Self {
        Self::resume(client, name, named, Vec::new(), links)
    }

    /// A client whose earlier process knew the hosts at the control ports `former`, too.
    pub fn resume(
        client: Incarnation,
        name: String,
        named: Vec<String>,
        former: Vec<SocketAddr>,
        links: ControlLinks,
    ) -> Self {
        let shared = Shared {
            client,
            name,
            named,
            former,
            links,
            cluster: Mutex::default(),
            known: Mutex::default(),
            doubt: Mutex::default(),
            is_key_refused: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            link: None,
            resolver: Resolver::default(),
        }
    }

    /// The hosts, as they were known last.
    pub fn cluster(&self) -> Cluster {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Cluster> {
        // Nothing panics while it is held.
        let cluster = self.shared.cluster.lock();
        cluster.unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, KnownHosts> {
        let known = self.shared.known.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    fn on_cluster(&self, cluster: Cluster) {
        self.known().enter(&cluster);
        *self.locked() = cluster;
    }

    /// Asks the broker for the hosts, and where it does not answer the hosts for the broker.
    ///
    /// # Errors
    /// Of one of the hosts, where none of them answers.
    pub async fn refresh(&mut self) -> Result<(), ClientError> {
        let cluster = self.cluster();
        let broker = cluster.broker().map(|member| member.control);
        if let Some(broker) = broker
            && let Ok(cluster) = find_cluster(&self.shared.links, broker, &[]).await
        {
            self.on_cluster(cluster);
            return Ok(());
        }
        let named = self.named_addresses().await;
        let known = cluster.members.iter().map(|member| member.control);
        let is_other = |address: &SocketAddr| Some(*address) != broker;
        let mut candidates: Vec<_> = known.filter(is_other).take(MAX_ASKED).collect();
        candidates.extend(&named);
        if candidates.is_empty() && self.shared.named.is_empty() {
            candidates.extend(discovery::find(ON_LINK).await.unwrap_or_default());
        }
        candidates.extend(&self.shared.former);
        // Hosts that this client was told of are to have one broker.
        let mut asked = JoinSet::new();
        for address in BTreeSet::from_iter(candidates) {
            let others = named.iter().copied();
            let others: Vec<_> = others.filter(|one| *one != address).collect();
            let links = self.shared.links.clone();
            asked.spawn(async move { find_cluster(&links, address, &others).await });
        }
        let mut best: Option<Cluster> = None;
        let mut last = ClientError::NoHost;
        while let Some(Ok(answer)) = asked.join_next().await {
            if let Ok(cluster) = &answer {
                self.known().enter(cluster);
            }
            match answer {
                Ok(cluster) if best.as_ref().is_none_or(|best| rank(&cluster) > rank(best)) => {
                    best = Some(cluster);
                }
                Ok(_) => {}
                Err(why) => last = why,
            }
        }
        *self.locked() = best.ok_or(last)?;
        Ok(())
    }

    async fn named_addresses(&mut self) -> Vec<SocketAddr> {
        let resolved = self.resolver.resolve(&self.shared.named).await;
        let found = resolved.into_iter().filter_map(|(_, found)| found.ok());
        found.flatten().collect()
    }

    /// Asks the broker for a permit until there is an answer that is to be believed, for `limit` at most: longer
    /// than a refusal is doubted, or no refusal ever counts.
    pub async fn request_permit(
        &mut self,
        request: &Request,
        limit: Duration,
    ) -> Option<PermitAnswer> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            match self.ask_broker(request).await {
                Some(Reply::Permit(sealed)) => return Some(PermitAnswer::Granted(sealed)),
                Some(Reply::Refused(why)) => {
                    let _ = self.refresh().await;
                    if self.is_believed(why) || self.is_past_doubt(why) {
                        let elsewhere = self.request_elsewhere(request, why).await;
                        let refused = PermitAnswer::Refused(why);
                        return Some(elsewhere.map_or(refused, PermitAnswer::Granted));
                    }
                }
                _ => {
                    tracing::debug!("no broker answers");
                    let _ = self.refresh().await;
                }
            }
            sleep(PAUSE).await;
        }
        None
    }

    /// Requests a permit that the broker refuses of the brokers that hosts have which it does not name.
    async fn request_elsewhere(&self, request: &Request, why: Refusal) -> Option<SealedPermit> {
        if let Refusal::Reallocation(_) = why {
            // The permit's server refuses, whichever broker asks.
            return None;
        }
        for broker in self.other_brokers().await {
            if let Ok((_, Reply::Permit(sealed))) = self.exchange(broker, None, request).await {
                return Some(sealed);
            }
        }
        None
    }

    async fn other_brokers(&self) -> BTreeSet<SocketAddr> {
        let own = self.cluster();
        let missing = self.known().missing_from(&own);
        let mut asked = JoinSet::new();
        for member in missing.into_iter().take(MAX_ASKED) {
            let links = self.shared.links.clone();
            asked.spawn(async move {
                let answer = find_cluster(&links, member.control, &[]).await;
                (member.host(), answer)
            });
        }
        let mut brokers = BTreeSet::new();
        while let Some(Ok((host, answer))) = asked.join_next().await {
            self.known().on_asked(host, answer.is_ok(), Instant::now());
            let Ok(cluster) = answer else {
                continue;
            };
            let other = cluster
                .broker()
                .filter(|other| Some(other.host()) != own.broker.map(|(host, _)| host));
            brokers.extend(other.map(|other| other.control));
        }
        brokers
    }

    /// Returns true if refusals of a broker that has reports of as many servers were doubted for long enough: one
    /// request's doubt is the next one's.
    fn is_past_doubt(&self, why: Refusal) -> bool {
        let servers = match why {
            Refusal::Pages { servers, .. } => Some(servers),
            Refusal::Reallocation(_) | Refusal::Server(_) => None,
        };
        let broker = self.locked().broker;
        let mut doubt = self
            .shared
            .doubt
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *doubt {
            Some((of, since)) if of == (broker, servers) => since.elapsed() >= REGENERATION,
            _ => {
                *doubt = Some(((broker, servers), Instant::now()));
                false
            }
        }
    }

    fn is_believed(&self, why: Refusal) -> bool {
        match why {
            Refusal::Pages { servers, .. } => servers >= self.locked().members.len(),
            Refusal::Reallocation(_) => true,
            Refusal::Server(permit) => {
                let cluster = self.locked();
                !cluster
                    .members
                    .iter()
                    .any(|member| member.host() == permit.server)
            }
        }
    }

    /// Sends the broker a request. `None` if it does not answer, or is not the broker any more.
    pub async fn ask_broker(&mut self, request: &Request) -> Option<Reply> {
        let address = self.locked().broker()?.control;
        let open = self.link.take().filter(|(to, _)| *to == address);
        match self.exchange(address, open, request).await {
            Ok((_, Reply::Cluster(cluster))) => {
                // It has lost the tournament: it knows the winner.
                self.on_cluster(cluster);
                None
            }
            Ok((link, reply)) => {
                self.link = Some((address, link));
                Some(reply)
            }
            Err(why) => {
                let is_first = why.is_unknown_key()
                    && !self.shared.is_key_refused.swap(true, Ordering::Relaxed);
                match is_first {
                    true => tracing::warn!(
                        "the broker at {address} grants this host no memory: {why}. Another member's server gives it a member's key within a minute"
                    ),
                    false => tracing::debug!("the broker at {address}: {why}"),
                }
                None
            }
        }
    }

    async fn exchange(
        &self,
        address: SocketAddr,
        open: Option<(SocketAddr, HostLink)>,
        request: &Request,
    ) -> Result<(HostLink, Reply), ClientError> {
        let Shared {
            client,
            name,
            links,
            ..
        } = &*self.shared;
        let mut link = match open {
            Some((_, link)) => link,
            None => HostLink::connect(links, address, Some(*client), name).await?,
        };
        let reply = link.ask(request, ANSWER).await?;
        Ok((link, reply))
    }
}

#[cfg(test)]
mod tests;
