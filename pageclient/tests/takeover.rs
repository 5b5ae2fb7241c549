//! A process of a client that follows one which was killed: it serves what its supervisor sends to it, and not what the
//! earlier one had not read.

use disk::time::Time;
use disk::usd::{PartId, Transport};
use host::seqpacket::{self, Received};
use iochannel::{ChannelClient, ChannelGeometry, Doorbell, IoVec, Op};
use pageclient::protocol::{self, ClientEvent, ClientRequest};
use pageclient::{KeptHeader, PageClient, ServeError, Serving, serve, start_usd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use wired::PAGE;

/// How long the client may take to answer.
const LIMIT: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
const PAGES: u64 = 64;

/// Pages that were written, in order.
type Writes = Arc<Mutex<Vec<u64>>>;

/// Completes each part, and stores nothing.
struct Log {
    writes: Writes,
    done: VecDeque<(PartId, i32)>,
    bell: OwnedFd,
}

impl Transport for Log {
    unsafe fn start(&mut self, _: Time, id: PartId, _: Op, _: u32, pieces: &[IoVec], at: u64) {
        self.writes.lock().unwrap().push(at / PAGE as u64);
        let bytes = pieces.iter().map(|piece| piece.len as i32).sum();
        self.done.push_back((id, bytes));
    }

    fn flush(&mut self, _: Time) {}

    fn reap(&mut self, _: Time) -> Option<(PartId, i32)> {
        self.done.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_due(&self) -> Option<Time> {
        (!self.done.is_empty()).then_some(Time(0))
    }
}

/// What outlives the processes.
struct Client {
    header: [AtomicU64; KeptHeader::WORDS],
    doorbell: Doorbell,
    writes: Writes,
}

impl PageClient for Client {
    const NAME: &'static str = "client of a test";
    type Error = ServeError;

    fn header(&self) -> KeptHeader<'_> {
        KeptHeader::at(&self.header)
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    fn size(&self) -> u64 {
        PAGES * PAGE as u64
    }

    fn start(&self) -> Result<Serving, ServeError> {
        let log = Log {
            writes: Arc::clone(&self.writes),
            done: VecDeque::new(),
            bell: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        };
        Ok(Serving {
            usd: start_usd(Box::new(log))?,
            first_channel: (self.header().count_start() << 32) + 1,
            connected: 1,
            named: 1,
        })
    }
}

#[repr(align(4096))]
struct Page([u8; PAGE]);

/// A process's end of a channel, and what its supervisor keeps of it.
struct Channel {
    number: u64,
    client: ChannelClient,
    kept: [OwnedFd; 2],
}

impl Channel {
    /// One that a process had opened which is gone.
    fn left(number: u64, doorbell: &Doorbell) -> Self {
        let (_, ends) = iochannel::create(ChannelGeometry::for_depth(8)).unwrap();
        let memory = ends.memory.try_clone().unwrap();
        Self {
            number,
            client: ChannelClient::attach(ends.memory, doorbell.share().unwrap(), ends.bell)
                .unwrap(),
            kept: [memory, ends.server_bell],
        }
    }

    /// Submits the write of a page.
    fn begin(&mut self, page: u64) {
        let memory = Box::leak(Box::new(Page([0; PAGE])));
        let piece = IoVec::page(memory.0.as_mut_ptr());
        let pieces = Box::leak(Box::new([piece]));
        // SAFETY: pieces and memory stay for good.
        unsafe { self.client.begin(0, true, pieces, page * PAGE as u64) };
        self.client.flush();
    }

    fn write(&mut self, page: u64) {
        self.begin(page);
        assert_eq!(self.client.reap(true), Some((0, PAGE as i32)));
    }

    fn attach(&self, socket: &OwnedFd, generation: u64) {
        let attach = ClientRequest::Attach {
            channel: self.number,
        };
        let fds = [self.kept[0].as_fd(), self.kept[1].as_fd()];
        protocol::send(socket, &attach.addressed_to(generation), &fds).unwrap();
    }
}

/// A client, as its supervisor has it.
struct Scene {
    client: Arc<Client>,
    socket: OwnedFd,
    theirs: Arc<OwnedFd>,
}

impl Scene {
    /// So many processes have served.
    fn after(killed: u64) -> Self {
        let (socket, theirs) = seqpacket::pair().unwrap();
        Self {
            client: Arc::new(Client {
                header: [AtomicU64::new(killed), AtomicU64::new(killed)],
                doorbell: Doorbell::new().unwrap(),
                writes: Writes::default(),
            }),
            socket,
            theirs: Arc::new(theirs),
        }
    }

    /// Another process serves. Returns its generation.
    fn start(&self) -> (JoinHandle<()>, u64) {
        let (client, theirs) = (Arc::clone(&self.client), Arc::clone(&self.theirs));
        let process = std::thread::spawn(move || serve(&*client, &theirs).unwrap());
        match protocol::decode(self.receive().as_slice()) {
            Some(ClientEvent::Ready { generation, .. }) => (process, generation),
            other => panic!("{other:?}"),
        }
    }

    fn receive(&self) -> Received {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&LIMIT)).unwrap(), 1, "no answer");
        seqpacket::receive(&self.socket, RecvFlags::DONTWAIT).unwrap()
    }

    fn ask(&self, request: ClientRequest, generation: u64) {
        protocol::send(&self.socket, &request.addressed_to(generation), &[]).unwrap();
    }

    /// The client opens a channel, and has handled all messages before.
    fn open(&self, generation: u64) -> Channel {
        let open = ClientRequest::Open {
            cookie: 1,
            depth: 8,
        };
        self.ask(open, generation);
        let mut opened = self.receive();
        let Some(ClientEvent::Opened { channel, .. }) = protocol::decode(opened.as_slice()) else {
            panic!("not opened");
        };
        let [memory, bell, server_bell] = [0, 1, 2].map(|at| opened.fds[at].take().unwrap());
        let kept = [memory.try_clone().unwrap(), server_bell];
        let doorbell = self.client.doorbell.share().unwrap();
        Channel {
            number: channel,
            client: ChannelClient::attach(memory, doorbell, bell).unwrap(),
            kept,
        }
    }

    /// The tree has ended. Returns what was written.
    fn end(self, process: JoinHandle<()>) -> Vec<u64> {
        drop(self.socket);
        process.join().unwrap();
        self.client.writes.lock().unwrap().clone()
    }
}

