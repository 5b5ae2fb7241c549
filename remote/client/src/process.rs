//! The process of a remote client.
//!
//! It is wired, since the pages of programs come through it: a page of its own that had to be read
//! from where it puts others' would wait for itself. Its main thread opens and closes channels, one
//! thread a server connects, and the disk's thread does the rest.

use crate::arrival::Arrivals;
use crate::background;
use crate::broker_link::ServerSource;
use crate::client_state::ClientState;
use crate::connector::Connectors;
use crate::degraded::DegradedReads;
use crate::objects::{ObjectMap, SpaceSize};
use crate::page_cipher::PageCipher;
use crate::paging_file::{self, PagingFile};
use crate::progress::ClientProgress;
use crate::protocol::{self, ClientEvent, ClientRequest, short};
use crate::restore::REQUESTS;
use crate::start::{first_servers, new_client, resumed_broker};
use crate::stripes::Stripes;
use crate::transport::RemoteTransport;
use disk::atropos::{ClientId, DiskContract, Utilization};
use disk::cost_model::{CostModel, OpCost};
use disk::time::Nanos;
use disk::usd::{ChannelId, IoTarget, Transport, Usd, UsdConfig, UsdEvent};
use host::seqpacket;
use iochannel::{ChannelGeometry, ChannelServer, Doorbell};
use remote_keys::Keyring;
use remote_wire::control::short_name;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use wired::WiredMemory;

/// Most servers: they are counted by the bits of a word.
pub const MAX_SERVERS: usize = 32;

/// What a page costs on a link: only its proportions matter, since a tree has the link to itself.
const PAGE_COST: OpCost = OpCost {
    base: Nanos::micros(5),
    per_kib: Nanos(1000),
};
/// Cost that may be under way: some hundred pages.
const BOUND: Nanos = Nanos::millis(2);
/// How long the disk's thread polls before it sleeps, at least.
const SPIN: Duration = Duration::from_micros(50);

/// The contract of the tree with its own client.
const WHOLE: DiskContract = DiskContract {
    period: Nanos::millis(100),
    slice: Nanos::millis(90),
    extra: true,
    laxity: Nanos::ZERO,
};

/// What a client is started for.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Where its servers are.
    pub servers: ServerSource,
    /// Bytes of pages at its servers: of the space, where there is no larger paging file.
    pub size: u64,
    /// Where pages are that no server takes.
    pub paging_file: Option<PagingFile>,
    /// Copies of each page, as far as there are servers.
    pub replicas: u8,
    /// This host's key and the members of its cluster; `None` for links in the clear.
    pub keys: Option<Arc<Keyring>>,
    /// Pages are encrypted before they leave this host.
    pub is_encrypted: bool,
    /// Objects that are not used for as long become parts of stripes; `None` for copies alone.
    pub stripe_after: Option<Duration>,
    /// Where the client counts what it does by itself.
    pub progress: Arc<ClientProgress>,
}

impl RemoteConfig {
    fn space(&self) -> SpaceSize {
        SpaceSize {
            bytes: (self.paging_file.as_ref()).map_or(self.size, |file| file.size.max(self.size)),
            has_stripes: self.stripe_after.is_some(),
        }
    }
}

/// Why a client cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server answers.
    #[error(
        "no paging server answers: {0}; start one there with `selfpage serve`, or name others with --remote HOST[:PORT],..."
    )]
    NoServer(String),
    /// No host answers on the link.
    #[error(
        "no host on this link lends memory to this one ({0}): start `selfpage serve` on one, or name hosts elsewhere with --remote HOST,..."
    )]
    NoHost(String),
    /// None of the hosts that were named has a control port.
    #[error(
        "no host answers at {0} ({1}): start `selfpage serve` there, or name others with --remote HOST[:PORT],..."
    )]
    NoNamedHost(String, String),
    /// Too many, or none.
    #[error("{0} paging servers are named: name 1 to {MAX_SERVERS}")]
    Servers(usize),
    /// The kernel.
    #[error("cannot {what}: {errno}")]
    Call {
        /// What for.
        what: &'static str,
        /// What it said.
        errno: Errno,
    },
    /// The disk's thread.
    #[error("{0}")]
    Thread(String),
}

pub(crate) fn call(what: &'static str) -> impl Fn(Errno) -> ClientError {
    move |errno| ClientError::Call { what, errno }
}

impl ClientError {
    /// The keeper has no other process.
    pub(crate) fn fork() -> Self {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error());
        call("fork")(errno.unwrap_or(Errno::AGAIN))
    }
}

