//! The server's end of a channel.

use crate::bell::{bell, check_bell, ring_bell};
use crate::error::{ChannelError, needs};
use crate::memory::Memory;
use crate::request::{Corrupt, Request};
use crate::serving::Serving;
use crate::shape::Shape;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;

/// The server's end: used by one thread at a time.
pub struct Server {
    serving: Serving<'static>,
    bell: OwnedFd,
    /// Answers were given since the client was last looked after.
    news: bool,
    /// What `serving` points into: dropped last.
    memory: Memory,
}

/// The descriptors of a new channel that leave the server.
#[derive(Debug)]
pub struct Ends {
    /// The memory: for the client, and kept for the server's successor.
    pub memory: OwnedFd,
    /// The client's end of its bell.
    pub bell: OwnedFd,
    /// The server's end of that bell: kept for its successor, so that the client's end does
    /// not hang up when the server dies.
    pub server_bell: OwnedFd,
}

/// Makes a channel. Memory is taken as its pages are used.
pub fn create(shape: Shape) -> Result<(Server, Ends), ChannelError> {
    let (memory, fd) = Memory::create(shape)?;
    let (server_bell, bell) = bell()?;
    let own =
        fcntl_dupfd_cloexec(&server_bell, 0).map_err(needs("a descriptor of the client's bell"))?;
    // SAFETY: `Server` keeps the memory beside what points into it.
    let words = unsafe { memory.words() };
    // So that a bell rings from the first answer on, for a client that only polls.
    words.client.raise();
    let server = Server {
        serving: Serving::take_over(words),
        bell: own,
        news: false,
        memory,
    };
    let ends = Ends {
        memory: fd,
        bell,
        server_bell,
    };
    Ok((server, ends))
}

impl Server {
    /// Takes over a channel that a predecessor made, from its `memory` and `server_bell`,
    /// which the tenant kept and may have forged: what is no sealed channel is refused.
    /// [`Server::take`] gives first what the predecessor left unanswered, in order.
    ///
    /// The predecessor is gone when this is called, and its I/O with it: what it still wrote
    /// into page buffers after could fall into another request's. A process has ended its
    /// I/O by io_uring when its last descriptors are closed, so a lock that it held on the
    /// disk's file says so.
    ///
    /// What is refused is not closed either, since that may wait: that is the caller's.
    pub fn attach(memory: impl AsFd, server_bell: impl AsFd) -> Result<Self, ChannelError> {
        check_bell(&server_bell)?;
        let memory = Memory::attach(memory)?;
        let bell = fcntl_dupfd_cloexec(server_bell, 0)
            .map_err(needs("a descriptor of the client's bell"))?;
        // SAFETY: `Server` keeps the memory beside what points into it.
        let serving = Serving::take_over(unsafe { memory.words() });
        // Whether the predecessor rang is not known.
        serving.words().client.lower();
        ring_bell(&bell);
        Ok(Self {
            serving,
            bell,
            news: false,
            memory,
        })
    }

    /// The channel's shape.
    pub fn shape(&self) -> Shape {
        self.memory.shape
    }

    /// The next request, judged: its page buffers are the channel's. After an error the
    /// channel serves no purpose, and the same error comes again.
    pub fn take(&mut self) -> Result<Option<Request>, Corrupt> {
        self.serving
            .take(self.memory.pages(), self.memory.shape.pages())
    }

    /// Answers a request that was taken: bytes moved, all of them but at the end of what
    /// there is, or a negative error number. The client is told at the next
    /// [`Server::announce`] at the latest. False if the slot is not in flight.
    pub fn finish(&mut self, slot: u16, result: i32) -> bool {
        let given = self.serving.finish(usize::from(slot), result);
        self.news |= given;
        given
    }

    /// Rings the client if it sleeps and there are answers for it: once for all that were
    /// given since the last time. Never waits.
    pub fn announce(&mut self) {
        if std::mem::take(&mut self.news) && self.serving.words().client.answer() {
            ring_bell(&self.bell);
        }
    }

    /// Requests taken and not answered. The server is not dropped while there are any whose
    /// I/O is under way.
    pub fn in_flight(&self) -> usize {
        self.serving.in_flight()
    }

    /// Whether requests wait to be taken.
    pub fn has_more(&self) -> bool {
        self.serving.has_more()
    }

    /// The server is about to sleep: from now on a request rings the doorbell. False if
    /// requests wait: it takes those first. A client that spoils its words may make this
    /// say either.
    pub fn arm(&self) -> bool {
        self.serving.words().server.raise();
        !self.serving.has_more()
    }

    /// The server is awake, and looks at the channel without being rung.
    pub fn disarm(&self) {
        self.serving.words().server.lower();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("shape", &self.memory.shape)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
