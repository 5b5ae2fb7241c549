//! The rules that no run may break, checked from what servers issued and brokers led by.
//!
//! Rule: the auditor believes no part of the policy. It has a ledger of its own for each server,
//! from the permits that the server issued, rewrote and ended.

use remote_policy::identity::{Epoch, HostId};
use remote_policy::permit::Permit;
use std::collections::{BTreeMap, BTreeSet};

/// Violations kept with their text; more are only counted.
const MOST_TEXTS: usize = 20;

/// A server's promises.
#[derive(Debug, Default)]
struct Ledger {
    owned_pages: u64,
    granted_pages: u64,
    granted: BTreeMap<u64, u64>,
    epoch: Option<Epoch>,
}

/// Checks promises.
#[derive(Debug, Default)]
pub(crate) struct Auditor {
    ledgers: BTreeMap<HostId, Ledger>,
    led: BTreeSet<Epoch>,
    checks: u64,
    violations: u64,
    texts: Vec<String>,
}

impl Auditor {
    /// A server began, and owns so many pages.
    pub fn on_started(&mut self, server: HostId, owned_pages: u64) {
        let ledger = Ledger {
            owned_pages,
            ..Ledger::default()
        };
        self.ledgers.insert(server, ledger);
    }

    /// A server issued or rewrote a permit.
    pub fn on_permit(&mut self, permit: &Permit) {
        self.checks += 1;
        let Some(ledger) = self.ledgers.get_mut(&permit.id.server) else {
            return self.violate(format!("{} is of a server that never began", permit.id));
        };
        let pages = permit.granted_pages;
        let before = ledger.granted.insert(permit.id.number, pages).unwrap_or(0);
        ledger.granted_pages = ledger.granted_pages - before + pages;
        let (granted, owned) = (ledger.granted_pages, ledger.owned_pages);
        if granted > owned {
            self.violate(format!(
                "{granted} pages are granted of {owned} by {}",
                permit.id
            ));
        }
    }

    /// A permit is void.
    pub fn on_ended(&mut self, permit: &Permit) {
        if let Some(ledger) = self.ledgers.get_mut(&permit.id.server)
            && let Some(pages) = ledger.granted.remove(&permit.id.number)
        {
            ledger.granted_pages -= pages;
        }
    }

    /// A server granted itself to an epoch.
    pub fn on_granted_to(&mut self, server: HostId, epoch: Epoch) {
        self.checks += 1;
        let ledger = self.ledgers.entry(server).or_default();
        if ledger.epoch.is_some_and(|held| held > epoch) {
            self.violate(format!("{server} went back to epoch {epoch}"));
        } else {
            ledger.epoch = Some(epoch);
        }
    }

    /// A broker leads by an epoch from now on.
    pub fn on_led(&mut self, host: HostId, epoch: Epoch) {
        self.checks += 1;
        if !self.led.insert(epoch) || epoch.broker.host != host {
            self.violate(format!(
                "{host} leads by epoch {epoch}, which was led by before"
            ));
        }
    }

    fn violate(&mut self, text: String) {
        self.violations += 1;
        if self.texts.len() < MOST_TEXTS {
            self.texts.push(text);
        }
    }

    pub fn checks(&self) -> u64 {
        self.checks
    }

    pub fn violations(&self) -> u64 {
        self.violations
    }

    pub fn texts(&self) -> &[String] {
        &self.texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::atropos::DiskContract;
    use disk::time::Nanos;
    use remote_policy::identity::Incarnation;
    use remote_policy::permit::PermitId;

    fn permit(number: u64, granted_pages: u64) -> Permit {
        let server = HostId(1);
        let client = Incarnation::new(server, 1, 1);
        Permit {
            id: PermitId { server, number },
            object: None,
            granted_pages,
            epoch: Epoch {
                number: 1,
                broker: client,
            },
            client,
            qos: DiskContract::new(Nanos::ZERO, Nanos::millis(1)).with_slack(),
        }
    }

    #[test]
    fn pages_promised_twice_are_found_and_rewritten_ones_count_once() {
        let mut auditor = Auditor::default();
        auditor.on_started(HostId(1), 100);
        auditor.on_permit(&permit(1, 60));
        auditor.on_permit(&permit(1, 100));
        assert_eq!(auditor.violations(), 0);
        auditor.on_permit(&permit(2, 1));
        assert_eq!(auditor.violations(), 1, "{:?}", auditor.texts());
    }

    #[test]
    fn a_server_that_goes_back_to_an_epoch_is_found() {
        let mut auditor = Auditor::default();
        let epoch = permit(1, 1).epoch;
        auditor.on_started(HostId(1), 100);
        auditor.on_granted_to(HostId(1), epoch.next(epoch.broker));
        auditor.on_granted_to(HostId(1), epoch);
        auditor.on_led(HostId(1), epoch);
        auditor.on_led(HostId(1), epoch);
        assert_eq!(auditor.violations(), 2, "{:?}", auditor.texts());
    }
}
