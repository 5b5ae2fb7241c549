//! The daemon's disk, in a thread of the test: a server of IO channels over a plain file.

use iochannel::{
    ChannelClient, ChannelGeometry, ChannelServer, ClientFds, Doorbell, Op, Request, create,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use store::{DiskConfig, DiskTransport, SharedStore, StoreConfig};

/// A store with `ram` bytes of compressed RAM and a disk of the daemon's.
pub fn behind_channels(system: &System, ram: Option<u64>, holders: u16) -> SharedStore {
    let config = StoreConfig {
        ram,
        disk: Some(DiskConfig::by_daemon(system.shared.size)),
    };
    let (store, _) = SharedStore::create(&config, holders).unwrap();
    store.set_transport(system.transport());
    store
}

/// A tenant's copy of its channel.
struct Kept {
    memory: OwnedFd,
    server_bell: OwnedFd,
}

struct Shared {
    size: u64,
    disk: File,
    doorbell: Doorbell,
    kept: Mutex<Vec<Kept>>,
    fresh: Mutex<Vec<ChannelServer>>,
    /// Requests to complete with EIO.
    to_fail: AtomicU64,
    /// The server dies at its next request, before completing it.
    to_die: AtomicBool,
    end: AtomicBool,
    deaths: AtomicU64,
    settled: AtomicU64,
}

impl Shared {
    fn ring(&self) {
        rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).unwrap();
    }

    fn serve(&self, request: &Request) -> i32 {
        if self
            .to_fail
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
            .is_ok()
        {
            return -libc::EIO;
        }
        if request.offset + request.len() as u64 > self.size {
            return -libc::EFBIG;
        }
        // SAFETY: page buffers of a server that is there until it has answered.
        let slice = |piece: &iochannel::IoVec| unsafe {
            std::slice::from_raw_parts_mut(piece.start, piece.len)
        };
        let moved = match request.op {
            Op::Read => {
                let mut to: Vec<_> = (request.pieces().iter())
                    .map(|piece| IoSliceMut::new(slice(piece)))
                    .collect();
                rustix::io::preadv(&self.disk, &mut to, request.offset)
            }
            Op::Write => {
                let from: Vec<_> = (request.pieces().iter())
                    .map(|piece| IoSlice::new(slice(piece)))
                    .collect();
                rustix::io::pwritev(&self.disk, &from, request.offset)
            }
        };
        moved.map_or_else(|errno: Errno| -errno.raw_os_error(), |moved| moved as i32)
    }

    /// One life of the server: until it is stopped (true) or dies.
    fn live(&self, mut servers: Vec<ChannelServer>) -> bool {
        loop {
            self.doorbell.drain();
            if self.end.load(SeqCst) {
                return true;
            }
            servers.append(&mut self.fresh.lock().unwrap());
            for server in &mut servers {
                while let Some(request) = server.take().unwrap() {
                    if self.to_die.swap(false, SeqCst) {
                        return false;
                    }
                    let result = self.serve(&request);
                    assert!(server.complete(request.slot, result));
                }
                server.notify_completions();
            }
            let idle = servers.iter().all(ChannelServer::arm);
            if idle && self.fresh.lock().unwrap().is_empty() {
                let mut fds = [PollFd::new(&self.doorbell, PollFlags::IN)];
                let limit = Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                poll(&mut fds, Some(&limit)).unwrap();
            }
            servers.iter().for_each(ChannelServer::disarm);
        }
    }

    fn run(&self) {
        let mut servers = Vec::new();
        while !self.live(servers) {
            self.deaths.fetch_add(1, SeqCst);
            let (fresh, kept) = (&self.fresh, self.kept.lock().unwrap());
            fresh.lock().unwrap().clear();
            servers = kept
                .iter()
                .map(|kept| {
                    let (memory, bell) = (duplicate(&kept.memory), duplicate(&kept.server_bell));
                    ChannelServer::attach(memory, bell).unwrap()
                })
                .collect();
        }
    }
}

fn duplicate(fd: impl AsFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, 0).unwrap()
}

/// The daemon, until dropped.
pub struct System {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl System {
    /// With a disk of `size` bytes.
    pub fn new(size: u64) -> Self {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(size).unwrap();
        Self::over(disk)
    }

    /// With this disk.
    pub fn over(disk: File) -> Self {
        let size = disk.metadata().unwrap().len();
        let shared = Arc::new(Shared {
            size,
            disk,
            doorbell: Doorbell::new().unwrap(),
            kept: Mutex::default(),
            fresh: Mutex::default(),
            to_fail: AtomicU64::new(0),
            to_die: AtomicBool::new(false),
            end: AtomicBool::new(false),
            deaths: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        });
        let runs = shared.clone();
        Self {
            shared,
            thread: Some(std::thread::spawn(move || runs.run())),
        }
    }

    pub fn disk(&self) -> File {
        self.shared.disk.try_clone().unwrap()
    }

    pub fn transport(&self) -> Box<dyn DiskTransport> {
        Box::new(Plug(self.shared.clone()))
    }

    /// The next requests complete with EIO.
    pub fn fail(&self, requests: u64) {
        self.shared.to_fail.store(requests, SeqCst);
    }

    /// The server dies at the next request, and is replaced.
    pub fn die(&self) {
        self.shared.to_die.store(true, SeqCst);
    }

    pub fn deaths(&self) -> u64 {
        self.shared.deaths.load(SeqCst)
    }

    /// Number of times that a store waited for dead processes' I/O.
    pub fn settled(&self) -> u64 {
        self.shared.settled.load(SeqCst)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.shared.end.store(true, SeqCst);
        self.shared.ring();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// A transport.
struct Plug(Arc<Shared>);

impl DiskTransport for Plug {
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno> {
        let (server, ends) = create(ChannelGeometry::for_depth(depth)).unwrap();
        let ClientFds {
            memory,
            bell,
            server_bell,
        } = ends;
        let kept = Kept {
            memory: duplicate(&memory),
            server_bell,
        };
        // Together, so that the successor of a server that dies meanwhile has the channel.
        let mut all = self.0.kept.lock().unwrap();
        all.push(kept);
        self.0.fresh.lock().unwrap().push(server);
        drop(all);
        self.0.ring();
        let doorbell = self.0.doorbell.share().unwrap();
        ChannelClient::attach(memory, doorbell, bell).map_err(|_| Errno::IO)
    }

    fn wait_for_io(&self) {
        self.0.settled.fetch_add(1, SeqCst);
    }
}
