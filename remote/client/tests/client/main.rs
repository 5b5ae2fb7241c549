//! The client against servers that refuse, fail or lie: nothing is lost that some server has, and no
//! wrong page is read.

mod addresses;
mod copying;
mod degraded;
mod encryption;
mod history;
mod interposer;
mod keyed;
mod lies;
mod only_copy;
mod outages;
mod paging_file;
mod permits;
mod refusals;
mod space;
mod stripe_sources;
mod stripes;

use interposer::{Direction, Interposer, Verdict};
use remote_policy::identity::{HostId, Incarnation};
use remote_server::{Server, ServerConfig};
use remote_wire::control::{ControlRequest, decode};
use remote_wire::{Header, Kind, Link, Status};
use rustix::io::Errno;
use space::Space;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the client may take to do what it does by itself.
const PATIENCE: Duration = Duration::from_secs(20);

const EIO: i32 = Errno::IO.raw_os_error();
const ETIMEDOUT: i32 = Errno::TIMEDOUT.raw_os_error();
const ENOSPC: i32 = Errno::NOSPC.raw_os_error();

/// A server of 64 MiB, in the clear.
fn config(host: u64) -> ServerConfig {
    ServerConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        server: Incarnation::new(HostId(host), 1, 1),
        name: format!("server{host}"),
        ram: 64 << 20,
        disk: None,
        capacity: ServerConfig::default_capacity(),
        host: None,
        most_connections: remote_server::MAX_CONNECTIONS,
        patience: Duration::from_secs(5),
        acceptor: Box::new(Link::plain),
    }
}

/// One behind an interposer.
struct PagingServer {
    _server: Server,
    interposer: Interposer,
}

impl PagingServer {
    fn start(host: u64) -> Self {
        let server = Server::start(config(host)).unwrap();
        let interposer = Interposer::new(server.address());
        Self {
            _server: server,
            interposer,
        }
    }

    fn address(&self) -> SocketAddr {
        self.interposer.address
    }
}

/// Makes a request its own refusal.
fn refuse(request: &mut Header, body: &mut Vec<u8>, status: Status) -> Verdict {
    *request = Header {
        pages: status as u16,
        ..request.reply(Kind::ErrorReply)
    };
    *body = b"by the test".to_vec();
    Verdict::Return
}

/// Refuses every request of a kind.
fn refuse_all(interposer: &Interposer, kind: Kind, status: Status) {
    interposer.set(move |_, header, body| match header.kind == kind {
        true => refuse(header, body, status),
        false => Verdict::Forward,
    });
}

/// Refuses new copies.
fn refuse_copies(interposer: &Interposer) {
    interposer.set(|_, header, body| match is_create(header, body) {
        true => refuse(header, body, Status::Full),
        false => Verdict::Forward,
    });
}

/// A space with a copy on each server.
fn space_on(servers: &[PagingServer]) -> Space {
    let addresses: Vec<_> = servers.iter().map(PagingServer::address).collect();
    Space::new(&addresses, servers.len() as u8)
}

/// Two servers and a space with four pages, of which the second server has refused its copy.
fn with_one_copy_of_two() -> ([PagingServer; 2], Space) {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    refuse_copies(&servers[1].interposer);
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    (servers, space)
}

/// Waits until a server receives pages.
fn wait_for_pages(server: &PagingServer) {
    let written = count(&server.interposer, |header, _| header.kind == Kind::Write);
    wait_until("pages are copied", || written.load(Ordering::Relaxed) > 0);
}

/// Counts the requests for which `is` holds, and forwards all.
fn count(
    interposer: &Interposer,
    is: impl Fn(&Header, &[u8]) -> bool + Send + 'static,
) -> Arc<AtomicU64> {
    let counted = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&counted);
    interposer.set(move |direction, header, body| {
        let is_counted = direction == Direction::ToServer && is(header, body);
        counter.fetch_add(is_counted.into(), Ordering::Relaxed);
        Verdict::Forward
    });
    counted
}

fn is_create(header: &Header, body: &[u8]) -> bool {
    header.kind == Kind::Control && matches!(decode(body), Ok(ControlRequest::Create { .. }))
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(
            begun.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_write_that_the_only_copy_refuses_fails_and_loses_no_other_page() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    for (status, errno) in [
        (Status::Disk, EIO),
        (Status::Full, ENOSPC),
        (Status::Invalid, EIO),
    ] {
        refuse_all(&server.interposer, Kind::Write, status);
        assert_eq!(space.write(2, 8, 2), Err(errno), "{status:?}");
        server.interposer.clear();
        assert_eq!(space.read(0, 4).unwrap(), [1; 4], "{status:?}");
    }
    space.write(2, 8, 3).unwrap();
    assert_eq!(space.read(0, 4).unwrap(), [1, 1, 3, 3]);
}

#[test]
fn a_write_that_one_of_two_copies_refuses_is_at_the_other() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    refuse_all(&servers[0].interposer, Kind::Write, Status::Disk);
    space.write(0, 2, 2).unwrap();
    assert_eq!(space.read(0, 4).unwrap(), [2, 2, 1, 1]);
}

