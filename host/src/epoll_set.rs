//! The descriptors that a loop waits for, each with a token that says which it is.

use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;

/// Descriptors reported in a turn: what more is readable waits for the next.
const A_TURN: usize = 64;

/// The set.
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

    /// A descriptor that is not in the set (its other end was closed, for example) stays out.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// The tokens of what is readable now.
    pub fn readable(&self) -> Vec<u64> {
        let mut tokens = Vec::new();
        self.wait(&Timespec::default(), &mut tokens);
        tokens
    }

    /// Waits until a descriptor is readable, or the limit, and puts the tokens of those that are in place of what
    /// `tokens` holds.
    pub fn wait(&self, limit: &Timespec, tokens: &mut Vec<u64>) {
        tokens.clear();
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; A_TURN];
        if let Ok((events, _)) = epoll::wait(&self.0, &mut ready, Some(limit)) {
            tokens.extend(events.iter().map(|event| event.data.u64()));
        }
    }
}
