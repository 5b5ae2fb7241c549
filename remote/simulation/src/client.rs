//! A host that borrows: its organizer, its objects, and its requests.
//!
//! What this file has is what a remote client's daemon does with the actions of the policy. The
//! page path is not simulated: once in a beat a client reads from each of its servers.

mod objects;

use crate::context::{Context, Event};
use crate::message::HostMessage;
use crate::server::SimulatedServer;
use crate::topology::Node;
use objects::{CopiesAt, Objects};
use remote_policy::broker::{AllocationRequest, ReallocationRequest, Refusal};
use remote_policy::identity::{HostId, Incarnation, RequestId};
use remote_policy::organizer::{Organizer, OrganizerAction};
use remote_policy::permit::Permit;
use remote_wire::control::ServerNotice;
use std::collections::BTreeMap;
use std::time::Duration;

/// Servers near a client that it measures beside its own: two of its rack, two of another.
const PROBES: usize = 4;

/// Samples in a beat: what a client that pages has at least.
const SAMPLES: usize = 2;

/// The most that a sample is above the least, as a part of it: equal servers are not equal to all
/// clients.
const NOISE: f64 = 0.2;

/// Beats without an answer after which a server is silent: the 3 s of the remote client's links.
const SILENT_BEATS: u32 = 3;

/// A server that the client has a permit of.
#[derive(Clone, Copy, Debug)]
struct Contact {
    incarnation: Incarnation,
    silent_beats: u32,
}

/// A request that the broker has not answered.
#[derive(Clone, Debug)]
struct Waiting {
    since: Duration,
    request: PendingRequest,
}

#[derive(Clone, Debug)]
enum PendingRequest {
    Allocate(AllocationRequest),
    Reallocate(ReallocationRequest),
}

/// A client.
pub(crate) struct SimulatedClient {
    node: Node,
    pub incarnation: Incarnation,
    organizer: Organizer,
    broker: Option<HostId>,
    contacts: BTreeMap<HostId, Contact>,
    probes: Vec<Node>,
    waiting: BTreeMap<RequestId, Waiting>,
    objects: Objects,
    /// When it moved to where it is, if it is not served near since.
    pub moved: Option<Duration>,
}

impl SimulatedClient {
    pub fn new(node: Node, ctx: &Context) -> Self {
        let incarnation = ctx.network.topology.incarnation(node, 0);
        Self {
            node,
            incarnation,
            organizer: Organizer::new(incarnation, ctx.config.qos()),
            broker: None,
            contacts: BTreeMap::new(),
            probes: Vec::new(),
            waiting: BTreeMap::new(),
            objects: Objects::new(incarnation.host),
            moved: None,
        }
    }

    /// The client begins: it looks for servers, then creates objects.
    pub fn start(&mut self, ctx: &mut Context) {
        self.choose_probes(ctx);
        let wait = ctx.part_of(ctx.config.beat);
        ctx.after(wait, Event::Beat(self.node));
        for _ in 0..ctx.config.objects {
            let wait = ctx.config.first_object + ctx.part_of(2 * ctx.config.beat);
            ctx.after(wait, Event::NewObject(self.node));
        }
    }

    /// The client is at another place.
    pub fn on_moved(&mut self, ctx: &mut Context) {
        self.moved = Some(ctx.now);
        self.choose_probes(ctx);
    }

    fn choose_probes(&mut self, ctx: &mut Context) {
        let topology = &ctx.network.topology;
        let own = topology.rack_of(self.node);
        let racks = topology.racks_at(topology.site_of(own));
        let others: Vec<_> = racks.filter(|rack| *rack != own).collect();
        let other = ctx.rng.choice(others).unwrap_or(own);
        self.probes.clear();
        for rack in [own, other] {
            let servers = ctx.network.topology.servers_of(rack);
            let chosen = ctx.rng.choose_multiple(servers, PROBES / 2);
            self.probes.extend(chosen.into_iter().map(Node));
        }
    }

    /// Requests without an answer.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The client's objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// A message has arrived.
    pub fn on_message(&mut self, from: Node, message: HostMessage, ctx: &mut Context) {
        match message {
            HostMessage::BrokerIs(broker) => {
                self.broker = Some(broker);
                self.send_all_again(ctx);
            }
            HostMessage::Permit(request, sealed) => self.on_permit(request, sealed.permit, ctx),
            HostMessage::Refused(request, why) => self.on_refused(request, why, ctx),
            HostMessage::Notice(notice) => self.on_notice(from, notice, ctx),
            _ => {}
        }
    }

