//! Peers that do not follow the protocol, do not read, or want everything for themselves.

use crate::common::{Client, QOS, incarnation, page, start, terminate};
use disk::atropos::DiskContract;
use disk::time::Nanos;
use proptest::prelude::*;
use remote_policy::identity::ObjectId;
use remote_wire::control::{self, ControlRequest};
use remote_wire::{HEADER, Header, Kind, MAX_BODY, Status};
use selfpage_remote_server::{MAX_PERMITS_OF_CLIENT, Server, ServerConfig};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant};

/// One server for all cases: each has to leave it as it was.
static SERVER: LazyLock<Server> = LazyLock::new(|| start(64));

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// Reads until the server closes the connection.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(why) => why.kind() == ErrorKind::ConnectionReset,
    }
}

/// Returns true if the server replies.
fn is_served(mut stream: TcpStream) -> bool {
    let body = control::encode(&ControlRequest::Status).unwrap();
    let header = Header::control(Kind::Control, 1).encode(&body);
    let is_sent = stream
        .write_all(&header)
        .and_then(|()| stream.write_all(&body));
    is_sent.is_ok() && matches!(stream.read(&mut [0]), Ok(1))
}

fn still_serves(server: SocketAddr) {
    let mut client = Client::greeted(server, incarnation(99, 1));
    client.control(&ControlRequest::Status).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_closes_its_connection_and_no_other(bytes in prop::collection::vec(any::<u8>(), HEADER..2000)) {
        let mut stream = connect(SERVER.address());
        let _ = stream.write_all(&bytes);
        prop_assert!(is_closed(stream));
        still_serves(SERVER.address());
    }

    #[test]
    fn a_valid_header_with_any_body_is_answered_or_closes_its_connection(
        kind in prop::sample::select(vec![Kind::Control, Kind::Notice, Kind::ReadReply, Kind::WriteReply, Kind::ErrorReply]),
        body in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut stream = connect(SERVER.address());
        let header = Header::control(kind, 1);
        let _ = stream.write_all(&header.encode(&body));
        let _ = stream.write_all(&body);
        let _ = stream.shutdown(Shutdown::Write);
        prop_assert!(is_closed(stream));
        still_serves(SERVER.address());
    }

    #[test]
    fn any_control_message_without_hello_is_refused(number: u64, pages: u64, list: bool) {
        let mut client = Client::connect(SERVER.address(), incarnation(7, 1));
        let object = client.object(number);
        let request = match list {
            true => terminate(object),
            false => ControlRequest::Create {
                object,
                permit: remote_policy::permit::PermitId { server: object.client, number },
                pages,
                generation: remote_policy::identity::Generation(pages),
            },
        };
        let refused = client.control(&request).unwrap_err();
        prop_assert!(refused.1.contains("Hello"), "{}", refused.1);
    }
}

#[test]
fn half_a_frame_and_the_end_of_the_stream_close_the_connection() {
    let body = vec![0; MAX_BODY];
    let frame = Header::control(Kind::Control, 1).encode(&body);
    for len in [0, 1, HEADER - 1, HEADER] {
        let mut stream = connect(SERVER.address());
        stream.write_all(&frame[..len]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(is_closed(stream), "after {len} bytes");
    }
}

#[test]
fn a_connection_that_does_not_name_itself_is_closed() {
    let server = Server::start(ServerConfig {
        patience: Duration::from_millis(300),
        ..crate::common::config(64)
    })
    .unwrap();
    assert!(is_closed(connect(server.address())));
}

#[test]
fn a_client_that_does_not_read_is_disconnected_and_delays_no_other() {
    let server = Server::start(ServerConfig {
        patience: Duration::from_secs(1),
        ..crate::common::config(1024)
    })
    .unwrap();
    let (mut slow, theirs) = Client::with_object(server.address(), 1, 64);
    let (mut other, object) = Client::with_object(server.address(), 2, 64);
    other.write(object, 0, 1, &page(1)).unwrap();
    // More replies than all buffers on the way hold, in few enough requests for the way there.
    for _ in 0..600 {
        let read = slow.header(Kind::Read, theirs, 0, 32);
        slow.send(&read, &[]);
    }
    let begun = Instant::now();
    let mut served = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        assert_eq!(other.read(object, 0, 1), Ok((vec![1], page(1))));
        served += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(served > 100, "{served} requests of the other client");
    let replies = std::iter::from_fn(|| slow.receive()).count();
    assert!(replies < 600, "{replies} replies and no disconnection");
}

#[test]
fn one_address_does_not_take_all_connections() {
    let server = start(64);
    let held: Vec<_> = (0..64)
        .map(|host| Client::greeted(server.address(), incarnation(host, 1)))
        .collect();
    assert!(is_closed(connect(server.address())), "one more");
    drop(held);
    let greeted = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        is_served(connect(server.address()))
    });
    assert!(greeted, "after the others have left");
}

