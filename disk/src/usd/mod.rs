//! The user-safe disk: the thread that does many clients' transactions on one device, each at the
//! rate that it was promised.
//!
//! *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.7. A client submits by its
//! IO channels ([`iochannel`]); its contract ([`crate::atropos`]) limits its time, its I/O target
//! its place: the extents of a swap file ([`crate::swapfs`]), or a file that it brought itself.
//!
//! | file | what it is |
//! |---|---|
//! | `thread` | the loop: reap, take requests, schedule |
//! | `dispatch` | starts what the scheduler names |
//! | `command`, `control` | commands to the thread and its events; their execution |
//! | `client`, `channel`, `closed_channels` | one contract, its channels and its window of requests; the end of channels |
//! | `transport`, `background` | transactions with another place than a device; work of the transport's own |
//! | `transaction` | one request: its parts on the device, and which are in flight |
//! | `poll_policy` | how long the thread polls before it sleeps |
//! | `priority_window` | how long it keeps a real-time priority |
//! | `ring` | the device, doorbells and sleep, by one io_uring |
//! | `doorbells` | which doorbells are watched, and which muted |
//! | `waiting_threads` | the threads that wait for a client's requests |
//! | `last_resort` | a transport with a local file beside it, for writes that it does not finish |
//! | `stats` | statistics of the disk and its clients |
//!
//! Rules:
//! - One thread a disk. Nothing on the path of a page waits for the owner, takes a lock or, once a
//!   client is there, allocates.
//! - Every request is validated: its pages by the channel, its place by the target. An invalid
//!   request completes with an error; a channel with contents that no correct client writes is
//!   closed, and other clients do not notice.
//! - Memory outlives what the device does to it: a channel is released when nothing of it is in
//!   flight.
//! - Requests that are not started when the disk is dropped stay in their channel, for the next
//!   disk that takes the channel over.

mod background;
mod channel;
mod client;
mod closed_channels;
mod command;
mod control;
mod dispatch;
mod doorbells;
pub mod last_resort;
mod poll_policy;
mod priority_window;
mod ring;
mod stats;
mod thread;
mod transaction;
mod transport;
mod waiting_threads;

pub use background::BackgroundWork;
pub use command::{ChannelId, UsdEvent};
pub use stats::{ClientStats, DiskStats};
pub use transport::{PartId, Transport, result_of_part};
pub use waiting_threads::{WaitingThread, WaitingThreads};

use crate::atropos::{AdmissionError, ClientId, DiskContract};
use crate::cost_model::CostModel;
use crate::swapfs::Extents;
use crate::time::{Nanos, Time};
use crate::trace::{Reader, ring};
use command::{CommandSender, EventNotifier, EventSender, UsdCommand};
use iochannel::{ChannelServer, Doorbell};
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

/// Configuration of a disk's thread.
#[derive(Clone, Copy, Debug)]
pub struct UsdConfig {
    /// Costs of transactions, and how much may be promised.
    pub model: CostModel,
    /// Largest cost in flight; zero for one transaction at a time, as in the paper. Most owners use
    /// the model's bound.
    pub bound: Nanos,
    /// How long the thread polls before it sleeps, at least; zero for never. Waking a thread delays
    /// a client by tens of microseconds, polling takes a processor.
    pub spin: Duration,
}

