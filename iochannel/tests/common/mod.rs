//! Helpers for the channel's tests: both ends, the descriptors that a tenant keeps, a disk in memory.
#![allow(dead_code)]

use iochannel::{
    ChannelClient, ChannelGeometry, ChannelServer, ClientFds, Doorbell, IoVec, Op, Request, create,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use std::sync::atomic::{AtomicBool, Ordering};

pub const PAGE: usize = 4096;

/// A page, aligned as channels require.
#[repr(C, align(4096))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Page(pub [u8; PAGE]);

impl Page {
    /// A page whose contents derive from `seed`.
    pub fn of(seed: u64) -> Self {
        let mut page = Self([0; PAGE]);
        for (at, word) in page.0.chunks_mut(8).enumerate() {
            word.copy_from_slice(&(seed * 512 + at as u64).to_le_bytes());
        }
        page
    }
}

pub fn pages(count: usize, seed: u64) -> Vec<Page> {
    (0..count as u64).map(|at| Page::of(seed + at)).collect()
}

pub fn pieces(pages: &mut [Page]) -> Vec<IoVec> {
    pages
        .iter_mut()
        .map(|page| IoVec::page(page.0.as_mut_ptr()))
        .collect()
}

pub fn duplicate(fd: impl AsFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, 0).unwrap()
}

/// The descriptors that a tenant keeps for the server's successor.
pub struct KeptFds {
    pub memory: OwnedFd,
    pub server_bell: OwnedFd,
    pub doorbell: OwnedFd,
}

impl KeptFds {
    /// A successor of the server, and its doorbell.
    pub fn attach_successor(&self) -> (ChannelServer, Doorbell) {
        let server = ChannelServer::attach(duplicate(&self.memory), duplicate(&self.server_bell));
        let doorbell = Doorbell::attach(duplicate(&self.doorbell));
        (server.unwrap(), doorbell.unwrap())
    }
}

/// Both ends of a new channel.
pub fn channel(geometry: ChannelGeometry) -> (ChannelServer, Doorbell, ChannelClient, KeptFds) {
    let doorbell = Doorbell::new().unwrap();
    let (server, ends) = create(geometry).unwrap();
    let ClientFds {
        memory,
        bell,
        server_bell,
    } = ends;
    let kept = KeptFds {
        memory: duplicate(&memory),
        server_bell,
        doorbell: doorbell.share().unwrap(),
    };
    let client = ChannelClient::attach(memory, doorbell.share().unwrap(), bell).unwrap();
    (server, doorbell, client, kept)
}

/// A disk in memory, shared over forks.
pub struct Disk(pub OwnedFd);

impl Disk {
    pub fn new(pages: usize) -> Self {
        let fd = memfd_create("disk", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, (pages * PAGE) as u64).unwrap();
        Self(fd)
    }

    /// Executes a request. Returns the system call's result.
    pub fn serve(&self, request: &Request) -> i32 {
        let (fd, offset) = (self.0.as_raw_fd(), request.offset as i64);
        let (start, count) = (request.pieces().as_ptr().cast(), request.pieces().len());
        // SAFETY: an `IoVec` is a `struct iovec`, here of page buffers of a live server.
        let moved = unsafe {
            match request.op {
                Op::Read => libc::preadv(fd, start, count as i32, offset),
                Op::Write => libc::pwritev(fd, start, count as i32, offset),
            }
        };
        if moved < 0 {
            return -std::io::Error::last_os_error().raw_os_error().unwrap();
        }
        moved as i32
    }
}

/// Returns true if a descriptor is readable now.
pub fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// Serves in order, asleep when there is nothing to do, until stopped and rung.
pub fn serve(server: &mut ChannelServer, doorbell: &Doorbell, disk: &Disk, stop: &AtomicBool) {
    loop {
        doorbell.drain();
        if stop.load(Ordering::Acquire) {
            return;
        }
        while let Some(request) = server.take().unwrap() {
            assert!(server.complete(request.slot, disk.serve(&request)));
            server.notify_completions();
        }
        if server.arm() {
            let mut fds = [PollFd::new(doorbell, PollFlags::IN)];
            // With a limit, so that a test that lost a wake-up ends and fails by its results.
            let limit = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            poll(&mut fds, Some(&limit)).unwrap();
        }
        server.disarm();
    }
}

/// Stops a thread in [`serve`].
pub fn stop(stop: &AtomicBool, kept: &KeptFds) {
    stop.store(true, Ordering::Release);
    rustix::io::write(&kept.doorbell, &1u64.to_ne_bytes()).unwrap();
}

/// One operation, waited for.
pub fn transfer(client: &mut ChannelClient, write: bool, pages: &mut [Page], first: usize) -> i32 {
    let pieces = pieces(pages);
    // SAFETY: the pages outlive the operation, which completes here.
    unsafe { client.begin(0, write, &pieces, (first * PAGE) as u64) };
    client.flush();
    let (op, result) = client.reap(true).unwrap();
    assert_eq!(op, 0);
    result
}