#[test]
fn a_server_has_no_more_connections_than_it_has_memory_for() {
    let server = Server::start(ServerConfig {
        most_connections: 4,
        ..crate::common::config(64)
    })
    .unwrap();
    let _held: Vec<_> = (0..4)
        .map(|host| Client::greeted(server.address(), incarnation(host, 1)))
        .collect();
    assert!(is_closed(connect(server.address())), "one more");
}

#[test]
fn one_client_does_not_take_all_permits() {
    let server = start(1024);
    let mut greedy = Client::greeted(server.address(), incarnation(1, 1));
    let slack = DiskContract {
        slice: Nanos::ZERO,
        ..QOS
    };
    let permits = (0..MAX_PERMITS_OF_CLIENT as u64).map(|number| greedy.allocate(number, 1, slack));
    let permits: Vec<_> = permits.map(Result::unwrap).collect();
    let refused = greedy.allocate(1000, 1, slack).unwrap_err();
    assert_eq!(refused.0, Status::NoPages);
    // A copy of an earlier request gets the permit that it got before.
    assert_eq!(greedy.allocate(0, 1, slack).unwrap(), permits[0]);
    let mut other = Client::greeted(server.address(), incarnation(2, 1));
    other
        .allocate(0, 1024 - MAX_PERMITS_OF_CLIENT as u64, slack)
        .unwrap();
}

#[test]
fn a_client_has_no_more_objects_than_pages() {
    let server = start(64);
    let mut client = Client::greeted(server.address(), incarnation(1, 1));
    let sealed = client.allocate(1, 2, QOS).unwrap();
    client.present(sealed).unwrap();
    let permit = sealed.permit.id;
    for number in [1, 2, 1] {
        client.create(client.object(number), permit, 8).unwrap();
    }
    let refused = client.create(client.object(3), permit, 8).unwrap_err();
    assert_eq!(refused.0, Status::Full, "{}", refused.1);
    let none = client.allocate(2, 0, QOS).unwrap();
    client.present(none).unwrap();
    let refused = client.create(client.object(3), none.permit.id, 8);
    assert_eq!(refused.unwrap_err().0, Status::Full);
}

#[test]
fn one_client_does_not_take_all_of_the_time() {
    let server = start(64);
    let mut greedy = Client::greeted(server.address(), incarnation(1, 1));
    assert_eq!(
        greedy.allocate(1, 1, share(95)).unwrap_err().0,
        Status::NoPages
    );
    greedy.allocate(2, 1, share(30)).unwrap();
    greedy.allocate(3, 1, share(20)).unwrap();
    assert_eq!(
        greedy.allocate(4, 1, share(1)).unwrap_err().0,
        Status::NoPages
    );
    let mut other = Client::greeted(server.address(), incarnation(2, 1));
    other.allocate(1, 1, share(40)).unwrap();
}

#[test]
fn a_silent_connection_without_a_permit_ends_with_its_lease() {
    let mut config = crate::common::config(64);
    config.capacity.lease = Duration::from_millis(300);
    let server = Server::start(config).unwrap();
    let mut silent = Client::greeted(server.address(), incarnation(1, 1));
    assert_eq!(silent.receive(), None);
}

#[test]
fn a_connection_that_fails_while_its_requests_wait_is_closed() {
    let server = start(128);
    let (mut client, object) = reader(server.address(), 1, almost_no_time());
    let greet = || Client::greeted(server.address(), incarnation(1, 1));
    let permit = greet().allocate(1, 64, almost_no_time()).unwrap();
    // More than one address may have, each with more requests than the server reads before the first has its turn.
    for _ in 0..100 {
        for _ in 0..4 {
            let write = client.header(Kind::Write, object, 0, 32);
            client.send(&write, &page(1).repeat(32));
        }
        rustix::net::sockopt::set_socket_linger(&client.link, Some(Duration::ZERO)).unwrap();
        client = greet();
        client.present(permit).unwrap();
    }
}

/// A share of the server's time and no more.
fn share(millis: u64) -> DiskContract {
    DiskContract {
        slice: Nanos::millis(millis),
        extra: false,
        ..QOS
    }
}

