//! Servers that refuse an object's first copy: for a moment, and for good.

use crate::addresses::Host;
use crate::interposer::{Direction, Verdict};
use crate::space::Space;
use crate::stripes::{MEMBERS, check, write};
use crate::{
    ENOSPC, PagingServer, count, is_create, refuse, refuse_copies, space_on, wait_for_pages,
    wait_until,
};
use remote_wire::control::{ControlReply, ControlRequest, ServerNotice, decode, encode};
use remote_wire::{Header, Kind, Status};
use selfpage_remote_client::OBJECT_PAGES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    let addresses = servers.each_ref().map(PagingServer::address);
    let mut space = Space::of_objects(4, &addresses, 2);
    let begun = Instant::now();
    assert_eq!(space.write(0, 4, 1), Err(ENOSPC));
    let first = begun.elapsed();
    assert!(first >= PATIENCE && first < PATIENCE + ROUND, "{first:?}");
    // The cluster is known to be full, and a pager tries many pages before it gives up.
    let begun = Instant::now();
    for page in 0..50 {
        assert_eq!(space.write(page, 4, 1), Err(ENOSPC));
        let in_other_object = (page % 4) * OBJECT_PAGES + page;
        assert_eq!(space.write(in_other_object, 4, 1), Err(ENOSPC));
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

#[test]
fn a_copy_whose_server_refuses_to_write_it_is_made_at_another_server() {
    let servers = [1, 2, 3].map(PagingServer::start);
    let addresses: Vec<_> = servers.iter().map(PagingServer::address).collect();
    let created: Vec<_> = servers
        .iter()
        .map(|server| count(&server.interposer, is_create))
        .collect();
    let mut space = Space::new(&addresses, 2);
    space.write(0, 4, 1).unwrap();
    let has_copy = |at: &usize| created[*at].load(Ordering::Relaxed) > 0;
    let full = (0..3).find(has_copy).unwrap();
    let idle = (0..3).find(|at| !has_copy(at)).unwrap();
    let copies = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&copies);
    servers[full].interposer.set(move |_, header, body| {
        counted.fetch_add(is_create(header, body).into(), Ordering::Relaxed);
        match header.kind {
            Kind::Write => refuse(header, body, Status::Disk),
            _ => Verdict::Forward,
        }
    });
    space.write(0, 2, 2).unwrap();
    wait_for_pages(&servers[idle]);
    assert_eq!(copies.load(Ordering::Relaxed), 0, "it is made there again");
    assert_eq!(space.read(0, 4), Ok(vec![2, 2, 1, 1]));
}

fn is_terminate(header: &Header, body: &[u8]) -> bool {
    header.kind == Kind::Control && matches!(decode(body), Ok(ControlRequest::Terminate { .. }))
}

/// The server would count its pages as used for the rest of the client's life.
#[test]
fn an_object_whose_end_is_lost_with_its_connection_is_ended_on_the_next_one() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let is_created_first = Arc::new(AtomicBool::new(false));
    let (counted, is_early) = (Arc::clone(&ended), Arc::clone(&is_created_first));
    let mut writes = 0;
    servers[0].interposer.set(move |_, header, body| {
        writes += u32::from(header.kind == Kind::Write);
        if is_create(header, body) && counted.load(Ordering::Relaxed) < 2 {
            is_early.store(true, Ordering::Relaxed);
        }
        match is_terminate(header, body) {
            true if counted.fetch_add(1, Ordering::Relaxed) == 0 => Verdict::Close,
            false if header.kind == Kind::Write && writes == 1 => {
                refuse(header, body, Status::Disk)
            }
            _ => Verdict::Forward,
        }
    });
    space.write(0, 2, 2).unwrap();
    wait_until("the object is ended", || ended.load(Ordering::Relaxed) > 1);
    assert!(!is_created_first.load(Ordering::Relaxed));
    assert_eq!(space.read(0, 4), Ok(vec![2, 2, 1, 1]));
}

/// Has a server take back most of what it has granted once a parity is created there, and refuse the pages of parities
/// until more are asked for. A server does so whose host is short of memory for a moment.
fn take_back_beside_parity(server: &PagingServer) {
    let insert = server.interposer.inserter();
    let (mut permit, mut is_full, mut has_taken) = (None, false, false);
    server.interposer.set(move |direction, header, body| {
        if direction == Direction::ToClient {
            if header.kind == Kind::ControlReply
                && let Ok(ControlReply::Permit(sealed)) = decode(body)
            {
                permit = Some(sealed);
            }
            return Verdict::Forward;
        }
        match (header.kind, decode(body)) {
            (Kind::Control, Ok(ControlRequest::Reallocate { .. })) => is_full = false,
            (Kind::Control, Ok(ControlRequest::Create { object, .. }))
                if object.number >= MEMBERS && !has_taken =>
            {
                let mut sealed = permit.expect("a permit");
                sealed.permit.granted_pages = 100;
                let notice = encode(&ServerNotice::Rewritten(sealed)).unwrap();
                insert(&Header::control(Kind::Notice, 0), &notice);
                (is_full, has_taken) = (true, true);
            }
            (Kind::Write, _) if header.object.number >= MEMBERS && is_full => {
                return refuse(header, body, Status::Full);
            }
            _ => {}
        }
        Verdict::Forward
    });
}

/// The pages that were refused are nowhere any more: they are computed anew.
#[test]
fn a_parity_whose_writes_were_refused_gives_its_members_back() {
    let mut servers: Vec<_> = (1..=5).map(PagingServer::start).collect();
    let addresses: Vec<_> = servers.iter().map(PagingServer::address).collect();
    servers.iter().for_each(take_back_beside_parity);
    let mut space = Space::striped(MEMBERS, &addresses);
    write(&mut space);
    wait_until("there is a stripe", || space.progress.stripes_made() > 0);
    // The second copies go with the next ticks.
    std::thread::sleep(Duration::from_millis(500));
    servers.remove(0);
    check(&mut space);
}
