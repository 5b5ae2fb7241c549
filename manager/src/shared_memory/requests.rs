//! What the supervisor asks of the pager of shared memory.

use super::clients::SlotIndex;
use frames::DomainId;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Receives the outcome of a request, on the pager's thread.
pub type Responder = Box<dyn FnOnce(Result<(), String>) + Send>;

/// A request.
pub enum Request {
    /// A process has mapped a fresh memfd of zeros, whole: it becomes an object.
    Share {
        /// The process.
        slot: SlotIndex,
        /// Its userfaultfd, with its first object.
        uffd: Option<OwnedFd>,
        /// Where it is mapped, in bytes.
        addr: usize,
        /// Bytes.
        len: usize,
        /// The memfd.
        memory: OwnedFd,
        /// Answered when faults are served.
        respond: Responder,
    },
    /// A process has mapped pages of an object that another one has shared.
    Attach {
        /// The process.
        slot: SlotIndex,
        /// Its userfaultfd, with its first object.
        uffd: Option<OwnedFd>,
        /// The inode of the object's memfd.
        inode: u64,
        /// The first of the pages.
        page: usize,
        /// Where they are mapped.
        to: Range<usize>,
        /// Answered when faults are served.
        respond: Responder,
    },
    /// A process is about to fork: the child inherits what it maps now, whatever becomes of it.
    Fork {
        /// The process, which changes no mapping until it has forked.
        slot: SlotIndex,
        /// The child's domain.
        child: DomainId,
        /// Answered when that is kept for the child.
        respond: Responder,
    },
    /// The child of a fork maps what is kept for it.
    Inherit {
        /// The child, which does not run yet.
        slot: SlotIndex,
        /// Its domain.
        domain: DomainId,
        /// Its userfaultfd.
        uffd: OwnedFd,
        /// Answered when faults are served.
        respond: Responder,
    },
    /// A process changes shared memory, or how it maps it.
    Change {
        /// The process.
        slot: SlotIndex,
        /// The change.
        change: Change,
        /// Answered when it is made.
        respond: Responder,
    },
    /// A process has ended, or begun another image.
    End {
        /// The process.
        slot: SlotIndex,
    },
}

impl Request {
    /// The process whose memory it is about.
    pub(super) fn slot(&self) -> SlotIndex {
        match self {
            Self::Share { slot, .. }
            | Self::Attach { slot, .. }
            | Self::Fork { slot, .. }
            | Self::Inherit { slot, .. }
            | Self::Change { slot, .. }
            | Self::End { slot } => *slot,
        }
    }

    /// Returns true if a later request has to wait for this one: both are about one process.
    pub(super) fn precedes(&self, later: &Request) -> bool {
        self.slot() == later.slot()
    }

    /// Ends it without effect.
    pub(super) fn refuse(self, why: &str) {
        match self {
            Self::Share { respond, .. }
            | Self::Attach { respond, .. }
            | Self::Fork { respond, .. }
            | Self::Inherit { respond, .. }
            | Self::Change { respond, .. } => respond(Err(why.into())),
            Self::End { .. } => {}
        }
    }
}

/// A change, by addresses of the process that asks for it.
pub enum Change {
    /// The contents end, for all processes.
    Discard(Range<usize>),
    /// The process maps more of an object: at `to` is what lies `offset` bytes behind `from`.
    Extend {
        /// A mapped address.
        from: usize,
        /// Bytes.
        offset: usize,
        /// The new part.
        to: Range<usize>,
    },
    /// The process maps other pages of an object than it did.
    Remap {
        /// An address of a mapping of that object.
        like: usize,
        /// The first of the pages.
        page: usize,
        /// Where they are mapped.
        to: Range<usize>,
    },
    /// Nothing is mapped there.
    Unmapped(Range<usize>),
    /// The pages are not evicted.
    Lock(Range<usize>),
    /// They may be evicted again.
    Unlock(Range<usize>),
}

/// Requests on their way to the pager.
#[derive(Clone)]
pub struct Mailbox {
    requests: Arc<Mutex<VecDeque<Request>>>,
    bell: Arc<OwnedFd>,
}

impl Mailbox {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            requests: Arc::default(),
            bell: Arc::new(bell),
        })
    }

    /// Sends a request. Never waits for the pager.
    pub fn send(&self, request: Request) {
        self.requests().push_back(request);
        self.ring();
    }

    /// Wakes the pager.
    pub fn ring(&self) {
        let _ = io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The next request.
    pub(super) fn receive(&self) -> Option<Request> {
        self.requests().pop_front()
    }

    /// Readable when rung.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Hears a ring: the bell is quiet until the next one.
    pub(super) fn hear(&self) {
        let _ = io::read(&self.bell, &mut [0u8; 8][..]);
    }

    fn requests(&self) -> std::sync::MutexGuard<'_, VecDeque<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
