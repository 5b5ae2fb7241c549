//! The disk's thread's way to paging servers.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.2, (b): after an object is created, reads
//! and writes pass directly between the client and its server. What a link loses is sent again: a
//! server keeps the highest version of a page, so a write that arrives twice is one write.
//!
//! | what happens | reads | writes |
//! |---|---|---|
//! | a server is slow | go elsewhere, too, once they are late (`reading`) | wait for it |
//! | its connection ends | go to another copy or the rest of the stripe, else wait | wait `GRACE` for it, then go on without it |
//! | it is silent (`silence`), or busy, for `STALLED` | likewise | go on without it; at the only copy wait |
//! | all servers end or are silent at once (`outage`) | wait | wait until they are back |
//! | it sends what no correct server sends | as where its connection ends | likewise |
//! | a page is not the one that was written | go to another copy, else `EIO` | |
//! | it comes back as another process | go to another copy, else `EIO` | go on without it |
//! | none of an object's servers answers for [`PATIENCE`] | `ETIMEDOUT` | `ETIMEDOUT` |
//! | a write's stripe dissolves, and for [`PATIENCE`] no page is copied | | `ETIMEDOUT` |
//! | a server is connected, and for [`PATIENCE`] there is no answer to a request for a place | | `ENOSPC` |
//! | no server has room for an object, or its only copy for a write | | wait some seconds (`placement_refusals`), then `ENOSPC` |
//! | a server cannot read or write a page | go to another copy, else `EIO` | go on without it; at the only copy `EIO`, `ENOSPC` |
//!
//! A server that sends no page between two losses of its connection is connected to after pauses that
//! double, so that one whose every reply is wrong is away for longer than `GRACE` soon. One that is silent,
//! sent a wrong page or refused a write gets no new copies for a while.
//!
//! A server that is left out loses its copies before a write is acknowledged without it, so no copy
//! that is read lacks a write; objects with too few copies get others (`placement`). The times are those of `outage`.

use crate::arrival::{self, Arrival};
use crate::background::{self, Background};
use crate::broker_link::BrokerLink;
use crate::connector::Connectors;
use crate::copying::{self, CopyJob};
use crate::degraded::DegradedReads;
use crate::objects::{ObjectMap, bit};
use crate::placement::{self, ObjectMove};
use crate::placement_refusals::PlacementRefusals;
use crate::progress::ClientProgress;
use crate::requests::{Purpose, RequestTable, Segment};
use crate::restore::{restore_objects, restore_servers};
use crate::send_queue::send_and_flush;
use crate::server::Server;
use crate::stripes::Stripes;
use crate::{permits, reading, silence, stripe_state, usage, waiting};
use disk::time::{Nanos, Time};
use disk::usd::{BackgroundWork, PartId, Transport};
use iochannel::{IoVec, Op};
use remote_policy::broker::AllocationRequest;
use remote_policy::hedging::HedgeBudget;
use remote_policy::identity::{HostId, Incarnation, RequestId, Version};
use remote_policy::latency::LatencyTable;
use remote_policy::organizer::Organizer;
use remote_wire::control::SealedPermit;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use wired::PAGE;

/// How long requests wait for any of an object's servers.
pub const PATIENCE: Nanos = Nanos::millis(30_000);
/// A request that has waited for as long does not wait for a server any more that is just back.
pub const LATE: Nanos = Nanos::millis(25_000);
/// How often what waits is looked at, and otherwise leases.
const TICK: Nanos = Nanos::millis(20);
const IDLE_TICK: Nanos = Nanos::millis(200);
/// How often use is reported to the broker.
const REPORT: Nanos = Nanos::millis(1000);
/// Pages of one swap space on paging servers.
pub struct RemoteTransport {
    pub(crate) client: Incarnation,
    pub(crate) objects: ObjectMap,
    pub(crate) servers: Vec<Server>,
    pub(crate) requests: RequestTable,
    pub(crate) latencies: LatencyTable,
    /// Copies that each object is to have.
    pub(crate) replicas: u8,
    pub(crate) copy: Option<CopyJob>,
    /// No copy of an object is begun before this time, since pages of one could not be read.
    pub(crate) copies_paused_until: Time,
    /// No copy is asked for before this time, since no server had room for one.
    pub(crate) copies_full_until: Time,
    /// Objects without a copy that were refused one.
    pub(crate) placement_refusals: PlacementRefusals,
    /// Decides which server has which copy.
    pub(crate) organizer: Organizer,
    /// Permits at servers that this client has not been connected to yet. Nothing is placed there until it is.
    pub(crate) unshown: BTreeMap<HostId, SealedPermit>,
    /// Requests for permits that a server was asked itself.
    pub(crate) asked_alone: BTreeMap<RequestId, AllocationRequest>,
    /// The request for a new permit that has no answer yet, and those that wait for it.
    pub(crate) awaited_permit: Option<RequestId>,
    pub(crate) permit_queue: VecDeque<RequestId>,
    /// Objects that move.
    pub(crate) moves: BTreeMap<usize, ObjectMove>,
    /// The schedule's client for what the client does by itself.
    pub(crate) background: Background,
    /// When the first read is late.
    pub(crate) late_at: Time,
    /// How many late reads may go elsewhere, too.
    pub(crate) budget: HedgeBudget,
    pub(crate) degraded: DegradedReads,
    /// Stripes of cold objects.
    pub(crate) stripes: Stripes,
    /// What it has done by itself.
    pub(crate) progress: Arc<ClientProgress>,
    /// When nearer servers were looked for last; 0 where an object has moved since.
    pub(crate) improved: Time,
    /// The broker; `None` where servers are used alone.
    pub(crate) broker: Option<BrokerLink>,
    pub(crate) connectors: Connectors,
    reported: Time,
    next_version: u64,
    done: VecDeque<(PartId, i32)>,
    /// Segments that wait for a connection, an object or room in a link's buffer.
    pub(crate) has_unsent: bool,
    /// The slot that is sent first: the first one that a link did not take.
    pub(crate) next_unsent: usize,
    pub(crate) epoll: OwnedFd,
    pub(crate) bell: Arc<OwnedFd>,
    pub(crate) arrivals: Receiver<Arrival>,
    ticked: Time,
    /// The server that was sent to last, and probes since the last of all.
    pub(crate) recent: usize,
    pub(crate) probes: u32,
}

