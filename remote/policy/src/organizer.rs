//! The service organizer: on which server each copy of a client's paging objects is.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 3.3 and 3.3.1. Binding is late: a
//! server is chosen when an object needs one. The organizer first uses what its permits leave, then
//! has a permit enlarged, since each further server is one more that can fail the client, and only
//! then requests a new permit. It requests slightly more than it needs.
//!
//! Rule: pure, and the only holder of a client's bindings. Each call returns the next step, and
//! its answer comes back by the request's number; an object has at most one copy per server and
//! at most one move at a time.

mod bindings;
mod moves;
mod requests;

pub use moves::{AbdicateAnswer, KeepReason};

use crate::broker::{AllocationRequest, ReallocationRequest, Refusal};
use crate::identity::{HostId, Incarnation, ObjectId, RequestId};
use crate::latency::LatencyTable;
use crate::lru_size::ObjectUse;
use crate::permit::{Permit, PermitId};
use bindings::Bindings;
use disk::atropos::DiskContract;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One in so many of the pages needed is requested in addition: "slightly more" (section 3.3.1).
const MARGIN: u64 = 8;

/// The least addition: 64 KiB, so that small objects do not each cost a request.
const MIN_MARGIN_PAGES: u64 = 16;

/// A step for the client's daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrganizerAction {
    /// Create the object's copy at a server, under a permit.
    Bind {
        /// The object.
        object: ObjectId,
        /// The server's permit.
        permit: PermitId,
    },
    /// Move the object's copy at `from` to a server, under a permit.
    Move {
        /// The object.
        object: ObjectId,
        /// The server that has the copy.
        from: HostId,
        /// The permit of the server that gets it.
        permit: PermitId,
    },
    /// Send the broker a request for a larger permit.
    Reallocate(ReallocationRequest),
    /// Send the broker a request for a permit.
    Allocate(AllocationRequest),
    /// No server has the room: the object stays where it is, on disk or at its server.
    GiveUp {
        /// The object.
        object: ObjectId,
        /// The broker's last refusal.
        why: Refusal,
        /// A server lacks the pages; false where there was none to request them of: those in use share a fate with
        /// the object's copies, or cannot be reached.
        is_full: bool,
    },
}

/// What a placement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A copy of the object, new or in place of one that was lost.
    Copy,
    /// A copy in place of the one at a server.
    Move { from: HostId },
}

/// A copy that has no server yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placement {
    object: ObjectId,
    pages: u64,
    purpose: Purpose,
    /// Servers that hold a copy, or that the copy is to leave for.
    exclude: BTreeSet<HostId>,
    /// The only servers that will do; all if `None`.
    only: Option<BTreeSet<HostId>>,
    /// Servers whose permits were not enlarged.
    refused: BTreeSet<HostId>,
}

/// A placement whose request is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingPlacement {
    placement: Placement,
    awaited: Awaited,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// A larger permit at a server, for the placement.
    Larger(HostId),
    /// A permit at another server.
    New,
    /// A larger permit at the server where the object is; if refused, the object moves.
    Room(HostId),
}

/// A permit, and how much of it the client's objects need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldPermit {
    permit: Permit,
    used_pages: u64,
}

impl HeldPermit {
    fn spare_pages(&self) -> u64 {
        self.permit.granted_pages.saturating_sub(self.used_pages)
    }
}

/// The organizer of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Organizer {
    client: Incarnation,
    qos: DiskContract,
    permits: BTreeMap<HostId, HeldPermit>,
    bindings: Bindings,
    latencies: LatencyTable,
    pending: BTreeMap<RequestId, PendingPlacement>,
    next_request: u64,
}

impl Organizer {
    /// An organizer without permits. `qos` is what each server is asked for.
    pub fn new(client: Incarnation, qos: DiskContract) -> Self {
        Self {
            client,
            qos,
            permits: BTreeMap::new(),
            bindings: Bindings::default(),
            latencies: LatencyTable::default(),
            pending: BTreeMap::new(),
            next_request: 1,
        }
    }

