//! The only copy in reach, beside a server that has just ended: a page that fails there fails alone, and the rest of the
//! object stays.

use crate::interposer::{Direction, Verdict};
use crate::stripes::{check, striped};
use crate::{EIO, PagingServer, refuse, refuse_all, space_on, wait_until};
use remote_wire::control::{ControlRequest, decode};
use remote_wire::{Kind, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a server for a client, and returns once the client knows: it does not give the server up at once.
pub fn end(server: &PagingServer) {
    let is_known = Arc::new(AtomicBool::new(false));
    let known = Arc::clone(&is_known);
    server.interposer.set(move |_, header, body| {
        let is_first = header.kind == Kind::Control
            && matches!(decode(body), Ok(ControlRequest::Hello { .. }));
        match is_first {
            true => {
                known.store(true, Ordering::Relaxed);
                Verdict::Drop
            }
            false => Verdict::Close,
        }
    });
    wait_until("the client connects again", || {
        is_known.load(Ordering::Relaxed)
    });
}

/// Has a server refuse the first request of a kind.
fn refuse_once(server: &PagingServer, kind: Kind) {
    let mut is_first = true;
    server.interposer.set(move |_, header, body| {
        match header.kind == kind && std::mem::take(&mut is_first) {
            true => refuse(header, body, Status::Disk),
            false => Verdict::Forward,
        }
    });
}

#[test]
fn a_read_that_fails_beside_a_server_that_ended_gives_up_no_other_page() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 8, 1).unwrap();
    refuse_once(&servers[0], Kind::Read);
    end(&servers[1]);
    assert_eq!(space.read(3, 1), Err(EIO));
    assert_eq!(space.read(0, 8), Ok(vec![1; 8]));
}

#[test]
fn a_write_that_is_refused_beside_a_server_that_ended_is_sent_again() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 8, 1).unwrap();
    refuse_once(&servers[0], Kind::Write);
    end(&servers[1]);
    assert_eq!(space.write(3, 1, 2), Ok(()));
    assert_eq!(space.read(0, 8), Ok(vec![1, 1, 1, 2, 1, 1, 1, 1]));
}

#[test]
fn a_write_that_is_refused_beside_a_server_that_ended_fails_once_that_is_given_up() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 8, 1).unwrap();
    refuse_all(&servers[0].interposer, Kind::Write, Status::Disk);
    end(&servers[1]);
    assert_eq!(space.write(3, 1, 2), Err(EIO));
    assert_eq!(space.read(0, 3), Ok(vec![1; 3]));
    assert_eq!(space.read(4, 4), Ok(vec![1; 4]));
}

#[test]
fn a_parity_that_a_server_sends_wrong_once_beside_one_that_ended_gives_the_pages_back() {
    let (mut servers, mut space) = striped(5);
    let mut lies = true;
    servers[4].interposer.set(move |direction, header, body| {
        if direction == Direction::ToClient
            && header.kind == Kind::ReadReply
            && std::mem::take(&mut lies)
            && let Some(byte) = body.last_mut()
        {
            *byte ^= 1;
        }
        Verdict::Forward
    });
    servers.remove(0);
    check(&mut space);
}