    fn on_permit(&mut self, request: RequestId, permit: Permit, ctx: &mut Context) {
        if let Some(waiting) = self.waiting.remove(&request) {
            ctx.requests.on_granted(ctx.now - waiting.since);
        }
        let server = permit.id.server;
        // The simulation asks the server's host, as a connection's first reply says it.
        let incarnation = ctx.incarnation_of(server);
        let contact = Contact {
            incarnation,
            silent_beats: 0,
        };
        self.contacts.entry(server).or_insert(contact);
        let action = self.organizer.on_permit(request, permit, ctx.now);
        self.perform(action, ctx);
    }

    fn on_refused(&mut self, request: RequestId, why: Refusal, ctx: &mut Context) {
        if self.waiting.remove(&request).is_none() {
            return;
        }
        ctx.requests.on_refused(why);
        let action = self.organizer.on_refused(request, why, ctx.now);
        self.perform(action, ctx);
    }

    fn on_notice(&mut self, from: Node, notice: ServerNotice, ctx: &mut Context) {
        let server = ctx.network.topology.id(from);
        match notice {
            ServerNotice::Rewritten(sealed) => self.organizer.on_rewritten(sealed.permit),
            ServerNotice::Void { permit, .. } => {
                let held = self.organizer.permit_at(server);
                if held.is_some_and(|held| held.id == permit) {
                    self.on_server_lost(server, ctx);
                }
            }
            ServerNotice::Abdicate(_) | ServerNotice::Revoke { .. } => {}
        }
    }

    /// Does what the organizer decided.
    fn perform(&mut self, actions: impl IntoIterator<Item = OrganizerAction>, ctx: &mut Context) {
        for action in actions {
            match action {
                OrganizerAction::Bind { object, permit } => self.bind(object, permit, ctx),
                OrganizerAction::Move {
                    object,
                    from,
                    permit,
                } => self.begin_move(object, from, permit, ctx),
                OrganizerAction::Allocate(request) => {
                    self.request(request.permit.id, PendingRequest::Allocate(request), ctx);
                }
                OrganizerAction::Reallocate(request) => {
                    self.request(request.id, PendingRequest::Reallocate(request), ctx);
                }
                // A beat tries again.
                OrganizerAction::GiveUp { object, .. } => self.objects.on_given_up(object),
            }
        }
    }

    fn request(&mut self, id: RequestId, request: PendingRequest, ctx: &mut Context) {
        ctx.requests.on_asked();
        let since = ctx.now;
        self.send_request(&request, ctx);
        self.waiting.insert(id, Waiting { since, request });
        ctx.after(ctx.config.patience, Event::Patience(self.node, id));
    }

    fn send_request(&mut self, request: &PendingRequest, ctx: &mut Context) {
        let Some(broker) = self.broker else {
            return self.find_broker(ctx);
        };
        let message = match request.clone() {
            PendingRequest::Allocate(request) => HostMessage::Allocate(request),
            PendingRequest::Reallocate(request) => HostMessage::Reallocate(request),
        };
        ctx.send_to(self.node, broker, message);
    }

    /// Asks a server near by which broker it obeys.
    fn find_broker(&mut self, ctx: &mut Context) {
        if let Some(server) = ctx.rng.choice(self.probes.iter().copied()) {
            ctx.send(self.node, server, HostMessage::FindBroker);
        }
    }

    fn send_all_again(&mut self, ctx: &mut Context) {
        let requests: Vec<_> = self
            .waiting
            .values()
            .map(|one| one.request.clone())
            .collect();
        for request in &requests {
            self.send_request(request, ctx);
        }
    }

    /// The wait for an answer is over: the broker is sought anew.
    pub fn on_patience(&mut self, id: RequestId, ctx: &mut Context) {
        if !self.waiting.contains_key(&id) {
            return;
        }
        ctx.requests.on_resent();
        self.broker = None;
        self.find_broker(ctx);
        ctx.after(ctx.config.patience, Event::Patience(self.node, id));
    }

