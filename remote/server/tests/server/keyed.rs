//! Links with keys: the members of the list are served, each as itself, and no other host is.

use crate::common::{
    Client, client_of, incarnation, keyed_link, keyring, page, start, start_keyed,
};
use remote_keys::{Handshake, HandshakeError, Keyring, LinkError, Protocol, Trust, client_config};
use remote_wire::control::ControlRequest;
use remote_wire::{Header, Kind, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

/// Another host, and each is a member to the other.
fn member_of(server: &Keyring) -> (TempDir, Arc<Keyring>) {
    let (folder, host) = keyring();
    server
        .update(|list| list.merge(&host.members().unwrap()))
        .unwrap();
    host.update(|list| list.merge(&server.members().unwrap()))
        .unwrap();
    (folder, host)
}

fn greeted(server: SocketAddr, host: &Arc<Keyring>, number: u64) -> Client {
    let mut client = Client::over(keyed_link(server, host), client_of(host, number, 1));
    client.hello().unwrap();
    client
}

/// Waits for the end of a link, and returns why.
fn end_of(client: &mut Client) -> std::io::Error {
    let begun = Instant::now();
    loop {
        match client.link.read(&mut [0; 64]) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                assert!(begun.elapsed() < LIMIT, "the link does not end");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(why) => return why,
            Ok(0) => return ErrorKind::UnexpectedEof.into(),
            Ok(_) => {}
        }
    }
}

#[test]
fn members_read_the_pages_that_they_wrote() {
    let (_folder, own) = keyring();
    let server = start_keyed(256, &own);
    let (_other, host) = member_of(&own);
    let (mut client, object) = greeted(server.address(), &host, 1).and_object(128);
    for first in (0..128).step_by(32) {
        let pages: Vec<u8> = (first..first + 32).flat_map(|at| page(at as u8)).collect();
        client.write(object, first, 1, &pages).unwrap();
    }
    for first in 0..96u64 {
        let (versions, pages) = client.read(object, first, 32).unwrap();
        assert_eq!(versions, [1; 32]);
        let expected: Vec<u8> = (first..first + 32).flat_map(|at| page(at as u8)).collect();
        assert!(pages == expected);
    }
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let (_folder, own) = keyring();
    let server = start_keyed(64, &own);
    let (mut client, object) = greeted(server.address(), &own, 1).and_object(64);
    client.write(object, 0, 1, &page(3).repeat(32)).unwrap();
    // Their replies are many times what the link's buffers hold.
    let header = Header {
        pages: 32,
        object,
        generation: remote_policy::identity::Generation(1),
        ..Header::control(Kind::Read, 0)
    };
    for number in 0..200 {
        client.send(
            &Header {
                request: number,
                ..header
            },
            &[],
        );
    }
    for number in 0..200 {
        let (header, body) = client.receive().unwrap();
        assert_eq!((header.kind, header.request), (Kind::ReadReply, number));
        assert!(body[256..].iter().all(|byte| *byte == 3));
    }
}

#[test]
fn a_host_that_is_no_member_is_refused_and_learns_why() {
    let (_folder, own) = keyring();
    let server = start_keyed(16, &own);
    let (_other, host) = keyring();
    let knows_server = |list: &mut remote_keys::MemberList| list.merge(&own.members().unwrap());
    host.update(knows_server).unwrap();
    let mut client = Client::over(keyed_link(server.address(), &host), client_of(&host, 1, 1));
    let why = end_of(&mut client);
    assert_eq!(why.kind(), ErrorKind::PermissionDenied, "{why}");
    assert!(why.to_string().contains("selfpage cluster join"), "{why}");
    let why = why
        .get_ref()
        .and_then(|why| why.downcast_ref::<LinkError>());
    assert_eq!(why, Some(&LinkError::NotMember));

    // The other way round: the server is not who it should be.
    let (_third, third) = member_of(&own);
    third.update(|list| list.remove(own.fingerprint())).unwrap();
    let trust = Trust::Members(third.clone());
    let config = client_config(third.key(), trust, Protocol::Pages).unwrap();
    let stream = TcpStream::connect(server.address()).unwrap();
    let outcome = Handshake::client(&config).unwrap().complete(stream, LIMIT);
    assert!(
        matches!(outcome, Err(HandshakeError::NotAccepted(_))),
        "{outcome:?}"
    );
}

#[test]
fn the_links_of_a_host_that_is_removed_end() {
    let (_folder, own) = keyring();
    let server = start_keyed(16, &own);
    let (_other, host) = member_of(&own);
    let (_third, stays) = member_of(&own);
    let mut removed = greeted(server.address(), &host, 1);
    let mut kept = greeted(server.address(), &stays, 2);
    own.update(|list| list.remove(host.fingerprint())).unwrap();
    end_of(&mut removed);
    kept.control(&ControlRequest::Renew).unwrap();
}

