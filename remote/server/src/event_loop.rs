//! The server's thread: sockets, timers, and sleep.
//!
//! One thread serves all requests, since pages in RAM take it less than the kernel's part of a
//! request does, and what one thread owns needs no locks. Rule: a turn serves a bounded number of
//! requests, so that replies leave and other clients' requests arrive in between.

use crate::accept::Accepted;
use crate::clients::ClientTable;
use crate::config::{Acceptor, HostThresholds, LEAST_CACHE, ServerConfig};
use crate::connection::ConnectionId;
use crate::connection_table::ConnectionTable;
use crate::demands::Enforcer;
use crate::disk_file::DiskFile;
use crate::disk_io::DiskIo;
use crate::host_memory::HostMemory;
use crate::log_limit::LogLimit;
use crate::objects::ObjectTable;
use crate::page_memory::PageMemory;
use crate::page_service::PageService;
use crate::pending::PendingTable;
use crate::permit_issuer::PermitIssuer;
use crate::poller::{DISK, DOORBELL, LISTENER, Poller};
use crate::recent_connection::RecentConnection;
use crate::server::{ServerCommand, StartError, listen};
use disk::time::Time;
use remote_keys::MemberList;
use remote_policy::identity::Incarnation;
use remote_wire::Link;
use rustix::fd::OwnedFd;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use wired::AdaptivePoll;

/// The longest sleep: leases, unread replies and the arena are looked at as often.
const TICK: Duration = Duration::from_secs(1);
/// Commands of other threads in a turn at most.
const COMMANDS: usize = 64;
/// The pause between two steps of what takes many, so that requests are served in between.
const STEP: Duration = Duration::from_millis(10);
/// Frames that a resize takes or gives back at once: some milliseconds of the kernel's time.
const RESIZE_STEP: u32 = 1024;

/// The server's thread.
pub(crate) struct EventLoop {
    poller: Poller,
    listener: TcpListener,
    doorbell: Arc<OwnedFd>,
    commands: Receiver<ServerCommand>,
    pub(crate) acceptor: Acceptor,
    pub(crate) server: Incarnation,
    pub(crate) name: String,
    pub(crate) lease: Duration,
    patience: Duration,
    pub(crate) connections: ConnectionTable,
    pub(crate) service: PageService,
    pub(crate) clients: ClientTable,
    pub(crate) log: LogLimit,
    /// Requests refused since the server began: the log leaves some of them out.
    pub(crate) refusals: u64,
    poll: AdaptivePoll,
    pub(crate) recent: RecentConnection,
    /// Most frames in use before a disk.
    cache_limit: u32,
    /// When the schedule has something to start next.
    pub(crate) due: Time,
    /// When leases and clients are looked at next.
    timer: Duration,
    began: u64,
    /// False from an accept that failed to the next look of the timer.
    is_accepting: bool,
    is_stopped: bool,
}