/// The target of a client's requests.
#[derive(Debug)]
pub enum IoTarget {
    /// A file of the swap filesystem on the disk.
    Swap(Extents),
    /// A file of the client's own, on the same device, opened for direct I/O.
    File {
        /// The file.
        fd: OwnedFd,
        /// Its size in bytes: nothing is written past them.
        size: u64,
        /// True if the client may write it.
        writable: bool,
    },
    /// Pages that the disk's [`Transport`] reads and writes.
    Space {
        /// The transport's number for them.
        number: u32,
        /// Their size in bytes.
        size: u64,
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

/// Why the disk's thread could not start.
#[derive(Debug, thiserror::Error)]
pub enum UsdError {
    /// A resource that the kernel refused.
    #[error("cannot start the disk's thread: no {what}: {errno}")]
    Needs {
        /// The resource.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// io_uring is unavailable.
    #[error(
        "cannot start the disk's thread: no io_uring: {errno}; it needs Linux 6.1, and sysctl \
         kernel.io_uring_disabled=0"
    )]
    Ring {
        /// The kernel's error.
        errno: Errno,
    },
}

impl UsdError {
    fn thread(why: &std::io::Error) -> Self {
        Self::Needs {
            what: "thread",
            errno: Errno::from_io_error(why).unwrap_or(Errno::AGAIN),
        }
    }
}

/// A disk and its thread, which ends when this is dropped: as soon as nothing is in flight, or a second later if that is
/// a transport's alone.
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
        let device: Arc<dyn AsFd + Send + Sync> = device;
        Self::start_with(Some(device), None, config)
    }

    /// Starts a thread without a device, whose clients' targets are [`IoTarget::Space`]s.
    pub fn start_transport(
        transport: Box<dyn Transport>,
        config: UsdConfig,
    ) -> Result<Self, UsdError> {
        Self::start_with(None, Some(transport), config)
    }

    fn start_with(
        device: Option<Arc<dyn AsFd + Send + Sync>>,
        transport: Option<Box<dyn Transport>>,
        config: UsdConfig,
    ) -> Result<Self, UsdError> {
        let (sender, commands) = mpsc::channel();
        let control = CommandSender::new(sender, bell("eventfd for commands")?);
        let notifier = Arc::new(EventNotifier::new(bell("eventfd for events")?));
        let (sender, events) = mpsc::channel();
        let (writer, trace) = ring(EVENTS);
        let began = Instant::now();
        let parts = thread::UsdParts {
            device,
            transport,
            config,
            commands,
            bell: control.bell(),
            events: EventSender {
                events: sender,
                notifier: notifier.clone(),
            },
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
            .map_err(|why| UsdError::thread(&why))?;
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

    /// Admits a contract. The client is served once it has a target and channels.
    pub fn admit(&self, contract: DiskContract) -> Result<ClientId, AdmissionError> {
        self.admit_as(None, contract)
    }

    /// Admits a contract of a user for an [`IoTarget::File`], whose lock the user may hold: all contracts of the user share
    /// what that may cost others.
    pub fn admit_for(&self, user: u32, contract: DiskContract) -> Result<ClientId, AdmissionError> {
        self.admit_as(Some(user), contract)
    }

    fn admit_as(
        &self,
        user: Option<u32>,
        contract: DiskContract,
    ) -> Result<ClientId, AdmissionError> {
        self.ask(|answer| UsdCommand::Admit {
            user,
            contract,
            answer,
        })
        .unwrap_or(Err(AdmissionError::Gone))
    }

    /// Admits a client of the transport's own work, which has no channels. Without one that work is not done.
    pub fn admit_background(&self, contract: DiskContract) -> Result<ClientId, AdmissionError> {
        self.ask(|answer| UsdCommand::AdmitBackground { contract, answer })
            .unwrap_or(Err(AdmissionError::Gone))
    }

    /// Replaces a client's contract, from its next period on.
    pub fn change(&self, client: ClientId, contract: DiskContract) -> Result<(), AdmissionError> {
        self.ask(|answer| UsdCommand::Change {
            client,
            contract,
            answer,
        })
        .unwrap_or(Err(AdmissionError::Gone))
    }

    /// Sets a client's target and doorbell; again after its file has grown.
    pub fn set_target(&self, client: ClientId, target: IoTarget, doorbell: Doorbell) {
        self.control.send(UsdCommand::SetTarget {
            client,
            target,
            doorbell,
        });
    }

    /// Adds a channel to a client.
    pub fn add_channel(&self, client: ClientId, server: ChannelServer) -> ChannelId {
        let id = ChannelId(self.channels.fetch_add(1, Ordering::Relaxed));
        self.control
            .send(UsdCommand::AddChannel { client, id, server });
        id
    }

    /// Closes a channel. [`UsdEvent::Closed`] follows when nothing of it is in flight; requests
    /// that are not started stay in it.
    pub fn close_channel(&self, id: ChannelId) {
        self.control.send(UsdCommand::Close { id });
    }

    /// Removes a client and closes its channels. Returns when nothing of the client is in flight,
    /// so that its space can be reused.
    pub fn remove(&self, client: ClientId) {
        self.begin_removal(client).wait();
    }

    /// Starts removing a client without waiting for its I/O in flight.
    pub fn begin_removal(&self, client: ClientId) -> RemovalHandle {
        let (answer, gone) = mpsc::channel();
        self.control.send(UsdCommand::Remove { client, answer });
        RemovalHandle(gone)
    }

    /// The threads that wait for a client's requests, as it claims; none where there is no such client.
    pub fn waiting_threads(&self, client: ClientId) -> Option<Arc<WaitingThreads>> {
        self.ask(|answer| UsdCommand::WaitingThreads { client, answer })
            .flatten()
    }

    /// Has the disk's thread run by real-time priority for a part of the time, or as it was started.
    pub fn set_real_time(&self, priority: Option<i32>) {
        self.control.send(UsdCommand::SetRealTime { priority });
    }

    /// Other threads wait for processors, or not: the disk's thread polls less beside them.
    pub fn set_crowded(&self, crowded: bool) {
        self.control.send(UsdCommand::SetCrowded { crowded });
    }

    /// A client's statistics, if it exists.
    pub fn client_stats(&self, client: ClientId) -> Option<ClientStats> {
        self.ask(|answer| UsdCommand::ClientStats { client, answer })
            .flatten()
    }

    /// Statistics of the whole disk.
    pub fn disk_stats(&self) -> DiskStats {
        self.ask(|answer| UsdCommand::DiskStats { answer })
            .unwrap_or_default()
    }

    /// The scheduler's trace.
    pub fn trace(&self) -> &Reader {
        &self.trace
    }

    /// The present time on the trace's clock.
    pub fn now(&self) -> Time {
        thread::time_since(self.began)
    }

    /// Readable when events are pending.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// The next event, if one is pending.
    pub fn next_event(&self) -> Option<UsdEvent> {
        // Drains the eventfd first, so that an event sent meanwhile signals it again.
        self.events.try_recv().ok().or_else(|| {
            self.notifier.drain();
            self.events.try_recv().ok()
        })
    }

    /// Sends a command and waits for its reply; `None` if the thread has ended.
    fn ask<A>(&self, command: impl FnOnce(Sender<A>) -> UsdCommand) -> Option<A> {
        let (sender, answer) = mpsc::channel();
        self.control.send(command(sender));
        answer.recv().ok()
    }
}

impl Drop for Usd {
    fn drop(&mut self) {
        self.control.send(UsdCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bell(what: &'static str) -> Result<OwnedFd, UsdError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| UsdError::Needs { what, errno })
}
