//! Unidentified peers that keep the daemon busy, beside tenants whose frames are revoked.

use crate::attacks::{
    Rng, connect, contract_request, join, receive_event, send_request, try_connect,
};
use crate::role::count;
use frames::{Contract, Ledger};
use host::fd_reaper::lingering_socket;
use protocol::{DaemonEvent, ResumeToken, TenantRequest};
use rustix::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tenant::{LinkedTenant, RevocationPolicy};

/// Connections of one flood, and requests that each sends.
const CONNECTIONS: usize = 400;
const REQUESTS: usize = 8;
/// Requests of [`refused`]: more than a user may send at once.
const REFUSED: usize = 200;
/// Connections that [`leak`] makes one after the other: several times as many as the daemon has descriptors.
const CYCLES: usize = 5_000;

pub fn wait_for(go: &Path) {
    let begin = Instant::now();
    while !go.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends requests on many connections, once the file `go` exists.
pub fn flood(path: &Path, go: &Path) {
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| connect(path)).collect();
    // The last connection is accepted when this is answered.
    send_request(&connections[CONNECTIONS - 1], &TenantRequest::List, &[]);
    receive_event(&connections[CONNECTIONS - 1]);
    count(1);
    wait_for(go);
    for connection in &connections {
        for _ in 0..REQUESTS {
            send_request(connection, &TenantRequest::List, &[]);
        }
    }
    count(1);
    // Each of the others is answered in the end.
    for connection in &connections[..CONNECTIONS - 1] {
        assert!(receive_event(connection).is_some());
    }
}

fn enter(connection: &OwnedFd) -> Ledger {
    let request = contract_request("answers", "1M+47M", "100ms/250ms", 4);
    let join = join(ResumeToken::draw().unwrap(), request);
    send_request(connection, &join, &[]);
    let Some((DaemonEvent::Admitted { terms, .. }, bells)) = receive_event(connection) else {
        panic!("no contract");
    };
    let (ledger, fd) = Ledger::create_limited(terms.frames.x, 0, 4).unwrap();
    ledger.set_bell(rustix::io::fcntl_dupfd_cloexec(&bells[1], 0).unwrap());
    send_request(connection, &TenantRequest::Ledger, &[fd.as_fd()]);
    assert!(matches!(
        receive_event(connection),
        Some((DaemonEvent::Started, _))
    ));
    ledger
}

/// A tenant that owns most frames, and gives them back after a revocation, once the file `go` exists.
pub fn answers(path: &Path, go: &Path) {
    let connection = connect(path);
    let ledger = enter(&connection);
    let id = ledger.admit(Contract { g: 4, x: 12_288 }).unwrap();
    let client = ledger.adopt(id).unwrap();
    let begin = Instant::now();
    let mut owned = 0;
    while owned < 12_288 {
        match client.take() {
            Some(_) => owned += 1,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{owned}");
    }
    count(1);
    let round = loop {
        if let Some((DaemonEvent::Revoke { round, .. }, _)) = receive_event(&connection) {
            break round;
        }
    };
    count(1);
    wait_for(go);
    // So that its answer is behind the requests of the flood.
    std::thread::sleep(Duration::from_millis(300));
    ledger.retire(id);
    send_request(&connection, &TenantRequest::RevocationDone { round }, &[]);
    count(1);
    // It still has its contract.
    send_request(&connection, &TenantRequest::Capacity, &[]);
    while !matches!(
        receive_event(&connection).expect("it is disconnected").0,
        DaemonEvent::Capacity(_)
    ) {}
    count(1);
    // Until the other tenant has its guarantee.
    std::thread::sleep(Duration::from_millis(500));
}

/// A tenant that requests all of its guarantee at once.
pub fn needs(path: &Path) {
    let request = contract_request("needs", "40M", "10ms/250ms", 4);
    let policy = RevocationPolicy {
        eager: true,
        ..RevocationPolicy::default()
    };
    let (_tenant, resources) = LinkedTenant::join_with(path, &request, policy).unwrap();
    let begin = Instant::now();
    while resources.ledger.limit() < 10_240 {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{}",
            resources.ledger.limit()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    count(1);
}

/// Connects, sends requests and disconnects as fast as it can, on some connections without any request.
pub fn storm(path: &Path, seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let begin = Instant::now();
    let mut kept = Vec::new();
    while begin.elapsed() < Duration::from_secs(1) {
        let Some(connection) = try_connect(path) else {
            continue;
        };
        for _ in 0..rng.below(20) {
            send_request(&connection, &TenantRequest::List, &[]);
        }
        if rng.below(2) == 0 && kept.len() < 900 {
            kept.push(connection);
        }
    }
}

/// Requests contracts that the policy refuses, and counts the requests that are refused for their rate.
pub fn refused(path: &Path) {
    let connection = connect(path);
    for _ in 0..REFUSED {
        let request = contract_request("refused", "1M", "10ms/250ms", 4);
        let join = join(ResumeToken::draw().unwrap(), request);
        send_request(&connection, &join, &[]);
        let Some((DaemonEvent::Refused(why), _)) = receive_event(&connection) else {
            panic!("not refused");
        };
        count(u64::from(why.contains("changes a second")));
    }
}

/// Sends sockets whose close blocks for an hour, then connects and disconnects again and again: every other
/// connection ends with a descriptor that the daemon has not received.
pub fn leak(path: &Path) -> ! {
    let connection = connect(path);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (slow, peer) = lingering_socket(Duration::from_secs(3600)).unwrap();
        send_request(&connection, &TenantRequest::Capacity, &[slow.as_fd()]);
        // It blocks here where the daemon's close was not the last.
        std::thread::spawn(move || drop(slow));
        peers.push(peer);
        assert!(receive_event(&connection).is_some());
    }
    drop(connection);
    let input = std::io::stdin();
    for n in 0..CYCLES {
        let connection = connect(path);
        if n % 2 == 0 {
            send_request(&connection, &TenantRequest::List, &[input.as_fd()]);
        }
    }
    count(1);
    loop {
        std::thread::park();
    }
}