impl EventLoop {
    /// Prepares a server: its memory, its file, its socket.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn new(
        config: ServerConfig,
        doorbell: Arc<OwnedFd>,
        commands: Receiver<ServerCommand>,
    ) -> Result<Self, StartError> {
        let frames = config.frames()?;
        let listener = listen(config.listen)?;
        let file = config.disk.as_ref().map(DiskFile::open).transpose()?;
        let disk_pages = file.as_ref().map(DiskFile::pages);
        let memory = PageMemory::new(frames, disk_pages)?;
        let disk = file.map(DiskIo::new).transpose()?;
        let owned = memory.capacity().into();
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        poller.add(&*doorbell, DOORBELL)?;
        if let Some(disk) = &disk {
            poller.add(disk.doorbell(), DISK)?;
        }
        Ok(Self {
            poller,
            listener,
            doorbell,
            commands,
            acceptor: config.acceptor,
            server: config.server,
            name: config.name,
            lease: config.capacity.lease,
            patience: config.patience,
            connections: ConnectionTable::new(config.most_connections),
            service: PageService {
                disk,
                memory,
                pending: PendingTable::new(),
                objects: ObjectTable::default(),
                issuer: PermitIssuer::new(config.capacity, config.server, owned)?,
            },
            clients: ClientTable::default(),
            log: LogLimit::default(),
            refusals: 0,
            poll: AdaptivePoll::default(),
            recent: RecentConnection::default(),
            cache_limit: frames,
            due: Time::NEVER,
            timer: Duration::ZERO,
            began: wired::clock::now(),
            is_accepting: true,
            is_stopped: false,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// Where the kernel refuses to wait for events.
    pub fn run(&mut self) -> io::Result<()> {
        while !self.is_stopped {
            self.wait()?;
            let now = self.now();
            self.service.issuer.set_now(Duration::from_nanos(now.0));
            self.on_events();
            self.reap_disk();
            // A client receives what its permit is now before the replies to later requests.
            self.enforce();
            self.turn();
            self.service.free_removed();
            // After the replies have left: what is queued still is what a client does not read.
            self.on_timer();
            self.enforce();
        }
        tracing::info!("refused {} requests in all", self.refusals);
        Ok(())
    }

    /// Carries out what the capacity demands.
    fn enforce(&mut self) {
        let now = self.now();
        let mut enforcer = Enforcer {
            service: &mut self.service,
            connections: &mut self.connections,
            now,
        };
        enforcer.carry_out();
    }

    /// Time since the server began.
    pub(crate) fn now(&self) -> Time {
        Time(wired::clock::now() - self.began)
    }

    fn wait(&mut self) -> io::Result<()> {
        let disk = self.service.disk.as_ref();
        let has_work =
            disk.is_some_and(DiskIo::has_unsubmitted) || self.service.objects.has_removed();
        if !self.connections.active().is_empty() || self.due <= self.now() || has_work {
            return self.poller.wait(Duration::ZERO).map(drop);
        }
        let probe = |this: &mut Self| match this.probe_recent() {
            true => Some(Ok(1)),
            false => match this.poller.wait(Duration::ZERO) {
                Ok(0) => None,
                other => Some(other),
            },
        };
        let may_come = |this: &Self| !this.connections.slots().is_empty();
        match AdaptivePoll::poll(self, |this| &mut this.poll, probe, may_come) {
            Some(taken) => taken.map(drop),
            None => {
                let now = Duration::from_nanos(self.now().0);
                let due = Duration::from_nanos(self.due.0).min(self.timer);
                let timeout = due.saturating_sub(now).min(TICK);
                self.poller.wait(timeout).map(drop)
            }
        }
    }

    fn probe_recent(&mut self) -> bool {
        let now = self.now();
        self.recent.probe(&mut self.connections, now)
    }

    fn on_events(&mut self) {
        while let Some(ready) = self.poller.next_ready() {
            match ready.name {
                LISTENER => self.accept(),
                DOORBELL => self.on_doorbell(),
                // Reaped in each turn.
                DISK => {}
                id => self.on_ready(ConnectionId::unpack(id), ready.has_failed),
            }
        }
    }

    fn on_ready(&mut self, id: ConnectionId, has_failed: bool) {
        let arrived = self.now().0;
        let Some(connection) = self.connections.find(id) else {
            return;
        };
        connection.arrived = arrived;
        if let Err(why) = connection.on_ready(has_failed) {
            return self.close(id.slot, Some(&why));
        }
        self.connections.activate(id.slot);
    }

    /// Watches for what the connection waits for.
    pub(crate) fn update_interest(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let wanted = connection.wanted();
        if wanted == connection.watched {
            return;
        }
        let (link, name) = (&connection.link, connection.id.pack());
        match self.poller.set(link, name, wanted.0, wanted.1) {
            Ok(()) => connection.watched = wanted,
            Err(why) => self.close(slot, Some(&why)),
        }
    }

    /// Closes a connection. Its client's permits stay until their lease ends.
    pub(crate) fn close(&mut self, slot: u32, why: Option<&dyn std::fmt::Display>) {
        let Some(connection) = self.connections.remove(slot) else {
            return;
        };
        let peer = connection.link.peer_address();
        match why {
            Some(why) => {
                let now = self.service.issuer.now();
                self.log
                    .warn(now, format_args!("connection of {peer} closed: {why}"));
            }
            None => tracing::debug!("{peer} has closed its connection"),
        }
    }

    fn accept(&mut self) {
        loop {
            let added = match self.listener.accept() {
                Ok((stream, _)) => self.add(stream),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return,
                Err(why) => {
                    // The next accept would fail likewise, and the listener stays ready: the timer looks again.
                    self.set_accepting(false);
                    Err(why)
                }
            };
            if let Err(why) = added {
                self.warn_of_connection(&why);
                // There may be more, which the next turn accepts.
                return;
            }
        }
    }

    fn set_accepting(&mut self, accepts: bool) {
        match self.poller.set(&self.listener, LISTENER, accepts, false) {
            Ok(()) => self.is_accepting = accepts,
            Err(why) => self.warn_of_connection(&why),
        }
    }

    fn warn_of_connection(&mut self, why: &io::Error) {
        let now = self.service.issuer.now();
        self.log
            .warn(now, format_args!("a connection was not accepted: {why}"));
    }

    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        self.connections.check_room(stream.peer_addr()?.ip())?;
        match self.acceptor.accept(stream)? {
            Accepted::Link(link) => self.add_link(link),
            Accepted::Later => Ok(()),
        }
    }

    fn add_link(&mut self, link: Link) -> io::Result<()> {
        self.connections.check_room(link.peer_address().ip())?;
        link.set_peer_timeout(self.patience)?;
        let connection = self.connections.add(link, self.service.issuer.now())?;
        let id = connection.id;
        // What arrived with the end of a handshake is not announced by the socket.
        let has_input = connection.link.has_buffered_input();
        let watched = self.poller.add(&connection.link, id.pack());
        watched.inspect_err(|_| drop(self.connections.remove(id.slot)))?;
        if has_input {
            self.on_ready(id, false);
        }
        Ok(())
    }

    fn on_doorbell(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.doorbell, &mut count);
        for _ in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(ServerCommand::Stop) | Err(TryRecvError::Disconnected) => {
                    self.is_stopped = true;
                    return;
                }
                Ok(ServerCommand::Usage(host, thresholds)) => self.on_usage(host, thresholds),
                Ok(ServerCommand::Link(link)) => {
                    if let Err(why) = self.add_link(*link) {
                        self.warn_of_connection(&why);
                    }
                }
                Ok(ServerCommand::Members(members)) => self.close_removed(&members),
                Ok(ServerCommand::Issuer(act)) => act(&mut self.service.issuer),
                Err(TryRecvError::Empty) => return,
            }
        }
        // The rest has the next turn.
        let _ = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
    }

    /// Closes the links of hosts that are no members.
    fn close_removed(&mut self, members: &MemberList) {
        for slot in self.connections.of_no_member(members) {
            self.close(slot, Some(&"its host was removed from the cluster"));
        }
    }

    fn on_usage(&mut self, host: HostMemory, thresholds: HostThresholds) {
        let memory = &mut self.service.memory;
        let frames = memory.frames().into();
        let resident = memory.resident_frames().into();
        // What is not known changes nothing: a lack of descriptors does not mean that the host has memory.
        let Some(spare) = host.spare_frames(thresholds, frames, resident) else {
            return;
        };
        match self.service.disk {
            // The disk has all pages: the cache alone follows the host.
            Some(_) => self.cache_limit = (spare as u32).max(LEAST_CACHE),
            None => self.service.issuer.on_usage(spare),
        }
    }

    fn on_timer(&mut self) {
        let now = self.service.issuer.now();
        if now < self.timer {
            return;
        }
        if !self.is_accepting {
            self.set_accepting(true);
        }
        self.service.issuer.on_timer();
        let next = self.service.issuer.capacity().next_timer(now);
        self.timer = next.map_or(now + TICK, |at| at.clamp(now + TICK / 100, now + TICK));
        self.service.store_again();
        let memory = &mut self.service.memory;
        if memory.can_store_again() {
            self.timer = now + STEP;
        }
        if memory.resize(self.cache_limit, RESIZE_STEP) {
            self.timer = now + STEP;
        }
        for slot in self.connections.slots() {
            let connection = self.connections.get_mut(slot);
            if let Some(why) = connection.and_then(|it| it.overdue(now, self.patience, self.lease))
            {
                self.close(slot, Some(&why));
            }
        }
        let connections = &self.connections;
        let issuer = &self.service.issuer;
        self.clients.retain(|client| {
            let is_connected = connections
                .iter()
                .any(|connection| connection.client == Some(client));
            is_connected || issuer.permits().any(|permit| permit.client == client)
        });
    }
}
