//! The broker's desk: clients' requests for permits, and what servers answer.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.5. The policy is [`Broker`]; here are the seals of
//! permits, which it does not need, and the clients that wait.
//!
//! Rule: a host that is not the broker answers no request. A request is answered once, to the connection
//! that it came by last.

use crate::protocol::{ClientSummary, ClientUse, Cluster, HostMessage, Reply, ServerSummary};
use crate::uses::UseTable;
use remote_policy::broker::{
    AllocationRequest, Broker, BrokerAction, ReallocationRequest, ServerAnswer, UpdateOutcome,
};
use remote_policy::capacity::{CapacityUpdate, ServerReport};
use remote_policy::identity::{Epoch, HostId, Incarnation, RequestId};
use remote_policy::permit::{Permit, PermitId};
use remote_wire::control::SealedPermit;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// A message to a host.
type Send = (HostId, HostMessage);

/// The desk of a host, which is open while the host is broker.
#[derive(Default)]
pub struct PermitDesk {
    broker: Option<Broker>,
    waiting: BTreeMap<RequestId, oneshot::Sender<Reply>>,
    seals: BTreeMap<PermitId, SealedPermit>,
    uses: UseTable,
}

impl PermitDesk {
    /// Returns true if the host is broker.
    pub fn is_broker(&self) -> bool {
        self.broker.is_some()
    }

    /// The host is broker of an epoch.
    pub fn lead(&mut self, epoch: Epoch) {
        match &mut self.broker {
            Some(broker) => broker.raise_epoch(epoch),
            None => self.broker = Some(Broker::new(epoch)),
        }
    }

    /// The host is broker no more: clients that wait are sent to the winner.
    pub fn resign(&mut self, cluster: &Cluster) {
        (self.broker, self.seals) = (None, BTreeMap::new());
        for (_, reply) in std::mem::take(&mut self.waiting) {
            _ = reply.send(Reply::Cluster(cluster.clone()));
        }
    }

    /// A period has passed: forgets clients that wait no more, their requests, and uses that nothing was heard of.
    pub fn forget_abandoned(&mut self) {
        self.waiting.retain(|_, reply| !reply.is_closed());
        if let Some(broker) = &mut self.broker {
            broker.forget_abandoned(|id| self.waiting.contains_key(id));
        }
        self.uses.forget_old();
    }

    /// Enters a server's report.
    pub fn on_report(&mut self, report: &ServerReport) -> Vec<Send> {
        let Some(broker) = &mut self.broker else {
            return Vec::new();
        };
        let actions = broker.on_report(report);
        let is_held = |id: &PermitId| report.permits.iter().any(|permit| permit.id == *id);
        let server = report.update.server;
        self.seals
            .retain(|id, _| id.server != server || is_held(id));
        self.carry_out(actions)
    }

    /// Enters a server's update.
    pub fn on_update(&mut self, update: &CapacityUpdate) -> UpdateOutcome {
        match &mut self.broker {
            Some(broker) if broker.epoch() == update.epoch => broker.on_update(update),
            _ => UpdateOutcome::Stale,
        }
    }

    /// A server is not this broker's any more.
    pub fn on_server_lost(&mut self, server: HostId) -> Vec<Send> {
        self.seals.retain(|id, _| id.server != server);
        let actions = self
            .broker
            .as_mut()
            .map(|broker| broker.on_server_lost(server));
        self.carry_out(actions.unwrap_or_default())
    }

    /// A client requests a permit.
    pub fn allocate(
        &mut self,
        request: AllocationRequest,
        reply: oneshot::Sender<Reply>,
    ) -> Vec<Send> {
        self.waiting.insert(request.permit.id, reply);
        let action = self.broker.as_mut().map(|broker| broker.allocate(request));
        self.carry_out(action.into_iter().collect())
    }

    /// A client requests another size of its permit.
    pub fn reallocate(
        &mut self,
        request: ReallocationRequest,
        reply: oneshot::Sender<Reply>,
    ) -> Vec<Send> {
        self.waiting.insert(request.id, reply);
        let action = self
            .broker
            .as_mut()
            .map(|broker| broker.reallocate(request));
        self.carry_out(action.into_iter().collect())
    }

