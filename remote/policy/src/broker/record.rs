//! What a broker knows of one server.
//!
//! Rule: pages in requests that the server has not answered count as lent, so that two requests
//! at once do not both go to a server with room for one.

use super::UpdateOutcome;
use crate::capacity::{CapacityUpdate, ServerReport};
use crate::identity::RequestId;
use crate::permit::{Permit, PermitId};
use std::collections::BTreeMap;

/// A server's capacity and allocations, as last reported and changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ServerRecord {
    serial: u64,
    lendable_pages: u64,
    /// Pages in requests that the server has not answered.
    forwarded_pages: u64,
    permits: BTreeMap<PermitId, Permit>,
    /// Which request a permit was issued for, since the report.
    issued: BTreeMap<RequestId, PermitId>,
}

impl ServerRecord {
    pub fn replace(&mut self, report: &ServerReport) {
        self.serial = report.update.serial;
        self.lendable_pages = report.update.lendable_pages;
        self.permits = report
            .permits
            .iter()
            .map(|permit| (permit.id, *permit))
            .collect();
        self.issued
            .retain(|_, permit| self.permits.contains_key(permit));
    }

    pub fn update(&mut self, update: &CapacityUpdate) -> UpdateOutcome {
        if update.serial < self.serial {
            return UpdateOutcome::Stale;
        }
        self.lendable_pages = update.lendable_pages;
        if update.serial == self.serial {
            UpdateOutcome::Current
        } else {
            UpdateOutcome::ReportNeeded
        }
    }

    /// An operation of the broker raises the server's serial by one at most.
    pub fn update_after_operation(&mut self, update: &CapacityUpdate) -> UpdateOutcome {
        if update.serial == self.serial + 1 {
            self.serial = update.serial;
        }
        self.update(update)
    }

    pub fn lendable_pages(&self) -> u64 {
        self.lendable_pages.saturating_sub(self.forwarded_pages)
    }

    pub fn permits(&self) -> impl Iterator<Item = &Permit> {
        self.permits.values()
    }

    /// The requests that permits were issued for, since the report.
    pub fn issued_requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.issued.keys().copied()
    }

    pub fn issued(&self, request: RequestId) -> Option<Permit> {
        let permit = self.issued.get(&request)?;
        self.permits.get(permit).copied()
    }

    pub fn on_forwarded(&mut self, pages: u64) {
        self.forwarded_pages += pages;
    }

    /// `pages` are those of the request, of which the server may have revoked some by now.
    pub fn on_issued(&mut self, request: RequestId, pages: u64, permit: Permit) {
        self.forwarded_pages = self.forwarded_pages.saturating_sub(pages);
        self.issued.insert(request, permit.id);
        self.permits.insert(permit.id, permit);
    }

    pub fn on_rewritten(&mut self, permit: Permit) {
        self.permits.insert(permit.id, permit);
    }

    /// Where it `lacks_pages`, the server's next update corrects the pages: until then the record has at most
    /// those that were too many.
    pub fn on_refused(&mut self, pages: u64, lacks_pages: bool) {
        self.forwarded_pages = self.forwarded_pages.saturating_sub(pages);
        if lacks_pages {
            self.lendable_pages = self.lendable_pages.min(pages.saturating_sub(1));
        }
    }
}
