//! A host that lends: its candidate, its broker while it is one, its capacity and its copies.
//!
//! What this file has is what a daemon does with the actions of the policy, and nothing more.

mod copies;

use crate::context::{Context, Event};
use crate::message::HostMessage;
use crate::policy_time::PolicyCall;
use crate::topology::Node;
use remote_policy::broker::{Broker, BrokerAction, ServerAnswer, UpdateOutcome};
use remote_policy::capacity::{AllocateError, CapacityAction, ServerCapacity};
use remote_policy::election::{self, Candidate, ElectionAction, PERIODS_PER_TICK, PeerList, Role};
use remote_policy::identity::{HostId, Incarnation, ObjectId, RequestId};
use remote_policy::permit::Permit;
use remote_wire::control::{SealedPermit, ServerNotice, VoidCause};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A server's host.
pub(crate) struct SimulatedServer {
    node: Node,
    id: HostId,
    pub is_alive: bool,
    pub life: u64,
    pub incarnation: Incarnation,
    pub candidate: Candidate,
    pub broker: Option<Broker>,
    pub capacity: ServerCapacity,
    /// Pages of each object, which the capacity counts by permit.
    objects: BTreeMap<ObjectId, u64>,
    last_update: Duration,
    /// Periods of this life.
    periods: u32,
}

impl SimulatedServer {
    /// A host that is down.
    pub fn new(node: Node, ctx: &Context) -> Self {
        let incarnation = ctx.network.topology.incarnation(node, 0);
        Self {
            node,
            id: incarnation.host,
            is_alive: false,
            life: 0,
            incarnation,
            candidate: Candidate::new(incarnation, None).0,
            broker: None,
            capacity: ServerCapacity::new(ctx.config.capacity(), incarnation, 0),
            objects: BTreeMap::new(),
            last_update: Duration::ZERO,
            periods: 0,
        }
    }

    /// The host begins a life, with nothing of an earlier one.
    pub fn start(&mut self, ctx: &mut Context) {
        self.life += 1;
        let incarnation = ctx.network.topology.incarnation(self.node, self.life);
        let owned_pages = ctx.config.owned_pages;
        let (candidate, actions) = Candidate::new(incarnation, None);
        *self = Self {
            is_alive: true,
            life: self.life,
            incarnation,
            candidate,
            capacity: ServerCapacity::new(ctx.config.capacity(), incarnation, owned_pages),
            ..Self::new(self.node, ctx)
        };
        ctx.network.reset(self.node, ctx.now);
        ctx.incarnations[self.node.0] = incarnation;
        ctx.auditor.on_started(self.id, owned_pages);
        self.perform(actions, ctx);
        let wait = ctx.part_of(ctx.config.period);
        ctx.after(wait, Event::Period(self.node, self.life));
    }

    /// The host ends without a word.
    pub fn stop(&mut self) {
        self.is_alive = false;
        self.broker = None;
    }

    /// The hosts that the membership protocol has.
    pub fn on_membership(&mut self, hosts: &Arc<PeerList>) {
        self.candidate.share_membership(hosts.clone());
    }

    /// The broker that the host follows; itself if it is one.
    pub fn broker_id(&self) -> HostId {
        match self.candidate.role() {
            Role::Broker { .. } => self.id,
            Role::Follower { broker, .. } => *broker,
        }
    }

    /// A period is over.
    pub fn on_period(&mut self, life: u64, ctx: &mut Context) {
        if !self.is_alive || life != self.life {
            return;
        }
        ctx.after(ctx.config.period, Event::Period(self.node, life));
        self.periods += 1;
        let is_tick = self.periods.is_multiple_of(PERIODS_PER_TICK);
        let candidate = &mut self.candidate;
        let is_broker = matches!(candidate.role(), Role::Broker { .. });
        let mut end_period = || match is_tick {
            true => candidate.on_tick(),
            false => candidate.repeat_signs(),
        };
        let actions = match is_broker {
            true => ctx
                .policy_time
                .measure(PolicyCall::BrokerPeriod, end_period),
            false => end_period(),
        };
        self.perform(actions, ctx);
        if ctx.now >= self.last_update + ctx.config.update {
            self.last_update = ctx.now;
            let actions = self.capacity.on_timer(ctx.now);
            self.perform_capacity(actions, ctx);
            let update = self.capacity.update();
            let broker = self.broker_id();
            if broker != self.id {
                ctx.send_to(self.node, broker, HostMessage::Update(update));
            }
        }
    }

