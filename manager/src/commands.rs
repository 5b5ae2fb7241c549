//! Commands for a client's handler thread.

use crate::save::SaveRequest;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A queue whose descriptor is readable while it has commands.
#[derive(Debug)]
pub struct Commands {
    queue: Mutex<VecDeque<SaveRequest>>,
    doorbell: OwnedFd,
}

impl Commands {
    /// An empty queue.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            queue: Mutex::default(),
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Appends a command and wakes the handler thread.
    pub(crate) fn send(&self, request: SaveRequest) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(request);
        self.ring();
    }

    /// Wakes the handler thread, which looks at all that it waits for.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Silences the descriptor, before a look at all that the thread waits for: what rings meanwhile rings again.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0u8; 8]);
    }

    /// Takes the oldest command.
    pub(crate) fn take(&self) -> Option<SaveRequest> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = queue.pop_front();
        if !queue.is_empty() {
            self.ring();
        }
        taken
    }
}

impl AsFd for Commands {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