    /// Looks at the servers: those in use, which this renews the leases of, and some near by.
    pub fn on_beat(&mut self, servers: &mut [SimulatedServer], ctx: &mut Context) {
        ctx.after(ctx.config.beat, Event::Beat(self.node));
        let hosts: Vec<_> = self.contacts.keys().copied().collect();
        for host in hosts {
            self.look_at(host, servers, ctx);
        }
        for probe in self.probes.clone() {
            let host = ctx.network.topology.id(probe);
            let is_there = servers[probe.0].is_alive && ctx.network.is_reachable(self.node, probe);
            if is_there && !self.contacts.contains_key(&host) {
                self.sample(host, probe, ctx);
            }
        }
        let moves = self.organizer.improve(ctx.now);
        self.perform(moves, ctx);
        self.complete_copies(ctx);
        self.check_near(ctx);
    }

    fn sample(&mut self, host: HostId, node: Node, ctx: &mut Context) {
        for _ in 0..SAMPLES {
            let noise = 1.0 + NOISE * ctx.rng.f64();
            let round_trip = 2 * ctx.network.one_way(self.node, node).mul_f64(noise);
            self.organizer.on_round_trip(host, round_trip, ctx.now);
        }
    }

    fn look_at(&mut self, host: HostId, servers: &mut [SimulatedServer], ctx: &mut Context) {
        let node = ctx.network.topology.node(host);
        let server = &mut servers[node.0];
        let Some(contact) = self.contacts.get_mut(&host) else {
            return;
        };
        if !server.is_alive || !ctx.network.is_reachable(self.node, node) {
            contact.silent_beats += 1;
            let silent_beats = contact.silent_beats;
            let waited = ctx.config.beat;
            self.organizer.on_round_trip(host, waited, ctx.now);
            // The only copy of an object is kept while its server may come back, and no longer
            // than the server keeps it.
            let lease_beats = ctx.config.capacity().lease.div_duration_f64(waited) as u32;
            let is_over = silent_beats >= lease_beats;
            if is_over || silent_beats >= SILENT_BEATS && !self.is_only_copy(host, servers, ctx) {
                self.on_server_lost(host, ctx);
            }
            return;
        }
        contact.silent_beats = 0;
        if contact.incarnation != server.incarnation {
            return self.on_server_lost(host, ctx);
        }
        let actions = server.capacity.on_contact(self.incarnation, ctx.now);
        server.perform_capacity(actions.unwrap_or_default(), ctx);
        self.sample(host, node, ctx);
        if self.check_copies(host, &servers[node.0], ctx) == CopiesAt::Gone {
            self.on_server_lost(host, ctx);
        }
    }

    fn is_only_copy(&self, host: HostId, servers: &[SimulatedServer], ctx: &Context) -> bool {
        let is_there = |other: HostId| {
            let node = ctx.network.topology.node(other);
            other != host && servers[node.0].is_alive && ctx.network.is_reachable(self.node, node)
        };
        self.objects.has_only_copy_at(host, is_there)
    }

    /// A server's copies are gone. Objects with another one get a copy in its place.
    fn on_server_lost(&mut self, host: HostId, ctx: &mut Context) {
        self.contacts.remove(&host);
        let short = self.organizer.on_server_lost(host);
        self.end_moves_at(host, ctx);
        self.objects.on_server_lost(host);
        let (kept, gone): (Vec<_>, Vec<_>) = short
            .into_iter()
            .partition(|object| self.objects.has_current_copy(*object));
        for object in gone {
            if self.objects.is_complete(object) {
                ctx.pages.lost_objects += 1;
                self.terminate(object, ctx);
            } else {
                // An object that never had all its copies has no pages that are only there.
                self.place(object, ctx);
            }
        }
        for object in kept {
            self.place(object, ctx);
        }
    }

    /// A client that moved is done once each of its copies is at a server near it.
    fn check_near(&mut self, ctx: &mut Context) {
        if self.moved.is_none() {
            return;
        }
        let topology = &ctx.network.topology;
        let site = topology.site_of(topology.rack_of(self.node));
        let is_near = |host: HostId| {
            let node = topology.node(host);
            topology.site_of(topology.rack_of(node)) == site
        };
        if self.objects.are_near(is_near) {
            self.moved = None;
            ctx.last_near = ctx.now;
        }
    }
}
