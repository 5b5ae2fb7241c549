//! The control socket: its connections, the messages that arrive on them, and their end.
//!
//! Rule: connections without a contract have at most a fifth of the loop's time, all of them
//! together, and are served after tenants: however many there are and whatever they
//! send, no tenant waits for them longer than [`BACKOFF`] allows. They take at most half of the
//! descriptors, those of one person at most a quarter. The rule of `loop_time` applies to tenants' connections,
//! and to that of a process that is awaited with its contract after a restart: a quota that unidentified peers
//! have filled does not keep such a process out ([`quotas`]).
//! The daemon never blocks on a peer.

mod outgoing;
mod quotas;

use crate::listener::Listener;
use crate::peer::Peer;
use crate::policy::PeerIdentity;
use crate::refusal::Refusal;
use crate::user_limits::UserLimits;
use crate::{CONNECTION, DaemonError, UNIDENTIFIED, call};
use host::fd_reaper::FdReaper;
use host::seqpacket::{self, UntrustedMessage};
use host::socket_reaper::SocketReaper;
use protocol::TenantNumber;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, SocketFlags, shutdown};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Connections accepted, and messages received from one, in a turn of the loop.
pub(crate) const MAX_BATCH: usize = 16;

/// After unidentified peers were served for a time, they wait for this multiple of it.
const BACKOFF: u32 = 4;

/// How long unidentified peers are served at a time; a message whose handling has begun is handled to its end.
pub(crate) const MAX_SERVICE: Duration = Duration::from_millis(1);

/// The token of the listener, which is polled with unidentified peers.
pub(crate) const LISTENER: u64 = 0;

/// Descriptors that a connection takes: its socket, and the pidfd of its process.
const FDS: usize = 2;

/// One end of the control socket.
pub(crate) struct Connection {
    pub fd: OwnedFd,
    pub identity: PeerIdentity,
    pub peer: Peer,
    /// The person whose descriptors and time it takes.
    pub person: u32,
    pub tenant: Option<TenantNumber>,
    /// True if it is served with tenants: it is a tenant's, or its process is awaited.
    with_tenants: bool,
    /// True while an event that did not fit into its queue waits for the peer to read.
    is_full: Cell<bool>,
    /// Encoded events of a tenant that did not fit into its queue, in order.
    unsent: RefCell<VecDeque<Vec<u8>>>,
    /// True while its person has used its part of the loop's time.
    is_suspended: bool,
    /// Where a list that did not fit into its queue continues: the number of a tenant.
    pub list_from: Option<TenantNumber>,
}

impl Connection {
    /// The events that it is polled for.
    fn polled_events(&self) -> epoll::EventFlags {
        match (self.is_suspended, self.is_full.get()) {
            (true, _) => epoll::EventFlags::empty(),
            (false, true) => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            (false, false) => epoll::EventFlags::IN,
        }
    }
}

/// What a connection has received.
pub(crate) enum Incoming {
    /// Nothing more now.
    Nothing,
    /// A message, and its person. Its descriptors that no handler takes go to [`Connections::discard`].
    Message(Box<UntrustedMessage>, u32),
    /// The other end has closed.
    HungUp,
    /// Data that no client of this version sends, and why it is invalid.
    Violation(&'static str),
}

/// All connections, and what their users may take.
pub(crate) struct Connections {
    /// Polls tenants' connections, and what else the loop serves at once.
    epoll: OwnedFd,
    /// Polls the listener and the connections without a contract.
    unidentified: OwnedFd,
    /// True while an unidentified peer waits. Its event is not reported again before it is served.
    pending: bool,
    /// Tokens of unidentified peers that were reported and are not served yet.
    ready: VecDeque<u64>,
    /// Unidentified peers are not served before this.
    not_before: Instant,
    listener: Listener,
    /// True while the listener is disarmed, after EMFILE.
    disarmed: bool,
    by_token: BTreeMap<u64, Connection>,
    next: u64,
    pub user_limits: UserLimits,
    reaper: FdReaper,
    socket_reaper: SocketReaper,
}

impl Connections {
    /// Connections of a listener, none of them accepted yet.
    pub fn new(listener: Listener) -> Result<Self, DaemonError> {
        let make = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(call("make an epoll"));
        let new = Self {
            epoll: make()?,
            unidentified: make()?,
            pending: false,
            ready: VecDeque::new(),
            not_before: Instant::now(),
            listener,
            disarmed: false,
            by_token: BTreeMap::new(),
            next: 0,
            user_limits: UserLimits::new(),
            reaper: FdReaper::new(crate::urgent::leave),
            socket_reaper: SocketReaper::start(crate::urgent::leave)
                .map_err(call("start a thread"))?,
        };
        new.arm_listener().map_err(call("poll"))?;
        new.watch(&new.unidentified, UNIDENTIFIED, epoll::EventFlags::IN)
            .map_err(call("poll"))?;
        Ok(new)
    }

