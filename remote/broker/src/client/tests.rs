//! Brokers of this file's own, of which a client reaches more than they reach of each other.

use super::*;
use crate::frame::{self, MAX_HELLO, MAX_MESSAGE};
use crate::protocol::{Hello, Member};
use crate::test_member::{member_at, runtime};
use disk::atropos::DiskContract;
use disk::time::Nanos;
use remote_policy::broker::AllocationRequest;
use remote_policy::capacity::PermitRequest;
use remote_policy::identity::RequestId;
use remote_policy::permit::{Permit, PermitId};
use tokio::net::{TcpListener, TcpStream};

const QOS: DiskContract = DiskContract::new(Nanos::millis(1), Nanos::millis(100)).with_slack();

fn incarnation(host: u64) -> Incarnation {
    Incarnation::new(HostId(host), 1, 1)
}

fn epoch(broker: u64) -> Epoch {
    Epoch {
        number: 7,
        broker: incarnation(broker),
    }
}

/// The hosts that `members[0]`, which is a broker, names.
fn cluster(members: &[Member]) -> Cluster {
    let broker = members[0].host();
    Cluster {
        broker: Some((broker, epoch(broker.0))),
        members: members.to_vec(),
    }
}

/// Answers one connection's requests: those for hosts by `named`, others by `reply`.
async fn serve(stream: TcpStream, named: Arc<Mutex<Cluster>>, reply: Reply) {
    let links = ControlLinks::in_clear();
    let mut link = links.accept(stream).await.unwrap();
    let hello = frame::read::<Hello>(link.stream(), MAX_HELLO).await;
    hello.unwrap();
    while let Ok(request) = frame::read::<Request>(link.stream(), MAX_MESSAGE).await {
        let answer = match request {
            Request::FindBroker { .. } => Reply::Cluster(named.lock().unwrap().clone()),
            _ => reply.clone(),
        };
        frame::write(link.stream(), &answer).await.unwrap();
    }
}

fn start(listener: TcpListener, named: &Arc<Mutex<Cluster>>, reply: Reply) {
    let named = Arc::clone(named);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&named), reply.clone()));
        }
    });
}

fn granted(client: Incarnation, server: u64) -> SealedPermit {
    let permit = Permit {
        id: PermitId {
            server: HostId(server),
            number: 1,
        },
        client,
        object: None,
        granted_pages: 64,
        epoch: epoch(server),
        qos: QOS,
    };
    SealedPermit {
        permit,
        mac: [0; 32],
    }
}

#[test]
fn what_a_broker_refuses_is_requested_of_hosts_that_it_does_not_name_any_more() {
    runtime().block_on(request_beside_a_broker_that_is_cut_off());
}

async fn request_beside_a_broker_that_is_cut_off() {
    let listeners = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let addresses = listeners.each_ref().map(|it| it.local_addr().unwrap());
    let (first, second) = (member_at(1, addresses[0]), member_at(2, addresses[1]));
    let client = incarnation(9);
    let refused = Refusal::Pages {
        asked: 64,
        most: 0,
        servers: 1,
    };
    let named = Arc::new(Mutex::new(cluster(&[first.clone(), second.clone()])));
    let [one, other] = listeners;
    start(one, &named, Reply::Refused(refused));
    let sealed = granted(client, 2);
    let of_second = Arc::new(Mutex::new(cluster(&[second])));
    start(other, &of_second, Reply::Permit(sealed));
    let hosts = vec![addresses[0].to_string()];
    let mut finder = BrokerFinder::new(client, String::new(), hosts, ControlLinks::in_clear());
    finder.refresh().await.unwrap();
    // It is cut off from the second host, and this client is not.
    *named.lock().unwrap() = cluster(&[first]);
    let request = Request::Allocate(AllocationRequest {
        permit: PermitRequest {
            id: RequestId { client, number: 1 },
            object: None,
            pages: 64,
            qos: QOS,
        },
        hints: Vec::new(),
        exclude: BTreeSet::new(),
    });
    let answer = finder.request_permit(&request, Duration::from_secs(20));
    assert_eq!(answer.await, Some(PermitAnswer::Granted(sealed)));
}

#[test]
fn a_client_that_goes_on_asks_the_hosts_that_it_knew() {
    runtime().block_on(go_on_without_the_named_host());
}

async fn go_on_without_the_named_host() {
    let listeners = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let [gone, there] = listeners.each_ref().map(|it| it.local_addr().unwrap());
    let [first, second] = listeners;
    drop(first);
    let named = Arc::new(Mutex::new(cluster(&[member_at(2, there)])));
    start(second, &named, Reply::Permit(granted(incarnation(9), 2)));
    let (client, hosts) = (incarnation(9), vec![gone.to_string()]);
    let links = ControlLinks::in_clear();
    let mut finder = BrokerFinder::resume(client, String::new(), hosts, vec![there], links);
    finder.refresh().await.unwrap();
    assert_eq!(finder.cluster().members.len(), 1);
}
