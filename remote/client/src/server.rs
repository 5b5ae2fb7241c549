//! A paging server, as its client sees it: the connection, the permit, and what was asked of it.

use crate::client_state::SavedServer;
use crate::connector::ServerConnection;
use crate::open_link::OpenLink;
use crate::outage::Presence;
use crate::placement::FULL;
use disk::time::{Nanos, Time};
use remote_broker::protocol::Member;
use remote_policy::identity::{HostId, Incarnation, RequestId};
use remote_policy::latency::MIN_SAMPLES;
use remote_policy::permit::PermitId;
use remote_wire::control::{ControlRequest, SealedPermit, encode};
use remote_wire::{Header, Kind};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Set in the number of every control request.
const CONTROL: u32 = 1 << 31;

/// How often a lease is renewed at least: the round trips of all servers are measured so, those of servers
/// without objects, too.
const RENEWAL: Nanos = Nanos::seconds(1);
/// The same on a new connection, until the server's distance is known: the client may have moved.
const FIRST_RENEWALS: Nanos = Nanos::millis(200);
/// Pauses before a connection is asked for again after one in which no page came: the first and the longest.
const PAUSES: [Nanos; 2] = [Nanos::millis(20), Nanos::millis(2000)];
/// How long a server gets no new copies after it was silent, sent a wrong page or refused a write: at first, and at most.
const AVOIDED: [Nanos; 2] = [Nanos::seconds(5), Nanos::seconds(300)];

/// A control request that was not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A permit, or a larger one: the organizer's request.
    Permit(RequestId),
    /// An object's copy, in a generation.
    Create(usize, u64),
    /// To use a permit on this connection.
    Present(PermitId),
    /// An object's end.
    Terminate(usize),
    /// A sign of life, at this time.
    Renewal(Time),
    /// Something whose reply changes nothing.
    Other,
}

/// A paging server.
pub struct Server {
    /// HOST:PORT, as it was named last.
    pub address: String,
    /// Its host's control port, where a broker named it.
    pub control: Option<SocketAddr>,
    /// Its host's name, once it is known.
    pub name: String,
    /// Which life of it has the objects; `None` before the first connection.
    pub incarnation: Option<Incarnation>,
    pub open: Option<OpenLink>,
    /// Whether and since when it answers.
    pub presence: Presence,
    /// It leaves a read unanswered for too long, and nothing else comes from it.
    pub is_suspected: bool,
    /// What was last found at its address is another server, or known under another address.
    is_alias: bool,
    /// It was saved so: its life, its permit and its control port.
    saved: Option<(
        Option<Incarnation>,
        Option<SealedPermit>,
        Option<SocketAddr>,
    )>,
    pub permit: Option<SealedPermit>,
    /// The server's number of a request for a permit that has no reply yet, and its pages.
    pub unanswered_allocate: Option<(RequestId, u64)>,
    /// Pages that it said it can lend.
    pub lendable_pages: u64,
    /// Pages that may stay, while a revocation is not complied with.
    pub keep_pages: Option<u64>,
    /// An object of which a write found the permit used up.
    pub short_of: Option<usize>,
    /// Nothing is asked of it before this time, since it refused.
    pub full_until: Time,
    /// Objects to be terminated, when it is back where it is away.
    pub stale: Vec<usize>,
    asked: BTreeMap<u32, Asked>,
    /// The oldest control request that is not answered, and since when.
    oldest_asked: Option<(u32, Time)>,
    /// No copies are made there before this time, and how long it is avoided the next time.
    avoided_until: Time,
    avoided_for: Nanos,
    /// When a connection is to be asked for, where there is none.
    reconnect_at: Option<Time>,
    /// The pause before the next one.
    pause: Nanos,
    next_control: u32,
    lease: Duration,
    heard: Time,
    /// Renewals that were answered on this connection, and when the last one of them was sent.
    round_trips: u32,
    renewed: Time,
    reconnect: Sender<String>,
}

impl Server {
    pub fn new(address: String, reconnect: Sender<String>) -> Self {
        Self {
            name: address.clone(),
            address,
            control: None,
            incarnation: None,
            open: None,
            presence: Presence::default(),
            is_suspected: false,
            is_alias: false,
            saved: None,
            permit: None,
            unanswered_allocate: None,
            lendable_pages: 0,
            keep_pages: None,
            short_of: None,
            full_until: Time(0),
            stale: Vec::new(),
            asked: BTreeMap::new(),
            oldest_asked: None,
            avoided_until: Time(0),
            avoided_for: AVOIDED[0],
            reconnect_at: None,
            pause: Nanos::ZERO,
            next_control: 0,
            lease: Duration::from_secs(1),
            heard: Time(0),
            round_trips: 0,
            renewed: Time(0),
            reconnect,
        }
    }

