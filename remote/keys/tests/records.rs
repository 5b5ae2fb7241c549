//! The records of a keyed stream, with rustls itself and with an attacker at the other end.

mod common;

use common::{End, configs, ends, establish, key, read_all, write_all};
use proptest::prelude::*;
use rustls::{ClientConnection, Connection, ServerConnection};
use selfpage_remote_keys::config::server_name;
use selfpage_remote_keys::{
    Handshake, HandshakeError, KeyedStream, LinkError, Progress, Protocol, Trust, client_config,
    peer_fingerprint, server_config,
};
use std::io::{ErrorKind, Read, Write};

/// Moves what rustls has to write and to read. Returns what it has read.
fn pump(of: &mut Connection, end: &mut End) -> Vec<u8> {
    let mut received = Vec::new();
    while of.wants_write() {
        of.write_tls(end).unwrap();
    }
    loop {
        match of.read_tls(end) {
            Ok(0) => return received,
            Ok(_) => {
                of.process_new_packets().unwrap();
                let _ = of.reader().read_to_end(&mut received);
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                if end.input.borrow().bytes.is_empty() {
                    return received;
                }
            }
            Err(why) => panic!("{why}"),
        }
        while of.wants_write() {
            of.write_tls(end).unwrap();
        }
    }
}

/// Our end and rustls's, after the handshake. `is_client` is of our end.
fn with_rustls(is_client: bool, sizes: &[usize]) -> (KeyedStream<End>, Connection, End) {
    let (client, server) = configs();
    let [mut near, mut far] = ends(sizes);
    let (mut ours, mut theirs) = match is_client {
        true => (
            Handshake::client(&client).unwrap(),
            Connection::Server(ServerConnection::new(server).unwrap()),
        ),
        false => (
            Handshake::server(&server).unwrap(),
            Connection::Client(ClientConnection::new(client, server_name()).unwrap()),
        ),
    };
    for _ in 0..100_000 {
        pump(&mut theirs, &mut far);
        if ours.advance(&mut near).unwrap() == Progress::Done && !theirs.is_handshaking() {
            let stream = ours.into_stream(near).unwrap();
            assert!(peer_fingerprint(&theirs).is_some());
            assert_eq!(Protocol::of(&theirs), Some(Protocol::Pages));
            return (stream, theirs, far);
        }
    }
    panic!("the handshake does not end");
}

#[derive(Clone, Debug)]
enum Act {
    Send(usize),
    Receive(usize),
    TheirUpdate,
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..40_000usize).prop_map(Act::Send),
        4 => (1..40_000usize).prop_map(Act::Receive),
        1 => Just(Act::TheirUpdate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn rustls_reads_what_a_stream_writes_and_the_reverse(
        is_client: bool,
        acts in prop::collection::vec(any_act(), 1..12),
        sizes in prop::collection::vec(1..9_000usize, 1..6),
        update_after in 1..6u64,
        fill: u8,
    ) {
        let (mut ours, mut theirs, mut far) = with_rustls(is_client, &sizes);
        ours.set_update_after(update_after);
        for act in acts {
            match act {
                Act::Send(len) => {
                    let sent: Vec<u8> = (0..len).map(|at| fill ^ at as u8).collect();
                    write_all(&mut ours, &sent);
                    prop_assert!(pump(&mut theirs, &mut far) == sent);
                }
                Act::Receive(len) => {
                    let sent: Vec<u8> = (0..len).map(|at| fill ^ at as u8).collect();
                    theirs.writer().write_all(&sent).unwrap();
                    pump(&mut theirs, &mut far);
                    let mut received = Vec::new();
                    prop_assert!(read_all(&mut ours, &mut received).unwrap());
                    prop_assert!(received == sent);
                }
                Act::TheirUpdate => theirs.refresh_traffic_keys().unwrap(),
            }
        }
        ours.close();
        pump(&mut theirs, &mut far);
        prop_assert!(matches!(theirs.reader().read(&mut [0]), Ok(0)));
        theirs.send_close_notify();
        pump(&mut theirs, &mut far);
        prop_assert!(!read_all(&mut ours, &mut Vec::new()).unwrap());
    }

    #[test]
    fn records_that_are_changed_repeated_moved_or_left_out_end_the_link(
        how in 0..5usize,
        at: prop::sample::Index,
        bit in 0..8u8,
        which in 0..4usize,
    ) {
        let (client, server) = configs();
        let (mut near, mut far) = establish(&client, &server, &[]).unwrap();
        let mut records: Vec<Vec<u8>> = (0..5u8)
            .map(|number| {
                write_all(&mut near, &[number; 300]);
                near.stream().output.borrow_mut().bytes.drain(..).collect()
            })
            .collect();
        let before = match how {
            0 => {
                let at = at.index(records[which].len());
                records[which][at] ^= 1 << bit;
                which
            }
            1 => {
                records.insert(which + 1, records[which].clone());
                which + 1
            }
            2 => {
                records.swap(which, which + 1);
                which
            }
            3 => {
                records.remove(which);
                which
            }
            _ => {
                let at = at.index(records[which].len() - 1);
                records[which].remove(at);
                which
            }
        };
        far.stream().input.borrow_mut().bytes.extend(records.concat());
        far.stream().input.borrow_mut().is_cut = true;
        let mut received = Vec::new();
        let why = read_all(&mut far, &mut received).unwrap_err();
        let why = why.get_ref().and_then(|why| why.downcast_ref::<LinkError>().copied());
        prop_assert!(matches!(why, Some(LinkError::Forged | LinkError::Invalid(_) | LinkError::Truncated)), "{why:?}");
        let expected: Vec<u8> = (0..before as u8).flat_map(|number| [number; 300]).collect();
        prop_assert_eq!(received, expected);
        // It stays so.
        prop_assert!(far.read(&mut [0]).is_err());
        prop_assert!(far.write(&[1]).is_err());
    }

    #[test]
    fn garbage_ends_a_handshake_or_a_link_and_nothing_else(
        garbage in prop::collection::vec(any::<u8>(), 1..3000),
        is_after: bool,
    ) {
        let (client, server) = configs();
        if is_after {
            let (_near, mut far) = establish(&client, &server, &[]).unwrap();
            far.stream().input.borrow_mut().bytes.extend(&garbage);
            far.stream().input.borrow_mut().is_cut = true;
            prop_assert!(read_all(&mut far, &mut Vec::new()).is_err());
        } else {
            let [_, mut far] = ends(&[]);
            far.input.borrow_mut().bytes.extend(&garbage);
            far.input.borrow_mut().is_cut = true;
            let outcome = Handshake::server(&server).unwrap().advance(&mut far);
            prop_assert!(outcome.is_err());
        }
    }
}

