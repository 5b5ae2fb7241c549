//! Shared memory of a tree, requested over the real sockets. The test process is supervisor, pager and client: only
//! the pager's own threads must not touch what it serves.

// A refusal carries its text in place.
#![allow(clippy::result_large_err)]

mod common;

use iochannel::ChannelGeometry;
use link::client::{JoinError, Joined, SupervisorPort};
use link::handshake::{Hello, ProgramPlace};
use link::shared_request::SharedRequest;
use pageclient::protocol::{self, AddressedRequest, ClientEvent, ClientRequest};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::RecvFlags;
use std::time::{Duration, Instant};
use supervisor::page_client_link::PageClientConnection;
use supervisor::{Supervisor, SupervisorConfig};
use translation::{Capabilities, EntryKind, Userfault, UserfaultOptions};
use wired::PAGE;

const FRAMES: u32 = 512;
const PAGES: usize = 2048;

fn start() -> (Supervisor, SupervisorPort) {
    let supervisor = common::start(FRAMES, Some("ram:64MiB".parse().unwrap()));
    let port = common::port(&supervisor, true);
    (supervisor, port)
}

/// Serves the tree until the client's part is done.
fn serve<T: Send>(supervisor: &mut Supervisor, client: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let client = scope.spawn(client);
        let begin = Instant::now();
        while !client.is_finished() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the client waits"
            );
            supervisor.dispatch();
            std::thread::sleep(Duration::from_millis(1));
        }
        client.join().unwrap()
    })
}

/// A process that has joined with a userfaultfd for shared memory.
struct Member {
    joined: Joined,
    /// Closed with the member; the supervisor has the other end.
    _lifeline: OwnedFd,
}

/// `None` where this process may not handle faults inside system calls.
fn member(port: SupervisorPort) -> Option<Member> {
    let options = UserfaultOptions {
        reports_changes: true,
        ..UserfaultOptions::default()
    };
    let capabilities = Capabilities::probe_fast();
    let Ok(uffd) = Userfault::open_with(EntryKind::Thread, &capabilities, options) else {
        eprintln!(
            "SKIPPED: a userfaultfd that sees faults inside system calls is not permitted here"
        );
        return None;
    };
    let joined = port
        .join(Hello::Exec {
            program: ProgramPlace::default(),
        })
        .unwrap();
    let (end, lifeline) = host::seqpacket::pair().unwrap();
    let (uffd, end) = (uffd.as_fd(), end.as_fd());
    joined
        .connection
        .send_lifeline(end, Some(uffd), Some(uffd))
        .unwrap();
    Some(Member {
        joined,
        _lifeline: lifeline,
    })
}

impl Member {
    fn request(&self, request: SharedRequest) -> Result<Option<OwnedFd>, JoinError> {
        request.send(self.joined.connection.fd(), None)
    }

    fn create(&self, len: usize) -> Result<OwnedFd, JoinError> {
        let created = self.request(SharedRequest::Create { len: len as u64 });
        created.map(|memory| memory.expect("memory comes with the reply"))
    }

    fn share(&self, at: usize, memory: &OwnedFd) -> Result<Option<OwnedFd>, JoinError> {
        let request = SharedRequest::Share {
            addr: at as u64,
            len: (PAGES * PAGE) as u64,
        };
        request.send(self.joined.connection.fd(), Some(memory.as_fd()))
    }
}

fn map(memory: &OwnedFd) -> usize {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGES * PAGE,
            rights,
            MapFlags::SHARED,
            memory,
            0,
        )
    };
    at.unwrap() as usize
}

/// The word that a test keeps in a page.
fn word(at: usize, page: usize) -> *mut u64 {
    (at + page * PAGE + 8 * (page % 512)) as *mut u64
}

