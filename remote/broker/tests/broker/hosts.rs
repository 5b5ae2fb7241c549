//! Hosts of a test: a paging server and its broker on ports of their own.

use disk::atropos::{DiskContract, Utilization};
use disk::time::Nanos;
use remote_keys::{Fingerprint, Keyring};
use remote_policy::broker::{AllocationRequest, ReallocationRequest};
use remote_policy::capacity::{CapacityConfig, PermitRequest};
use remote_policy::election::Message;
use remote_policy::identity::{Epoch, HostId, Incarnation, RequestId};
use remote_policy::permit::PermitId;
use remote_server::{KeyedAcceptor, Server, ServerConfig};
use remote_wire::Link;
use remote_wire::identity::id_of_key;
use selfpage_remote_broker::client::{
    BrokerFinder, ClientError, HostLink, PermitAnswer, find_cluster, status,
};
use selfpage_remote_broker::link::ControlLinks;
use selfpage_remote_broker::protocol::{Cluster, ClusterStatus, Member, Reply, Request};
use selfpage_remote_broker::{BrokerConfig, RunningBroker, SeatConfig};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Pages that each server lends.
pub const PAGES: u64 = 1024;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

const QOS: DiskContract = DiskContract::new(Nanos::millis(1), Nanos::millis(100)).with_slack();

/// Waits until something holds.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A number that no other host or client of this test has.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A host.
pub struct Host {
    // First, so that it ends before the server does.
    broker: RunningBroker,
    server: Server,
    links: ControlLinks,
    key: Option<Fingerprint>,
    runtime: Runtime,
}

impl Host {
    /// Starts a host that is told of others.
    pub fn start(peers: &[String]) -> Self {
        Self::with_keys(peers, None)
    }

    /// Starts a host with the keys of a cluster.
    pub fn with_keys(peers: &[String], keys: Option<Arc<Keyring>>) -> Self {
        Self::with(peers, keys, SeatConfig::Tournament)
    }

    /// Starts a host with a seat.
    pub fn with(peers: &[String], keys: Option<Arc<Keyring>>, seat: SeatConfig) -> Self {
        let key = keys.as_ref().map(|keys| keys.fingerprint());
        let host = id_of_key(HostId(next_number()), key);
        let incarnation = Incarnation::new(host, 1, 1);
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::start(ServerConfig {
            listen: any,
            server: incarnation,
            name: "test".into(),
            ram: PAGES * 4096,
            disk: None,
            capacity: CapacityConfig {
                lendable_time: Utilization::percent(95),
                ..ServerConfig::default_capacity()
            },
            host: None,
            most_connections: remote_server::MAX_CONNECTIONS,
            patience: Duration::from_secs(10),
            acceptor: match &keys {
                None => Box::new(Link::plain),
                Some(keys) => Box::new(KeyedAcceptor::new(Arc::clone(keys)).unwrap()),
            },
        })
        .unwrap();
        let config = BrokerConfig {
            server: incarnation,
            name: "test".into(),
            paging: server.address(),
            control: any,
            advertise: None,
            peers: peers.to_vec(),
            uses_discovery: false,
            seat,
            keys: keys.clone(),
        };
        Self {
            links: ControlLinks::new(keys).unwrap(),
            key,
            broker: RunningBroker::start(config, server.handle()).unwrap(),
            server,
            runtime: runtime(),
        }
    }

    /// Its key.
    pub fn key(&self) -> Option<Fingerprint> {
        self.key
    }

    /// Its control port.
    pub fn control(&self) -> SocketAddr {
        self.broker.member().control
    }

    /// Its paging server.
    pub fn paging(&self) -> SocketAddr {
        self.broker.member().paging
    }

    /// The hosts that it knows.
    pub fn cluster(&self) -> Option<Cluster> {
        self.runtime
            .block_on(find_cluster(&self.links, self.control(), &[]))
            .ok()
    }

    /// The state, if this host is the broker.
    pub fn status(&self) -> Option<ClusterStatus> {
        let own = self
            .runtime
            .block_on(status(&self.links, self.control()))
            .ok()?;
        let broker = own.cluster.broker().map(Member::host);
        (broker == Some(self.broker.member().host())).then_some(own)
    }

