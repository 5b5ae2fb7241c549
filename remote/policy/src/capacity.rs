//! A paging server's capacity: what it owns, what it lends, and to which broker epoch.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 2.3, 3.4 and 3.5. The server
//! serves its own processes first, lends only what is free above a threshold, and revokes when
//! free space runs low: first pages that were granted and never written, then by abdicate
//! requests, which an organizer may ignore, then by a deadline.
//!
//! Rule: the server alone promises its capacity, to one epoch at a time. A grant is made only from
//! pages that are neither used nor granted, and an operation of a lower epoch is rejected, so two
//! brokers at once do no harm: capacity is never promised twice. A request that arrives again gets
//! the permit that it got before.

mod error;
mod objects;
mod report;
mod revocation;

pub use error::{AllocateError, EpochError, ObjectError};
pub use report::{CapacityUpdate, ServerReport};

use crate::identity::{Epoch, HostId, Incarnation, ObjectId, RequestId};
use crate::lease::LeaseTable;
use crate::permit::{MAX_LAXITY, MAX_PERIOD, Permit, PermitId};
use disk::atropos::{DiskContract, Utilization};
use objects::StoredObject;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The most of a server's time that is promised to one client: its writes have two copies by default, so half leaves
/// another client as much as it needs itself.
const CLIENT_TIME: Utilization = Utilization::percent(50);

/// A server's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapacityConfig {
    /// Free pages above which the server lends.
    pub lend_above_pages: u64,
    /// Free pages below which it revokes; at most `lend_above_pages`.
    pub revoke_below_pages: u64,
    /// The most of the server's time that its clients' slices may sum to.
    pub lendable_time: Utilization,
    /// How long an incarnation's permits last without a request of it.
    pub lease: Duration,
    /// How long abdicate requests have before permits are revoked.
    pub notice: Duration,
    /// How long a revoked permit's client has to move its pages.
    pub deadline: Duration,
}

/// A request for a permit, as the broker forwards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PermitRequest {
    /// Its name, which a copy of it shares.
    pub id: RequestId,
    /// The object that the permit is to be for; `None` for all of the client's.
    pub object: Option<ObjectId>,
    /// Pages to be written under it.
    pub pages: u64,
    /// The client's contract for the server's time.
    pub qos: DiskContract,
}

impl PermitRequest {
    /// Checks the contract by itself.
    ///
    /// # Errors
    /// [`AllocateError`] where no server takes it, whatever else it has promised.
    pub fn check_contract(&self) -> Result<(), AllocateError> {
        self.qos.check()?;
        if self.qos.period > MAX_PERIOD || self.qos.laxity > MAX_LAXITY {
            return Err(AllocateError::LongContract(self.qos));
        }
        Ok(())
    }
}

/// Something for the server's daemon to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CapacityAction {
    /// Send the client its permit, which was rewritten with fewer pages.
    SendRewritten(Permit),
    /// Send the client's organizer an abdicate request for an object.
    RequestAbdicate {
        /// The client.
        client: Incarnation,
        /// The object to move away.
        object: ObjectId,
    },
    /// Send the client a revocation.
    Revoke {
        /// The permit that is revoked, whole or in part.
        permit: PermitId,
        /// Pages that may stay written under it.
        keep_pages: u64,
        /// When they have to be the only ones.
        by: Duration,
    },
    /// Free all objects under a permit, which is void now, and send the broker an update.
    Destroy {
        /// The permit as it was.
        permit: Permit,
        /// The objects under it.
        objects: BTreeSet<ObjectId>,
        /// Why it is void.
        cause: EndOfPermit,
    },
}

/// Why a permit is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndOfPermit {
    /// Its client released it.
    Released,
    /// Its client restarted.
    Restarted,
    /// Its client sent no request for the term of its lease, or did not present it.
    Expired,
    /// Its client missed the deadline of a revocation.
    Revoked,
}

/// A permit in force, and what is counted against it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Grant {
    permit: Permit,
    request: RequestId,
    written_pages: u64,
    /// Those created under it: what ends with it is found without a pass over the others of the server.
    objects: BTreeSet<ObjectId>,
    /// The last reallocation, so that a copy of it that arrives again changes nothing.
    rewritten_by: Option<RequestId>,
    revocation: Option<PendingRevocation>,
    /// When the permit ends, until its client presents it.
    present_by: Option<Duration>,
}

/// A revocation that its client has not yet complied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PendingRevocation {
    keep_pages: u64,
    by: Duration,
}

/// The capacity of one paging server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerCapacity {
    config: CapacityConfig,
    server: HostId,
    epoch: Epoch,
    owned_pages: u64,
    local_pages: u64,
    grants: BTreeMap<PermitId, Grant>,
    objects: BTreeMap<ObjectId, StoredObject>,
    leases: LeaseTable,
    next_permit: u64,
    /// Number of the latest update to the broker.
    serial: u64,
}

impl ServerCapacity {
    /// A server that lends nothing yet, under its own host's broker, as each begins (section 2.3).
    pub fn new(config: CapacityConfig, broker: Incarnation, owned_pages: u64) -> Self {
        Self {
            config,
            server: broker.host,
            epoch: Epoch { number: 0, broker },
            owned_pages,
            local_pages: 0,
            grants: BTreeMap::new(),
            objects: BTreeMap::new(),
            leases: LeaseTable::new(config.lease),
            next_permit: 1,
            serial: 0,
        }
    }

    /// Pages that the server may use.
    pub fn owned_pages(&self) -> u64 {
        self.owned_pages
    }

    /// Pages granted to clients.
    pub fn granted_pages(&self) -> u64 {
        self.grants
            .values()
            .map(|grant| grant.permit.granted_pages)
            .sum()
    }

