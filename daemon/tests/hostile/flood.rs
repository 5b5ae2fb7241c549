//! Strangers that keep the daemon busy, beside tenants that frames are asked back from.

use crate::attacks::{Rng, ask, connect, hear, join, try_connect, wanted};
use crate::role::count;
use frames::{Contract, Ledger};
use protocol::{DaemonEvent, ResumeToken, TenantRequest};
use rustix::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tenant::{LinkedTenant, RevocationPolicy};

/// Connections of one flood, and what each sends.
const CONNECTIONS: usize = 400;
const QUESTIONS: usize = 8;

fn wait_for(go: &Path) {
    let begin = Instant::now();
    while !go.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Asks on many connections, when it may.
pub fn flood(path: &Path, go: &Path) {
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| connect(path)).collect();
    // The last was let in when this is answered.
    ask(&connections[CONNECTIONS - 1], &TenantRequest::List, &[]);
    hear(&connections[CONNECTIONS - 1]);
    count(1);
    wait_for(go);
    for connection in &connections {
        for _ in 0..QUESTIONS {
            ask(connection, &TenantRequest::List, &[]);
        }
    }
    count(1);
    // Each of the others is answered in the end.
    for connection in &connections[..CONNECTIONS - 1] {
        assert!(hear(connection).is_some());
    }
}

fn enter(connection: &OwnedFd) -> Ledger {
    let wanted = wanted("answers", "1M+47M", "100ms/250ms", 4);
    let join = join(ResumeToken::draw().unwrap(), wanted);
    ask(connection, &join, &[]);
    let Some((DaemonEvent::Admitted { terms, .. }, bells)) = hear(connection) else {
        panic!("no contract");
    };
    let (ledger, fd) = Ledger::create_limited(terms.frames.x, 0, 4).unwrap();
    ledger.set_bell(rustix::io::fcntl_dupfd_cloexec(&bells[1], 0).unwrap());
    ask(connection, &TenantRequest::Ledger, &[fd.as_fd()]);
    assert!(matches!(hear(connection), Some((DaemonEvent::Started, _))));
    ledger
}

/// A tenant that owns most frames and gives them back when it is asked and may.
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
        if let Some((DaemonEvent::Revoke { round, .. }, _)) = hear(&connection) {
            break round;
        }
    };
    count(1);
    wait_for(go);
    // Behind the strangers.
    std::thread::sleep(Duration::from_millis(300));
    ledger.retire(id);
    ask(&connection, &TenantRequest::RevocationDone { round }, &[]);
    count(1);
    // It still has its contract.
    ask(&connection, &TenantRequest::Capacity, &[]);
    while !matches!(
        hear(&connection).expect("it is disconnected").0,
        DaemonEvent::Capacity(_)
    ) {}
    count(1);
    // Until the other has what it was promised.
    std::thread::sleep(Duration::from_millis(500));
}

/// A tenant that wants all of its guarantee at once.
pub fn needs(path: &Path) {
    let wanted = wanted("needs", "40M", "10ms/250ms", 4);
    let manners = RevocationPolicy {
        eager: true,
        ..RevocationPolicy::default()
    };
    let (_tenant, share) = LinkedTenant::join_with(path, &wanted, manners).unwrap();
    let begin = Instant::now();
    while share.ledger.limit() < 10_240 {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{}",
            share.ledger.limit()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    count(1);
}

/// Connections that come, ask and go as fast as they can, some of them without a word.
pub fn storm(path: &Path, seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let begin = Instant::now();
    let mut kept = Vec::new();
    while begin.elapsed() < Duration::from_secs(1) {
        let Some(connection) = try_connect(path) else {
            continue;
        };
        for _ in 0..rng.below(20) {
            ask(&connection, &TenantRequest::List, &[]);
        }
        if rng.below(2) == 0 && kept.len() < 900 {
            kept.push(connection);
        }
    }
}