    /// A message has been read.
    pub fn on_message(&mut self, from: Node, message: HostMessage, ctx: &mut Context) {
        let sender = ctx.network.topology.id(from);
        match message {
            HostMessage::Election(message) => self.on_election(sender, message, ctx),
            HostMessage::IssuePermit(..) | HostMessage::RewritePermit(..) => {
                if let Some((id, answer)) = self.operate(&message, ctx) {
                    ctx.send(self.node, from, HostMessage::Answer(id, answer));
                }
            }
            HostMessage::RequestReport => {
                let report = self.capacity.report();
                ctx.send(self.node, from, HostMessage::Report(report));
            }
            HostMessage::FindBroker => {
                let broker = self.broker_id();
                ctx.send(self.node, from, HostMessage::BrokerIs(broker));
            }
            HostMessage::Create(object, permit, pages) => {
                // A client that finds it missing sends it again, or gives the permit up.
                self.create(object, permit, pages, ctx);
            }
            HostMessage::Terminate(object) => self.terminate(object),
            other => self.on_broker_message(from, other, ctx),
        }
    }

    fn on_election(&mut self, from: HostId, message: election::Message, ctx: &mut Context) {
        let call = match message {
            election::Message::Granted { .. } => PolicyCall::Granted,
            election::Message::Concede { .. } => PolicyCall::Concession,
            _ => PolicyCall::ElectionMessage,
        };
        let candidate = &mut self.candidate;
        let act = || candidate.on_message(from, message);
        let actions = match self.broker {
            Some(_) => ctx.policy_time.measure(call, act),
            None => act(),
        };
        self.perform(actions, ctx);
    }

    /// Does what the election decided.
    fn perform(&mut self, actions: Vec<ElectionAction>, ctx: &mut Context) {
        for action in actions {
            match action {
                ElectionAction::Send { to, message } => {
                    ctx.send_to(self.node, to, HostMessage::Election(message));
                }
                ElectionAction::GrantServer(epoch) => {
                    // The candidate grants to higher epochs only, as the capacity does.
                    let Ok(report) = self.capacity.grant_to(epoch) else {
                        continue;
                    };
                    ctx.auditor.on_granted_to(self.id, epoch);
                    match &mut self.broker {
                        Some(broker) if epoch.broker.host == self.id => {
                            let actions = broker.on_report(&report);
                            self.perform_broker(actions, ctx);
                        }
                        _ => ctx.send_to(self.node, epoch.broker.host, HostMessage::Report(report)),
                    }
                }
                ElectionAction::Lead(epoch) => {
                    ctx.auditor.on_led(self.id, epoch);
                    match &mut self.broker {
                        Some(broker) => broker.raise_epoch(epoch),
                        none => *none = Some(Broker::new(epoch)),
                    }
                }
                ElectionAction::Resign { .. } => self.broker = None,
                ElectionAction::DropServer(server) => {
                    if let Some(broker) = &mut self.broker {
                        let lose = || broker.on_server_lost(server);
                        let actions = ctx.policy_time.measure(PolicyCall::ServerLost, lose);
                        self.perform_broker(actions, ctx);
                    }
                }
            }
        }
    }

    fn on_broker_message(&mut self, from: Node, message: HostMessage, ctx: &mut Context) {
        let Some(broker) = &mut self.broker else {
            if matches!(
                message,
                HostMessage::Allocate(_) | HostMessage::Reallocate(_)
            ) {
                let broker = self.broker_id();
                ctx.send(self.node, from, HostMessage::BrokerIs(broker));
            }
            return;
        };
        let time = &mut ctx.policy_time;
        let server = ctx.network.topology.id(from);
        let actions = match message {
            HostMessage::Allocate(request) => {
                vec![time.measure(PolicyCall::Allocate, || broker.allocate(request))]
            }
            HostMessage::Reallocate(request) => {
                vec![time.measure(PolicyCall::Reallocate, || broker.reallocate(request))]
            }
            HostMessage::Answer(id, answer) => {
                time.measure(PolicyCall::Answer, || broker.on_answer(server, id, answer))
            }
            HostMessage::Report(report) => {
                time.measure(PolicyCall::Report, || broker.on_report(&report))
            }
            HostMessage::Update(update) => {
                let outcome = time.measure(PolicyCall::Update, || broker.on_update(&update));
                let report = BrokerAction::RequestReport { server };
                match outcome {
                    UpdateOutcome::ReportNeeded => vec![report],
                    UpdateOutcome::Current | UpdateOutcome::Stale => Vec::new(),
                }
            }
            _ => Vec::new(),
        };
        self.perform_broker(actions, ctx);
    }

