//! The user-safe disk: the thread that does many clients' transactions on one device, each at
//! the rate it was promised.
//!
//! *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.7. A client asks by its
//! IO channels ([`iochannel`]); what it may do is its contract's ([`crate::atropos`]), where it
//! may do it is its target's: the extents of a swap file ([`crate::swapfs`]), or a file that it
//! brought itself.
//!
//! | file | what it is |
//! |---|---|
//! | `thread` | the loop: what has ended, what was asked for, what is next |
//! | `command`, `control` | what the owner tells the thread, and it the owner; what is done then |
//! | `client`, `channel` | one contract, its channels and its window of requests |
//! | `transaction` | one request: where it goes, what of it is under way |
//! | `poll_policy` | how long it looks for more before it sleeps |
//! | `ring` | the device, last_doorbell and sleep, by one io_uring |
//! | `stats` | what a client had, for whoever counts |
//!
//! Rules:
//! - One thread a disk. Nothing on the way of a page waits for the owner, takes a lock or, once
//!   a client is there, allocates.
//! - A request is judged before it is believed: its pages by the channel, its place by the
//!   target. One that cannot be is answered with an error; a channel that no client of ours
//!   could have written is cut off, and nobody else notices.
//! - Memory outlives what the device does to it: a channel is let go of when nothing of it is
//!   in flight.
//! - What was asked for and not begun when the disk is dropped stays in its channel, for the
//!   next disk that takes the channel over.

mod channel;
mod client;
mod command;
mod control;
mod poll_policy;
mod ring;
mod stats;
mod thread;
mod transaction;

pub use command::{ChannelId, UsdEvent};
pub use stats::{ClientStats, DiskStats};

use crate::atropos::{AdmissionError, ClientId, DiskContract};
use crate::cost_model::CostModel;
use crate::swapfs::Extents;
use crate::time::{Nanos, Time};
use crate::trace::{Reader, ring};
use command::{Command, CommandSender, EventNotifier};
use iochannel::{Doorbell, Server};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Events that the trace remembers: some seconds of a fast disk, in 2.5 MiB.
const EVENTS: usize = 1 << 16;

/// How a disk is to be driven.
#[derive(Clone, Copy, Debug)]
pub struct UsdConfig {
    /// What transactions cost, and how much may be promised.
    pub model: CostModel,
    /// Cost in flight at most; nothing for one transaction at a time, as in the paper. Most
    /// will want the model's own.
    pub bound: Nanos,
    /// How long the thread looks for more before it sleeps, at least; nothing if it is never
    /// to look. Being woken takes a client tens of microseconds longer, looking takes a
    /// processor.
    pub spin: Duration,
}

/// What a client's requests go to.
#[derive(Debug)]
pub enum IoTarget {
    /// A file of the swap filesystem on the disk.
    Swap(Extents),
    /// A file of the client's own, on the same device, opened for direct I/O.
    File {
        /// The file.
        fd: OwnedFd,
        /// Bytes it has: nothing is written past them.
        size: u64,
        /// Whether the client may write it.
        writable: bool,
    },
}

/// A client that is being removed.
#[derive(Debug)]
pub struct RemovalHandle(Receiver<Option<client::Client>>);

impl RemovalHandle {
    /// Returns when nothing of the client is in flight, and its file is closed.
    pub fn wait(self) {
        let _ = self.0.recv();
    }
}

/// Why there is no disk thread.
#[derive(Debug, thiserror::Error)]
pub enum UsdError {
    /// Something that it needs of the kernel.
    #[error("the disk's thread cannot have {what}: {errno}")]
    Needs {
        /// What.
        what: &'static str,
        /// Why not.
        errno: Errno,
    },
    /// It needs io_uring.
    #[error(
        "the disk's thread cannot have an io_uring: {errno}; it needs Linux 5.11, and sysctl \
         kernel.io_uring_disabled=0"
    )]
    Ring {
        /// Why not.
        errno: Errno,
    },
}