    /// Polls a descriptor with tenants' connections.
    pub fn watch(&self, fd: impl AsFd, token: u64, flags: epoll::EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Stops polling a descriptor.
    pub fn unwatch(&self, fd: impl AsFd) {
        // This fails only where the descriptor is not polled.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events. Returns the tokens of the descriptors that have some.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<u64>, DaemonError> {
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; 64];
        let limit = Timespec::try_from(timeout).ok();
        match epoll::wait(&self.epoll, &mut ready, limit.as_ref()) {
            Ok((events, _)) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(call("wait")(errno)),
        }
    }

    /// Notes that an unidentified peer has sent something or connected.
    pub fn on_unidentified(&mut self) {
        self.pending = true;
    }

    /// Time until unidentified peers are to be served, if one of them waits.
    pub fn timeout(&self) -> Option<Duration> {
        let left = || self.not_before.saturating_duration_since(Instant::now());
        self.pending.then(left)
    }

    /// The next unidentified peer that has sent something. Each is served once before any is served for the
    /// second time: epoll moves the descriptors that it reports behind all others.
    pub fn next_unidentified(&mut self) -> Option<u64> {
        if self.ready.is_empty() {
            let mut ready = [const { std::mem::MaybeUninit::uninit() }; 64];
            let events = epoll::wait(&self.unidentified, &mut ready, Some(&Timespec::default()));
            let (events, _) = events.ok()?;
            self.ready
                .extend(events.iter().map(|event| event.data.u64()));
        }
        self.ready.pop_front()
    }

    /// Makes unidentified peers wait, after they were served since `begin`.
    pub fn suspend_unidentified(&mut self, begin: Instant) {
        self.pending = !self.ready.is_empty();
        self.not_before = Instant::now() + begin.elapsed() * BACKOFF;
        let data = epoll::EventData::new_u64(UNIDENTIFIED);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // This cannot fail: the descriptor was added before, and needs no memory.
        let _ = epoll::modify(&self.epoll, &self.unidentified, data, flags);
    }