/// What outlives a client's process.
pub(crate) struct Kept {
    state: ClientState,
    doorbell: Doorbell,
    /// Which pages the paging file has.
    places: Option<Arc<WiredMemory>>,
}

impl Kept {
    /// Of a client that has not begun.
    pub(crate) fn new(config: &RemoteConfig) -> Result<Self, ClientError> {
        let memory = |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            call("get memory for the table of versions")(errno)
        };
        let state = ObjectMap::new_state(config.space(), config.is_encrypted).map_err(memory)?;
        let places = paging_file::new_places(config).map_err(memory)?;
        if config.is_encrypted {
            state.set_key(&PageCipher::new_key().map_err(|why| thread(&why))?);
        }
        let doorbell = Doorbell::new().map_err(|why| thread(&why))?;
        Ok(Self {
            state,
            doorbell,
            places,
        })
    }

    /// How many processes of the client have served.
    pub(crate) fn served(&self) -> u64 {
        self.state.served()
    }
}

fn thread(why: &dyn std::fmt::Display) -> ClientError {
    ClientError::Thread(why.to_string())
}

/// Serves channels until the supervisor at `socket` is gone.
///
/// # Errors
/// [`ClientError`].
pub fn run(config: &RemoteConfig, socket: &OwnedFd) -> Result<(), ClientError> {
    serve(config, &Kept::new(config)?, socket)
}

/// The same, in what may have been kept of an earlier process.
pub(crate) fn serve(
    config: &RemoteConfig,
    kept: &Kept,
    socket: &OwnedFd,
) -> Result<(), ClientError> {
    match Process::start(config, kept) {
        Ok((mut process, connected)) => {
            let ready = ClientEvent::Ready {
                connected,
                named: process.named,
            };
            let doorbell = [process.doorbell.as_fd()];
            kept.state.count_served();
            match protocol::send(socket, &ready, &doorbell) {
                Ok(()) => process.serve(socket),
                // The supervisor ended while this process started.
                Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
                Err(errno) => Err(call("answer the supervisor")(errno)),
            }
        }
        Err(why) => {
            let failed = ClientEvent::Failed {
                why: short(&why.to_string()),
            };
            let _ = protocol::send(socket, &failed, &[]);
            Err(why)
        }
    }
}

struct Process {
    /// Servers that were named, or that the broker named at first.
    named: u32,
    usd: Usd,
    client: ClientId,
    doorbell: Doorbell,
    channels: BTreeMap<u64, ChannelId>,
    next_channel: u64,
}