/// A disk and its thread, which ends with it.
#[derive(Debug)]
pub struct Usd {
    control: CommandSender,
    events: Receiver<UsdEvent>,
    notifier: Arc<EventNotifier>,
    trace: Reader,
    began: Instant,
    channels: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Usd {
    /// Starts the thread of the device that `device` has open.
    pub fn start<D>(device: Arc<D>, config: UsdConfig) -> Result<Self, UsdError>
    where
        D: AsFd + Send + Sync + 'static,
    {
        let (sender, commands) = mpsc::channel();
        let control = CommandSender::new(sender, bell("an eventfd to be notifier by")?);
        let notifier = Arc::new(EventNotifier::new(bell("an eventfd to tell by")?));
        let (news_sender, events) = mpsc::channel();
        let (writer, trace) = ring(EVENTS);
        let began = Instant::now();
        let parts = thread::UsdParts {
            device,
            config,
            commands,
            bell: control.bell(),
            events: news_sender,
            notifier: notifier.clone(),
            trace: writer,
            began,
        };
        let (ready, begun) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("selfpage-disk".into())
            .spawn(move || match thread::DiskThread::new(parts) {
                Ok(disk) => {
                    let _ = ready.send(Ok(()));
                    disk.run();
                }
                Err(error) => _ = ready.send(Err(error)),
            })
            .map_err(|error| UsdError::Needs {
                what: "a thread",
                errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            })?;
        begun
            .recv()
            .unwrap_or(Err(UsdError::Ring { errno: Errno::IO }))?;
        Ok(Self {
            control,
            events,
            notifier,
            trace,
            began,
            channels: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    /// Promises a contract. The client is served once it has a target and channels.
    pub fn admit(&self, contract: DiskContract) -> Result<ClientId, AdmissionError> {
        self.ask(|answer| Command::Admit { contract, answer })
            .unwrap_or(Err(AdmissionError::Gone))
    }

    /// Promises a client something else, from its next period on.
    pub fn change(&self, client: ClientId, contract: DiskContract) -> Result<(), AdmissionError> {
        self.ask(|answer| Command::Change {
            client,
            contract,
            answer,
        })
        .unwrap_or(Err(AdmissionError::Gone))
    }

    /// Says what a client's requests go to, and by which bell it rings; again, when its file
    /// has grown.
    pub fn set_target(&self, client: ClientId, target: IoTarget, doorbell: Doorbell) {
        self.control.send(Command::SetTarget {
            client,
            target,
            doorbell,
        });
    }

    /// Listens to one more channel of a client.
    pub fn add_channel(&self, client: ClientId, server: Server) -> ChannelId {
        let id = ChannelId(self.channels.fetch_add(1, Ordering::Relaxed));
        self.control
            .send(Command::AddChannel { client, id, server });
        id
    }

    /// Listens to a channel no more. [`UsdEvent::Closed`] follows when nothing of it is in flight
    /// any more; what was not begun stays in it.
    pub fn close_channel(&self, id: ChannelId) {
        self.control.send(Command::Close { id });
    }

    /// Ends a contract, and closes what channels are left. Returns when nothing of the client
    /// is in flight, so that what it had can be another's.
    pub fn remove(&self, client: ClientId) {
        self.begin_removal(client).wait();
    }

    /// Begins to end a contract, for who must not wait for a client's I/O itself.
    pub fn begin_removal(&self, client: ClientId) -> RemovalHandle {
        let (answer, gone) = mpsc::channel();
        self.control.send(Command::Remove { client, answer });
        RemovalHandle(gone)
    }

    /// What a client had, if it is there.
    pub fn client_stats(&self, client: ClientId) -> Option<ClientStats> {
        self.ask(|answer| Command::ClientStats { client, answer })
            .flatten()
    }

    /// How the disk as a whole does.
    pub fn disk_stats(&self) -> DiskStats {
        self.ask(|answer| Command::DiskStats { answer })
            .unwrap_or_default()
    }

    /// What the scheduler does.
    pub fn trace(&self) -> &Reader {
        &self.trace
    }

    /// The present on the clock of the trace.
    pub fn now(&self) -> Time {
        thread::time_since(self.began)
    }

    /// Readable when there is events.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// The next events, if there is any.
    pub fn next_event(&self) -> Option<UsdEvent> {
        // Heard before it is looked for, so that what comes between rings again.
        self.events.try_recv().ok().or_else(|| {
            self.notifier.drain();
            self.events.try_recv().ok()
        })
    }

    /// Asks the thread something; `None` if it is no longer there.
    fn ask<A>(&self, command: impl FnOnce(Sender<A>) -> Command) -> Option<A> {
        let (sender, answer) = mpsc::channel();
        self.control.send(command(sender));
        answer.recv().ok()
    }
}

impl Drop for Usd {
    fn drop(&mut self) {
        self.control.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bell(what: &'static str) -> Result<OwnedFd, UsdError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| UsdError::Needs { what, errno })
}