/// Time for a few requests in a second.
fn almost_no_time() -> DiskContract {
    DiskContract::new(Nanos::micros(30), Nanos::seconds(1))
}

/// A client with an object of 64 pages, ready to read.
fn reader(server: SocketAddr, host: u64, qos: DiskContract) -> (Client, ObjectId) {
    let mut client = Client::greeted(server, incarnation(host, 1));
    let sealed = client.allocate(1, 64, qos).unwrap();
    client.present(sealed).unwrap();
    let object = client.object(1);
    client.create(object, sealed.permit.id, 64).unwrap();
    (client, object)
}

/// Reads runs of 32 pages, 16 outstanding, until as many pages have come or the flood `is_over`.
fn flood(client: &mut Client, object: ObjectId, most: u64, is_over: &AtomicBool) -> u64 {
    let send = |client: &mut Client| {
        let read = client.header(Kind::Read, object, 0, 32);
        client.send(&read, &[]);
    };
    (0..16).for_each(|_| send(client));
    let mut pages = 0;
    while pages < most && !is_over.load(Ordering::Relaxed) {
        let (reply, _) = client.receive().expect("the connection stays open");
        pages += u64::from(reply.pages);
        send(client);
    }
    pages
}

#[test]
fn clients_that_flood_the_server_are_served_by_their_shares() {
    // A client whose thread waits for a processor does not ask for its share, and others have it: one time of three.
    let is_fair = (0..3).any(|_| {
        let (of_small, of_large) = pages_by_share();
        println!("{of_small} pages beside {of_large}");
        assert!(of_small > 0, "the small share was served, too");
        // A quarter by contract, and the window in which the flood learns that it is over.
        of_small <= of_large / 2
    });
    assert!(is_fair);
}

/// Pages that three connections of a small share and one of a large share have in the same time.
fn pages_by_share() -> (u64, u64) {
    const PAGES: u64 = 16_000;
    let server = start(1024);
    let address = server.address();
    let (small, large) = (share(2), share(8));
    let is_over = AtomicBool::new(false);
    let (is_over, start) = (&is_over, &Barrier::new(4));
    std::thread::scope(|scope| {
        let smalls: Vec<_> = (0..3)
            .map(|_| {
                // Three connections of one client share what its one permit gives.
                let (mut client, object) = reader(address, 1, small);
                scope.spawn(move || {
                    start.wait();
                    flood(&mut client, object, u64::MAX, is_over)
                })
            })
            .collect();
        let (mut client, object) = reader(address, 2, large);
        start.wait();
        let of_large = flood(&mut client, object, PAGES, is_over);
        is_over.store(true, Ordering::Relaxed);
        let counts = smalls.into_iter().map(|small| small.join().unwrap());
        (counts.sum::<u64>(), of_large)
    })
}

#[test]
fn a_client_beside_a_flood_of_slack_time_is_served_in_its_own() {
    let server = start(1024);
    let address = server.address();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mut greedy, all) = reader(address, 1, QOS);
        let is_over = &is_over;
        let flooded = scope.spawn(move || flood(&mut greedy, all, u64::MAX, is_over));
        let (mut client, object) = reader(address, 2, share(50));
        client.write(object, 0, 1, &page(1)).unwrap();
        for _ in 0..2000 {
            assert_eq!(client.read(object, 0, 1).unwrap().0, [1]);
        }
        is_over.store(true, Ordering::Relaxed);
        // Each of the 2000 could wait for a request of the flood that had begun, not for all of them.
        let pages = flooded.join().unwrap();
        assert!(pages > 0);
    });
}

#[test]
fn control_requests_and_refused_ones_wait_for_the_time_of_their_clients_permit() {
    const REQUESTS: u64 = 100;
    let server = start(128);
    let (mut greedy, object) = reader(server.address(), 1, almost_no_time());
    let (mut client, other) = Client::with_object(server.address(), 2, 1);
    let body = control::encode(&terminate(other)).unwrap();
    let outside = greedy.header(Kind::Read, object, 64, 1);
    for number in 0..REQUESTS as u32 {
        match number % 2 {
            0 => greedy.send(&Header::control(Kind::Control, number), &body),
            _ => greedy.send(&outside, &[]),
        }
    }
    client.write(other, 0, 1, &page(1)).unwrap();
    for _ in 0..REQUESTS {
        assert_eq!(client.read(other, 0, 1).unwrap().0, [1]);
    }
    let served = greedy.received();
    assert!((1..REQUESTS / 4).contains(&served), "{served} were served");
    // Another connection's requests are served in between.
    Client::greeted(server.address(), incarnation(3, 1));
}