impl RemoteTransport {
    /// A transport to `servers`, and to those that the broker names, which arrive in `arrivals` with their
    /// connections.
    pub(crate) fn new(
        objects: ObjectMap,
        servers: Vec<Server>,
        replicas: u8,
        broker: Option<BrokerLink>,
        connectors: Connectors,
        arrivals: Receiver<Arrival>,
    ) -> Result<Self, Errno> {
        let client = connectors.client;
        let bell = Arc::clone(&connectors.arrivals.bell);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(arrival::BELL);
        epoll::add(&epoll, &*bell, data, EventFlags::IN)?;
        Ok(Self {
            client,
            objects,
            servers,
            requests: RequestTable::new(),
            latencies: LatencyTable::default(),
            replicas,
            copy: None,
            copies_paused_until: Time(0),
            copies_full_until: Time(0),
            placement_refusals: PlacementRefusals::default(),
            organizer: Organizer::new(client, placement::QOS),
            unshown: BTreeMap::new(),
            asked_alone: BTreeMap::new(),
            awaited_permit: None,
            permit_queue: VecDeque::new(),
            moves: BTreeMap::new(),
            background: Background::default(),
            late_at: Time::NEVER,
            budget: HedgeBudget::default(),
            degraded: DegradedReads::default(),
            stripes: Stripes::default(),
            progress: Arc::default(),
            improved: Time(0),
            broker,
            connectors,
            reported: Time(0),
            next_version: 1,
            done: VecDeque::with_capacity(512),
            has_unsent: false,
            next_unsent: 0,
            epoll,
            bell,
            arrivals,
            ticked: Time(0),
            recent: 0,
            probes: 0,
        })
    }

    /// Goes on from the state of an earlier process of this client, of which there were so many.
    pub(crate) fn restore(&mut self, starts: u64) -> std::io::Result<()> {
        restore_servers(self)?;
        self.next_version = restore_objects(self, starts).0;
        Ok(())
    }

    /// Saves what has changed: before a completion, and before a request leaves.
    pub(crate) fn save(&mut self) {
        let stripes = &self.stripes;
        if stripes.is_changed {
            stripe_state::save_kept(self.objects.state(), stripes);
        }
        let servers = &mut self.servers;
        self.objects.save(|state| {
            for (index, server) in servers.iter_mut().enumerate() {
                if let Some(saved) = server.unsaved()
                    && !state.save_server(index, &saved)
                {
                    tracing::warn!("{} has too long a name to be kept", saved.address);
                }
            }
        });
        if std::mem::take(&mut self.stripes.is_changed) {
            stripe_state::forget_others(self.objects.state(), &self.stripes);
        }
    }

    /// The version of the next write.
    pub(crate) fn take_version(&mut self) -> Version {
        self.next_version += 1;
        Version(self.next_version)
    }

    /// Ends a segment.
    pub(crate) fn end(&mut self, slot: usize, result: Result<(), Errno>) {
        let result = result.map_err(|errno| -errno.raw_os_error());
        self.done.extend(self.requests.end(slot, result));
    }

    /// A server answered: what waits for it is sent, or sent again.
    pub(crate) fn on_connected(&mut self, server: usize, is_other: bool, now: Time) {
        let to = &self.servers[server];
        tracing::info!("connected to {} at {}", to.name, to.address);
        if is_other {
            tracing::warn!("{} has started again, and its pages are gone", to.name);
            self.lose_server(server, now);
        }
        permits::on_server_back(self, server);
        // What this one was out of reach for may be over for all.
        self.servers.iter_mut().for_each(Server::retry);
        self.copies_full_until = now;
        self.has_unsent = true;
        self.ticked = Time(0);
    }

