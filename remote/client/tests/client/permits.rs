//! Permits that servers change, take back or issue twice.

use crate::interposer::{Direction, Interposer, Verdict};
use crate::only_copy::end;
use crate::space::Space;
use crate::{PagingServer, refuse, space_on, wait_until};
use disk::time::Nanos;
use remote_policy::identity::HostId;
use remote_wire::control::{
    ControlReply, ControlRequest, SealedPermit, ServerNotice, VoidCause, decode, encode,
};
use remote_wire::{Header, Kind, Status};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What passed a server's interposer.
#[derive(Default)]
struct Seen {
    requests: Vec<ControlRequest>,
    permit: Option<SealedPermit>,
}

/// Notes control requests and permits, and forwards all but what `rule` decides otherwise.
fn watch(
    interposer: &Interposer,
    mut rule: impl FnMut(Direction, &mut Header, &mut Vec<u8>) -> Verdict + Send + 'static,
) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let noted = Arc::clone(&seen);
    interposer.set(move |direction, header, body| {
        let mut noted = noted.lock().unwrap();
        match (direction, header.kind) {
            (Direction::ToServer, Kind::Control) => noted.requests.extend(decode(body)),
            (Direction::ToClient, Kind::ControlReply) => {
                if let Ok(ControlReply::Permit(sealed)) = decode(body) {
                    noted.permit = Some(sealed);
                }
            }
            _ => {}
        }
        rule(direction, header, body)
    });
    seen
}

fn notify(interposer: &Interposer, notice: &ServerNotice) {
    let header = Header::control(Kind::Notice, 0);
    interposer.insert(&header, &encode(notice).unwrap());
    // The client receives it before what the test does next.
    std::thread::sleep(Duration::from_millis(300));
}

fn is_permit(header: &Header, body: &[u8]) -> bool {
    header.kind == Kind::ControlReply && matches!(decode(body), Ok(ControlReply::Permit(_)))
}

#[test]
fn a_permit_that_was_made_smaller_is_enlarged_again_for_a_write() {
    let server = PagingServer::start(1);
    let is_full = Arc::new(AtomicBool::new(false));
    let of_rule = Arc::clone(&is_full);
    let seen = watch(&server.interposer, move |direction, header, body| {
        let is_control = header.kind == Kind::Control;
        if is_control && matches!(decode(body), Ok(ControlRequest::Reallocate { .. })) {
            of_rule.store(false, Ordering::Relaxed);
        }
        let is_write = direction == Direction::ToServer && header.kind == Kind::Write;
        match is_write && of_rule.load(Ordering::Relaxed) {
            true => refuse(header, body, Status::Full),
            false => Verdict::Forward,
        }
    });
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    is_full.store(true, Ordering::Relaxed);
    let mut sealed = seen.lock().unwrap().permit.unwrap();
    sealed.permit.granted_pages = 4;
    notify(&server.interposer, &ServerNotice::Rewritten(sealed));
    space.write(2, 8, 2).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![1, 1, 2, 2]));
}

#[test]
fn a_permit_that_shrank_while_its_server_was_away_is_enlarged_again_for_a_write() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let is_full = Arc::new(AtomicBool::new(false));
    let is_shrunk = Arc::new(AtomicBool::new(false));
    let (of_rule, shrinks) = (Arc::clone(&is_full), Arc::clone(&is_shrunk));
    let (mut presented, mut has_closed) = (None, false);
    let seen = watch(&servers[0].interposer, move |direction, header, body| {
        let is_full = of_rule.load(Ordering::Relaxed);
        match (header.kind, decode(body)) {
            (Kind::Write, _) if is_full => return refuse(header, body, Status::Full),
            (Kind::Control, Ok(ControlRequest::Reallocate { .. })) => {
                of_rule.store(false, Ordering::Relaxed);
            }
            (Kind::Control, Ok(ControlRequest::Present(sealed))) => {
                presented = Some((header.request, sealed));
            }
            (Kind::Control, Ok(ControlRequest::Renew)) if is_full && !has_closed => {
                has_closed = true;
                return Verdict::Close;
            }
            _ => {}
        }
        let is_present = |(request, _): &mut (u32, _)| *request == header.request;
        if direction == Direction::ToClient
            && is_full
            && let Some((_, mut sealed)) = presented.take_if(is_present)
        {
            sealed.permit.granted_pages = 4;
            *body = encode(&ControlReply::Permit(sealed)).unwrap();
            shrinks.store(true, Ordering::Relaxed);
        }
        Verdict::Forward
    });
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    is_full.store(true, Ordering::Relaxed);
    // The next renewal ends the connection.
    wait_until("the permit is presented, and has shrunk", || {
        is_shrunk.load(Ordering::Relaxed)
    });
    // Its refusal arrives behind that reply.
    space.write(2, 8, 2).unwrap();
    let enlarges = |request: &&ControlRequest| matches!(request, ControlRequest::Reallocate { .. });
    let enlarged = seen
        .lock()
        .unwrap()
        .requests
        .iter()
        .filter(enlarges)
        .count();
    assert_eq!(enlarged, 1, "the copy was given up");
    assert_eq!(space.read(0, 4), Ok(vec![1, 1, 2, 2]));
}

