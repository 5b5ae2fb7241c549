//! The broker: which server issues the permit that a client requests.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.5. A request goes to a server
//! that the client prefers, by its hints, then to one that the client uses already, since many
//! servers of one client are many that can fail it, then to the one with most space.
//!
//! Rule: a broker's record is soft. Each server owns its capacity and issues its permits, so a
//! broker that is wrong about a server gets a refusal, corrects its record and tries the next; and
//! a new broker's record is made from the servers' reports alone (regeneration, section 3.5.1).

mod message;
mod record;

pub use message::{
    AllocationRequest, BrokerAction, ReallocationRequest, Refusal, ServerAnswer, UpdateOutcome,
};

use crate::capacity::{CapacityUpdate, PermitRequest, ServerReport};
use crate::identity::{Epoch, HostId, RequestId};
use crate::permit::Permit;
use record::ServerRecord;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A request that a server is answering.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingAllocation {
    request: AllocationRequest,
    server: HostId,
    refused_by: BTreeSet<HostId>,
}

/// A broker of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broker {
    epoch: Epoch,
    servers: BTreeMap<HostId, ServerRecord>,
    allocations: BTreeMap<RequestId, PendingAllocation>,
    reallocations: BTreeMap<RequestId, ReallocationRequest>,
}

impl Broker {
    /// A broker without servers: each server's report adds it.
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            servers: BTreeMap::new(),
            allocations: BTreeMap::new(),
            reallocations: BTreeMap::new(),
        }
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The broker after a takeover raised its epoch. Servers keep their place in its record until
    /// they report under the new one.
    pub fn raise_epoch(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Its servers.
    pub fn servers(&self) -> impl Iterator<Item = HostId> + '_ {
        self.servers.keys().copied()
    }

    /// Pages that a server can lend now, as far as the broker knows.
    pub fn lendable_pages_at(&self, server: HostId) -> Option<u64> {
        self.servers.get(&server).map(ServerRecord::lendable_pages)
    }

    /// The permits that it knows of: the allocations that its servers reported or issued since.
    pub fn permits(&self) -> impl Iterator<Item = &Permit> + '_ {
        self.servers.values().flat_map(ServerRecord::permits)
    }

    /// Replaces the record of a server by its report.
    pub fn on_report(&mut self, report: &ServerReport) {
        let server = report.update.server;
        if report.update.epoch == self.epoch {
            let record = self.servers.entry(server).or_default();
            record.replace(report);
        }
    }

    /// Enters an update of a server. Returns [`UpdateOutcome::ReportNeeded`] where permits changed
    /// without the broker.
    pub fn on_update(&mut self, update: &CapacityUpdate) -> UpdateOutcome {
        match self.servers.get_mut(&update.server) {
            Some(record) if update.epoch == self.epoch => record.update(update),
            _ => UpdateOutcome::ReportNeeded,
        }
    }

    /// Removes a server that died or was taken over. Its pending requests go elsewhere.
    pub fn on_server_lost(&mut self, server: HostId) -> Vec<BrokerAction> {
        self.servers.remove(&server);
        let waiting = |pending: &PendingAllocation| pending.server == server;
        let ids = self
            .allocations
            .iter()
            .filter(|(_, pending)| waiting(pending));
        let ids: Vec<_> = ids.map(|(id, _)| *id).collect();
        let mut actions: Vec<_> = ids.into_iter().filter_map(|id| self.retry(id)).collect();
        let (lost, kept) = std::mem::take(&mut self.reallocations)
            .into_iter()
            .partition(|(_, request)| request.permit.server == server);
        self.reallocations = kept;
        let lost: BTreeMap<RequestId, ReallocationRequest> = lost;
        actions.extend(lost.into_values().map(|request| BrokerAction::Refuse {
            request: request.id,
            why: Refusal::Server(request.permit),
        }));
        actions
    }

    /// A client requests a permit. A request that is being answered goes to the same server again.
    pub fn allocate(&mut self, request: AllocationRequest) -> BrokerAction {
        let id = request.permit.id;
        // The server that issued a permit for it answers a copy with that permit.
        let issued = |record: &ServerRecord| record.issued(id);
        if let Some(permit) = self.servers.values().find_map(issued) {
            return BrokerAction::SendPermit {
                request: id,
                permit,
            };
        }
        if let Some(pending) = self.allocations.get(&id) {
            return self.forward(pending.server, pending.request.permit);
        }
        self.place(request, BTreeSet::new())
    }

    /// A client requests another size of its permit.
    pub fn reallocate(&mut self, request: ReallocationRequest) -> BrokerAction {
        let server = request.permit.server;
        if !self.servers.contains_key(&server) {
            let why = Refusal::Server(request.permit);
            return BrokerAction::Refuse {
                request: request.id,
                why,
            };
        }
        self.reallocations.insert(request.id, request);
        let epoch = self.epoch;
        BrokerAction::Reallocate {
            server,
            epoch,
            request,
        }
    }

    /// A server has answered. A refusal sends an allocation to the next server.
    pub fn on_answer(
        &mut self,
        server: HostId,
        id: RequestId,
        answer: ServerAnswer,
    ) -> Vec<BrokerAction> {
        if let Some(request) = self.reallocations.get(&id) {
            let request = *request;
            return self.on_reallocated(server, request, answer);
        }
        let Some(pending) = self
            .allocations
            .get(&id)
            .filter(|pending| pending.server == server)
        else {
            return Vec::new();
        };
        match answer {
            ServerAnswer::Permit { permit, update } => {
                let pages = pending.request.permit.pages;
                self.allocations.remove(&id);
                let mut actions = vec![BrokerAction::SendPermit {
                    request: id,
                    permit,
                }];
                if let Some(record) = self.servers.get_mut(&server) {
                    record.on_issued(id, pages, permit);
                }
                actions.extend(self.enter_update(update));
                actions
            }
            ServerAnswer::Refused => self.retry(id).into_iter().collect(),
            ServerAnswer::WrongEpoch { held } if held > self.epoch => self.on_server_lost(server),
            // The epoch was raised after the request was forwarded.
            ServerAnswer::WrongEpoch { held } if held == self.epoch => {
                vec![self.forward(server, pending.request.permit)]
            }
            // The server has not received the claim of this epoch yet.
            ServerAnswer::WrongEpoch { .. } => self.retry(id).into_iter().collect(),
        }
    }

    fn on_reallocated(
        &mut self,
        server: HostId,
        request: ReallocationRequest,
        answer: ServerAnswer,
    ) -> Vec<BrokerAction> {
        let id = request.id;
        if server != request.permit.server {
            return Vec::new();
        }
        let refuse = |why| BrokerAction::Refuse { request: id, why };
        match answer {
            ServerAnswer::WrongEpoch { held } if held > self.epoch => self.on_server_lost(server),
            ServerAnswer::WrongEpoch { held } if held == self.epoch => {
                vec![self.reallocate(request)]
            }
            ServerAnswer::WrongEpoch { .. } => {
                self.reallocations.remove(&id);
                vec![refuse(Refusal::Server(request.permit))]
            }
            ServerAnswer::Refused => {
                self.reallocations.remove(&id);
                vec![refuse(Refusal::Reallocation(request.permit))]
            }
            ServerAnswer::Permit { permit, update } => {
                self.reallocations.remove(&id);
                if let Some(record) = self.servers.get_mut(&server) {
                    record.on_rewritten(permit);
                }
                let mut actions = vec![BrokerAction::SendPermit {
                    request: id,
                    permit,
                }];
                actions.extend(self.enter_update(update));
                actions
            }
        }
    }

    fn enter_update(&mut self, update: CapacityUpdate) -> Option<BrokerAction> {
        let server = update.server;
        let record = self
            .servers
            .get_mut(&server)
            .filter(|_| update.epoch == self.epoch)?;
        let outcome = record.update_after_operation(&update);
        (outcome == UpdateOutcome::ReportNeeded).then_some(BrokerAction::RequestReport { server })
    }

    fn retry(&mut self, id: RequestId) -> Option<BrokerAction> {
        let mut pending = self.allocations.remove(&id)?;
        if let Some(record) = self.servers.get_mut(&pending.server) {
            record.on_refused(pending.request.permit.pages);
        }
        pending.refused_by.insert(pending.server);
        Some(self.place(pending.request, pending.refused_by))
    }

    fn place(&mut self, request: AllocationRequest, refused_by: BTreeSet<HostId>) -> BrokerAction {
        let Some(server) = self.choose(&request, &refused_by) else {
            let lendable = self.servers.values().map(ServerRecord::lendable_pages);
            let why = Refusal::Pages {
                asked: request.permit.pages,
                most: lendable.max().unwrap_or(0),
                servers: self.servers.len(),
            };
            let request = request.permit.id;
            return BrokerAction::Refuse { request, why };
        };
        if let Some(record) = self.servers.get_mut(&server) {
            record.on_forwarded(request.permit.pages);
        }
        let action = self.forward(server, request.permit);
        let pending = PendingAllocation {
            request,
            server,
            refused_by,
        };
        self.allocations.insert(pending.request.permit.id, pending);
        action
    }

    /// The best server with the room: hints in their order, then servers in use by the client,
    /// then most space, then the lowest host.
    fn choose(&self, request: &AllocationRequest, refused_by: &BTreeSet<HostId>) -> Option<HostId> {
        let client = request.permit.id.client;
        let fits = |(host, record): &(&HostId, &ServerRecord)| {
            let excluded = request.exclude.contains(host) || refused_by.contains(host);
            !excluded && record.lendable_pages() >= request.permit.pages
        };
        let rank = |(host, record): &(&HostId, &ServerRecord)| {
            let hint = request.hints.iter().position(|hint| hint == *host);
            let unused = !record.is_used_by(client);
            (
                hint.unwrap_or(usize::MAX),
                unused,
                Reverse(record.lendable_pages()),
                **host,
            )
        };
        let best = self.servers.iter().filter(fits).min_by_key(rank);
        best.map(|(host, _)| *host)
    }

    fn forward(&self, server: HostId, request: PermitRequest) -> BrokerAction {
        let epoch = self.epoch;
        BrokerAction::Allocate {
            server,
            epoch,
            request,
        }
    }
}
