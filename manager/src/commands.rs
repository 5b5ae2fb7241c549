//! Commands for a client's handler thread.

use crate::save::SaveRequest;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A queue whose descriptor is readable while it has commands.
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
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Takes the oldest command.
    pub(crate) fn take(&self) -> Option<SaveRequest> {
        let _ = rustix::io::read(&self.doorbell, &mut [0u8; 8]);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = queue.pop_front();
        if !queue.is_empty() {
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
        taken
    }
}

impl AsFd for Commands {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