    /// Accepts connections. `tenant_fds` counts the descriptors of a person's contracts; `awaits` returns true
    /// for a process that has a contract of an earlier daemon.
    pub fn accept(
        &mut self,
        tenant_fds: impl Fn(&UserLimits, u32) -> usize,
        awaits: impl Fn(&Peer) -> bool,
    ) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..MAX_BATCH {
            // Else connections that end at once fill the table of descriptors.
            if self.socket_reaper.waiting() >= MAX_BATCH {
                return;
            }
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(fd) => self.insert(fd, &tenant_fds, &awaits),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // No descriptor is free, most likely. Pending connections keep the socket
                    // readable, so it is not polled for a while.
                    tracing::warn!("accept: {errno}; no connection is accepted for a second");
                    let _ = epoll::delete(&self.unidentified, &self.listener);
                    self.disarmed = true;
                    return;
                }
            }
        }
    }

    fn arm_listener(&self) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(LISTENER);
        let (set, flags) = (&self.unidentified, epoll::EventFlags::IN);
        epoll::add(set, &self.listener, data, flags)
    }

    /// Polls the listener again, if it was disarmed.
    pub fn rearm_listener(&mut self) {
        if self.disarmed {
            self.disarmed = self.arm_listener().is_err();
        }
    }

    fn insert(
        &mut self,
        fd: OwnedFd,
        tenant_fds: impl Fn(&UserLimits, u32) -> usize,
        awaits: impl Fn(&Peer) -> bool,
    ) {
        let peer = match Peer::of(&fd) {
            Ok(peer) => peer,
            Err(Errno::SRCH) => return self.reject(fd, &Refusal::OtherNamespace),
            Err(why) => return self.reject(fd, &why.into()),
        };
        let person = self.user_limits.person(peer.uid);
        let held = tenant_fds(&self.user_limits, person);
        let awaited = awaits(&peer) && !self.has_awaited(&peer);
        let is_in_reserve = self.user_limits.is_in_reserve(fd.as_fd());
        let excess = || {
            (is_in_reserve.then_some(Refusal::FewDescriptors))
                .or_else(|| self.over_fd_quota(peer.uid, held))
                .or_else(|| self.over_unidentified_quota(peer.uid))
        };
        if let Some(why) = (!awaited).then(excess).flatten() {
            return self.reject(fd, &why);
        }
        let token = CONNECTION | (self.next & 0xffff_ffff);
        self.next += 1;
        let data = epoll::EventData::new_u64(token);
        let known = self.by_token.contains_key(&token);
        let set = match awaited {
            true => &self.epoll,
            false => &self.unidentified,
        };
        if known || epoll::add(set, &fd, data, epoll::EventFlags::IN).is_err() {
            return self.close_socket(fd);
        }
        let pid = peer.pid.as_raw_nonzero().get();
        tracing::debug!(token, pid, uid = peer.uid, "connection");
        let connection = Connection {
            identity: PeerIdentity::of(&peer),
            peer,
            person,
            fd,
            tenant: None,
            with_tenants: awaited,
            is_full: Cell::new(false),
            unsent: RefCell::default(),
            is_suspended: false,
            list_from: None,
        };
        self.by_token.insert(token, connection);
    }

    /// Closes a connection's socket: at once if it holds no descriptor.
    fn close_socket(&self, socket: OwnedFd) {
        // The peer can send no more.
        let is_shut = shutdown(&socket, Shutdown::Read).is_ok();
        if !is_shut || iochannel::holds_descriptors(socket.as_fd()) != Ok(false) {
            self.socket_reaper.close(socket);
        }
    }

    /// A connection.
    pub fn get(&self, token: u64) -> Option<&Connection> {
        self.by_token.get(&token)
    }

    /// The connection on which a contract is requested; an error if it has ended.
    pub fn requesting(&self, token: u64) -> Result<&Connection, Refusal> {
        self.get(token).ok_or(Refusal::Disconnected)
    }

    /// Sets where the list continues once the peer has read; `None` at its end.
    pub fn set_list_from(&mut self, token: u64, next: Option<TenantNumber>) {
        if let Some(connection) = self.by_token.get_mut(&token) {
            connection.list_from = next;
        }
    }

    /// Makes a connection a tenant's, which is served with tenants, or, for `None`, unidentified again.
    pub fn set_tenant(&mut self, token: u64, tenant: Option<TenantNumber>) {
        let Some(connection) = self.by_token.get_mut(&token) else {
            return;
        };
        (connection.tenant, connection.with_tenants) = (tenant, tenant.is_some());
        let (to, from) = match tenant {
            Some(_) => (&self.epoll, &self.unidentified),
            None => (&self.unidentified, &self.epoll),
        };
        let data = epoll::EventData::new_u64(token);
        // Where the kernel has no memory for it, the connection stays in its set, which for an awaited process is the tenants'.
        if epoll::add(to, &connection.fd, data, connection.polled_events()).is_ok() {
            let _ = epoll::delete(from, &connection.fd);
        }
    }

    /// Receives a message.
    pub fn receive(&mut self, token: u64) -> Incoming {
        let Some(connection) = self.by_token.get(&token) else {
            return Incoming::Nothing;
        };
        let person = connection.person;
        if self.is_behind(person) {
            return Incoming::Violation("what it sent cannot be closed");
        }
        match seqpacket::receive_all(&connection.fd, RecvFlags::DONTWAIT) {
            Ok(mut arrived) if arrived.message.len > 0 && arrived.whole => {
                let is_in_reserve = |fd: &OwnedFd| self.user_limits.is_in_reserve(fd.as_fd());
                let fds = &mut arrived.message.fds;
                if fds.iter().flatten().any(is_in_reserve) {
                    for fd in fds.iter_mut().filter_map(Option::take) {
                        self.reaper.close(person, fd);
                    }
                    arrived.message.fds_lost = true;
                }
                Incoming::Message(Box::new(arrived), person)
            }
            Ok(arrived) => {
                let incoming = match arrived.message.len {
                    0 => Incoming::HungUp,
                    _ => Incoming::Violation("its message is longer than any of ours"),
                };
                self.discard(arrived, person);
                incoming
            }
            Err(Errno::AGAIN | Errno::INTR) => Incoming::Nothing,
            Err(_) => Incoming::HungUp,
        }
    }

    /// Closes the descriptors of a message that no handler has taken.
    pub fn discard(&mut self, message: UntrustedMessage, person: u32) {
        let first = message.message.fds.into_iter().flatten();
        for fd in first.chain(message.more) {
            self.reaper.close(person, fd);
        }
    }

    /// The user of a connection that is served with tenants.
    pub fn tenant_uid(&self, token: u64) -> Option<u32> {
        let connection = self.get(token)?;
        connection.with_tenants.then_some(connection.identity.uid)
    }

    /// Suspends or resumes receiving from a tenant's connection. A hang-up is noticed in any case.
    pub fn set_suspended(&mut self, token: u64, is_suspended: bool) {
        if let Some(connection) = self.by_token.get_mut(&token) {
            connection.is_suspended = is_suspended;
        }
        if let Some(connection) = self.get(token) {
            self.poll_again(token, connection);
        }
    }

    /// Closes a connection.
    pub fn close(&mut self, token: u64) {
        if let Some(connection) = self.by_token.remove(&token) {
            let _ = epoll::delete(&self.epoll, &connection.fd);
            let _ = epoll::delete(&self.unidentified, &connection.fd);
            self.close_socket(connection.fd);
        }
    }
}

#[cfg(test)]
mod tests;
