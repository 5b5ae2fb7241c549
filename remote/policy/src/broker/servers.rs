//! The servers of a broker, by what a choice needs.
//!
//! Rule: each index is a function of the records, and changes with them here and nowhere else. A
//! request looks at the servers that may do, not at all: a broker of 10,000 servers has 200,000
//! permits, and a scan of them for each request takes it milliseconds.

use super::UpdateOutcome;
use super::record::ServerRecord;
use crate::capacity::{CapacityUpdate, ServerReport};
use crate::identity::{HostId, Incarnation, RequestId};
use crate::permit::Permit;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The records of servers, and the indices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ServerTable {
    records: BTreeMap<HostId, ServerRecord>,
    /// Those with most lendable pages first, then the lowest hosts.
    by_space: BTreeSet<(Reverse<u64>, HostId)>,
    /// The servers that a client has permits of.
    in_use: BTreeSet<(Incarnation, HostId)>,
    /// The server that issued a permit for a request.
    issued: BTreeSet<(RequestId, HostId)>,
}

impl ServerTable {
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.records.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn has(&self, server: HostId) -> bool {
        self.records.contains_key(&server)
    }

    pub fn permits(&self) -> impl Iterator<Item = &Permit> + '_ {
        self.records.values().flat_map(ServerRecord::permits)
    }

    pub fn lendable_pages(&self, server: HostId) -> Option<u64> {
        Some(self.records.get(&server)?.lendable_pages())
    }

    /// The permit that was issued for a request.
    pub fn issued(&self, request: RequestId) -> Option<Permit> {
        let of_request = (request, HostId(0))..=(request, HostId(u64::MAX));
        let mut servers = self.issued.range(of_request);
        servers.find_map(|(_, server)| self.records.get(server)?.issued(request))
    }

    /// The servers that a client uses.
    pub fn used_by(&self, client: Incarnation) -> impl Iterator<Item = HostId> + '_ {
        let of_client = (client, HostId(0))..=(client, HostId(u64::MAX));
        self.in_use.range(of_client).map(|(_, server)| *server)
    }

    /// Servers with their lendable pages, those with most first.
    pub fn by_space(&self) -> impl Iterator<Item = (HostId, u64)> + '_ {
        let servers = self.by_space.iter();
        servers.map(|(Reverse(pages), server)| (*server, *pages))
    }

    /// Replaces the record of a server, or adds one.
    pub fn replace(&mut self, report: &ServerReport) {
        let server = report.update.server;
        let mut record = self.take(server).unwrap_or_default();
        record.replace(report);
        self.enter(server, record);
    }

    pub fn remove(&mut self, server: HostId) {
        self.take(server);
    }

    /// `pages` are those of the request.
    pub fn on_issued(&mut self, server: HostId, request: RequestId, pages: u64, permit: Permit) {
        let issue = |record: &mut ServerRecord| record.on_issued(request, pages, permit);
        if self.change(server, issue).is_some() {
            self.in_use.insert((permit.client, server));
            self.issued.insert((request, server));
        }
    }

    pub fn on_rewritten(&mut self, server: HostId, permit: Permit) {
        let rewrite = |record: &mut ServerRecord| record.on_rewritten(permit);
        if self.change(server, rewrite).is_some() {
            self.in_use.insert((permit.client, server));
        }
    }

    pub fn on_forwarded(&mut self, server: HostId, pages: u64) {
        self.change(server, |record| record.on_forwarded(pages));
    }

    pub fn on_refused(&mut self, server: HostId, pages: u64, lacks_pages: bool) {
        self.change(server, |record| record.on_refused(pages, lacks_pages));
    }

    pub fn update(&mut self, update: &CapacityUpdate) -> Option<UpdateOutcome> {
        self.change(update.server, |record| record.update(update))
    }

    /// An update that came with the answer to an operation.
    pub fn update_after_operation(&mut self, update: &CapacityUpdate) -> Option<UpdateOutcome> {
        self.change(update.server, |record| {
            record.update_after_operation(update)
        })
    }

    /// Changes a record by what neither ends permits nor has the other indices change.
    fn change<T>(
        &mut self,
        server: HostId,
        change: impl FnOnce(&mut ServerRecord) -> T,
    ) -> Option<T> {
        let record = self.records.get_mut(&server)?;
        let before = record.lendable_pages();
        let result = change(record);
        let after = record.lendable_pages();
        if after != before {
            self.by_space.remove(&(Reverse(before), server));
            self.by_space.insert((Reverse(after), server));
        }
        Some(result)
    }

    fn take(&mut self, server: HostId) -> Option<ServerRecord> {
        let record = self.records.remove(&server)?;
        self.by_space
            .remove(&(Reverse(record.lendable_pages()), server));
        for permit in record.permits() {
            self.in_use.remove(&(permit.client, server));
        }
        for request in record.issued_requests() {
            self.issued.remove(&(request, server));
        }
        Some(record)
    }

    fn enter(&mut self, server: HostId, record: ServerRecord) {
        self.by_space
            .insert((Reverse(record.lendable_pages()), server));
        let clients = record.permits().map(|permit| (permit.client, server));
        self.in_use.extend(clients);
        let requests = record.issued_requests().map(|request| (request, server));
        self.issued.extend(requests);
        self.records.insert(server, record);
    }
}
