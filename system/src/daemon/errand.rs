//! What takes long, done beside the daemon's loop: wiping swap files, ending tenants.

use super::wipe::Wiped;
use crate::control::TenantNumber;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What was done.
pub enum Done {
    /// A swap file can be given out, or why not.
    Wiped(TenantNumber, Box<Wiped>),
    /// A tenant's processes have ended.
    Killed(TenantNumber),
}

/// Errands under way.
pub struct Errands {
    sender: Sender<Done>,
    receiver: Receiver<Done>,
    bell: Arc<OwnedFd>,
}

impl Errands {
    /// None under way.
    pub fn new() -> rustix::io::Result<Self> {
        let (sender, receiver) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self {
            sender,
            receiver,
            bell,
        })
    }

    /// Starts one on a thread of its own.
    pub fn start(&self, work: impl FnOnce() -> Done + Send + 'static) {
        let (sender, bell) = (self.sender.clone(), self.bell.clone());
        std::thread::spawn(move || tell(&sender, &bell, work()));
    }

    /// One that needs nothing to be done.
    pub fn done(&self, done: Done) {
        tell(&self.sender, &self.bell, done);
    }

    /// Readable when one is done.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next that is done.
    pub fn next(&self) -> Option<Done> {
        let next = self.receiver.try_recv().ok();
        if next.is_none() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
        next.or_else(|| self.receiver.try_recv().ok())
    }
}

fn tell(sender: &Sender<Done>, bell: &OwnedFd, done: Done) {
    // The daemon ends: nobody needs to know.
    let _ = sender.send(done);
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
