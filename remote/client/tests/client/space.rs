//! A client that runs in this process, and an IO channel to it.

use host::seqpacket::{self, Received};
use iochannel::{ChannelClient, IoVec};
use pageclient::PagingFile;
use pageclient::protocol::{self, ClientEvent, ClientRequest};
use remote_keys::Keyring;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::RecvFlags;
use selfpage_remote_client::{ClientProgress, RemoteConfig, ServerSource, run};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wired::PAGE;

/// How long the client may take to answer.
const LIMIT: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
/// How long an object is not used before it may be part of a stripe.
const COLD: Duration = Duration::from_millis(100);
/// Bytes of an object.
const SIZE: u64 = selfpage_remote_client::OBJECT_PAGES * PAGE as u64;

#[repr(align(4096))]
#[derive(Clone)]
pub struct Page(pub [u8; PAGE]);

impl Page {
    fn piece(&mut self) -> IoVec {
        IoVec::page(self.0.as_mut_ptr())
    }
}

/// A space on paging servers.
pub struct Space {
    pub channel: ChannelClient,
    /// What the client has done by itself.
    pub progress: Arc<ClientProgress>,
    generation: u64,
    doorbell: OwnedFd,
    /// The client ends with it.
    socket: OwnedFd,
}

impl Space {
    /// Starts a client that keeps `replicas` copies.
    pub fn new(servers: &[SocketAddr], replicas: u8) -> Self {
        Self::of_objects(1, servers, replicas)
    }

    /// Starts a client of a space of some objects.
    pub fn of_objects(objects: u64, servers: &[SocketAddr], replicas: u8) -> Self {
        Self::start(objects, servers, replicas, false, None)
    }

    /// Starts a client that encrypts its pages.
    pub fn encrypted(servers: &[SocketAddr], replicas: u8) -> Self {
        Self::start(1, servers, replicas, true, None)
    }

    /// Starts a client that makes stripes of what it does not use for a moment.
    pub fn striped(objects: u64, servers: &[SocketAddr]) -> Self {
        Self::start(objects, servers, 2, false, Some(COLD))
    }

    /// Likewise, of so many pages.
    pub fn striped_pages(pages: u64, servers: &[SocketAddr]) -> Self {
        Self::run(RemoteConfig {
            size: pages * PAGE as u64,
            stripe_after: Some(COLD),
            ..config(1, servers, 2)
        })
    }

    /// Like [`Space::striped`], and encrypts its pages.
    pub fn striped_and_encrypted(objects: u64, servers: &[SocketAddr]) -> Self {
        Self::start(objects, servers, 2, true, Some(COLD))
    }

    /// Two copies of each page, on servers of the hosts that are members of a list.
    pub fn keyed(objects: u64, servers: &[SocketAddr], keys: &Arc<Keyring>) -> Self {
        let config = config(objects, servers, 2);
        Self::run(RemoteConfig {
            keys: Some(Arc::clone(keys)),
            ..config
        })
    }

    /// On servers that the broker of the hosts at these control ports names.
    pub fn by_broker(hosts: &[SocketAddr], replicas: u8) -> Self {
        let hosts = hosts.iter().map(SocketAddr::to_string).collect();
        Self::run(RemoteConfig {
            servers: ServerSource::Broker(hosts),
            ..config(1, &[], replicas)
        })
    }

    /// One copy of each page, of so many pages at one server and so many in a paging file.
    pub fn with_file(server: SocketAddr, at_server: u64, in_file: u64) -> Self {
        Self::run(RemoteConfig {
            size: at_server * PAGE as u64,
            paging_file: Some(paging_file(in_file)),
            ..config(1, &[server], 1)
        })
    }

    /// Like [`Space::striped`], with a small paging file.
    pub fn striped_with_file(objects: u64, servers: &[SocketAddr]) -> Self {
        Self::run(RemoteConfig {
            stripe_after: Some(COLD),
            paging_file: Some(paging_file(64)),
            ..config(objects, servers, 2)
        })
    }