#[test]
fn a_server_ends_when_its_host_leaves_the_cluster() {
    let (_folder, own) = keyring();
    let server = start_keyed(16, &own);
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(server.join().is_ok()));
    Keyring::delete(own.folder()).unwrap();
    assert_eq!(ended.recv_timeout(LIMIT), Ok(true));
}

#[test]
fn a_permit_of_one_host_is_of_no_use_to_another() {
    let (_folder, own) = keyring();
    let server = start_keyed(256, &own);
    let (_other, host) = member_of(&own);
    let (_third, thief) = member_of(&own);
    let mut client = greeted(server.address(), &host, 1);
    let sealed = client.allocate(1, 32, crate::common::QOS).unwrap();
    client.present(sealed).unwrap();
    let object = client.object(1);
    client.create(object, sealed.permit.id, 32).unwrap();
    client.write(object, 0, 1, &page(5)).unwrap();

    // Under its own name, with the permit.
    let mut other = greeted(server.address(), &thief, 2);
    let why = other.present(sealed).unwrap_err();
    assert_eq!(why.0, Status::NoPermit, "{why:?}");
    assert!(other.read(object, 0, 1).is_err());
    // Under the client's name, of this life or a later one, and under one that the server never saw.
    for (number, start_ticks) in [(1, 1), (1, 2), (3, 1)] {
        let link = keyed_link(server.address(), &thief);
        let mut other = Client::over(link, client_of(&host, number, start_ticks));
        let why = other.hello().unwrap_err();
        assert_eq!(why.0, Status::NoPermit, "{why:?}");
        assert!(other.present(sealed).is_err());
        assert!(other.read(object, 0, 1).is_err());
    }
    // The client lost nothing by it, on this link and on another.
    assert_eq!(client.read(object, 0, 1).unwrap().1, page(5));
    let mut again = greeted(server.address(), &host, 1);
    again.present(sealed).unwrap();
    assert_eq!(again.read(object, 0, 1).unwrap().1, page(5));
}

#[test]
fn a_server_in_the_clear_and_a_client_with_keys_say_so_to_each_other() {
    let server = start(16);
    let (_folder, own) = keyring();
    let trust = Trust::Members(own.clone());
    let config = client_config(own.key(), trust, Protocol::Pages).unwrap();
    let stream = TcpStream::connect(server.address()).unwrap();
    let outcome = Handshake::client(&config).unwrap().complete(stream, LIMIT);
    assert!(matches!(outcome, Err(HandshakeError::Plain)), "{outcome:?}");
}

#[test]
fn a_client_in_the_clear_reads_that_the_server_wants_keys() {
    let (_folder, own) = keyring();
    let server = start_keyed(16, &own);
    let mut client = Client::connect(server.address(), incarnation(1, 1));
    let name = "client".to_owned();
    let hello = ControlRequest::Hello {
        client: client.incarnation,
        name,
    };
    let body = remote_wire::control::encode(&hello).unwrap();
    client.send(&Header::control(Kind::Control, 1), &body);
    let (header, text) = client.receive().unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(header.kind, Kind::ErrorReply);
    assert!(text.contains("leave out --insecure"), "{text}");
}

#[test]
fn hosts_that_do_not_finish_their_handshakes_keep_no_other_host_out() {
    let (_folder, own) = keyring();
    let server = start_keyed(16, &own);
    // More than there may be: the first make room for the last.
    let mut idle: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(&[22, 3, 1]).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream
        })
        .collect();
    let is_closed = |stream: &mut TcpStream| match stream.read(&mut [0]) {
        Ok(0) => true,
        Ok(_) => panic!("the server sends before it has received"),
        Err(why) => why.kind() == ErrorKind::ConnectionReset,
    };
    assert!(is_closed(&mut idle[0]));
    greeted(server.address(), &own, 1);
    // The last are closed when their time is over.
    idle[99].set_nonblocking(true).unwrap();
    assert!(!is_closed(&mut idle[99]), "the oldest are closed first");
    idle[99].set_nonblocking(false).unwrap();
    for stream in &mut idle {
        assert!(is_closed(stream));
    }
}

#[test]
fn a_forged_record_closes_its_link_and_no_other() {
    let (_folder, own) = keyring();
    let server = start_keyed(16, &own);
    let mut kept = greeted(server.address(), &own, 1);
    let trust = Trust::Members(own.clone());
    let config = client_config(own.key(), trust, Protocol::Pages).unwrap();
    let stream = TcpStream::connect(server.address()).unwrap();
    let mut raw = stream.try_clone().unwrap();
    let mut link = Handshake::client(&config)
        .unwrap()
        .complete(stream, LIMIT)
        .unwrap();
    raw.write_all(&[&[23, 3, 3, 0, 40][..], &[9; 40]].concat())
        .unwrap();
    let why = loop {
        match link.read(&mut [0; 64]) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => {}
            other => break other.unwrap_err(),
        }
    };
    // The alert that names it.
    assert!(why.to_string().contains("BadRecordMac"), "{why}");
    kept.control(&ControlRequest::Renew).unwrap();
}
