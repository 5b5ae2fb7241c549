//! Outages of the client's own network, which are no fault of a server.

use crate::interposer::{Direction, Network, Verdict};
use crate::space::{Page, Space};
use crate::{PagingServer, count, is_create, space_on};
use remote_wire::control::{ControlRequest, decode};
use remote_wire::{Header, Kind};
use selfpage_remote_client::OBJECT_PAGES;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wired::PAGE;

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

/// A frame that answers nothing is no sign that a server goes on with what it was asked.
#[test]
fn a_server_that_sends_frames_and_answers_nothing_is_silent() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    let insert = servers[0].interposer.inserter();
    servers[0]
        .interposer
        .set(move |direction, _, _| match direction {
            Direction::ToServer => {
                insert(&Header::control(Kind::Notice, 0), &[0xff; 4]);
                Verdict::Forward
            }
            Direction::ToClient => Verdict::Drop,
        });
    assert_eq!(space.write(0, 1, 2), Ok(()));
    assert_eq!(space.read(0, 4), Ok(vec![2, 1, 1, 1]));
}

/// More than the schedule's bound on what is in flight.
#[test]
fn reads_of_a_silent_server_stop_none_of_another() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let addresses = servers.each_ref().map(PagingServer::address);
    let mut space = Space::of_objects(4, &addresses, 1);
    let of = |server: &PagingServer| count(&server.interposer, |it, _| it.kind == Kind::Write);
    // Which server has each object.
    let places: Vec<usize> = (0..4)
        .map(|object| {
            let written = servers.each_ref().map(of);
            let pages = object * OBJECT_PAGES..object * OBJECT_PAGES + READS as u64;
            for first in pages.step_by(RUN) {
                space.write(first, RUN, 1).unwrap();
            }
            let has = |counted: &Arc<AtomicU64>| counted.load(Ordering::Relaxed) > 0;
            written.iter().position(has).expect("a server")
        })
        .collect();
    let there = places.iter().position(|at| *at != places[0]);
    let there = there.expect("an object at the other server") as u64 * OBJECT_PAGES;
    servers[places[0]]
        .interposer
        .set_network(Network::Partitioned);
    let mut pages = vec![Page([0; PAGE]); READS];
    let processes = pages.chunks_mut(RUNS * RUN).enumerate();
    let mut processes: Vec<_> = processes
        .map(|(at, pages)| space.begin_reads((at * RUNS * RUN) as u64, pages, RUN))
        .collect();
    assert_eq!(space.read(there, RUN), Ok(vec![1; RUN]));
    servers[places[0]]
        .interposer
        .set_network(Network::Connected);
    for process in &mut processes {
        for _ in 0..RUNS {
            let (_, bytes) = process.reap(true).expect("a reply");
            assert_eq!(bytes, (RUN * PAGE) as i32);
        }
    }
    assert!(pages.iter().all(|page| page.0 == [1; PAGE]));
}

/// Pages that are read of the silent server at once: by four processes, so many runs of each.
const READS: usize = 4 * RUNS * RUN;
const RUNS: usize = 16;
const RUN: usize = 16;
