//! The descriptors that a loop waits for, each with a token that identifies it.

use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;

/// Most descriptors reported by one wait: further readable ones are reported by the next.
const MAX_REPORTED: usize = 64;

/// A set of descriptors.
pub struct EpollSet(OwnedFd);

impl EpollSet {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self)
    }

    /// Readable when a descriptor of the set is.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Reports `token` whenever `fd` is readable.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.0, fd, data, epoll::EventFlags::IN)
    }

    /// Removes a descriptor. One that is not in the set (its other end was closed, for example) is ignored.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// The tokens of the descriptors that are readable now.
    pub fn readable(&self) -> Vec<u64> {
        let mut tokens = Vec::new();
        self.wait(&Timespec::default(), &mut tokens);
        tokens
    }

    /// Waits until a descriptor is readable, for at most `limit`, and replaces the contents of `tokens` by the tokens of
    /// the readable ones.
    pub fn wait(&self, limit: &Timespec, tokens: &mut Vec<u64>) {
        tokens.clear();
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; MAX_REPORTED];
        if let Ok((events, _)) = epoll::wait(&self.0, &mut ready, Some(limit)) {
            tokens.extend(events.iter().map(|event| event.data.u64()));
        }
    }
}