#[test]
fn an_object_of_which_pages_are_lost_is_copied_without_them() {
    let (servers, mut space) = with_one_copy_of_two();
    // The only copy is gone.
    refuse_all(&servers[0].interposer, Kind::Read, Status::NoObject);
    assert_eq!(space.read(0, 4), Err(EIO));
    servers[0].interposer.clear();
    space.write(2, 4, 2).unwrap();
    assert_eq!(space.read(2, 4).unwrap(), [2; 4]);

    wait_for_pages(&servers[1]);
    // Its acknowledgement, too, has arrived by then.
    std::thread::sleep(Duration::from_millis(500));
    refuse_all(&servers[0].interposer, Kind::Read, Status::NoObject);
    assert_eq!(space.read(2, 4).unwrap(), [2; 4]);
    assert_eq!(space.read(0, 2), Err(EIO));
}

#[test]
fn an_object_whose_only_copy_cannot_be_read_is_not_copied_again_at_once() {
    let (servers, mut space) = with_one_copy_of_two();
    refuse_all(&servers[0].interposer, Kind::Read, Status::Disk);
    let created = count(&servers[1].interposer, is_create);
    wait_until("another copy is begun", || {
        created.load(Ordering::Relaxed) > 0
    });
    std::thread::sleep(Duration::from_secs(2));
    assert!(created.load(Ordering::Relaxed) <= 2, "{created:?} times");
    // The disk has recovered, and so does the copy.
    servers[0].interposer.clear();
    wait_for_pages(&servers[1]);
    assert_eq!(space.read(0, 4).unwrap(), [1; 4]);
}

#[test]
fn clients_of_processes_with_one_number_have_pages_of_their_own() {
    let server = PagingServer::start(1);
    let mut spaces = [1, 2].map(|_| space_on(std::slice::from_ref(&server)));
    for (byte, space) in (1..).zip(&mut spaces) {
        space.write(0, 4, byte).unwrap();
    }
    for (byte, space) in (1..).zip(&mut spaces) {
        assert_eq!(space.read(0, 4), Ok(vec![byte; 4]));
    }
}

/// Has the server whose reply comes first say another version of the pages that it reads, once.
fn lie_once<'a>(servers: impl IntoIterator<Item = &'a PagingServer>, change: fn(u64) -> u64) {
    let lies = Arc::new(AtomicBool::new(true));
    for server in servers {
        let lies = Arc::clone(&lies);
        server.interposer.set(move |_, header, body| {
            if header.kind == Kind::ReadReply && lies.swap(false, Ordering::Relaxed) {
                let versions = &mut body[..usize::from(header.pages) * size_of::<u64>()];
                for bytes in versions.chunks_exact_mut(size_of::<u64>()) {
                    let version = u64::from_le_bytes(bytes.try_into().unwrap());
                    bytes.copy_from_slice(&change(version).to_le_bytes());
                }
            }
            Verdict::Forward
        });
    }
}

const LIES: [fn(u64) -> u64; 4] = [
    |version| version - 1,
    |_| 0,
    |version| version + 1,
    |_| u64::MAX,
];

#[test]
fn a_page_of_a_version_that_was_not_the_last_written_is_an_error_at_the_only_copy() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    for change in LIES {
        lie_once([&server], change);
        assert_eq!(space.read(0, 4), Err(EIO));
        assert_eq!(space.read(0, 4).unwrap(), [1; 4]);
    }
}

#[test]
fn a_page_of_a_version_that_was_not_the_last_written_is_read_at_the_other_copy() {
    for change in LIES {
        let servers = [PagingServer::start(1), PagingServer::start(2)];
        let mut space = space_on(&servers);
        space.write(0, 4, 1).unwrap();
        lie_once(&servers, change);
        assert_eq!(space.read(0, 4).unwrap(), [1; 4]);
    }
}

#[test]
fn a_reply_of_another_kind_ends_the_connection_and_loses_no_page() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    let mut lies = true;
    server.interposer.set(move |_, header, body| {
        if header.kind == Kind::ReadReply && std::mem::take(&mut lies) {
            (header.kind, *body) = (Kind::WriteReply, Vec::new());
        }
        Verdict::Forward
    });
    assert_eq!(space.read(0, 4).unwrap(), [1; 4]);
}
