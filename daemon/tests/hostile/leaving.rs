//! Tenants that give their contracts back: honest linked programs, and a hostile one.

use crate::attacks::{self, connect, receive_event, send_request};
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
/// Times that a linked program joins and leaves.
pub const ROUNDS: u64 = 5;

fn contract_request() -> ContractRequest {
    attacks::contract_request("linked", "1M", "10ms/250ms,extra", 16)
}

/// Joins by `join`, and retries: a user's rate of changes is limited.
fn retry<T, E: Display>(join: impl Fn() -> Result<T, E>) -> T {
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
    retry(|| LinkedTenant::join(path, &contract_request()))
}

/// Leaves, and retries while the user's rate of changes is exceeded.
fn leave(tenant: &mut LinkedTenant) {
    let begin = Instant::now();
    while let Err(why) = tenant.leave() {
        assert!(why.to_string().contains("changes a second"), "{why}");
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn domain(resources: DomainResources) -> Domain {
    let builder = Domain::builder()
        .frames(resources.contract)
        .ledger(resources.ledger)
        .shared_store(resources.store)
        .direct_io(DirectIo::PinnedOnly);
    builder.build().unwrap()
}

/// Gets a contract and disconnects before it has attached a ledger, as a program does that finds
/// that it cannot go on. A tenant that owned no frame is not killed. Until it attaches a ledger it stays in its own
/// control group: nothing has to be undone where the daemon refuses it after all.
fn disconnect_without_ledger(path: &Path) {
    let groups = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = groups();
    let session = retry(|| Session::join(path, &contract_request()));
    assert_eq!(groups(), before);
    drop(session);
}

/// A program that pages under a contract, leaves, goes on running, and joins again. It counts each round
/// that was right.
pub fn linked(path: &Path) {
    for round in 0..ROUNDS {
        // Memory outside of any contract does not matter here.
        let own = vec![round as u8 + 1; 48 << 20];
        disconnect_without_ledger(path);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(own[7], round as u8 + 1);
        drop(own);
        let (mut tenant, resources) = join(path);
        let domain = domain(resources);
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
        // While it pages it is not released, and is told how many frames it has.
        let refused = tenant.leave().unwrap_err();
        assert!(
            matches!(refused, LinkedError::InUse { frames } if frames > 0),
            "{refused}"
        );
        drop(domain);
        assert!(matches!(tenant.leave(), Err(LinkedError::InUse { .. })));
        drop(stretch);
        // Memory outside of its stretches counts, too.
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

/// Messages of three descriptors that may still be sent: that of the resume token, and those of some channels.
const ROOM: usize = 3;

/// Sends descriptors that are not received, until the kernel lets this user send [`ROOM`] more messages. They
/// are released with the sockets that it returns.
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
        // Nothing arrives where other processes of this user have sent as many.
        let _ = seqpacket::receive(&from, RecvFlags::DONTWAIT);
    }
    [to, from]
}

/// Leaves while no daemon serves, and counts before and after.
pub fn interrupted(path: &Path, go: &Path) {
    let (mut tenant, resources) = join(path);
    let domain = domain(resources);
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

/// Times that [`keep_bells`] leaves.
pub const BELLS: u64 = 5;

/// Gives contracts back and keeps their bells open.
pub fn keep_bells(path: &Path) -> ! {
    let connection = connect(path);
    let mut kept = Vec::new();
    for _ in 0..BELLS {
        kept.push(admitted(&connection).1);
        assert_eq!(reply_to_leave(&connection), DaemonEvent::Left);
        count(1);
    }
    loop {
        std::thread::park();
    }
}

/// Gets a contract by messages, and attaches a ledger. Returns the ledger and its descriptor.
fn enter(connection: &OwnedFd) -> (Ledger, OwnedFd) {
    let (terms, _) = admitted(connection);
    let (ledger, fd) = Ledger::create_limited(terms.frames.x, 0, 4).unwrap();
    send_request(connection, &TenantRequest::Ledger, &[fd.as_fd()]);
    assert!(matches!(
        receive_event(connection),
        Some((DaemonEvent::Started, _))
    ));
    (ledger, fd)
}

/// Requests a contract until it is admitted. Returns its terms and its bells.
fn admitted(connection: &OwnedFd) -> (ContractSpec, Vec<OwnedFd>) {
    let request = attacks::contract_request("leaver", "8M", "10ms/250ms", 4);
    let join = attacks::join(ResumeToken::draw().unwrap(), request);
    loop {
        assert!(send_request(connection, &join, &[]));
        if let Some((DaemonEvent::Admitted { terms, .. }, bells)) = receive_event(connection) {
            return (terms, bells);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The reply to a request to leave, which is repeated while the user's rate of changes is exceeded.
fn reply_to_leave(connection: &OwnedFd) -> DaemonEvent {
    loop {
        assert!(send_request(connection, &TenantRequest::Leave, &[]));
        loop {
            match receive_event(connection) {
                Some((DaemonEvent::LeaveRefused(why), _)) if why.contains("changes a second") => {
                    break;
                }
                Some((
                    event @ (DaemonEvent::LeaveRefused(_)
                    | DaemonEvent::Left
                    | DaemonEvent::Refused(_)),
                    _,
                )) => return event,
                Some(_) => {}
                None => panic!("the connection ended"),
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Requests to leave with frames, with memory, and twice, and sends a tenant's requests afterwards. It counts 1 if it
/// was released when it had nothing left, and not before.
pub fn hostile(path: &Path) {
    // A client without a contract cannot give one back.
    let connection = connect(path);
    assert!(matches!(
        reply_to_leave(&connection),
        DaemonEvent::Refused(_)
    ));
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
    let refused = reply_to_leave(&connection);
    assert!(
        matches!(&refused, DaemonEvent::LeaveRefused(why) if why.contains("of frames are owned")),
        "{refused:?}"
    );
    ledger.retire(id);
    // With memory that is not in its ledger.
    let memory = vec![7u8; 48 << 20];
    let refused = reply_to_leave(&connection);
    assert!(
        matches!(&refused, DaemonEvent::LeaveRefused(why) if why.contains("are resident")),
        "{refused:?}"
    );
    assert_eq!(memory[5], 7);
    drop(memory);
    // With a channel, into which it writes afterwards.
    send_request(
        &connection,
        &TenantRequest::Open {
            depth: 8,
            cookie: 1,
        },
        &[],
    );
    let ends = loop {
        match receive_event(&connection) {
            Some((DaemonEvent::Opened { .. }, ends)) => break ends,
            Some(_) => {}
            None => panic!("the connection ended"),
        }
    };
    // A second request before the first is answered.
    assert!(send_request(&connection, &TenantRequest::Leave, &[]));
    assert_eq!(reply_to_both(&connection), DaemonEvent::Left);
    let shared = wired::WiredMemory::attach(&ends[0], PAGE).unwrap();
    for word in shared.slice::<std::sync::atomic::AtomicU32>(0, PAGE / 4) {
        word.store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
    }
    request_as_a_tenant(&connection, &fd);
    // It is no tenant any more: it is not killed, and has no limit.
    drop(connection);
    std::thread::sleep(Duration::from_millis(300));
    // It may join again, leave at once, and disconnect.
    let connection = connect(path);
    let (_ledger, _fd) = enter(&connection);
    assert_eq!(reply_to_leave(&connection), DaemonEvent::Left);
    let (_ledger, _fd) = enter(&connection);
    assert_eq!(reply_to_leave(&connection), DaemonEvent::Left);
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
        assert!(send_request(connection, &request, &[ledger.as_fd()]));
        let answer = receive_event(connection).map(|(event, _)| event);
        assert!(
            matches!(answer, Some(DaemonEvent::Refused(_))),
            "{request:?} {answer:?}"
        );
    }
}

/// The reply to two requests to leave, the second of which may be refused while the first is handled.
fn reply_to_both(connection: &OwnedFd) -> DaemonEvent {
    loop {
        match reply_to_leave(connection) {
            DaemonEvent::Refused(why) if why.contains("being given back") => {
                // The first request's reply follows.
                if let Some((DaemonEvent::Left, _)) = receive_event(connection) {
                    return DaemonEvent::Left;
                }
            }
            event => return event,
        }
    }
}