    /// A connection ended. Its requests go elsewhere, or wait for another.
    pub(crate) fn on_link_lost(&mut self, server: usize, now: Time, why: &str) {
        let name = self.servers[server].name.clone();
        tracing::warn!("{name} is not connected any more: {why}");
        let unanswered = self.servers[server].disconnect(now);
        if let Some(host) = self.servers[server].host() {
            self.organizer.on_disconnected(host);
            self.latencies.remove(host);
        }
        permits::on_unanswered(self, server, unanswered, now);
        copying::on_server_lost(self, server, now);
        self.resend(server);
    }

    /// What has to happen by and by: grace and patience that end, bindings, copies, leases.
    fn tick(&mut self, now: Time) {
        self.ticked = now;
        // What arrived while this thread had no processor is no silence.
        arrival::receive_all(self, now);
        silence::check(self, now);
        waiting::check(self, now);
        placement::place_all(self, now);
        self.give_up_late(now);
        if let Some(broker) = &self.broker
            && now >= self.reported + REPORT
        {
            broker.report(usage::of(self, now));
            self.reported = now;
        }
        self.has_unsent = true;
    }

    /// Returns true if pages are copied or made again.
    pub(crate) fn is_copying(&self) -> bool {
        self.copy.is_some() || self.stripes.job.is_some()
    }

    fn tick_length(&self) -> Nanos {
        let is_troubled = self.has_unsent || self.is_copying() || self.requests.parts_in_use() > 0;
        match is_troubled {
            true => TICK,
            false => IDLE_TICK,
        }
    }
}

impl Transport for RemoteTransport {
    unsafe fn start(&mut self, now: Time, id: PartId, op: Op, _: u32, pieces: &[IoVec], at: u64) {
        let first = at / PAGE as u64;
        let pages: usize = pieces.iter().map(|piece| piece.len / PAGE).sum();
        let (object, page) = ObjectMap::page(first);
        let fits = (self.objects.pages_of(object).end - page.0).min(pages as u64) as usize;
        let segments = 1 + usize::from(fits < pages);
        let Some(part) = self.requests.add_part(id, pieces, segments) else {
            return self.done.push_back((id, -Errno::AGAIN.raw_os_error()));
        };
        let version = match op {
            Op::Read => Version(0),
            Op::Write => self.take_version(),
        };
        for (object, page, at, count) in [
            (object, page.0, 0, fits),
            (object + 1, 0, fits, pages - fits),
        ] {
            if count == 0 {
                continue;
            }
            let pages = page..page + count as u64;
            if op == Op::Write {
                let numbers = pages.clone().map(|page| ObjectMap::number(object, page));
                numbers.for_each(|page| self.objects.records().on_write_begun(page, version));
            }
            let segment = Segment {
                at,
                version,
                ..Segment::new(Purpose::Part(part), op, object, pages, now)
            };
            match self.requests.add(segment) {
                Some(slot) => self.route(slot, now),
                // Copies leave room for a window.
                None => tracing::error!("too many requests under way"),
            }
        }
    }

    fn flush(&mut self, now: Time) {
        if now >= self.ticked + self.tick_length() {
            self.tick(now);
        }
        reading::hedge_late(self, now);
        send_and_flush(self, now);
    }

    fn reap(&mut self, now: Time) -> Option<(PartId, i32)> {
        if self.done.is_empty() {
            arrival::receive(self, now);
        }
        let done = self.done.pop_front()?;
        self.save();
        Some(done)
    }

    fn in_flight(&self) -> usize {
        self.requests.parts_in_use() + self.done.len()
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn next_due(&self) -> Option<Time> {
        if !self.done.is_empty() {
            return Some(Time(0));
        }
        Some(self.late_at.min(self.ticked + self.tick_length()))
    }

    fn give_up(&mut self, _: Time, id: PartId) {
        self.give_up_write(id);
    }

    fn next_waiting(&mut self) -> Option<PartId> {
        self.requests.next_waiting()
    }

    fn background(&mut self) -> Option<BackgroundWork> {
        background::work(self)
    }

    fn start_background(&mut self, now: Time) {
        background::start(self, now);
    }

    fn is_background_in_flight(&mut self) -> bool {
        background::is_under_way(self)
    }
}

impl Drop for RemoteTransport {
    fn drop(&mut self) {
        permits::release_all(self);
    }
}

/// A time of the disk's thread for policies, which take a time since any fixed point.
pub(crate) fn since_start(now: Time) -> Duration {
    Duration::from_nanos(now.0)
}

/// The set of servers that are connected.
pub(crate) fn connected(servers: &[Server]) -> u64 {
    let up = (servers.iter().enumerate()).filter(|(_, server)| server.is_up());
    up.fold(0, |set, (index, _)| set | bit(index))
}