#[test]
fn a_stream_that_is_cut_is_no_stream_that_has_ended() {
    let (client, server) = configs();
    for (is_closed, cut) in [(true, 0), (false, 0), (false, 7)] {
        let (mut near, mut far) = establish(&client, &server, &[]).unwrap();
        write_all(&mut near, &[1; 100]);
        if is_closed {
            near.close();
        }
        let output = near.stream().output.clone();
        let len = output.borrow().bytes.len();
        output.borrow_mut().bytes.truncate(len - cut);
        output.borrow_mut().is_cut = true;
        let mut received = Vec::new();
        let outcome = read_all(&mut far, &mut received);
        match is_closed {
            true => assert!(!outcome.unwrap()),
            false => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::UnexpectedEof),
        }
        assert_eq!(received.len(), if cut > 0 { 0 } else { 100 });
    }
}

#[test]
fn what_arrives_with_the_end_of_the_handshake_is_read() {
    let (client, server) = configs();
    let [mut near, mut far] = ends(&[]);
    let mut one = Handshake::client(&client).unwrap();
    let mut other = Handshake::server(&server).unwrap();
    while one.advance(&mut near).unwrap() != Progress::Done {
        let _ = other.advance(&mut far).unwrap();
    }
    let mut near = one.into_stream(near).unwrap();
    write_all(&mut near, b"at once");
    assert_eq!(other.advance(&mut far).unwrap(), Progress::Done);
    let mut far = other.into_stream(far).unwrap();
    let mut received = Vec::new();
    assert!(read_all(&mut far, &mut received).unwrap());
    assert_eq!(received, b"at once");
}

#[test]
fn a_key_that_is_not_accepted_fails_at_both_ends_with_its_name() {
    let [own, other, third] = [key(), key(), key()];
    let only = |key: &selfpage_remote_keys::HostKey| Trust::Only(key.fingerprint());
    // The server does not accept the client.
    let client = client_config(&own, only(&other), Protocol::Pages).unwrap();
    let server = server_config(&other, only(&third), &[Protocol::Pages]).unwrap();
    let [mut near, mut far] = ends(&[]);
    let mut one = Handshake::client(&client).unwrap();
    let mut two = Handshake::server(&server).unwrap();
    let refused = loop {
        let progress = one.advance(&mut near).unwrap();
        match two.advance(&mut far) {
            Err(why) => break why,
            Ok(_) => assert_ne!(progress, Progress::Done),
        }
    };
    assert!(matches!(refused, HandshakeError::NotAccepted(key) if key == own.fingerprint()));
    // The client's end is done by then, and learns it by its first read.
    let mut near = one.into_stream(near).unwrap();
    let why = near.read(&mut [0]).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::PermissionDenied);
    assert!(why.to_string().contains("selfpage cluster join"), "{why}");

    // The client does not accept the server.
    let client = client_config(&own, only(&third), Protocol::Pages).unwrap();
    let server = server_config(&other, only(&own), &[Protocol::Pages]).unwrap();
    let [of_client, of_server] = *establish(&client, &server, &[]).map(drop).unwrap_err();
    assert!(
        matches!(of_client, Some(HandshakeError::NotAccepted(key)) if key == other.fingerprint())
    );
    assert!(
        matches!(of_server, Some(HandshakeError::Link(LinkError::NotMember))),
        "{of_server:?}"
    );
}

#[test]
fn ends_of_different_protocols_do_not_meet() {
    let [own, other] = [key(), key()];
    let client = client_config(&own, Trust::Any, Protocol::Join).unwrap();
    let server = server_config(&other, Trust::Any, &[Protocol::Pages]).unwrap();
    assert!(establish(&client, &server, &[]).is_err());
}

#[test]
fn a_peer_in_the_clear_is_named() {
    let (client, server) = configs();
    let [mut near, mut far] = ends(&[]);
    for end in [&near, &far] {
        end.input
            .borrow_mut()
            .bytes
            .extend(b"SPRP and more of a frame");
    }
    let outcomes = [
        Handshake::client(&client).unwrap().advance(&mut near),
        Handshake::server(&server).unwrap().advance(&mut far),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(HandshakeError::Plain)), "{outcome:?}");
    }
}
