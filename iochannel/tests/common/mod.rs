//! Helpers for the channel's tests: both ends, what a tenant keeps, a disk in memory.
#![allow(dead_code)]

use iochannel::{Client, Doorbell, Ends, Op, Piece, Request, Server, Shape, create};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use std::sync::atomic::{AtomicBool, Ordering};

pub const PAGE: usize = 4096;

/// A page, aligned as channels want it.
#[repr(C, align(4096))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Page(pub [u8; PAGE]);

impl Page {
    /// The page that `seed` stands for.
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

pub fn pieces(pages: &mut [Page]) -> Vec<Piece> {
    pages
        .iter_mut()
        .map(|page| Piece {
            start: page.0.as_mut_ptr(),
            len: PAGE,
        })
        .collect()
}

pub fn duplicate(fd: impl AsFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, 0).unwrap()
}

/// What a tenant keeps of a channel for the server's successor.
pub struct Kept {
    pub memory: OwnedFd,
    pub server_bell: OwnedFd,
    pub doorbell: OwnedFd,
}

impl Kept {
    /// A successor and its doorbell.
    pub fn succeed(&self) -> (Server, Doorbell) {
        let server = Server::attach(duplicate(&self.memory), duplicate(&self.server_bell));
        let doorbell = Doorbell::attach(duplicate(&self.doorbell));
        (server.unwrap(), doorbell.unwrap())
    }
}

/// Both ends of a new channel.
pub fn channel(shape: Shape) -> (Server, Doorbell, Client, Kept) {
    let doorbell = Doorbell::new().unwrap();
    let (server, ends) = create(shape).unwrap();
    let Ends {
        memory,
        bell,
        server_bell,
    } = ends;
    let kept = Kept {
        memory: duplicate(&memory),
        server_bell,
        doorbell: doorbell.share().unwrap(),
    };
    let client = Client::attach(memory, doorbell.share().unwrap(), bell).unwrap();
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

    /// What the system says.
    pub fn serve(&self, request: &Request) -> i32 {
        let (fd, offset) = (self.0.as_raw_fd(), request.offset as i64);
        let (start, count) = (request.pieces().as_ptr().cast(), request.pieces().len());
        // SAFETY: a piece is an iovec, of page buffers of a server that is there.
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

/// Whether a descriptor is readable now.
pub fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// Serves in order, asleep when there is nothing to do, until told to stop and rung.
pub fn serve(server: &mut Server, doorbell: &Doorbell, disk: &Disk, stop: &AtomicBool) {
    loop {
        doorbell.clear();
        if stop.load(Ordering::Acquire) {
            return;
        }
        while let Some(request) = server.take().unwrap() {
            assert!(server.finish(request.slot, disk.serve(&request)));
            server.announce();
        }
        if server.arm() {
            let mut fds = [PollFd::new(doorbell, PollFlags::IN)];
            // With a limit, so that a test that lost a wake-up fails by its results.
            let limit = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            poll(&mut fds, Some(&limit)).unwrap();
        }
        server.disarm();
    }
}

/// Tells a thread in [`serve`] to stop.
pub fn stop(stop: &AtomicBool, kept: &Kept) {
    stop.store(true, Ordering::Release);
    rustix::io::write(&kept.doorbell, &1u64.to_ne_bytes()).unwrap();
}

/// One operation, waited for.
pub fn transfer(client: &mut Client, write: bool, pages: &mut [Page], first: usize) -> i32 {
    let pieces = pieces(pages);
    // SAFETY: the pages outlive the operation, which ends here.
    unsafe { client.begin(0, write, &pieces, (first * PAGE) as u64) };
    client.flush();
    let (op, result) = client.over(true).unwrap();
    assert_eq!(op, 0);
    result
}