fn refusal(result: Result<Option<OwnedFd>, JoinError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn memory_beyond_the_frames_reads_as_written_and_its_frames_are_freed_by_munmap() {
    let (mut supervisor, port) = start();
    let owned = serve(&mut supervisor, || {
        let member = member(port)?;
        let memory = member.create(PAGES * PAGE).unwrap();
        let at = map(&memory);
        member.share(at, &memory).unwrap();
        for page in 0..PAGES {
            // SAFETY: the mapping made above.
            unsafe { word(at, page).write_volatile(page as u64 ^ 77) };
        }
        for page in (0..PAGES).rev() {
            // SAFETY: as above.
            let found = unsafe { word(at, page).read_volatile() };
            assert_eq!(found, page as u64 ^ 77, "page {page}");
        }
        let discard = SharedRequest::Discard {
            addr: (at + 10 * PAGE) as u64,
            len: (5 * PAGE) as u64,
        };
        member.request(discard).unwrap();
        for page in 8..17 {
            let expected = if (10..15).contains(&page) {
                0
            } else {
                page as u64 ^ 77
            };
            // SAFETY: as above.
            let found = unsafe { word(at, page).read_volatile() };
            assert_eq!(found, expected, "page {page}");
        }
        let owned = member_owned(&member);
        // SAFETY: the mapping made above.
        unsafe { munmap(at as *mut _, PAGES * PAGE) }.unwrap();
        let begin = Instant::now();
        while member_owned(&member) > owned / 2 {
            assert!(begin.elapsed() < Duration::from_secs(30), "the frames stay");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(owned)
    });
    assert!(owned.is_none_or(|owned| owned <= FRAMES && owned > FRAMES / 2));
}

/// Frames of the tree that are in use.
fn member_owned(member: &Member) -> u32 {
    let ledger = frames::Ledger::attach(&member.joined.ledger).unwrap();
    let unused = ledger.all_stats().map(|stats| stats.unused).sum::<u32>();
    ledger.owned().saturating_sub(unused)
}

#[test]
fn memory_that_the_supervisor_did_not_make_is_refused() {
    let (mut supervisor, port) = start();
    serve(&mut supervisor, || {
        let Some(member) = member(port) else { return };
        let small = member.create(PAGE).unwrap_err();
        assert!(small.to_string().contains("64 KiB"), "{small}");
        let memory = member.create(PAGES * PAGE).unwrap();
        let at = map(&memory);
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let text = refusal(member.share(at, &pipe));
        assert!(text.contains("seals"), "{text}");
        let text = refusal(member.share(at + 1, &memory));
        assert!(!text.is_empty());
        member.share(at, &memory).unwrap();
        let twin = map(&memory);
        let text = refusal(member.share(twin, &memory));
        assert!(text.contains("object already"), "{text}");
        let nothing = SharedRequest::Share { addr: 0, len: 0 };
        let text = refusal(member.request(nothing));
        assert!(text.contains("descriptor"), "{text}");
    });
}

/// Opens each channel that the supervisor requests, with as many slots as it names.
fn serve_channels(socket: &OwnedFd) {
    let mut servers = Vec::new();
    while let Ok(message) = host::seqpacket::receive(socket, RecvFlags::empty()) {
        if message.len == 0 {
            return;
        }
        let request = protocol::decode(message.as_slice());
        let request = request.map(|message: AddressedRequest| message.request);
        if let Some(ClientRequest::Open { cookie, depth }) = request {
            let geometry = ChannelGeometry::for_depth(depth.into());
            let (server, ends) = iochannel::create(geometry).unwrap();
            let channel = cookie;
            let fds = [&ends.memory, &ends.bell, &ends.server_bell].map(AsFd::as_fd);
            protocol::send(socket, &ClientEvent::Opened { cookie, channel }, &fds).unwrap();
            servers.push(server);
        }
    }
}

#[test]
fn memory_is_shared_where_pages_go_to_compressed_ram_and_through_a_channel() {
    let (socket, client) = host::seqpacket::pair().unwrap();
    let channels = std::thread::spawn(move || serve_channels(&client));
    let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let settings = SupervisorConfig {
        store: Some("ram:16MiB+remote:64MiB".parse().unwrap()),
        page_client: Some(PageClientConnection {
            name: "remote client",
            generation: 1,
            socket,
            doorbell,
        }),
        ..common::settings(FRAMES)
    };
    let mut supervisor = Supervisor::start(settings).unwrap();
    supervisor.listen().unwrap();
    let port = common::port(&supervisor, true);
    serve(&mut supervisor, || {
        let Some(member) = member(port) else { return };
        let memory = member.create(PAGES * PAGE).unwrap();
        member.share(map(&memory), &memory).unwrap();
    });
    drop(supervisor);
    channels.join().unwrap();
}