#[test]
fn a_write_waits_for_an_only_copy_that_has_no_room_for_a_moment() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    // Its host needs memory, and has some again when the client asks for the third time.
    let mut asked = 0;
    server.interposer.set(move |direction, header, body| {
        let is_to_server = direction == Direction::ToServer;
        if is_to_server
            && header.kind == Kind::Control
            && matches!(decode(body), Ok(ControlRequest::Reallocate { .. }))
        {
            asked += 1;
            if asked < 3 {
                return refuse(header, body, Status::NoPages);
            }
        }
        match is_to_server && header.kind == Kind::Write && asked < 3 {
            true => refuse(header, body, Status::Full),
            false => Verdict::Forward,
        }
    });
    assert_eq!(space.write(2, 8, 2), Ok(()));
    assert_eq!(space.read(0, 4), Ok(vec![1, 1, 2, 2]));
}

#[test]
fn a_request_for_a_permit_that_a_lost_connection_left_open_is_made_again_as_the_same() {
    let server = PagingServer::start(1);
    let mut is_first = true;
    let seen = watch(&server.interposer, move |_, header, body| {
        match is_permit(header, body) && std::mem::take(&mut is_first) {
            true => Verdict::Close,
            false => Verdict::Forward,
        }
    });
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    let seen = seen.lock().unwrap();
    let asked = seen.requests.iter().filter_map(|request| match request {
        ControlRequest::Allocate { request, pages, .. } => Some((request.number, *pages)),
        _ => None,
    });
    let asked: Vec<_> = asked.collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[0], asked[1]);
}

#[test]
fn a_notice_about_a_permit_that_is_not_in_use_changes_nothing() {
    let server = PagingServer::start(1);
    let seen = watch(&server.interposer, |_, _, _| Verdict::Forward);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    let mut other = seen.lock().unwrap().permit.unwrap();
    other.permit.id.number += 1;
    notify(&server.interposer, &ServerNotice::Rewritten(other));
    let (permit, cause) = (other.permit.id, VoidCause::Released);
    notify(&server.interposer, &ServerNotice::Void { permit, cause });
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

/// What a server sends to have all pages of its permit back.
fn revocation(seen: &Mutex<Seen>) -> ServerNotice {
    ServerNotice::Revoke {
        permit: seen.lock().unwrap().permit.unwrap().permit.id,
        keep_pages: 0,
        within: Duration::from_secs(10),
    }
}

#[test]
fn a_revoked_copy_that_no_server_takes_in_is_dropped_where_another_is_current() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let seen = watch(&servers[0].interposer, |_, _, _| Verdict::Forward);
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    let revoke = revocation(&seen);
    wait_until("the copy is terminated", || {
        // As a server does until it has its pages: the copy there may not be complete yet.
        notify(&servers[0].interposer, &revoke);
        let seen = seen.lock().unwrap();
        let terminates =
            |request: &ControlRequest| matches!(request, ControlRequest::Terminate { .. });
        seen.requests.iter().any(terminates)
    });
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

#[test]
fn a_revoked_copy_stays_where_the_server_of_the_other_has_just_ended() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let seen = watch(&servers[0].interposer, |_, _, _| Verdict::Forward);
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    let revoke = revocation(&seen);
    end(&servers[1]);
    notify(&servers[0].interposer, &revoke);
    // It is complied with by the next tick.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

#[test]
fn a_permit_that_ends_while_a_write_waits_leaves_the_count_of_pages_right() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    let (mut has_closed, mut has_refused) = (false, false);
    server.interposer.set(move |direction, header, body| {
        let is_write = direction == Direction::ToServer && header.kind == Kind::Write;
        if is_write && !std::mem::replace(&mut has_closed, true) {
            return Verdict::Close;
        }
        let is_present = direction == Direction::ToServer
            && header.kind == Kind::Control
            && matches!(decode(body), Ok(ControlRequest::Present(_)));
        match is_present && !std::mem::replace(&mut has_refused, true) {
            true => refuse(header, body, Status::NoPermit),
            false => Verdict::Forward,
        }
    });
    // It is made again under another permit, by a client that checks its counts.
    space.write(0, 4, 2).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![2; 4]));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(space.read(0, 4), Ok(vec![2; 4]));
}