    /// Does what the broker decided. What it wants of its own host's server is done at once.
    fn perform_broker(&mut self, mut actions: Vec<BrokerAction>, ctx: &mut Context) {
        while let Some(action) = actions.pop() {
            let (to, message) = match action {
                BrokerAction::Allocate {
                    server,
                    epoch,
                    request,
                } => (server, HostMessage::IssuePermit(epoch, request)),
                BrokerAction::Reallocate {
                    server,
                    epoch,
                    request,
                } => (server, HostMessage::RewritePermit(epoch, request)),
                BrokerAction::RequestReport { server } => (server, HostMessage::RequestReport),
                BrokerAction::SendPermit { request, permit } => (
                    request.client.host,
                    HostMessage::Permit(request, sealed(permit)),
                ),
                BrokerAction::Refuse { request, why } => {
                    (request.client.host, HostMessage::Refused(request, why))
                }
            };
            if to != self.id {
                ctx.send_to(self.node, to, message);
                continue;
            }
            let report =
                matches!(message, HostMessage::RequestReport).then(|| self.capacity.report());
            let answer = self.operate(&message, ctx);
            let Some(broker) = &mut self.broker else {
                return;
            };
            if let Some(report) = report {
                actions.extend(broker.on_report(&report));
            }
            if let Some((id, answer)) = answer {
                actions.extend(broker.on_answer(to, id, answer));
            }
        }
    }

    /// An operation of a broker on the server's capacity.
    fn operate(
        &mut self,
        message: &HostMessage,
        ctx: &mut Context,
    ) -> Option<(RequestId, ServerAnswer)> {
        let (id, result) = match message {
            HostMessage::IssuePermit(epoch, request) => {
                // The broker had it of the client: the client is in contact.
                let actions = self.capacity.on_contact(request.id.client, ctx.now);
                self.perform_capacity(actions.unwrap_or_default(), ctx);
                (request.id, self.capacity.allocate(*epoch, request))
            }
            HostMessage::RewritePermit(epoch, request) => {
                let (id, permit, pages) = (request.id, request.permit, request.pages);
                (id, self.capacity.reallocate(*epoch, id, permit, pages))
            }
            _ => return None,
        };
        let answer = match result {
            Ok(permit) => {
                ctx.auditor.on_permit(&permit);
                let update = self.capacity.update();
                ServerAnswer::Permit { permit, update }
            }
            Err(AllocateError::Epoch(error)) => ServerAnswer::WrongEpoch { held: error.held },
            Err(AllocateError::Pages { .. }) => ServerAnswer::Refused,
            Err(_) => ServerAnswer::Unable,
        };
        Some((id, answer))
    }

    /// Does what the capacity demands.
    pub fn perform_capacity(&mut self, actions: Vec<CapacityAction>, ctx: &mut Context) {
        for action in actions {
            let (client, notice) = match action {
                CapacityAction::SendRewritten(permit) => {
                    ctx.auditor.on_permit(&permit);
                    (permit.client, ServerNotice::Rewritten(sealed(permit)))
                }
                CapacityAction::RequestAbdicate { client, object } => {
                    (client, ServerNotice::Abdicate(object))
                }
                // Servers own as much throughout: nothing is short, and nothing revoked.
                CapacityAction::Revoke { .. } => continue,
                CapacityAction::Destroy { permit, .. } => {
                    ctx.auditor.on_ended(&permit);
                    let capacity = &mut self.capacity;
                    let now = ctx.now;
                    self.objects
                        .retain(|object, _| capacity.write(*object, 0, now).is_ok());
                    let cause = VoidCause::Expired;
                    let permit_id = permit.id;
                    (
                        permit.client,
                        ServerNotice::Void {
                            permit: permit_id,
                            cause,
                        },
                    )
                }
            };
            ctx.send_to(self.node, client.host, HostMessage::Notice(notice));
        }
    }
}

/// A permit as long as one with its server's seal.
fn sealed(permit: Permit) -> SealedPermit {
    let mac = [0; 32];
    SealedPermit { permit, mac }
}
