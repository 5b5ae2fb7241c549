//! Servers whose addresses change.

use crate::interposer::Interposer;
use crate::space::Space;
use crate::{EIO, PagingServer, config, count, refuse_all, wait_until};
use remote_broker::client::find_cluster;
use remote_broker::link::ControlLinks;
use remote_broker::protocol::{Hello, Member};
use remote_broker::{BrokerConfig, RunningBroker, SeatConfig, frame};
use remote_policy::identity::{HostId, Incarnation};
use remote_server::{Server, ServerConfig};
use remote_wire::{Kind, Status};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;

/// More hosts than a client has places for servers.
const MANY: u8 = 40;

/// A host that lends.
pub struct Host {
    // It ends before its server.
    broker: RunningBroker,
    server: Server,
}

impl Host {
    /// Starts a life of a host at ports that are free, and introduces it to others.
    fn start(host: u64, life: u64, peers: &[SocketAddr]) -> Self {
        Self::start_with(host, life, peers, SeatConfig::Tournament)
    }

    /// Starts a host whose seat is never taken: etcd is gone.
    pub fn start_without_broker(host: u64) -> Self {
        Self::start_with(host, 1, &[], "etcd:127.0.0.1:1".parse().unwrap())
    }

    fn start_with(host: u64, life: u64, peers: &[SocketAddr], seat: SeatConfig) -> Self {
        let config = config(host);
        let incarnation = Incarnation {
            start_ticks: life,
            ..config.server
        };
        let server = Server::start(ServerConfig {
            server: incarnation,
            ..config
        });
        let server = server.unwrap();
        let config = BrokerConfig {
            server: incarnation,
            name: format!("server{host}"),
            paging: server.address(),
            control: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            peers: peers.iter().map(SocketAddr::to_string).collect(),
            uses_discovery: false,
            seat,
            keys: None,
        };
        Self {
            broker: RunningBroker::start(config, server.handle()).unwrap(),
            server,
        }
    }

    pub fn control(&self) -> SocketAddr {
        self.broker.member().control
    }
}

#[test]
fn a_server_that_comes_back_at_another_address_gets_copies_again() {
    let first = Host::start(1, 1, &[]);
    let second = Host::start(2, 1, &[first.control()]);
    let mut space = Space::by_broker(&[first.control(), second.control()], 2);
    space.write(0, 4, 1).unwrap();
    let before = second.server.address();
    drop(second);
    let made = space.progress.copies_made();
    let second = Host::start(2, 2, &[first.control()]);
    assert_ne!(second.server.address(), before);
    wait_until("a copy is made again", || {
        space.progress.copies_made() > made
    });
    drop(first);
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

/// Hosts that a host lists, and at which there is no paging server. They are gone when this is dropped.
struct AbsentServers {
    _control: TcpListener,
    _connections: Vec<TcpStream>,
}

impl AbsentServers {
    fn list_at(host: &Host) -> Self {
        let control = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = |number: u8| {
            let mut member: Member = host.broker.member();
            member.server.host = HostId(1000 + u64::from(number));
            member.paging = ([127, 0, 1, number], 1).into();
            member.control = control.local_addr().unwrap();
            let hello = frame::encode(&Hello::Host(member)).unwrap();
            let mut stream = TcpStream::connect(host.control()).unwrap();
            stream.write_all(&hello).unwrap();
            stream
        };
        let connections = (1..=MANY).map(connect).collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let links = ControlLinks::in_clear();
        wait_until("they are listed", || {
            let cluster = runtime.block_on(find_cluster(&links, host.control(), &[]));
            cluster.is_ok_and(|cluster| cluster.members.len() > MANY.into())
        });
        Self {
            _control: control,
            _connections: connections,
        }
    }
}

#[test]
fn a_server_takes_the_place_of_one_that_is_gone() {
    let first = Host::start(1, 1, &[]);
    let absent = AbsentServers::list_at(&first);
    let mut space = Space::by_broker(&[first.control()], 2);
    space.write(0, 4, 1).unwrap();
    drop(absent);
    let _second = Host::start(2, 1, &[first.control()]);
    wait_until("a copy is made", || space.progress.copies_made() > 0);
    drop(first);
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

/// As where a server of DHCP gives it to another machine: the first one is elsewhere with its pages, or comes back.
#[test]
fn a_server_whose_address_another_host_has_for_a_while_keeps_its_copies() {
    let (first, other) = (PagingServer::start(1), PagingServer::start(2));
    let before = Interposer::new(first.address());
    let mut space = Space::new(&[before.address], 1);
    space.write(0, 8, 1).unwrap();
    let connections = count(&other.interposer, |header, _| header.kind == Kind::Control);
    before.point_to(other.address());
    wait_until("the other host is connected to", || {
        connections.load(Ordering::Relaxed) > 0
    });
    before.point_to(first.address());
    assert_eq!(space.read(0, 8), Ok(vec![1; 8]));
}

/// It has another id then, and none of the pages.
#[test]
fn a_machine_that_has_booted_again_is_used_at_once() {
    let (first, name) = (PagingServer::start(1), config(1).name);
    let second = Server::start(ServerConfig { name, ..config(2) }).unwrap();
    let again = Interposer::new(second.address());
    let before = Interposer::new(first.address());
    let mut space = Space::new(&[before.address], 1);
    space.write(0, 8, 1).unwrap();
    let connections = count(&again, |header, _| header.kind == Kind::Control);
    before.point_to(again.address);
    wait_until("it is connected to", || {
        connections.load(Ordering::Relaxed) > 0
    });
    assert_eq!(space.read(0, 1), Err(EIO));
    assert_eq!(space.write(0, 8, 2), Ok(()));
    assert_eq!(space.read(0, 8), Ok(vec![2; 8]));
}

#[test]
fn another_host_at_the_address_of_a_server_without_copies_takes_its_place() {
    let (first, other) = (PagingServer::start(1), PagingServer::start(2));
    let before = Interposer::new(first.address());
    let mut space = Space::new(&[before.address], 1);
    // There is a connection.
    assert_eq!(space.write(0, 1, 1), Ok(()));
    refuse_all(&first.interposer, Kind::Read, Status::NoObject);
    assert_eq!(space.read(0, 1), Err(EIO));
    before.point_to(other.address());
    assert_eq!(space.write(0, 8, 2), Ok(()));
    assert_eq!(space.read(0, 8), Ok(vec![2; 8]));
}