#[test]
fn a_channel_of_a_process_that_died_between_two_kills_is_not_served() {
    let scene = Scene::after(2);
    let mut stale = Channel::left(1, &scene.client.doorbell);
    stale.begin(7);
    // The next process was killed before it read that, and the supervisor does not send it again: its bloks are another's.
    stale.attach(&scene.socket, 2);
    let (process, generation) = scene.start();
    assert_eq!(generation, 3);
    let mut channel = scene.open(generation);
    channel.write(8);
    assert_eq!(scene.end(process), [8], "a write that no process waits for");
}

#[test]
fn a_channel_that_two_processes_were_to_attach_is_served_once() {
    let scene = Scene::after(2);
    let mut channel = Channel::left(1, &scene.client.doorbell);
    channel.begin(1);
    channel.attach(&scene.socket, 1);
    channel.attach(&scene.socket, 2);
    let (process, generation) = scene.start();
    channel.attach(&scene.socket, generation);
    scene.open(generation).write(0);
    assert_eq!(channel.client.reap(true), Some((0, PAGE as i32)));
    for page in 2..PAGES {
        channel.write(page);
    }
    let mut writes = scene.end(process);
    writes.sort_unstable();
    assert_eq!(writes, Vec::from_iter(0..PAGES), "each once");
}

#[test]
fn a_request_of_a_killed_process_is_not_answered() {
    let scene = Scene::after(1);
    let open = ClientRequest::Open {
        cookie: 9,
        depth: 8,
    };
    scene.ask(open, 1);
    scene.ask(ClientRequest::Close { channel: 5 }, 1);
    let (process, generation) = scene.start();
    let close = ClientRequest::Close { channel: 6 };
    scene.ask(close, generation);
    let event = protocol::decode(scene.receive().as_slice());
    assert_eq!(event, Some(ClientEvent::Closed { channel: 6 }));
    assert!(scene.end(process).is_empty());
}

const ROLE: &str = "SELFPAGE_TEST_PAGE_CLIENT";
/// A user that has no processes otherwise.
const USER: u32 = 65_522;
/// Longer than a message waits by itself for descriptors in flight.
const LONG: Duration = Duration::from_millis(1500);

#[test]
fn a_channel_is_opened_once_the_user_has_room_for_descriptors_in_flight() {
    if !rustix::process::getuid().is_root() {
        eprintln!(
            "SKIPPED: the limit counts all processes of a user, and only root can be another user"
        );
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "as_a_user_without_privileges"]);
    command.uid(USER).gid(USER);
    assert!(command.env(ROLE, "1").status().unwrap().success());
}

#[test]
fn as_a_user_without_privileges() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let current = Some(64);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let scene = Scene::after(0);
    let (process, generation) = scene.start();
    let (to, from) = seqpacket::pair().unwrap();
    let fill = || seqpacket::try_send(&to, b"x", &[to.as_fd(); 8], SendFlags::DONTWAIT);
    while fill() == Ok(()) {}
    assert_eq!(fill(), Err(Errno::TOOMANYREFS));
    let receiver = std::thread::spawn(move || {
        std::thread::sleep(LONG);
        while seqpacket::receive(&from, RecvFlags::DONTWAIT).is_ok_and(|it| it.len > 0) {}
        from
    });
    scene.open(generation).write(3);
    receiver.join().unwrap();
    assert_eq!(scene.end(process), [3]);
}
