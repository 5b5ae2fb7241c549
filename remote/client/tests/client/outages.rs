//! Outages of the client's own network, which are no fault of a server.

use crate::interposer::{Network, Verdict};
use crate::{PagingServer, count, is_create, space_on};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

#[test]
fn an_outage_of_all_servers_at_once_costs_no_copy() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    for server in &servers {
        server.interposer.set(|_, _, _| Verdict::Close);
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| space.write(0, 1, 2));
        pause(200);
        for server in &servers {
            server.interposer.set_network(Network::Partitioned);
            server.interposer.clear();
        }
        let created = count(&servers[1].interposer, is_create);
        // Longer than a server without a connection is waited for.
        pause(1300);
        servers[0].interposer.set_network(Network::Connected);
        pause(300);
        servers[1].interposer.set_network(Network::Connected);
        writer.join().unwrap().unwrap();
        pause(500);
        assert_eq!(created.load(Ordering::Relaxed), 0, "a copy is made again");
    });
    assert_eq!(space.read(0, 4), Ok(vec![2, 1, 1, 1]));
}

#[test]
fn a_silence_of_all_servers_at_once_costs_no_copy() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    let created: Vec<_> = servers
        .iter()
        .map(|server| count(&server.interposer, is_create))
        .collect();
    for server in &servers {
        server.interposer.set_network(Network::Partitioned);
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| space.write(0, 1, 2));
        // Longer than a silent server is waited for.
        pause(3600);
        for server in &servers {
            server.interposer.set_network(Network::Connected);
        }
        writer.join().unwrap().unwrap();
        pause(500);
    });
    let created: Vec<_> = created
        .iter()
        .map(|created| created.load(Ordering::Relaxed))
        .collect();
    assert_eq!(created, [0, 0], "a copy is made again");
    assert_eq!(space.read(0, 4), Ok(vec![2, 1, 1, 1]));
}
