//! What a broker receives and sends.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 3.2 (d, e) and 3.5: the allocation
//! and update protocols.

use crate::bounded_list;
use crate::capacity::{CapacityUpdate, PermitRequest};
use crate::identity::{Epoch, HostId, RequestId};
use crate::permit::{Permit, PermitId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most servers that a client prefers, and most that it does not want: several times those that it can be connected to.
pub const MAX_CHOICES: usize = 1024;

/// A client's request for a new permit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AllocationRequest {
    /// What a server needs of it.
    pub permit: PermitRequest,
    /// Servers that the client prefers, the best first: those near it.
    #[serde(deserialize_with = "bounded_list::deserialize::<MAX_CHOICES, _, _>")]
    pub hints: Vec<HostId>,
    /// Servers that it does not want: they hold other copies of its objects, or serve it badly.
    #[serde(deserialize_with = "bounded_list::deserialize::<MAX_CHOICES, _, _>")]
    pub exclude: BTreeSet<HostId>,
}

/// A client's request to enlarge or reduce a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReallocationRequest {
    /// Its name.
    pub id: RequestId,
    /// The permit.
    pub permit: PermitId,
    /// Pages that it is to grant.
    pub pages: u64,
}

/// A server's answer to an operation of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ServerAnswer {
    /// The permit was issued or rewritten.
    Permit {
        /// The permit.
        permit: Permit,
        /// The server's capacity since.
        update: CapacityUpdate,
    },
    /// It was not: the server has not so many pages.
    Refused,
    /// It was not: the operation's epoch does not hold the server.
    WrongEpoch {
        /// The epoch that does.
        held: Epoch,
    },
    /// It was not, for a reason that says nothing of the server's pages: its time, its permits, the client.
    Unable,
}

/// Something for the broker's daemon to send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BrokerAction {
    /// Have a server issue a permit.
    Allocate {
        /// The server.
        server: HostId,
        /// This broker's epoch.
        epoch: Epoch,
        /// What to issue.
        request: PermitRequest,
    },
    /// Have a server rewrite a permit.
    Reallocate {
        /// The server.
        server: HostId,
        /// This broker's epoch.
        epoch: Epoch,
        /// What to rewrite.
        request: ReallocationRequest,
    },
    /// Send a client its permit.
    SendPermit {
        /// The client's request.
        request: RequestId,
        /// The permit.
        permit: Permit,
    },
    /// Have a server send its report: permits changed there without this broker.
    RequestReport {
        /// The server.
        server: HostId,
    },
    /// Refuse a client's request.
    Refuse {
        /// The client's request.
        request: RequestId,
        /// Why.
        why: Refusal,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// No server has the room.
    #[error(
        "no server can grant {asked} pages: of {servers} servers, the one with most space that is not in use or full has {most}; \
         ask for fewer, or start another server"
    )]
    Pages {
        /// Pages asked for.
        asked: u64,
        /// The most pages that a server can lend which the client does not use, and which has not refused.
        most: u64,
        /// Servers of the broker.
        servers: usize,
    },
    /// The permit's server does not enlarge it.
    #[error("{0} cannot be rewritten by its server: ask for a permit at another one")]
    Reallocation(PermitId),
    /// The permit's server is not this broker's.
    #[error(
        "{0} is at a server of another broker, or at none: ask again after the election, or for a new permit"
    )]
    Server(PermitId),
}

/// What an update means for the broker's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The record is current.
    Current,
    /// The update is older than the record.
    Stale,
    /// Permits ended or changed at the server: request a report.
    ReportNeeded,
}
