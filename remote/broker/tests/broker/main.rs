//! Brokers beside real paging servers, over real sockets of this host.

mod etcd;
mod hosts;
mod keyed;

use hosts::{Client, Host, PAGES, wait_until};
use remote_policy::broker::Refusal;
use remote_policy::capacity::{CapacityUpdate, ServerReport};
use selfpage_remote_broker::client::PermitAnswer;
use selfpage_remote_broker::frame;
use selfpage_remote_broker::protocol::{Cluster, Hello, HostMessage, Request};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// The epoch's number and host of the broker that all hosts obey, once they agree.
fn agreed(hosts: &[&Host]) -> Option<u64> {
    let clusters: Vec<Cluster> = hosts.iter().filter_map(|host| host.cluster()).collect();
    let brokers: BTreeSet<_> = clusters.iter().map(|cluster| cluster.broker).collect();
    let is_whole = |cluster: &Cluster| cluster.members.len() == hosts.len();
    let agree = clusters.len() == hosts.len() && brokers.len() == 1;
    let (_, epoch) = brokers.first().copied().flatten()?;
    (agree && clusters.iter().all(is_whole)).then_some(epoch.number)
}

/// Hosts that know each other and have one broker, which controls all their servers.
fn cluster_of(count: usize) -> Vec<Host> {
    let mut hosts = vec![Host::start(&[])];
    for _ in 1..count {
        let first = hosts[0].control().to_string();
        hosts.push(Host::start(&[first]));
    }
    wait_for_cluster(&hosts.iter().collect::<Vec<_>>());
    hosts
}

fn wait_for_cluster(hosts: &[&Host]) {
    wait_until(
        "the hosts have one broker, which has all their servers",
        || {
            let has_all = |host: &&Host| {
                let status = host.status();
                status.is_some_and(|it| it.is_broker && it.servers.len() == hosts.len())
            };
            agreed(hosts).is_some() && hosts.iter().filter(|host| has_all(host)).count() == 1
        },
    );
}

#[test]
fn one_of_several_hosts_becomes_broker_of_all() {
    let hosts = cluster_of(4);
    let brokers = hosts
        .iter()
        .filter(|host| host.status().is_some_and(|status| status.is_broker));
    assert_eq!(brokers.count(), 1);
}