impl Process {
    fn start(config: &RemoteConfig, kept: &Kept) -> Result<(Self, u32), ClientError> {
        let is_resumed = kept.served() > 0;
        let starts = kept.state.count_start();
        if !is_resumed {
            kept.state.set_client(new_client()?);
        }
        let client = kept.state.client();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(call("make an eventfd"))?);
        let (queue, arrived) = channel();
        let arrivals = Arrivals { queue, bell };
        let name = short_name(&rustix::system::uname().nodename().to_string_lossy());
        let connectors = Connectors {
            client,
            name,
            keys: config.keys.clone(),
            arrivals: arrivals.clone(),
        };
        let (broker, servers, connected) = match is_resumed {
            true => (resumed_broker(&config.servers, &connectors)?, Vec::new(), 0),
            false => first_servers(&config.servers, &connectors, &arrived)?,
        };
        let key = config.is_encrypted.then(|| kept.state.key());
        let cipher = key.map(|key| PageCipher::with_key(&key)).transpose();
        let cipher = cipher.map_err(|why| thread(&why))?;
        let objects = ObjectMap::new(client.host, config.space(), cipher, kept.state.clone());
        let named = servers.len().max(kept.state.servers().len());
        let replicas = match &config.servers {
            // There may be more later.
            ServerSource::Broker(_) => config.replicas.max(1),
            ServerSource::Alone(_) => config.replicas.clamp(1, named as u8),
        };
        let mut transport =
            RemoteTransport::new(objects, servers, replicas, broker, connectors, arrived)
                .map_err(call("make an epoll"))?;
        transport.progress = Arc::clone(&config.progress);
        transport.degraded = DegradedReads::new(config.stripe_after.is_some());
        transport.stripes = Stripes::new(config.space().stripes(), config.stripe_after);
        if is_resumed {
            transport.restore(starts).map_err(|why| thread(&why))?;
        }
        transport.save();
        let transport: Box<dyn Transport> = match (&config.paging_file, &kept.places) {
            (Some(file), Some(places)) => file.wrap(transport, config.size, places)?,
            _ => Box::new(transport),
        };
        let usd = Usd::start_transport(transport, settings()).map_err(|why| thread(&why))?;
        let client = usd.admit(WHOLE).map_err(|why| thread(&why))?;
        usd.admit_background(background::CONTRACT)
            .map_err(|why| thread(&why))?;
        let bell = || Doorbell::attach(&kept.doorbell).map_err(|why| thread(&why));
        let (doorbell, own) = (bell()?, bell()?);
        let space = IoTarget::Space {
            number: 0,
            size: config.space().bytes,
        };
        usd.set_target(client, space, own);
        let process = Self {
            named: named as u32,
            usd,
            client,
            doorbell,
            channels: BTreeMap::new(),
            // A request that an earlier process left is of this one: its channel is none of the earlier ones.
            next_channel: starts * REQUESTS + 1,
        };
        Ok((process, connected))
    }

    fn serve(&mut self, socket: &OwnedFd) -> Result<(), ClientError> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.usd.event_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(call("wait")(errno)),
            }
            self.on_events(socket);
            loop {
                let received = seqpacket::receive(socket, RecvFlags::DONTWAIT);
                let message = match received {
                    Ok(message) if message.len > 0 => message,
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    _ => return Ok(()),
                };
                match protocol::decode(message.as_slice()) {
                    Some(ClientRequest::Open { cookie, depth }) => self.open(socket, cookie, depth),
                    Some(ClientRequest::Attach { channel }) => self.attach(channel, &message),
                    Some(ClientRequest::Close { channel }) => self.close(socket, channel),
                    None => tracing::error!("an unknown message of the supervisor"),
                }
            }
        }
    }

    fn open(&mut self, socket: &OwnedFd, cookie: u64, depth: u16) {
        let (server, ends) = match iochannel::create(ChannelGeometry::for_depth(depth.into())) {
            Ok(made) => made,
            Err(why) => {
                let why = short(&why.to_string());
                return tell(socket, &ClientEvent::NotOpened { cookie, why }, &[]);
            }
        };
        let channel = self.next_channel;
        self.next_channel += 1;
        self.channels
            .insert(channel, self.usd.add_channel(self.client, server));
        let fds = [
            ends.memory.as_fd(),
            ends.bell.as_fd(),
            ends.server_bell.as_fd(),
        ];
        tell(socket, &ClientEvent::Opened { cookie, channel }, &fds);
    }

    /// Serves a channel of an earlier process, and what waits there.
    fn attach(&mut self, channel: u64, message: &seqpacket::Received) {
        let [Some(memory), Some(bell), ..] = &message.fds else {
            return tracing::error!("a channel came without its memory");
        };
        match ChannelServer::attach(memory, bell) {
            Ok(server) => {
                let id = self.usd.add_channel(self.client, server);
                self.channels.insert(channel, id);
            }
            Err(why) => tracing::error!("a process has corrupted its IO channel: {why}"),
        }
    }

    fn close(&mut self, socket: &OwnedFd, channel: u64) {
        match self.channels.get(&channel) {
            Some(id) => self.usd.close_channel(*id),
            None => tell(socket, &ClientEvent::Closed { channel }, &[]),
        }
    }

    fn on_events(&mut self, socket: &OwnedFd) {
        while let Some(event) = self.usd.next_event() {
            match event {
                UsdEvent::Closed(id) => {
                    let of = self.channels.iter().find(|(_, known)| **known == id);
                    if let Some(channel) = of.map(|(channel, _)| *channel) {
                        self.channels.remove(&channel);
                        tell(socket, &ClientEvent::Closed { channel }, &[]);
                    }
                }
                UsdEvent::CutOff { why, .. } => {
                    tracing::error!(
                        "a process has corrupted its IO channel, which is closed: {why}"
                    );
                }
            }
        }
    }
}

/// A supervisor that is gone is noticed by the next receive.
fn tell(socket: &OwnedFd, event: &ClientEvent, fds: &[BorrowedFd<'_>]) {
    let _ = protocol::send(socket, event, fds);
}

fn settings() -> UsdConfig {
    UsdConfig {
        model: CostModel {
            read: PAGE_COST,
            write: PAGE_COST,
            bound: BOUND,
            capacity: Utilization::WHOLE,
        },
        bound: BOUND,
        spin: SPIN,
    }
}
