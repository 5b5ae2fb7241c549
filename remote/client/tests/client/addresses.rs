//! Servers whose addresses change.

use crate::space::Space;
use crate::{config, wait_until};
use remote_broker::{BrokerConfig, RunningBroker, SeatConfig};
use remote_policy::identity::Incarnation;
use remote_server::{Server, ServerConfig};
use std::net::SocketAddr;

/// A host that lends.
struct Host {
    // It ends before its server.
    broker: RunningBroker,
    server: Server,
}

impl Host {
    /// Starts a life of a host at ports that are free, and introduces it to others.
    fn start(host: u64, life: u64, peers: &[SocketAddr]) -> Self {
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
            seat: SeatConfig::Tournament,
            keys: None,
        };
        Self {
            broker: RunningBroker::start(config, server.handle()).unwrap(),
            server,
        }
    }

    fn control(&self) -> SocketAddr {
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
