//! A peer that does not read, on a socket.

use super::*;
use protocol::DaemonEvent;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, socket};

#[test]
fn a_peer_that_reads_again_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut connections = Connections::new(Listener::open(&path).unwrap()).unwrap();
    let peer = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    connections.accept(|_, _| 0, |_| false);
    let token = *connections.by_token.keys().next().unwrap();
    connections.set_tenant(token, Some(1));
    let mut sent = 0;
    while connections.send(token, &DaemonEvent::End, &[]) {
        sent += 1;
    }
    assert!(connections.wait(Duration::ZERO).unwrap().is_empty());
    for _ in 0..sent {
        seqpacket::receive(&peer, RecvFlags::DONTWAIT).unwrap();
    }
    assert_eq!(connections.wait(Duration::ZERO).unwrap(), [token]);
    assert!(connections.take_writable(token));
    assert!(!connections.take_writable(token), "once");
    assert!(connections.wait(Duration::ZERO).unwrap().is_empty());
    assert!(connections.send(token, &DaemonEvent::End, &[]));
}

#[test]
fn unidentified_peers_are_served_in_turn_however_few_at_a_time() {
    const PEERS: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut connections = Connections::new(Listener::open(&path).unwrap()).unwrap();
    let connect = |_| {
        let peer = seqpacket::connect(&path).unwrap();
        seqpacket::send(&peer, &[1], &[], SendFlags::empty()).unwrap();
        peer
    };
    let _peers: Vec<_> = (0..PEERS).map(connect).collect();
    while connections.by_token.len() < PEERS {
        connections.accept(|_, _| 0, |_| false);
    }
    let mut served = std::collections::BTreeMap::<u64, usize>::new();
    for _ in 0..PEERS {
        // A turn that serves three of them, which have more to be served.
        for _ in 0..3 {
            *served
                .entry(connections.next_unidentified().unwrap())
                .or_default() += 1;
        }
        connections.suspend_unidentified(Instant::now());
        assert!(connections.timeout().is_some() || connections.ready.is_empty());
    }
    assert_eq!(served.len(), PEERS);
    assert!(
        served.values().all(|times| (2..=4).contains(times)),
        "{served:?}"
    );
}