#[test]
fn a_client_gets_permits_of_all_servers_and_no_page_twice() {
    let hosts = cluster_of(3);
    let mut client = Client::new(&hosts[1]);
    let mut servers = BTreeSet::new();
    for _ in 0..hosts.len() {
        match client.allocate(PAGES) {
            PermitAnswer::Granted(sealed) => _ = servers.insert(sealed.permit.id.server),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(servers.len(), hosts.len());
    let refused = client.allocate(1);
    assert!(
        matches!(
            refused,
            PermitAnswer::Refused(Refusal::Pages { servers: 3, .. })
        ),
        "{refused:?}"
    );
    for host in &hosts {
        assert!(host.granted_pages() <= PAGES);
    }
}

#[test]
fn a_permit_is_enlarged_where_it_is() {
    let hosts = cluster_of(2);
    let mut client = Client::new(&hosts[0]);
    let PermitAnswer::Granted(first) = client.allocate(10) else {
        panic!("no permit");
    };
    let PermitAnswer::Granted(larger) = client.reallocate(first.permit.id, 50) else {
        panic!("not enlarged");
    };
    assert_eq!(larger.permit.id, first.permit.id);
    assert_eq!(larger.permit.granted_pages, 50);
    let more = client.reallocate(first.permit.id, PAGES + 1);
    assert!(matches!(more, PermitAnswer::Refused(_)), "{more:?}");
}

#[test]
fn another_host_becomes_broker_when_the_broker_ends_and_permits_are_issued_again() {
    let mut hosts = cluster_of(3);
    let mut client = Client::new(&hosts[0]);
    assert!(matches!(client.allocate(10), PermitAnswer::Granted(_)));
    let is_broker = |host: &Host| host.status().is_some_and(|status| status.is_broker);
    let broker = hosts.iter().position(is_broker).unwrap();
    let before = agreed(&hosts.iter().collect::<Vec<_>>()).unwrap();
    drop(hosts.remove(broker));
    // The client is not told: it finds the new one itself.
    let begun = Instant::now();
    assert!(matches!(client.allocate(10), PermitAnswer::Granted(_)));
    println!("a permit {:.2?} after the broker's end", begun.elapsed());
    wait_until("the two that are left have one broker", || {
        let epochs = hosts
            .iter()
            .map(|host| host.cluster().and_then(|it| it.broker));
        let epochs: BTreeSet<_> = epochs.collect();
        epochs.len() == 1
            && epochs
                .first()
                .unwrap()
                .is_some_and(|(_, it)| it.number > before)
    });
}

#[test]
fn a_host_that_starts_later_is_found_and_lends() {
    let mut hosts = cluster_of(1);
    let mut client = Client::new(&hosts[0]);
    assert!(matches!(client.allocate(PAGES), PermitAnswer::Granted(_)));
    let first = hosts[0].control().to_string();
    hosts.push(Host::start(&[first]));
    wait_for_cluster(&hosts.iter().collect::<Vec<_>>());
    assert!(matches!(client.allocate(PAGES), PermitAnswer::Granted(_)));
}

#[test]
fn a_refusal_counts_though_a_host_is_known_that_lends_nothing() {
    let hosts = cluster_of(1);
    let mut client = Client::new(&hosts[0]);
    let mut stream = TcpStream::connect(hosts[0].control()).unwrap();
    let silent = Hello::Host(hosts[0].forged_member());
    stream.write_all(&frame::encode(&silent).unwrap()).unwrap();
    wait_until("the silent host is known", || {
        hosts[0]
            .cluster()
            .is_some_and(|cluster| cluster.members.len() == 2)
    });
    let refused = client.allocate(PAGES + 1);
    assert!(matches!(refused, PermitAnswer::Refused(_)), "{refused:?}");
}

#[test]
fn several_requests_at_once_are_answered() {
    let hosts = cluster_of(2);
    let client = Client::new(&hosts[0]);
    let answers = client.allocate_at_once(&[10; 16]);
    let is_granted = |answer: &PermitAnswer| matches!(answer, PermitAnswer::Granted(_));
    assert_eq!(answers.iter().filter(|it| is_granted(it)).count(), 16);
    let granted: u64 = hosts.iter().map(Host::granted_pages).sum();
    assert_eq!(granted, 160);
}

#[test]
fn hosts_that_one_client_names_are_introduced_to_each_other() {
    let hosts = [Host::start(&[]), Host::start(&[])];
    let _client = Client::of(&hosts.iter().collect::<Vec<_>>());
    wait_for_cluster(&hosts.iter().collect::<Vec<_>>());
}

#[test]
fn garbage_and_messages_of_others_change_nothing() {
    let hosts = cluster_of(2);
    let connect = || TcpStream::connect(hosts[0].control()).unwrap();
    // The port closes what is no message.
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[0; 64],
        &[5, 0, 0, 0, 1],
    ] {
        let mut stream = connect();
        // The port may close at the first bytes, and a reset is a close, too.
        let _ = stream
            .write_all(garbage)
            .and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    // A request in the name of another client is refused, and so is one of no client.
    let mut client = Client::new(&hosts[0]);
    let request = client.allocation(10);
    assert!(client.ask_as(None, &request).is_err());
    // A host that claims an epoch of another host's broker is not obeyed, nor one that no broker can have.
    let forged = hosts[0].forged_member();
    let claims = hosts[1].claims_by(&forged);
    let mut stream = connect();
    stream
        .write_all(&frame::encode(&Hello::Host(forged)).unwrap())
        .unwrap();
    for message in claims {
        // The port may close after the first of them.
        let _ = stream.write_all(&frame::encode(&HostMessage::Election(message)).unwrap());
    }
    // The hosts still have their broker, which issues permits.
    assert!(matches!(client.allocate(10), PermitAnswer::Granted(_)));
    // The forger is one of the hosts for as long as it is connected, and no longer.
    drop(stream);
    wait_until("the hosts have their broker", || {
        agreed(&hosts.iter().collect::<Vec<_>>()).is_some()
    });
    let unasked = Request::FindBroker { others: Vec::new() };
    assert!(client.ask_as(None, &unasked).is_ok());
}

#[test]
fn a_host_that_has_not_granted_its_server_lends_nothing() {
    let host = Host::start(&[]);
    wait_for_cluster(&[&host]);
    let hosts = || host.cluster().map_or(0, |cluster| cluster.members.len());
    let (_, epoch) = host.cluster().unwrap().broker.unwrap();
    let stranger = host.forged_member();
    let update = CapacityUpdate {
        server: stranger.host(),
        epoch,
        serial: 1,
        lendable_pages: u64::MAX,
    };
    let permits = Vec::new();
    let report = HostMessage::Report(ServerReport { update, permits });
    let mut stream = TcpStream::connect(host.control()).unwrap();
    let mut send = |bytes: Vec<u8>| stream.write_all(&bytes).unwrap();
    send(frame::encode(&Hello::Host(stranger)).unwrap());
    send(frame::encode(&report).unwrap());
    wait_until("the host knows the stranger", || hosts() == 2);
    // The end of its connection comes after its report.
    drop(stream);
    wait_until("the host knows the stranger no more", || hosts() == 1);
    let servers = host.status().map(|status| status.servers.len());
    assert_eq!(servers, Some(1));
    let mut client = Client::new(&host);
    assert!(matches!(client.allocate(10), PermitAnswer::Granted(_)));
}