    /// Pages neither used by the host's own processes nor granted.
    pub fn free_pages(&self) -> u64 {
        self.owned_pages
            .saturating_sub(self.local_pages)
            .saturating_sub(self.granted_pages())
    }

    /// Pages that can be granted now.
    pub fn lendable_pages(&self) -> u64 {
        self.free_pages()
            .saturating_sub(self.config.lend_above_pages)
    }

    /// The epoch that the capacity is granted to.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The update that the server sends periodically, and when a permit ends.
    pub fn update(&self) -> CapacityUpdate {
        CapacityUpdate {
            server: self.server,
            epoch: self.epoch,
            serial: self.serial,
            lendable_pages: self.lendable_pages(),
        }
    }

    /// The report for a broker that claims the server, or has missed an update.
    pub fn report(&self) -> ServerReport {
        ServerReport {
            update: self.update(),
            permits: self.grants.values().map(|grant| grant.permit).collect(),
        }
    }

    /// Grants the capacity to a broker's epoch, from then on to no lower one.
    ///
    /// # Errors
    /// [`EpochError`] where a higher epoch holds it.
    pub fn grant_to(&mut self, epoch: Epoch) -> Result<ServerReport, EpochError> {
        self.check_epoch(epoch)?;
        self.epoch = epoch;
        self.serial += 1;
        Ok(self.report())
    }

    /// Issues a permit for the broker of `epoch`, to a client in contact
    /// ([`ServerCapacity::on_contact`]).
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn allocate(
        &mut self,
        epoch: Epoch,
        request: &PermitRequest,
    ) -> Result<Permit, AllocateError> {
        self.check_holder(epoch)?;
        let lease = self.leases.until(request.id.client);
        let mut grants = self.grants.values_mut();
        if let Some(grant) = grants.find(|grant| grant.request == request.id) {
            if grant.present_by.is_some() && lease.is_some() {
                grant.present_by = lease;
            }
            return Ok(grant.permit);
        }
        request.check_contract()?;
        self.check_pages(request.pages)?;
        self.check_time(request.id.client, request.qos)?;
        // An earlier incarnation's late request would get a permit that never ends.
        let lease = lease.ok_or(AllocateError::Ended(request.id.client))?;
        let id = PermitId {
            server: self.server,
            number: self.next_permit,
        };
        self.next_permit += 1;
        let permit = Permit {
            id,
            object: request.object,
            granted_pages: request.pages,
            epoch,
            client: request.id.client,
            qos: request.qos,
        };
        let grant = Grant {
            permit,
            request: request.id,
            written_pages: 0,
            objects: BTreeSet::new(),
            rewritten_by: None,
            revocation: None,
            present_by: Some(lease),
        };
        self.grants.insert(id, grant);
        self.serial += 1;
        Ok(permit)
    }

    /// Rewrites a permit to `pages` (section 3.5, reallocation).
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn reallocate(
        &mut self,
        epoch: Epoch,
        request: RequestId,
        id: PermitId,
        pages: u64,
    ) -> Result<Permit, AllocateError> {
        self.check_holder(epoch)?;
        let grant = self.grants.get(&id).ok_or(AllocateError::NoPermit(id))?;
        if grant.permit.client != request.client {
            return Err(AllocateError::NoPermit(id));
        }
        if grant
            .rewritten_by
            .is_some_and(|last| last.number >= request.number)
        {
            return Ok(grant.permit);
        }
        if pages < grant.written_pages {
            return Err(AllocateError::Written {
                asked: pages,
                written: grant.written_pages,
            });
        }
        self.check_pages(pages.saturating_sub(grant.permit.granted_pages))?;
        self.serial += 1;
        // Present: it was found above.
        let grant = self
            .grants
            .get_mut(&id)
            .ok_or(AllocateError::NoPermit(id))?;
        grant.permit.granted_pages = pages;
        grant.permit.epoch = epoch;
        grant.rewritten_by = Some(request);
        Ok(grant.permit)
    }

    fn check_epoch(&self, asked: Epoch) -> Result<(), EpochError> {
        let held = self.epoch;
        if asked < held {
            return Err(EpochError { asked, held });
        }
        Ok(())
    }

    /// A broker allocates only after its epoch has been granted the capacity: its claim brings it
    /// the report without which its record would be a guess.
    ///
    /// # Errors
    /// [`EpochError`] where another epoch holds it.
    pub fn check_holder(&self, asked: Epoch) -> Result<(), AllocateError> {
        let held = self.epoch;
        if asked != held {
            return Err(EpochError { asked, held }.into());
        }
        Ok(())
    }

    fn check_pages(&self, asked: u64) -> Result<(), AllocateError> {
        if asked <= self.lendable_pages() {
            return Ok(());
        }
        Err(AllocateError::Pages {
            asked,
            there: self.lendable_pages(),
            owned: self.owned_pages,
            local: self.local_pages,
            granted: self.granted_pages(),
        })
    }

    fn check_time(&self, client: Incarnation, qos: DiskContract) -> Result<(), AllocateError> {
        let sum = |is_of: &dyn Fn(&Permit) -> bool| {
            let permits = self.grants.values().map(|grant| grant.permit);
            let shares = permits.filter(is_of).map(|permit| permit.qos.share());
            shares.fold(Utilization::default(), |sum, share| sum + share)
        };
        let there = self.config.lendable_time - sum(&|_| true);
        let own = CLIENT_TIME - sum(&|permit| permit.client == client);
        let asked = qos.share();
        match there.min(own) {
            there if asked <= there => Ok(()),
            there => Err(AllocateError::Time { asked, there }),
        }
    }
}
