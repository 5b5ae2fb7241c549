//! The client's side: finds the broker, asks it, and goes on when there is another.
//!
//! Rule: an answer is believed from a broker that knows as many servers as the hosts do. A broker that was
//! regenerated a moment ago has one server, and its refusal says nothing about the others.

use crate::discovery;
use crate::frame::{self, FrameError, MAX_MESSAGE};
use crate::link::{self, ControlLink};
use crate::protocol::{Cluster, ClusterStatus, Hello, Reply, Request};
use remote_policy::broker::Refusal;
use remote_policy::identity::Incarnation;
use remote_wire::control::SealedPermit;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How long one host may take to answer. A broker that is stopped is passed over in it.
const ANSWER: Duration = Duration::from_millis(700);
/// How long answers on the link are waited for.
const ON_LINK: Duration = Duration::from_millis(300);
/// Most hosts that are asked at once where the broker does not answer.
const MAX_ASKED: usize = 8;
/// Pause between attempts to find a broker.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a refusal is not believed while the broker lacks servers that the hosts know.
const REGENERATION: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// No answer in time.
    #[error("it does not answer for {ANSWER:?}")]
    Silent,
    /// An answer to something else.
    #[error("it answers what was not asked")]
    Answer,
    /// The host refuses the request itself.
    #[error("{0}")]
    Invalid(String),
}

/// Of several answers the one with the latest broker is right, and of those the one with most hosts.
fn rank(cluster: &Cluster) -> (Option<u64>, usize) {
    let epoch = cluster.broker().and(cluster.broker);
    (epoch.map(|(_, epoch)| epoch.number), cluster.members.len())
}

impl From<std::io::Error> for ClientError {
    fn from(error: std::io::Error) -> Self {
        Self::Frame(error.into())
    }
}

/// A connection to one host's control port.
pub struct HostLink {
    link: ControlLink,
}

impl HostLink {
    /// Connects, as a client, or to look.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(
        address: SocketAddr,
        client: Option<Incarnation>,
        name: &str,
    ) -> Result<Self, ClientError> {
        let mut link = link::connect(address).await?;
        let hello = Hello::Client {
            client,
            name: name.to_owned(),
        };
        frame::write(&mut link, &hello).await?;
        Ok(Self { link })
    }

    /// Sends a request and waits for its reply, for `limit` at most. After an error the connection is of
    /// no use.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn ask(&mut self, request: &Request, limit: Duration) -> Result<Reply, ClientError> {
        let exchange = async {
            frame::write(&mut self.link, request).await?;
            Ok::<_, ClientError>(frame::read(&mut self.link, MAX_MESSAGE).await?)
        };
        match timeout(limit, exchange).await {
            Ok(Ok(Reply::Invalid(why))) => Err(ClientError::Invalid(why)),
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::Silent),
        }
    }
}

/// The hosts that the one at `address` knows. It is told of `others`.
///
/// # Errors
/// [`ClientError`].
pub async fn find_cluster(
    address: SocketAddr,
    others: &[SocketAddr],
) -> Result<Cluster, ClientError> {
    let others = others.to_vec();
    let ask = async {
        let mut link = HostLink::connect(address, None, "").await?;
        link.ask(&Request::FindBroker { others }, ANSWER).await
    };
    match timeout(ANSWER, ask)
        .await
        .map_err(|_| ClientError::Silent)??
    {
        Reply::Cluster(cluster) => Ok(cluster),
        _ => Err(ClientError::Answer),
    }
}

/// The state of everything, as the broker of the host at `address` knows it.
///
/// # Errors
/// [`ClientError`].
pub async fn status(address: SocketAddr) -> Result<ClusterStatus, ClientError> {
    let first = status_of(address).await?;
    let broker = first.cluster.broker().map(|member| member.control);
    match broker {
        Some(broker) if !first.is_broker => Ok(status_of(broker).await.unwrap_or(first)),
        _ => Ok(first),
    }
}

async fn status_of(address: SocketAddr) -> Result<ClusterStatus, ClientError> {
    let mut link = HostLink::connect(address, None, "").await?;
    match link.ask(&Request::Status, ANSWER).await? {
        Reply::Status(status) => Ok(status),
        _ => Err(ClientError::Answer),
    }
}