    /// Its host, once it is known.
    pub fn host(&self) -> Option<HostId> {
        self.incarnation.map(|incarnation| incarnation.host)
    }

    /// Returns true if it is the server of a member, or at its address: not where another host was found there, and it has a
    /// host of its own elsewhere.
    pub fn is_of(&self, member: &Member) -> bool {
        let has_address = !self.is_alias || self.host().is_none();
        let is_there = has_address && self.address == member.paging.to_string();
        is_there || self.host() == Some(member.host())
    }

    /// Another server has its place and its connector.
    pub fn replace(&mut self, address: String) {
        *self = Self::new(address, self.reconnect.clone());
        self.retry();
    }

    /// Its host has another address now, where a connection is asked for. One that is up stays: it is to the host.
    pub fn move_to(&mut self, address: &str) {
        if self.is_up() || self.address == address {
            return;
        }
        tracing::info!(
            "{} is at {address} now, and not at {}",
            self.name,
            self.address
        );
        self.address = address.to_owned();
        self.saved = None;
        self.retry();
    }

    /// What is to be saved of it, where that has changed since it was saved last.
    pub fn unsaved(&mut self) -> Option<SavedServer> {
        let now = Some((self.incarnation, self.permit, self.control));
        if self.saved == now {
            return None;
        }
        self.saved = now;
        Some(SavedServer {
            address: self.address.clone(),
            control: self.control,
            incarnation: self.incarnation,
            permit: self.permit,
        })
    }

    /// Returns true if requests can be sent.
    pub fn is_up(&self) -> bool {
        self.open.is_some()
    }

    /// Takes a connection. Returns true if another life of the server than before answered, which
    /// has none of the objects.
    pub fn connect(
        &mut self,
        connection: ServerConnection,
        now: Time,
        epoll: &OwnedFd,
        index: usize,
    ) -> io::Result<bool> {
        let ServerConnection {
            link,
            reader,
            welcome,
        } = connection;
        let open = OpenLink::new(link, reader, epoll, index)?;
        let is_other = self
            .incarnation
            .is_some_and(|known| known != welcome.server);
        if is_other {
            self.avoided_until = Time(0);
            (self.permit, self.unanswered_allocate) = (None, None);
            self.keep_pages = None;
            self.stale.clear();
        }
        self.open = Some(open);
        self.is_alias = false;
        (self.name, self.lease) = (welcome.name, welcome.lease);
        (self.incarnation, self.lendable_pages) = (Some(welcome.server), welcome.lendable_pages);
        self.presence.on_connected(now);
        self.is_suspected = false;
        (self.full_until, self.heard, self.round_trips) = (Time(0), now, 0);
        Ok(is_other)
    }

    /// Closes the connection and asks for another. Returns the control requests that will not be answered.
    pub fn disconnect(&mut self, now: Time) -> Vec<Asked> {
        self.open = None;
        self.presence.on_disconnected(now);
        self.reconnect_at = Some(now + self.pause);
        self.pause = (self.pause + self.pause).clamp(PAUSES[0], PAUSES[1]);
        self.reconnect_if_due(now);
        self.oldest_asked = None;
        let asked = std::mem::take(&mut self.asked);
        asked.into_values().collect()
    }

    /// Asks for a connection, if it is time.
    pub fn reconnect_if_due(&mut self, now: Time) {
        if self.reconnect_at.take_if(|at| now >= *at).is_some() {
            let _ = self.reconnect.send(self.address.clone());
        }
    }

    /// Returns true if no connection is asked for yet, since the server sent no page on the last one.
    pub fn awaits_reconnect(&self) -> bool {
        self.reconnect_at.is_some()
    }

    /// Has a connector that waits between two attempts make the next one now.
    pub fn retry(&mut self) {
        if !self.is_up() && self.reconnect_at.is_none() {
            let _ = self.reconnect.send(self.address.clone());
        }
    }

    /// A request of pages was answered: the server keeps to the protocol.
    pub fn on_page_reply(&mut self) {
        self.pause = Nanos::ZERO;
    }