    /// Enters the permits that the client holds, and the copies of its objects: of each the object, its pages and its
    /// server, which is one with a permit. Requests are numbered above `requests`, which an earlier process of the
    /// client has not reached.
    pub fn restore(
        &mut self,
        permits: impl IntoIterator<Item = Permit>,
        copies: impl IntoIterator<Item = (ObjectId, u64, HostId)>,
        requests: u64,
    ) {
        for permit in permits {
            let held = HeldPermit {
                permit,
                used_pages: 0,
            };
            self.permits.insert(permit.id.server, held);
        }
        for (object, pages, server) in copies {
            if let Some(held) = self.permits.get_mut(&server) {
                held.used_pages += pages;
                self.bindings.enter(object, pages, Duration::ZERO);
                self.bindings.bind(object, server);
            }
        }
        self.next_request = self.next_request.max(requests + 1);
    }

    /// The servers that hold copies of an object.
    pub fn servers_of(&self, object: ObjectId) -> impl Iterator<Item = HostId> + '_ {
        self.bindings.servers_of(object)
    }

    /// The permit at a server.
    pub fn permit_at(&self, server: HostId) -> Option<Permit> {
        Some(self.permits.get(&server)?.permit)
    }

    /// Pages of a server's permit that objects need, or will once they have moved there.
    pub fn used_pages_at(&self, server: HostId) -> u64 {
        self.permits.get(&server).map_or(0, |held| held.used_pages)
    }

    /// How an object is used, of which copies are at servers.
    pub fn use_of(&self, object: ObjectId) -> Option<ObjectUse> {
        self.bindings.use_of(object)
    }

    /// Enters a measured round trip to a server.
    pub fn on_round_trip(&mut self, server: HostId, round_trip: Duration, now: Duration) {
        self.latencies.on_sample(server, round_trip, now);
    }

    /// The connection to a server ended: the next one may take another way, since the client may have moved.
    pub fn on_disconnected(&mut self, server: HostId) {
        self.latencies.remove(server);
    }

    /// A page of the object was read from a server.
    pub fn on_fault(&mut self, object: ObjectId, now: Duration) {
        self.bindings.on_use(object, 1, now);
    }

    /// The object has so many pages written now.
    pub fn on_written(&mut self, object: ObjectId, written_pages: u64, now: Duration) {
        self.bindings.on_use(object, 0, now);
        self.grow(object, written_pages);
    }

    /// Raises the pages that an object needs at each of its servers.
    fn grow(&mut self, object: ObjectId, pages: u64) {
        let more = self.bindings.grow(object, pages);
        if more == 0 {
            return;
        }
        for server in self.bindings.claimed_servers(object) {
            if let Some(held) = self.permits.get_mut(&server) {
                held.used_pages += more;
            }
        }
    }

    /// Places a copy of an object of `pages` written or expected pages, beside its other copies.
    /// `exclude` has servers that share a fate with these.
    pub fn place(
        &mut self,
        object: ObjectId,
        pages: u64,
        exclude: &BTreeSet<HostId>,
        now: Duration,
    ) -> OrganizerAction {
        self.bindings.enter(object, pages, now);
        self.grow(object, pages);
        let placement = Placement {
            object,
            pages: pages.max(self.bindings.pages_of(object)),
            purpose: Purpose::Copy,
            exclude: exclude.clone(),
            only: None,
            refused: BTreeSet::new(),
        };
        self.next_step(placement, now)
    }

    /// Frees an object. Its permits stay for the next one.
    pub fn terminate(&mut self, object: ObjectId) {
        let pages = self.bindings.pages_of(object);
        for server in self.bindings.remove(object) {
            self.free_pages(server, pages);
        }
        self.pending
            .retain(|_, pending| pending.placement.object != object);
    }

    /// The copy at one server is gone, or was not made: its pages there are free.
    pub fn on_copy_lost(&mut self, object: ObjectId, server: HostId) {
        if self.bindings.unbind(object, server) {
            let pages = self.bindings.pages_of(object);
            self.free_pages(server, pages);
        }
    }

    /// The round trips that it judges servers by.
    pub fn latencies(&self) -> &LatencyTable {
        &self.latencies
    }

    /// A server has died, or its permit is void. Returns the objects that lost a copy.
    pub fn on_server_lost(&mut self, server: HostId) -> Vec<ObjectId> {
        self.permits.remove(&server);
        self.latencies.remove(server);
        let leaves = |pending: &PendingPlacement| {
            pending.placement.purpose == Purpose::Move { from: server }
        };
        self.pending.retain(|_, pending| !leaves(pending));
        self.bindings.remove_server(server)
    }

    /// The next step of a placement, the cheapest first (section 3.3.1).
    fn next_step(&mut self, mut placement: Placement, now: Duration) -> OrganizerAction {
        // Both may have changed while a request was under way.
        let object = placement.object;
        placement
            .exclude
            .extend(self.bindings.claimed_servers(object));
        placement.pages = placement.pages.max(self.bindings.pages_of(object));
        let (poor, near): (Vec<_>, Vec<_>) = self
            .candidates(&placement, now)
            .into_iter()
            .partition(|server| self.is_poor(*server, now));
        // A copy at a poor server would leave it at once.
        for servers in [near, poor] {
            if let Some(server) = self.permit_with_room(&placement, &servers) {
                return self.bind(&placement, server);
            }
            let is_untried = |server: &HostId| !placement.refused.contains(server);
            if let Some(server) = servers.into_iter().find(is_untried) {
                return self.request_larger(placement, server);
            }
        }
        self.request_new(placement, now)
    }

    /// The servers in use that will do, the nearest first.
    fn candidates(&self, placement: &Placement, now: Duration) -> Vec<HostId> {
        let near = self.latencies.nearest(now);
        let rank = |server: &HostId| {
            near.iter()
                .position(|one| one == server)
                .unwrap_or(usize::MAX)
        };
        let will_do = |server: &HostId| {
            let allowed = placement
                .only
                .as_ref()
                .is_none_or(|only| only.contains(server));
            allowed && !placement.exclude.contains(server)
        };
        let mut servers: Vec<_> = self.permits.keys().copied().filter(will_do).collect();
        servers.sort_by_key(|server| (rank(server), *server));
        servers
    }

    fn is_poor(&self, server: HostId, now: Duration) -> bool {
        !self.latencies.better_than(server, now).is_empty()
    }

    fn permit_with_room(&self, placement: &Placement, servers: &[HostId]) -> Option<HostId> {
        let has_room = |server: &HostId| self.permits[server].spare_pages() >= placement.pages;
        servers.iter().copied().find(has_room)
    }

    fn bind(&mut self, placement: &Placement, server: HostId) -> OrganizerAction {
        let object = placement.object;
        // Present: the server came from the permits.
        let held = self
            .permits
            .get_mut(&server)
            .expect("a server in use has a permit");
        held.used_pages += placement.pages;
        let permit = held.permit.id;
        match placement.purpose {
            Purpose::Copy => {
                self.bindings.bind(object, server);
                OrganizerAction::Bind { object, permit }
            }
            Purpose::Move { from } => {
                self.bindings.begin_move(object, from, server);
                OrganizerAction::Move {
                    object,
                    from,
                    permit,
                }
            }
        }
    }

    fn free_pages(&mut self, server: HostId, pages: u64) {
        if let Some(held) = self.permits.get_mut(&server) {
            held.used_pages = held.used_pages.saturating_sub(pages);
        }
    }
}

/// What is requested for so many pages.
fn with_margin(pages: u64) -> u64 {
    pages.saturating_add((pages / MARGIN).max(MIN_MARGIN_PAGES))
}