    /// Pages that its server has granted.
    pub fn granted_pages(&self) -> u64 {
        let (sender, receiver) = channel();
        let act = move |issuer: &mut remote_server::PermitIssuer| {
            sender.send(issuer.capacity().granted_pages()).unwrap();
        };
        self.server.handle().with_issuer(act);
        receiver.recv_timeout(PATIENCE).unwrap()
    }

    /// A member that no host is.
    pub fn forged_member(&self) -> Member {
        let mut member = self.broker.member();
        member.server.host = HostId(u64::MAX);
        member
    }

    /// Claims that a forger would send: by this host's broker, and by an epoch that is the last.
    pub fn claims_by(&self, forged: &Member) -> [Message; 2] {
        let epoch = |number, broker| Message::Claim {
            epoch: Epoch { number, broker },
        };
        [
            epoch(1 << 20, self.broker.member().server),
            epoch(u64::MAX, forged.server),
        ]
    }
}

/// A client of hosts.
pub struct Client {
    client: Incarnation,
    finder: BrokerFinder,
    links: ControlLinks,
    control: SocketAddr,
    runtime: Runtime,
}

impl Client {
    /// A client that was told of one host.
    pub fn new(host: &Host) -> Self {
        Self::of(&[host])
    }

    /// A client that was told of hosts.
    pub fn of(hosts: &[&Host]) -> Self {
        let host = id_of_key(HostId(next_number()), hosts[0].key);
        let client = Incarnation::new(host, 2, 1);
        let named = hosts.iter().map(|host| host.control().to_string());
        let links = hosts[0].links.clone();
        let mut this = Self {
            client,
            finder: BrokerFinder::new(client, "client".into(), named.collect(), links.clone()),
            links,
            control: hosts[0].control(),
            runtime: runtime(),
        };
        this.runtime.block_on(this.finder.refresh()).unwrap();
        this
    }

    fn next_request(&self) -> RequestId {
        RequestId {
            client: self.client,
            number: next_number(),
        }
    }

    /// A request for a permit.
    pub fn allocation(&self, pages: u64) -> Request {
        Request::Allocate(AllocationRequest {
            permit: PermitRequest {
                id: self.next_request(),
                object: None,
                pages,
                qos: QOS,
            },
            hints: Vec::new(),
            exclude: BTreeSet::new(),
        })
    }

    /// Requests a permit.
    pub fn allocate(&mut self, pages: u64) -> PermitAnswer {
        let request = self.allocation(pages);
        self.request(&request)
    }

    /// Requests permits, each before another is answered.
    pub fn allocate_at_once(&self, pages: &[u64]) -> Vec<PermitAnswer> {
        let mut asked = JoinSet::new();
        let _entered = self.runtime.enter();
        for pages in pages {
            let request = self.allocation(*pages);
            let mut finder = self.finder.clone();
            asked.spawn(async move { finder.request_permit(&request, PATIENCE).await });
        }
        let answers = self.runtime.block_on(asked.join_all());
        let answers = answers.into_iter();
        answers.map(|answer| answer.expect("no answer")).collect()
    }

    /// Requests another size of a permit.
    pub fn reallocate(&mut self, permit: PermitId, pages: u64) -> PermitAnswer {
        let request = Request::Reallocate(ReallocationRequest {
            id: self.next_request(),
            permit,
            pages,
        });
        self.request(&request)
    }

    fn request(&mut self, request: &Request) -> PermitAnswer {
        let asked = self.finder.request_permit(request, PATIENCE);
        self.runtime.block_on(asked).expect("no answer")
    }

    /// Sends the request of this client by links of another host.
    pub fn ask_by(&self, other: &ControlLinks, request: &Request) -> Result<Reply, ClientError> {
        self.runtime.block_on(async {
            let client = Some(self.client);
            let mut link = HostLink::connect(other, self.control, client, "other").await?;
            link.ask(request, PATIENCE).await
        })
    }

    /// Sends a request in the name of a client, or of none.
    pub fn ask_as(
        &self,
        client: Option<Incarnation>,
        request: &Request,
    ) -> Result<Reply, ClientError> {
        self.runtime.block_on(async {
            let mut link = HostLink::connect(&self.links, self.control, client, "other").await?;
            link.ask(request, PATIENCE).await
        })
    }
}
