//! Servers that refuse an object's first copy: for a moment, and for good.

use crate::addresses::Host;
use crate::interposer::Verdict;
use crate::space::Space;
use crate::{ENOSPC, PagingServer, is_create, refuse, refuse_copies, space_on};
use remote_wire::control::{ControlRequest, decode};
use remote_wire::{Header, Kind, Status};
use std::time::{Duration, Instant};

/// How long the client takes refusals for those of a moment, and the least time after which it gives up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Another round of requests, and what a busy machine takes.
const ROUND: Duration = Duration::from_secs(5);

fn is_allocate(header: &Header, body: &[u8]) -> bool {
    header.kind == Kind::Control && matches!(decode(body), Ok(ControlRequest::Allocate { .. }))
}

/// Has each server refuse the first requests of a kind.
fn refuse_first(servers: &[PagingServer], mut count: usize, is: fn(&Header, &[u8]) -> bool) {
    for server in servers {
        server.interposer.set(move |_, header, body| {
            if count > 0 && is(header, body) {
                count -= 1;
                return refuse(header, body, Status::Full);
            }
            Verdict::Forward
        });
    }
}

#[test]
fn a_write_waits_for_servers_that_refuse_its_first_copy_for_a_moment() {
    for is in [is_allocate, is_create] {
        let servers = [PagingServer::start(1), PagingServer::start(2)];
        refuse_first(&servers, 1, is);
        let mut space = space_on(&servers);
        assert_eq!(space.write(0, 4, 1), Ok(()));
        assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
    }
}

#[test]
fn writes_that_no_server_has_room_for_fail_within_seconds() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    servers
        .iter()
        .for_each(|server| refuse_copies(&server.interposer));
    let mut space = space_on(&servers);
    let begun = Instant::now();
    assert_eq!(space.write(0, 4, 1), Err(ENOSPC));
    let first = begun.elapsed();
    assert!(first >= PATIENCE && first < PATIENCE + ROUND, "{first:?}");
    // The cluster is known to be full, and a pager tries many pages before it gives up.
    let begun = Instant::now();
    for page in 0..50 {
        assert_eq!(space.write(page, 4, 1), Err(ENOSPC));
    }
    let rest = begun.elapsed();
    assert!(rest < ROUND, "{rest:?}");
    servers.iter().for_each(|server| server.interposer.clear());
    // A server that refused is asked again after some seconds.
    std::thread::sleep(2 * PATIENCE);
    assert_eq!(space.write(0, 4, 1), Ok(()));
}

#[test]
fn writes_that_no_broker_grants_memory_fail_as_where_no_server_has_room() {
    let host = Host::start_without_broker(1);
    let mut space = Space::by_broker(&[host.control()], 1);
    assert_eq!(space.write(0, 4, 1), Err(ENOSPC));
    // A pager tries many pages before it gives up: those that follow do not wait.
    for page in 0..50 {
        assert_eq!(space.write(page, 4, 1), Err(ENOSPC));
    }
}
