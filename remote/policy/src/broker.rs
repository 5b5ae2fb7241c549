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
mod servers;

pub use message::{
    AllocationRequest, BrokerAction, MAX_CHOICES, ReallocationRequest, Refusal, ServerAnswer,
    UpdateOutcome,
};

use crate::capacity::{CapacityUpdate, PermitRequest, ServerReport};
use crate::identity::{Epoch, HostId, RequestId};
use crate::permit::Permit;
use servers::ServerTable;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A request that a server is answering.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingAllocation {
    request: AllocationRequest,
    server: HostId,
    refused_by: BTreeSet<HostId>,
    /// How often the client has asked again, up to [`SILENT`].
    copies: u8,
}

/// A server that has not answered when a client asks again so many times is passed over.
const SILENT: u8 = 3;

/// Periods after which a request is forgotten that no client waits for: 5 s. A client that waits asks again within 2 s.
const ABANDONED: u8 = 25;

/// A broker of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broker {
    epoch: Epoch,
    servers: ServerTable,
    allocations: BTreeMap<RequestId, PendingAllocation>,
    reallocations: BTreeMap<RequestId, ReallocationRequest>,
    /// Those of both that no client waits for, and since how many periods.
    abandoned: BTreeMap<RequestId, u8>,
}

impl Broker {
    /// A broker without servers: each server's report adds it.
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            servers: ServerTable::default(),
            allocations: BTreeMap::new(),
            reallocations: BTreeMap::new(),
            abandoned: BTreeMap::new(),
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
        self.servers.hosts()
    }

    /// Pages that a server can lend now, as far as the broker knows.
    pub fn lendable_pages_at(&self, server: HostId) -> Option<u64> {
        self.servers.lendable_pages(server)
    }

    /// The permits that it knows of: the allocations that its servers reported or issued since.
    pub fn permits(&self) -> impl Iterator<Item = &Permit> + '_ {
        self.servers.permits()
    }

    /// Replaces the record of a server by its report. Returns what the server is asked again: requests that it
    /// refused before the claim of this epoch had arrived, or whose answers were lost.
    pub fn on_report(&mut self, report: &ServerReport) -> Vec<BrokerAction> {
        if report.update.epoch != self.epoch {
            return Vec::new();
        }
        self.servers.replace(report);
        let server = report.update.server;
        let allocations = self.allocations.values();
        let allocations = allocations.filter(|pending| pending.server == server);
        let allocations = allocations.map(|pending| self.forward(server, pending.request.permit));
        let reallocations = self.reallocations.values();
        let reallocations = reallocations.filter(|request| request.permit.server == server);
        let epoch = self.epoch;
        let reallocations = reallocations.map(|request| BrokerAction::Reallocate {
            server,
            epoch,
            request: *request,
        });
        allocations.chain(reallocations).collect()
    }

    /// Enters an update of a server. Returns [`UpdateOutcome::ReportNeeded`] where permits changed
    /// without the broker.
    pub fn on_update(&mut self, update: &CapacityUpdate) -> UpdateOutcome {
        let is_current = update.epoch == self.epoch;
        let outcome = is_current.then(|| self.servers.update(update)).flatten();
        outcome.unwrap_or(UpdateOutcome::ReportNeeded)
    }

    /// Removes a server that died or was taken over. Its pending requests go elsewhere.
    pub fn on_server_lost(&mut self, server: HostId) -> Vec<BrokerAction> {
        self.servers.remove(server);
        let waiting = |pending: &PendingAllocation| pending.server == server;
        let ids = self
            .allocations
            .iter()
            .filter(|(_, pending)| waiting(pending));
        let ids: Vec<_> = ids.map(|(id, _)| *id).collect();
        let mut actions: Vec<_> = ids
            .into_iter()
            .filter_map(|id| self.retry(id, true))
            .collect();
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

    /// A client requests a permit. A request that is being answered goes to the same server again; a server that
    /// stays silent is taken to refuse, if another has room.
    pub fn allocate(&mut self, request: AllocationRequest) -> BrokerAction {
        let id = request.permit.id;
        // The server that issued a permit for it answers a copy with that permit.
        if let Some(permit) = self.servers.issued(id) {
            return BrokerAction::SendPermit {
                request: id,
                permit,
            };
        }
        let Some(pending) = self.allocations.get_mut(&id) else {
            return self.place(request, BTreeSet::new());
        };
        pending.copies = SILENT.min(pending.copies + 1);
        let (is_silent, server) = (pending.copies == SILENT, pending.server);
        let mut others = pending.refused_by.clone();
        others.insert(server);
        let next = is_silent.then(|| self.choose(&request, &others)).flatten();
        match next.and_then(|_| self.retry(id, true)) {
            Some(action) => action,
            None => self.forward(server, request.permit),
        }
    }

    /// A client requests another size of its permit.
    pub fn reallocate(&mut self, request: ReallocationRequest) -> BrokerAction {
        let server = request.permit.server;
        if !self.servers.has(server) {
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

    /// A server has answered. A refusal sends an allocation to the next server, and a permit of another server is one.
    pub fn on_answer(
        &mut self,
        server: HostId,
        id: RequestId,
        answer: ServerAnswer,
    ) -> Vec<BrokerAction> {
        let answer = match answer {
            ServerAnswer::Permit { permit, .. } if permit.id.server != server => {
                ServerAnswer::Unable
            }
            answer => answer,
        };
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
                self.servers.on_issued(server, id, pages, permit);
                actions.extend(self.enter_update(update));
                actions
            }
            ServerAnswer::Refused => self.retry(id, true).into_iter().collect(),
            ServerAnswer::Unable => self.retry(id, false).into_iter().collect(),
            ServerAnswer::WrongEpoch { held } if held > self.epoch => self.on_server_lost(server),
            // The epoch was raised after the request was forwarded.
            ServerAnswer::WrongEpoch { held } if held == self.epoch => {
                vec![self.forward(server, pending.request.permit)]
            }
            // The server has not received the claim of this epoch yet: its report is the answer to that.
            ServerAnswer::WrongEpoch { .. } => Vec::new(),
        }
    }

    /// A period has passed. A request that no client has waited for since some periods (`ABANDONED`) is forgotten, and its
    /// pages are free again: its server may never answer.
    pub fn forget_abandoned(&mut self, is_awaited: impl Fn(&RequestId) -> bool) {
        let pending = self.allocations.keys().chain(self.reallocations.keys());
        let alone = pending.filter(|id| !is_awaited(id));
        let periods = |id| self.abandoned.get(id).map_or(1, |periods| periods + 1);
        let (forgotten, abandoned) = alone
            .map(|id| (*id, periods(id)))
            .partition(|(_, periods)| *periods > ABANDONED);
        self.abandoned = abandoned;
        let forgotten: BTreeMap<RequestId, u8> = forgotten;
        for id in forgotten.keys() {
            self.reallocations.remove(id);
            if let Some(PendingAllocation {
                request, server, ..
            }) = self.allocations.remove(id)
            {
                let pages = request.permit.pages;
                self.servers.on_refused(server, pages, false);
            }
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
            ServerAnswer::WrongEpoch { .. } => Vec::new(),
            ServerAnswer::Refused | ServerAnswer::Unable => {
                self.reallocations.remove(&id);
                vec![refuse(Refusal::Reallocation(request.permit))]
            }
            ServerAnswer::Permit { permit, update } => {
                self.reallocations.remove(&id);
                self.servers.on_rewritten(server, permit);
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
        let is_current = update.epoch == self.epoch;
        let outcome = is_current.then(|| self.servers.update_after_operation(&update))??;
        (outcome == UpdateOutcome::ReportNeeded).then_some(BrokerAction::RequestReport { server })
    }

    /// Asks another server. `lacks_pages`: the last one has too few, as far as is known.
    fn retry(&mut self, id: RequestId, lacks_pages: bool) -> Option<BrokerAction> {
        let mut pending = self.allocations.remove(&id)?;
        let pages = pending.request.permit.pages;
        self.servers.on_refused(pending.server, pages, lacks_pages);
        pending.refused_by.insert(pending.server);
        Some(self.place(pending.request, pending.refused_by))
    }

    fn place(&mut self, request: AllocationRequest, refused_by: BTreeSet<HostId>) -> BrokerAction {
        let Some(server) = self.choose(&request, &refused_by) else {
            let mut others = self.servers.by_space();
            let other = others.find(|(host, _)| is_allowed(&request, &refused_by, host));
            let why = Refusal::Pages {
                asked: request.permit.pages,
                most: other.map_or(0, |(_, pages)| pages),
                servers: self.servers.len(),
            };
            let request = request.permit.id;
            return BrokerAction::Refuse { request, why };
        };
        self.servers.on_forwarded(server, request.permit.pages);
        let action = self.forward(server, request.permit);
        let pending = PendingAllocation {
            request,
            server,
            refused_by,
            copies: 0,
        };
        self.allocations.insert(pending.request.permit.id, pending);
        action
    }

    /// The best server with the room: hints in their order, then servers in use by the client,
    /// then most space, then the lowest host.
    fn choose(&self, request: &AllocationRequest, refused_by: &BTreeSet<HostId>) -> Option<HostId> {
        let pages = request.permit.pages;
        let is_allowed = |host: &HostId| is_allowed(request, refused_by, host);
        let room = |host: HostId| {
            let lendable = self.servers.lendable_pages(host)?;
            (lendable >= pages && is_allowed(&host)).then_some((Reverse(lendable), host))
        };
        let mut hinted = request.hints.iter().filter_map(|hint| room(*hint));
        let in_use = || {
            let servers = self.servers.used_by(request.permit.id.client);
            servers.filter_map(room).min()
        };
        if let Some((_, host)) = hinted.next().or_else(in_use) {
            return Some(host);
        }
        let servers = self.servers.by_space();
        let mut fitting = servers.take_while(|(_, lendable)| *lendable >= pages);
        Some(fitting.find(|(host, _)| is_allowed(host))?.0)
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

fn is_allowed(request: &AllocationRequest, refused_by: &BTreeSet<HostId>, host: &HostId) -> bool {
    !request.exclude.contains(host) && !refused_by.contains(host)
}
