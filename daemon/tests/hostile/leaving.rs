//! Tenants that give their contracts back: honest linked programs, and one that lies.

use crate::attacks::{self, ask, connect, hear};
use crate::role::count;
use frames::{Contract, Ledger};
use host::seqpacket;
use protocol::contract_spec::ContractSpec;
use protocol::{DaemonEvent, ResumeToken, TenantRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use selfpage::{DirectIo, Domain, Paged};
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};
use tenant::{ContractRequest, DomainResources, LinkedError, LinkedTenant, Session};

const PAGE: usize = 4096;
/// Pages of a linked program; its frames are an eighth.
const PAGES: usize = 2048;
/// Times that it joins and leaves.
pub const ROUNDS: u64 = 5;

fn wanted() -> ContractRequest {
    attacks::wanted("linked", "1M", "10ms/250ms,extra", 16)
}

/// Joins by `join`; a user that joined and left often lately has to wait a little.
fn patiently<T, E: Display>(join: impl Fn() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        match join() {
            Ok(joined) => return joined,
            Err(why) => assert!(begin.elapsed() < Duration::from_secs(60), "{why}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn join(path: &Path) -> (LinkedTenant, DomainResources) {
    patiently(|| LinkedTenant::join(path, &wanted()))
}

/// Leaves, as soon as it may.
fn leave(tenant: &mut LinkedTenant) {
    let begin = Instant::now();
    while let Err(why) = tenant.leave() {
        assert!(why.to_string().contains("changes a second"), "{why}");
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn domain(share: DomainResources) -> Domain {
    let builder = Domain::builder()
        .frames(share.contract)
        .ledger(share.ledger)
        .shared_store(share.store)
        .direct_io(DirectIo::PinnedOnly);
    builder.build().unwrap()
}

/// Has a contract and disconnects before it has attached a ledger, as a program does that finds
/// that it cannot go on. A tenant that owned no frame is not killed, and until then in the group that it came from:
/// nothing has to be undone where the daemon refuses it after all.
fn resign(path: &Path) {
    let groups = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = groups();
    let session = patiently(|| Session::join(path, &wanted()));
    assert_eq!(groups(), before);
    drop(session);
}

/// A program that pages under a contract, leaves, goes on, and joins again. It counts each time
/// that all was right.
pub fn linked(path: &Path) {
    for round in 0..ROUNDS {
        // Whatever memory it has of its own.
        let own = vec![round as u8 + 1; 48 << 20];
        resign(path);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(own[7], round as u8 + 1);
        drop(own);
        let (mut tenant, share) = join(path);
        let domain = domain(share);
        let stretch = domain.allocate(PAGES * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        let word = |page: usize| {
            // SAFETY: the first word of a page of the stretch, which is ours alone.
            unsafe { stretch.as_ptr().add(page * PAGE).cast::<u64>() }
        };
        for page in 0..PAGES {
            // SAFETY: as above.
            unsafe { word(page).write_volatile(round << 32 | page as u64) };
        }
        for page in 0..PAGES {
            // SAFETY: as above.
            let read = unsafe { word(page).read_volatile() };
            assert_eq!(read, round << 32 | page as u64);
        }
        // While it pages it is not let go, and told what it has.
        let refused = tenant.leave().unwrap_err();
        assert!(
            matches!(refused, LinkedError::InUse { frames } if frames > 0),
            "{refused}"
        );
        drop(domain);
        assert!(matches!(tenant.leave(), Err(LinkedError::InUse { .. })));
        drop(stretch);
        // Other memory than its stretches counts, too.
        let more = vec![round as u8 + 1; 32 << 20];
        let refused = tenant.leave().unwrap_err();
        assert!(
            matches!(&refused, LinkedError::LeaveRefused(why) if why.contains("are resident")),
            "{refused}"
        );
        drop(more);
        leave(&mut tenant);
        assert!(matches!(tenant.leave(), Err(LinkedError::NoContract)));
        drop(tenant);
        // No process is killed for a connection that has ended.
        std::thread::sleep(Duration::from_millis(100));
        count(1);
    }
}

/// Messages of three descriptors that may still be sent: a resume token's, and some channels'.
const ROOM: usize = 3;

/// Sends descriptors that are not received, until the kernel lets this user send [`ROOM`] more. They
/// are released with what is returned.
fn fill_descriptors_in_flight() -> [OwnedFd; 2] {
    let limit = getrlimit(Resource::Nofile);
    let lowered = Rlimit {
        current: Some(512),
        ..limit
    };
    setrlimit(Resource::Nofile, lowered).unwrap();
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (to, from) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    loop {
        let fds = [from.as_fd(); 3];
        match seqpacket::send(&to, &[1], &fds, SendFlags::DONTWAIT) {
            Ok(()) => {}
            Err(Errno::TOOMANYREFS) => break,
            Err(why) => panic!("{why}: needs a user without privileges, and room for 171 messages"),
        }
    }
    for _ in 0..ROOM {
        // Nothing is there where other processes of this user have sent as many.
        let _ = seqpacket::receive(&from, RecvFlags::DONTWAIT);
    }
    [to, from]
}

/// Leaves while there is no daemon, and counts before and after.
pub fn interrupted(path: &Path, go: &Path) {
    let (mut tenant, share) = join(path);
    let domain = domain(share);
    count(1);
    let begin = Instant::now();
    while !go.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    // The requests to close its channels wait for the next daemon, too.
    drop(domain);
    let sent = fill_descriptors_in_flight();
    let received = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        drop(sent);
    });
    leave(&mut tenant);
    received.join().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    count(1);
}

/// Times that a tenant leaves and keeps its bells.
pub const BELLS: u64 = 5;

/// Gives contracts back and keeps their bells.
pub fn keep_bells(path: &Path) -> ! {
    let connection = connect(path);
    let mut kept = Vec::new();
    for _ in 0..BELLS {
        kept.push(admitted(&connection).1);
        assert_eq!(leaves(&connection), DaemonEvent::Left);
        count(1);
    }
    loop {
        std::thread::park();
    }
}

/// A contract of its own, by messages; its connection, its ledger and what it shows of that.
fn enter(connection: &OwnedFd) -> (Ledger, OwnedFd) {
    let (terms, _) = admitted(connection);
    let (ledger, fd) = Ledger::create_limited(terms.frames.x, 0, 4).unwrap();
    ask(connection, &TenantRequest::Ledger, &[fd.as_fd()]);
    assert!(matches!(hear(connection), Some((DaemonEvent::Started, _))));
    (ledger, fd)
}

/// A contract, and its bells.
fn admitted(connection: &OwnedFd) -> (ContractSpec, Vec<OwnedFd>) {
    let wanted = attacks::wanted("leaver", "8M", "10ms/250ms", 4);
    let join = attacks::join(ResumeToken::draw().unwrap(), wanted);
    loop {
        assert!(ask(connection, &join, &[]));
        if let Some((DaemonEvent::Admitted { terms, .. }, bells)) = hear(connection) {
            return (terms, bells);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The reply to giving a contract back; a user that requests too often has to wait.
fn leaves(connection: &OwnedFd) -> DaemonEvent {
    loop {
        assert!(ask(connection, &TenantRequest::Leave, &[]));
        loop {
            match hear(connection) {
                Some((DaemonEvent::LeaveRefused(why), _)) if why.contains("changes a second") => {
                    break;
                }
                Some((
                    say @ (DaemonEvent::LeaveRefused(_)
                    | DaemonEvent::Left
                    | DaemonEvent::Refused(_)),
                    _,
                )) => return say,
                Some(_) => {}
                None => panic!("the connection ended"),
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Leaves with frames, with memory, twice, and asks for things afterwards. It counts 1 if it
/// was let go when it had nothing, and not before.
pub fn hostile(path: &Path) {
    // A client without a contract cannot give one back.
    let connection = connect(path);
    assert!(matches!(leaves(&connection), DaemonEvent::Refused(_)));
    let (ledger, fd) = enter(&connection);
    // With frames that its ledger says it owns.
    let id = ledger.admit(Contract { g: 4, x: 1024 }).unwrap();
    let client = ledger.adopt(id).unwrap();
    let mut frames = Vec::new();
    let begin = Instant::now();
    while frames.len() < 64 && begin.elapsed() < Duration::from_secs(20) {
        frames.extend(client.take());
    }
    assert_eq!(frames.len(), 64);
    let refused = leaves(&connection);
    assert!(
        matches!(&refused, DaemonEvent::LeaveRefused(why) if why.contains("of frames are owned")),
        "{refused:?}"
    );
    ledger.retire(id);
    // With memory that its ledger does not know of.
    let memory = vec![7u8; 48 << 20];
    let refused = leaves(&connection);
    assert!(
        matches!(&refused, DaemonEvent::LeaveRefused(why) if why.contains("are resident")),
        "{refused:?}"
    );
    assert_eq!(memory[5], 7);
    drop(memory);
    // With a channel, which it writes into afterwards.
    ask(
        &connection,
        &TenantRequest::Open {
            depth: 8,
            cookie: 1,
        },
        &[],
    );
    let ends = loop {
        match hear(&connection) {
            Some((DaemonEvent::Opened { .. }, ends)) => break ends,
            Some(_) => {}
            None => panic!("the connection ended"),
        }
    };
    // Twice at once: once is enough.
    assert!(ask(&connection, &TenantRequest::Leave, &[]));
    assert_eq!(leaves_in_the_end(&connection), DaemonEvent::Left);
    let shared = wired::WiredMemory::attach(&ends[0], PAGE).unwrap();
    for word in shared.slice::<std::sync::atomic::AtomicU32>(0, PAGE / 4) {
        word.store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
    }
    request_as_a_tenant(&connection, &fd);
    // It is no tenant any more: it lives, and has no limit.
    drop(connection);
    std::thread::sleep(Duration::from_millis(300));
    // It may come again, leave without waiting, and go.
    let connection = connect(path);
    let (_ledger, _fd) = enter(&connection);
    assert_eq!(leaves(&connection), DaemonEvent::Left);
    let (_ledger, _fd) = enter(&connection);
    assert_eq!(leaves(&connection), DaemonEvent::Left);
    count(1);
}

/// Requests everything that only a tenant may, with the ledger of one that has left.
fn request_as_a_tenant(connection: &OwnedFd, ledger: &OwnedFd) {
    for request in [
        TenantRequest::Leave,
        TenantRequest::Ledger,
        TenantRequest::Open {
            depth: 8,
            cookie: 2,
        },
        TenantRequest::Close(0),
        TenantRequest::Channel(0),
        TenantRequest::RevocationDone { round: 1 },
    ] {
        assert!(ask(connection, &request, &[ledger.as_fd()]));
        let answer = hear(connection).map(|(event, _)| event);
        assert!(
            matches!(answer, Some(DaemonEvent::Refused(_))),
            "{request:?} {answer:?}"
        );
    }
}

/// Of two requests to leave one may find the other under way.
fn leaves_in_the_end(connection: &OwnedFd) -> DaemonEvent {
    loop {
        match leaves(connection) {
            DaemonEvent::Refused(why) if why.contains("being given back") => {
                // The other's answer comes.
                if let Some((DaemonEvent::Left, _)) = hear(connection) {
                    return DaemonEvent::Left;
                }
            }
            say => return say,
        }
    }
}
