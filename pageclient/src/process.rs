//! The process of a client.
//!
//! It is wired, since the pages of programs come through it: a page of its own that had to be read
//! from where it puts others' would wait for itself. Its main thread opens and closes channels, and the disk's thread
//! does the rest.

use crate::kept_header::KeptHeader;
use crate::protocol::{self, AddressedRequest, ClientEvent, ClientRequest, RETRY, short};
use disk::atropos::{ClientId, DiskContract, Utilization};
use disk::cost_model::{CostModel, OpCost};
use disk::time::Nanos;
use disk::usd::{ChannelId, IoTarget, Transport, Usd, UsdConfig, UsdEvent};
use host::seqpacket;
use iochannel::{ChannelGeometry, ChannelServer, Doorbell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

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
const WHOLE: DiskContract = DiskContract::new(Nanos::millis(90), Nanos::millis(100)).with_slack();

/// Why a client's process cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
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

pub(crate) fn call(what: &'static str) -> impl Fn(Errno) -> ServeError {
    move |errno| ServeError::Call { what, errno }
}

fn thread(why: &dyn std::fmt::Display) -> ServeError {
    ServeError::Thread(why.to_string())
}

/// Carries the pages of a tree. It is what outlives the processes of the client, which each go on from it.
pub trait PageClient {
    /// What it is, as in "the remote client was ended".
    const NAME: &'static str;
    /// Why it cannot serve.
    type Error: std::error::Error + From<ServeError>;

    /// The first words of what outlives the processes.
    fn header(&self) -> KeptHeader<'_>;

    /// The doorbell of all channels.
    fn doorbell(&self) -> &Doorbell;

    /// Bytes of the space.
    fn size(&self) -> u64;

    /// The supervisor is gone: no process of the client follows, and nothing of the tree is needed any more.
    fn on_end(&self) {}

    /// Starts what carries pages, in a new process.
    fn start(&self) -> Result<Serving, Self::Error>;
}

/// What carries pages in a process.
pub struct Serving {
    /// The disk's thread.
    pub usd: Usd,
    /// The number of the process's first channel. A request that an earlier process left is of a later one: its channel is
    /// none of the earlier ones.
    pub first_channel: u64,
    /// Servers that are connected.
    pub connected: u32,
    /// Servers that were named, or that the broker named at first.
    pub named: u32,
}

/// Serves channels until the supervisor at `socket` is gone.
///
/// # Errors
/// Of the client.
pub fn serve<C: PageClient>(client: &C, socket: &OwnedFd) -> Result<(), C::Error> {
    match Process::start(client) {
        Ok((mut process, ready)) => {
            let doorbell = [process.doorbell.as_fd()];
            match protocol::send(socket, &ready, &doorbell) {
                Ok(()) => process.serve(socket)?,
                // The supervisor ended while this process started.
                Err(Errno::PIPE | Errno::CONNRESET) => {}
                Err(errno) => return Err(call("answer the supervisor")(errno).into()),
            }
            client.on_end();
            Ok(())
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
    /// Requests of another one are not for this process.
    generation: u64,
    usd: Usd,
    client: ClientId,
    doorbell: Doorbell,
    channels: BTreeMap<u64, ChannelId>,
    next_channel: u64,
    /// What there was no room for, with its descriptors, in order.
    unsent: VecDeque<(ClientEvent, Vec<OwnedFd>)>,
}

impl Process {
    fn start<C: PageClient>(of: &C) -> Result<(Self, ClientEvent), C::Error> {
        let serving = of.start()?;
        let usd = serving.usd;
        let client = usd.admit(WHOLE).map_err(|why| thread(&why))?;
        let bell = || Doorbell::attach(of.doorbell()).map_err(|why| thread(&why));
        let (doorbell, own) = (bell()?, bell()?);
        let space = IoTarget::Space {
            number: 0,
            size: of.size(),
        };
        usd.set_target(client, space, own);
        let generation = of.header().count_served();
        let process = Self {
            generation,
            usd,
            client,
            doorbell,
            channels: BTreeMap::new(),
            next_channel: serving.first_channel,
            unsent: VecDeque::new(),
        };
        let ready = ClientEvent::Ready {
            generation,
            connected: serving.connected,
            named: serving.named,
        };
        Ok((process, ready))
    }

    fn serve(&mut self, socket: &OwnedFd) -> Result<(), ServeError> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.usd.event_fd(), PollFlags::IN),
            ];
            let retry = Timespec::try_from(RETRY).ok();
            let limit = retry.filter(|_| !self.unsent.is_empty());
            match poll(&mut fds, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(call("wait")(errno)),
            }
            self.send(socket);
            self.on_events(socket);
            loop {
                let received = seqpacket::receive(socket, RecvFlags::DONTWAIT);
                let message = match received {
                    Ok(message) if message.len > 0 => message,
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    _ => return Ok(()),
                };
                match protocol::decode(message.as_slice()) {
                    Some(AddressedRequest {
                        generation,
                        request,
                    }) if generation == self.generation => {
                        self.on_request(socket, request, &message);
                    }
                    // A process that was killed had not read it. Its channel is attached by another request, or closed.
                    Some(AddressedRequest { .. }) => {}
                    None => tracing::error!("an unknown message of the supervisor"),
                }
            }
        }
    }

    fn on_request(
        &mut self,
        socket: &OwnedFd,
        request: ClientRequest,
        message: &seqpacket::Received,
    ) {
        match request {
            ClientRequest::Open { cookie, depth } => self.open(socket, cookie, depth),
            ClientRequest::Attach { channel } => self.attach(socket, channel, message),
            ClientRequest::Close { channel } => self.close(socket, channel),
        }
    }

    fn open(&mut self, socket: &OwnedFd, cookie: u64, depth: u16) {
        let (server, ends) = match iochannel::create(ChannelGeometry::for_depth(depth.into())) {
            Ok(made) => made,
            Err(why) => {
                let why = short(&why.to_string());
                let event = ClientEvent::NotOpened { cookie, why };
                return self.tell(socket, event, Vec::new());
            }
        };
        let channel = self.next_channel;
        self.next_channel += 1;
        self.channels
            .insert(channel, self.usd.add_channel(self.client, server));
        let fds = vec![ends.memory, ends.bell, ends.server_bell];
        self.tell(socket, ClientEvent::Opened { cookie, channel }, fds);
    }

    /// Serves a channel of an earlier process, and what waits there. One that cannot be served ends: what waits there
    /// would wait for ever.
    fn attach(&mut self, socket: &OwnedFd, channel: u64, message: &seqpacket::Received) {
        let attached = match &message.fds {
            [Some(memory), Some(bell), ..] => {
                ChannelServer::attach(memory, bell).map_err(|why| why.to_string())
            }
            _ => Err("no descriptor was free for it: raise `ulimit -n`".to_owned()),
        };
        match attached {
            Ok(server) => {
                let id = self.usd.add_channel(self.client, server);
                self.channels.insert(channel, id);
            }
            Err(why) => {
                tracing::error!("an IO channel cannot be taken over, and is closed: {why}");
                self.tell(socket, ClientEvent::Closed { channel }, Vec::new());
            }
        }
    }

    fn close(&mut self, socket: &OwnedFd, channel: u64) {
        match self.channels.get(&channel) {
            Some(id) => self.usd.close_channel(*id),
            None => self.tell(socket, ClientEvent::Closed { channel }, Vec::new()),
        }
    }

    fn on_events(&mut self, socket: &OwnedFd) {
        while let Some(event) = self.usd.next_event() {
            match event {
                UsdEvent::Closed(id) => {
                    let of = self.channels.iter().find(|(_, known)| **known == id);
                    if let Some(channel) = of.map(|(channel, _)| *channel) {
                        self.channels.remove(&channel);
                        self.tell(socket, ClientEvent::Closed { channel }, Vec::new());
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

    /// Sends an event, now or when there is room.
    fn tell(&mut self, socket: &OwnedFd, event: ClientEvent, fds: Vec<OwnedFd>) {
        self.unsent.push_back((event, fds));
        self.send(socket);
    }

    /// Sends what there is room for. A supervisor that is gone is noticed by the next receive.
    fn send(&mut self, socket: &OwnedFd) {
        while let Some((event, fds)) = self.unsent.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match protocol::try_send(socket, event, &fds) {
                Err(errno) if protocol::has_no_room(errno) => break,
                _ => _ = self.unsent.pop_front(),
            }
        }
    }
}

/// Starts the disk's thread over a transport.
///
/// # Errors
/// [`ServeError`].
pub fn start_usd(transport: Box<dyn Transport>) -> Result<Usd, ServeError> {
    Usd::start_transport(transport, settings()).map_err(|why| thread(&why))
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