    /// A server has answered.
    pub fn on_answer(
        &mut self,
        server: HostId,
        request: RequestId,
        answer: ServerAnswer,
        sealed: Option<SealedPermit>,
    ) -> Vec<Send> {
        let Some(broker) = &mut self.broker else {
            return Vec::new();
        };
        let is_right = |permit: &Permit| {
            let of = |sealed: SealedPermit| sealed.permit.id;
            permit.id.server == server && sealed.map(of) == Some(permit.id)
        };
        let answer = match answer {
            // A permit is of no use without its seal.
            ServerAnswer::Permit { permit, .. } if !is_right(&permit) => ServerAnswer::Unable,
            answer => answer,
        };
        let actions = broker.on_answer(server, request, answer);
        // Of a request that waited for it: a server may send any number of others.
        let is_sent = |sealed: &SealedPermit| {
            let id = sealed.permit.id;
            let sends = |action: &BrokerAction| matches!(action, BrokerAction::SendPermit { permit, .. } if permit.id == id);
            actions.iter().any(sends)
        };
        if let Some(sealed) = sealed.filter(is_sent) {
            self.seals.insert(sealed.permit.id, sealed);
        }
        self.carry_out(actions)
    }

    fn carry_out(&mut self, actions: Vec<BrokerAction>) -> Vec<Send> {
        let mut sends = Vec::new();
        for action in actions {
            match action {
                BrokerAction::Allocate {
                    server,
                    epoch,
                    request,
                } => sends.push((server, HostMessage::Allocate { epoch, request })),
                BrokerAction::Reallocate {
                    server,
                    epoch,
                    request,
                } => sends.push((server, HostMessage::Reallocate { epoch, request })),
                BrokerAction::RequestReport { server } => {
                    sends.push((server, HostMessage::RequestReport));
                }
                BrokerAction::SendPermit { request, permit } => {
                    match self.seals.get(&permit.id) {
                        Some(sealed) => self.reply(request, Reply::Permit(*sealed)),
                        // The server's report has ended it meanwhile: the client asks again.
                        None => _ = self.waiting.remove(&request),
                    }
                }
                BrokerAction::Refuse { request, why } => self.reply(request, Reply::Refused(why)),
            }
        }
        sends
    }

    fn reply(&mut self, request: RequestId, reply: Reply) {
        if let Some(waiting) = self.waiting.remove(&request) {
            // A client that is gone asks no more.
            _ = waiting.send(reply);
        }
    }

    /// A client reports its use.
    pub fn on_use(&mut self, client: Incarnation, name: String, usage: ClientUse) {
        self.uses.insert(client, name, usage);
    }

    /// The servers, for people.
    pub fn servers(&self) -> Vec<ServerSummary> {
        let Some(broker) = &self.broker else {
            return Vec::new();
        };
        let summary = |host| ServerSummary {
            host,
            lendable_pages: broker.lendable_pages_at(host).unwrap_or(0),
        };
        broker.servers().map(summary).collect()
    }

    /// The clients, for people.
    pub fn clients(&self) -> Vec<ClientSummary> {
        let mut clients: BTreeMap<Incarnation, ClientSummary> = BTreeMap::new();
        let entry = |client: Incarnation| ClientSummary {
            client,
            name: String::new(),
            permits: Vec::new(),
            usage: ClientUse::default(),
            objects_left_out: 0,
        };
        for permit in self.broker.iter().flat_map(Broker::permits) {
            let summary = clients
                .entry(permit.client)
                .or_insert_with(|| entry(permit.client));
            summary
                .permits
                .push((permit.id.server, permit.granted_pages));
        }
        for (client, name, usage) in self.uses.iter() {
            let summary = clients.entry(client).or_insert_with(|| entry(client));
            (summary.name, summary.usage) = (name.to_owned(), usage.clone());
        }
        clients.into_values().collect()
    }
}
