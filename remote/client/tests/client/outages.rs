//! Outages of the client's own network, which are no fault of a server.

use crate::interposer::{Direction, Network, Verdict};
use crate::{PagingServer, count, is_create, space_on};
use remote_wire::Kind;
use remote_wire::control::{ControlRequest, decode};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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

/// Each request is answered, and the answers to earlier ones come all the time.
#[test]
fn a_link_on_which_requests_wait_for_seconds_is_not_silent() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    let connections = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    for server in &servers {
        let connections = Arc::clone(&connections);
        server.interposer.set(move |direction, header, body| {
            let is_first = header.kind == Kind::Control
                && matches!(decode(body), Ok(ControlRequest::Hello { .. }));
            connections.fetch_add(is_first.into(), Ordering::Relaxed);
            match direction {
                // The queue grows.
                Direction::ToServer => {
                    Verdict::Delay((begun.elapsed() / 2).min(Duration::from_secs(4)))
                }
                Direction::ToClient => Verdict::Forward,
            }
        });
    }
    pause(8500);
    space.write(0, 1, 2).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![2, 1, 1, 1]));
    let connections = connections.load(Ordering::Relaxed);
    assert_eq!(connections, 0, "they are made again");
}
