//! The server's end of a channel.

use crate::doorbell::{bell_pair, check_bell, ring_client};
use crate::error::{ChannelError, needs};
use crate::geometry::ChannelGeometry;
use crate::memory::ChannelMemory;
use crate::request::{ProtocolError, Request};
use crate::service_queue::ServiceQueue;
use crate::threads::ClaimedThreads;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;

/// The server's end: used by one thread at a time.
pub struct ChannelServer {
    queue: ServiceQueue<'static>,
    bell: OwnedFd,
    /// Requests were completed since the client was last notified.
    unnotified: bool,
    /// What `queue` points into: dropped last.
    memory: ChannelMemory,
}

/// The descriptors of a new channel for its client.
#[derive(Debug)]
pub struct ClientFds {
    /// The memory: for the client, and kept for the server's successor.
    pub memory: OwnedFd,
    /// The client's end of its bell.
    pub bell: OwnedFd,
    /// The server's end of that bell: kept for the server's successor, so that the client's end
    /// does not hang up when the server dies.
    pub server_bell: OwnedFd,
}

/// Makes a channel. Its memory is allocated as its pages are used.
pub fn create(geometry: ChannelGeometry) -> Result<(ChannelServer, ClientFds), ChannelError> {
    let (memory, fd) = ChannelMemory::create(geometry)?;
    let (server_bell, bell) = bell_pair()?;
    let own =
        fcntl_dupfd_cloexec(&server_bell, 0).map_err(needs("a descriptor of the client's bell"))?;
    // SAFETY: `ChannelServer` keeps the memory beside what points into it.
    let words = unsafe { memory.words() };
    // So that the bell rings from the first completion on, for a client that only polls.
    words.client.set();
    let server = ChannelServer {
        queue: ServiceQueue::recover(words),
        bell: own,
        unnotified: false,
        memory,
    };
    let fds = ClientFds {
        memory: fd,
        bell,
        server_bell,
    };
    Ok((server, fds))
}

impl ChannelServer {
    /// Attaches a channel that a predecessor made, by its `memory` and `server_bell`, which the
    /// tenant kept and may have forged: anything but a sealed channel is refused.
    /// [`ChannelServer::take`] returns first what the predecessor left incomplete, in order.
    ///
    /// The predecessor and all its I/O must have ended before this is called: its I/O could still write
    /// into page buffers that belong to another request by now. The io_uring I/O of a process has ended
    /// when its last descriptors are closed; the release of the lock that it held on the disk's file
    /// shows that.
    ///
    /// Refused descriptors are left to the caller to close, since closing may block.
    pub fn attach(memory: impl AsFd, server_bell: impl AsFd) -> Result<Self, ChannelError> {
        check_bell(&server_bell)?;
        let memory = ChannelMemory::attach(memory)?;
        let bell = fcntl_dupfd_cloexec(server_bell, 0)
            .map_err(needs("a descriptor of the client's bell"))?;
        // SAFETY: `ChannelServer` keeps the memory beside what points into it.
        let queue = ServiceQueue::recover(unsafe { memory.words() });
        // It is unknown whether the predecessor rang.
        queue.words().client.clear();
        ring_client(&bell);
        Ok(Self {
            queue,
            bell,
            unnotified: false,
            memory,
        })
    }

    /// The channel's geometry.
    pub fn geometry(&self) -> ChannelGeometry {
        self.memory.geometry
    }

    /// The next request, validated: its page buffers are the channel's. After an error the channel
    /// is unusable, and every call returns the same error.
    pub fn take(&mut self) -> Result<Option<Request>, ProtocolError> {
        self.queue
            .take(self.memory.pages(), self.memory.geometry.pages())
    }

    /// Returns true if the client has dropped its end with nothing in flight: the channel is to be closed.
    /// Valid once [`ChannelServer::take`] has returned no request.
    pub fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    /// Completes a request that was taken: with bytes moved, all of them except at the end of the
    /// file, or a negative error number. The client is notified at the next
    /// [`ChannelServer::notify_completions`] at the latest. Returns false if the slot is not in
    /// flight.
    pub fn complete(&mut self, slot: u16, result: i32) -> bool {
        let completed = self.queue.complete(usize::from(slot), result);
        self.unnotified |= completed;
        completed
    }

    /// Rings the client if it sleeps and there are completions for it: once for all since the last
    /// call. Never blocks.
    pub fn notify_completions(&mut self) {
        if std::mem::take(&mut self.unnotified) && self.queue.words().client.take() {
            ring_client(&self.bell);
        }
    }

    /// The threads that wait for its requests, as the client last wrote them: claims, to be
    /// verified.
    pub fn threads(&self) -> ClaimedThreads {
        self.memory.threads().read()
    }

    /// Number of requests taken and not completed. The server must not be dropped while their I/O
    /// is in flight.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Returns true if there are requests to take.
    pub fn has_pending(&self) -> bool {
        self.queue.has_pending()
    }

    /// Before the server sleeps: from now on a request rings the doorbell. Returns false if there
    /// are requests, which are to be taken first. A client that corrupts its words may make this
    /// return either value.
    pub fn arm(&self) -> bool {
        self.queue.words().server.set();
        !self.queue.has_pending()
    }

    /// After the server has slept: it checks the channel without being rung from now on.
    pub fn disarm(&self) {
        self.queue.words().server.clear();
    }
}

impl std::fmt::Debug for ChannelServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelServer")
            .field("geometry", &self.memory.geometry)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