/// The outcome of a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitAnswer {
    /// The permit.
    Granted(SealedPermit),
    /// None.
    Refused(Refusal),
}

/// Finds the broker for one client, again and again.
pub struct BrokerFinder {
    client: Incarnation,
    name: String,
    /// Control ports, HOST:PORT, to begin with; without any, hosts on the link are asked for.
    named: Vec<String>,
    cluster: Cluster,
    link: Option<HostLink>,
}

impl BrokerFinder {
    /// A client that begins with the hosts at `named`.
    pub fn new(client: Incarnation, name: String, named: Vec<String>) -> Self {
        Self {
            client,
            name,
            named,
            cluster: Cluster::default(),
            link: None,
        }
    }

    /// The hosts, as they were known last.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Asks the broker for the hosts, and where it does not answer the hosts for the broker. Returns true
    /// if one of them answers.
    pub async fn refresh(&mut self) -> bool {
        let broker = self.cluster.broker().map(|member| member.control);
        if let Some(broker) = broker
            && let Ok(cluster) = find_cluster(broker, &[]).await
        {
            self.set_cluster(cluster);
            return true;
        }
        let named = self.named_addresses().await;
        let known = self.cluster.members.iter().map(|member| member.control);
        let is_other = |address: &SocketAddr| Some(*address) != broker;
        let mut candidates: Vec<_> = known.filter(is_other).take(MAX_ASKED).collect();
        candidates.extend(&named);
        if candidates.is_empty() && self.named.is_empty() {
            candidates.extend(discovery::find(ON_LINK, false).await.unwrap_or_default());
        }
        // Hosts that this client was told of are to have one broker.
        let mut asked = JoinSet::new();
        for address in BTreeSet::from_iter(candidates) {
            let others: Vec<_> = named
                .iter()
                .copied()
                .filter(|one| *one != address)
                .collect();
            asked.spawn(async move { find_cluster(address, &others).await });
        }
        let mut best: Option<Cluster> = None;
        while let Some(Ok(answer)) = asked.join_next().await {
            if let Ok(cluster) = answer {
                let is_later = |best: &Cluster| rank(&cluster) > rank(best);
                if best.as_ref().is_none_or(is_later) {
                    best = Some(cluster);
                }
            }
        }
        let is_found = best.is_some();
        best.into_iter().for_each(|best| self.set_cluster(best));
        is_found
    }

    fn set_cluster(&mut self, cluster: Cluster) {
        if cluster.broker != self.cluster.broker {
            self.link = None;
        }
        self.cluster = cluster;
    }

    async fn named_addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for name in &self.named {
            if let Ok(found) = lookup_host(name).await {
                addresses.extend(found);
            }
        }
        addresses
    }

    /// Asks the broker for a permit until there is an answer that is to be believed, for `limit` at most.
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
                    self.refresh().await;
                    if begun.elapsed() >= REGENERATION || self.is_believed(why) {
                        return Some(PermitAnswer::Refused(why));
                    }
                }
                _ => _ = self.refresh().await,
            }
            sleep(PAUSE).await;
        }
        None
    }

    fn is_believed(&self, why: Refusal) -> bool {
        match why {
            Refusal::Pages { servers, .. } => servers >= self.cluster.members.len(),
            Refusal::Reallocation(_) => true,
            Refusal::Server(permit) => {
                let mut members = self.cluster.members.iter();
                !members.any(|member| member.host() == permit.server)
            }
        }
    }

    /// Sends the broker a request. `None` if it does not answer, or is not the broker any more.
    pub async fn ask_broker(&mut self, request: &Request) -> Option<Reply> {
        let address = self.cluster.broker()?.control;
        let mut link = match self.link.take() {
            Some(link) => link,
            None => HostLink::connect(address, Some(self.client), &self.name)
                .await
                .ok()?,
        };
        match link.ask(request, ANSWER).await {
            Ok(Reply::Cluster(cluster)) => {
                // It has lost the tournament: it knows the winner.
                self.set_cluster(cluster);
                None
            }
            Ok(reply) => {
                self.link = Some(link);
                Some(reply)
            }
            Err(why) => {
                tracing::debug!("the broker at {address}: {why}");
                None
            }
        }
    }
}