    /// Has no copies made there for a while, which doubles each time; after long use it is short again.
    pub fn avoid(&mut self, now: Time) {
        if now >= self.avoided_until + AVOIDED[1] {
            self.avoided_for = AVOIDED[0];
        }
        self.avoided_until = now + self.avoided_for;
        self.avoided_for = (self.avoided_for + self.avoided_for).min(AVOIDED[1]);
    }

    /// It does not take a write, and is avoided. Writes under way with that are refused, too, and count as one refusal.
    pub fn on_write_refused(&mut self, now: Time) {
        self.full_until = now + FULL;
        if !self.is_avoided(now) {
            self.avoid(now);
        }
    }

    /// Returns true if no copies are to be made there where others can take them.
    pub fn is_avoided(&self, now: Time) -> bool {
        now < self.avoided_until
    }

    /// Returns true if it is known to be on this machine, whose memory it takes.
    pub fn is_on_this_machine(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.link.is_within_machine())
    }

    /// What is at its address is another server: tries again later. Returns true the first time.
    pub fn on_alias(&mut self, now: Time) -> bool {
        self.reconnect_at = Some(now + PAUSES[1]);
        !std::mem::replace(&mut self.is_alias, true)
    }

    /// Queues a control request. Returns false if there is no connection, or no room in it.
    pub fn ask(&mut self, request: &ControlRequest, asked: Asked) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let Ok(body) = encode(request) else {
            return false;
        };
        self.next_control = (self.next_control + 1) & !CONTROL;
        let number = self.next_control | CONTROL;
        let header = Header::control(Kind::Control, number);
        let is_queued = open.push(&header, &body);
        if is_queued {
            self.asked.insert(number, asked);
        }
        is_queued
    }

    /// What a reply is to, if it is to a control request that is not answered yet.
    pub fn take_asked(&mut self, number: u32, now: Time) -> Option<Asked> {
        let asked = self.asked.remove(&number)?;
        self.presence.on_answer(now);
        Some(asked)
    }

    /// A renewal was answered that was sent at a time.
    pub fn on_round_trip(&mut self, sent: Time) {
        self.round_trips = self.round_trips.saturating_add(1);
        self.renewed = sent;
    }

    /// Returns true if it has received what was sent until a time: a link keeps the order.
    pub fn has_received(&self, sent: Time) -> bool {
        self.renewed >= sent
    }

    /// Returns true if it has not replied yet to the permit that it was shown.
    pub fn awaits_present(&self) -> bool {
        let is_present = |asked: &Asked| matches!(asked, Asked::Present(_));
        self.asked.values().any(is_present)
    }

    /// Since when the oldest control request is not answered, as far as the ticks tell.
    pub fn awaits_since(&self) -> Option<Time> {
        self.oldest_asked.map(|(_, since)| since)
    }

    /// Queues a request of pages. Returns false if there is no room.
    pub fn send(&mut self, header: &Header, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let open = self.open.as_mut();
        open.is_some_and(|open| open.push_with(header, len, fill))
    }

    /// Returns true if a write of a process may be queued.
    pub fn takes_pages(&self) -> bool {
        self.open.as_ref().is_some_and(OpenLink::takes_pages)
    }

    /// Writes what is queued.
    pub fn flush(&mut self, epoll: &OwnedFd, index: usize) -> io::Result<()> {
        match &mut self.open {
            Some(open) => open.flush(epoll, index),
            None => Ok(()),
        }
    }

    /// Writes what the socket takes, before the connection ends.
    pub fn flush_last(&mut self) {
        if let Some(open) = &mut self.open {
            open.flush_last();
        }
    }

    /// Renews the lease, which measures the round trip, and notes since when answers are missing.
    pub fn renew(&mut self, now: Time) {
        let oldest = self.asked.keys().next().copied();
        if oldest != self.oldest_asked.map(|(number, _)| number) {
            self.oldest_asked = oldest.map(|number| (number, now));
        }
        let is_renewal = |asked: &Asked| matches!(asked, Asked::Renewal(_));
        let is_measured = self.round_trips >= MIN_SAMPLES || self.asked.values().any(is_renewal);
        let most = if is_measured { RENEWAL } else { FIRST_RENEWALS };
        let pause = Nanos::from(self.lease / 3).min(most);
        if self.is_up()
            && now >= self.heard + pause
            && self.ask(&ControlRequest::Renew, Asked::Renewal(now))
        {
            self.heard = now;
        }
    }
}