#[test]
fn a_permit_of_another_server_in_a_reply_costs_that_server_no_copy() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let lies = Arc::new(AtomicU64::new(0));
    let of_rule = Arc::clone(&lies);
    let mut has_refused = false;
    servers[0].interposer.set(move |_, header, body| {
        let is_allocate = header.kind == Kind::Control
            && matches!(decode(body), Ok(ControlRequest::Allocate { .. }));
        if is_allocate && !std::mem::replace(&mut has_refused, true) {
            return refuse(header, body, Status::Full);
        }
        if header.kind == Kind::ControlReply
            && let Ok(ControlReply::Permit(mut sealed)) = decode(body)
        {
            (sealed.permit.id.server, sealed.permit.id.number) = (HostId(2), 99);
            *body = encode(&ControlReply::Permit(sealed)).unwrap();
            of_rule.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Forward
    });
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    wait_until("the other server lies about its permit", || {
        lies.load(Ordering::Relaxed) > 0
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

#[test]
fn a_refusal_of_an_earlier_permit_ends_no_later_one() {
    let server = PagingServer::start(1);
    let first = Arc::new(AtomicU32::new(0));
    let of_rule = Arc::clone(&first);
    let seen = watch(&server.interposer, move |direction, header, body| {
        let presented = of_rule.load(Ordering::Relaxed);
        let is_present = direction == Direction::ToServer
            && header.kind == Kind::Control
            && matches!(decode(body), Ok(ControlRequest::Present(_)));
        if is_present && presented == 0 {
            of_rule.store(header.request, Ordering::Relaxed);
        }
        let is_reply = direction == Direction::ToClient && header.request == presented;
        match presented != 0 && is_reply {
            true => Verdict::Drop,
            false => Verdict::Forward,
        }
    });
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    let permit = seen.lock().unwrap().permit.unwrap().permit.id;
    let cause = VoidCause::Released;
    notify(&server.interposer, &ServerNotice::Void { permit, cause });
    space.write(0, 4, 2).unwrap();
    let later = seen.lock().unwrap().permit.unwrap().permit.id;
    assert_ne!(permit, later);
    let refusal = Header {
        pages: Status::NoPermit as u16,
        ..Header::control(Kind::ErrorReply, first.load(Ordering::Relaxed))
    };
    server.interposer.insert(&refusal, b"by the test");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(space.read(0, 4), Ok(vec![2; 4]));
}

#[test]
fn a_client_reserves_little_time_of_a_server_and_releases_its_permit_at_its_end() {
    let server = PagingServer::start(1);
    let seen = watch(&server.interposer, |_, _, _| Verdict::Forward);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    drop(space);
    wait_until("the permit is released", || {
        let seen = seen.lock().unwrap();
        let releases = |request: &ControlRequest| matches!(request, ControlRequest::Release(_));
        seen.requests.iter().any(releases)
    });
    let seen = seen.lock().unwrap();
    let slices = seen.requests.iter().filter_map(|request| match request {
        ControlRequest::Allocate { qos, .. } => Some(qos.slice),
        _ => None,
    });
    assert!(slices.max() <= Some(Nanos::millis(1)));
}

#[test]
fn two_objects_that_are_placed_at_once_get_one_permit_of_a_server() {
    let server = PagingServer::start(1);
    let seen = watch(&server.interposer, |_, _, _| Verdict::Forward);
    let mut space = Space::of_objects(2, &[server.address()], 1);
    // The last pages of one object and the first of the other.
    let first = selfpage_remote_client::OBJECT_PAGES - 2;
    space.write(first, 4, 1).unwrap();
    assert_eq!(space.read(first, 4), Ok(vec![1; 4]));
    let seen = seen.lock().unwrap();
    let asks = |request: &&ControlRequest| matches!(request, ControlRequest::Allocate { .. });
    assert_eq!(seen.requests.iter().filter(asks).count(), 1);
}