    fn start(
        objects: u64,
        servers: &[SocketAddr],
        replicas: u8,
        is_encrypted: bool,
        stripe_after: Option<Duration>,
    ) -> Self {
        Self::run(RemoteConfig {
            is_encrypted,
            stripe_after,
            ..config(objects, servers, replicas)
        })
    }

    fn run(config: RemoteConfig) -> Self {
        let progress = Arc::clone(&config.progress);
        let (own, theirs) = seqpacket::pair().unwrap();
        std::thread::spawn(move || run(&config, &theirs));
        let mut ready = receive(&own);
        let event = protocol::decode(ready.as_slice());
        let Some(ClientEvent::Ready { generation, .. }) = event else {
            panic!("{event:?}");
        };
        let doorbell = ready.fds[0].take().unwrap();
        Self {
            channel: open(&own, generation, &doorbell),
            progress,
            generation,
            doorbell,
            socket: own,
        }
    }

    /// A channel as another process has one, on which reads of runs of pages from `first` on are under way.
    pub fn begin_reads(&self, first: u64, pages: &mut [Page], run: usize) -> ChannelClient {
        let mut channel = open(&self.socket, self.generation, &self.doorbell);
        for (at, pages) in pages.chunks_mut(run).enumerate() {
            let pieces = pages.iter_mut().map(Page::piece).collect::<Vec<_>>().leak();
            let offset = (first as usize + at * run) * PAGE;
            // SAFETY: the pieces are never freed, and the caller keeps the pages.
            unsafe { channel.begin(at, false, pieces, offset as u64) };
        }
        channel.flush();
        channel
    }

    /// Writes pages from `first` on, full of `byte`.
    pub fn write(&mut self, first: u64, count: usize, byte: u8) -> Result<(), i32> {
        self.transfer(true, first, &mut vec![Page([byte; PAGE]); count])
    }

    /// Reads pages from `first` on: the byte that each is full of.
    pub fn read(&mut self, first: u64, count: usize) -> Result<Vec<u8>, i32> {
        let mut pages = vec![Page([0xee; PAGE]); count];
        self.transfer(false, first, &mut pages)?;
        let byte = |Page(bytes): &Page| {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn page");
            bytes[0]
        };
        Ok(pages.iter().map(byte).collect())
    }

    fn transfer(&mut self, write: bool, first: u64, pages: &mut [Page]) -> Result<(), i32> {
        let bytes = size_of_val(pages) as i32;
        let pieces: Vec<_> = pages.iter_mut().map(Page::piece).collect();
        // SAFETY: pieces and pages outlive the operation, which is reaped here.
        unsafe { self.channel.begin(0, write, &pieces, first * PAGE as u64) };
        self.channel.flush();
        match self.channel.reap(true).unwrap() {
            (_, moved) if moved == bytes => Ok(()),
            (_, errno) => Err(-errno),
        }
    }
}

fn open(socket: &OwnedFd, generation: u64, doorbell: &OwnedFd) -> ChannelClient {
    let open = ClientRequest::Open {
        cookie: 1,
        depth: 16,
    };
    protocol::send(socket, &open.addressed_to(generation), &[]).unwrap();
    let mut opened = receive(socket);
    let [memory, bell] = [0, 1].map(|at| opened.fds[at].take().unwrap());
    ChannelClient::attach(memory, doorbell.try_clone().unwrap(), bell).unwrap()
}

fn receive(socket: &OwnedFd) -> Received {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&LIMIT)).unwrap(), 1, "no answer");
    seqpacket::receive(socket, RecvFlags::DONTWAIT).unwrap()
}

/// In the clear.
fn config(objects: u64, servers: &[SocketAddr], replicas: u8) -> RemoteConfig {
    RemoteConfig {
        servers: ServerSource::Alone(servers.iter().map(SocketAddr::to_string).collect()),
        size: objects * SIZE,
        paging_file: None,
        replicas,
        keys: None,
        is_encrypted: false,
        stripe_after: None,
        progress: Arc::default(),
    }
}

/// A file for so many pages.
fn paging_file(pages: u64) -> PagingFile {
    let size = pages * PAGE as u64;
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(PagingFile::bytes(size)).unwrap();
    PagingFile {
        file: Arc::new(file.into()),
        size,
    }
}
