//! The process that pages, and what the tests do with its objects.

use crate::common::{PAGE, bytes, bytes_mut, fork, sockets, wait};
use selfpage::Contract;
use space::{MemoryObject, ObjectPager, PagedMemory};
use std::cell::RefCell;
use std::os::fd::OwnedFd;

pub const FRAMES: u32 = 256;
/// Eight times the frames.
pub const PAGES: usize = 2048;
pub const SIZE: usize = PAGES * PAGE;

/// The process that pages; ended when it is dropped.
pub struct Pager {
    pid: i32,
    pub connections: Vec<OwnedFd>,
}

impl Pager {
    /// A pager, with so many connections.
    pub fn start(connections: usize) -> Self {
        Self::start_with(connections, || {})
    }

    /// The same; the pager's process does something else first.
    pub fn start_with(connections: usize, begin: impl FnOnce()) -> Self {
        let pairs: Vec<_> = (0..connections).map(|_| sockets()).collect();
        let pairs = RefCell::new(pairs);
        let pid = fork(|| {
            let pairs = pairs.take();
            let contract = Contract::from(FRAMES);
            let pager = ObjectPager::start(contract, &"ram:64M".parse().unwrap()).unwrap();
            for (_, theirs) in &pairs {
                pager.serve(theirs.try_clone().unwrap()).unwrap();
            }
            begin();
            // The copies of this process would keep connections open.
            for (ours, theirs) in pairs {
                drop((ours, theirs));
            }
            loop {
                std::thread::park();
            }
        });
        let connections = pairs.take().into_iter().map(|(ours, _)| ours).collect();
        Self { pid, connections }
    }

    pub fn join(&mut self) -> PagedMemory {
        PagedMemory::new(self.connections.pop().unwrap()).unwrap()
    }

    pub fn kill(&mut self) {
        // SAFETY: this test's own child.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        assert_eq!(wait(self.pid), Err(libc::SIGKILL));
        self.pid = 0;
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        if self.pid != 0 {
            self.kill();
        }
    }
}

/// A word of each page, which no other page and no other round has.
fn word(page: usize, round: u64) -> u64 {
    (page as u64 + 1) << 8 | round
}

pub fn write(at: usize, pages: impl Iterator<Item = usize>, round: u64) {
    for page in pages {
        let value = word(page, round).to_le_bytes();
        // SAFETY: mapped for writing, and the processes take turns; below, too.
        unsafe { bytes_mut(at + page * PAGE + page % 500 * 8, 8) }.copy_from_slice(&value);
    }
}

pub fn check(at: usize, pages: impl Iterator<Item = usize>, round: u64) {
    for page in pages {
        // SAFETY: as above.
        let found = unsafe { bytes(at + page * PAGE + page % 500 * 8, 8) };
        assert_eq!(found, word(page, round).to_le_bytes(), "page {page}");
    }
}

/// Pages of an object that are in memory.
pub fn resident(object: &MemoryObject) -> u64 {
    rustix::fs::fstat(object.as_fd()).unwrap().st_blocks as u64 * 512 / PAGE as u64
}

pub fn say(socket: &OwnedFd) {
    rustix::io::write(socket, &[0]).unwrap();
}

pub fn hear(socket: &OwnedFd) {
    assert_eq!(rustix::io::read(socket, &mut [0]), Ok(1));
}
