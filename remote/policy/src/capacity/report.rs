//! What a server reports to its broker: its whole state when claimed, and updates.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 3.2 (e) and 3.5.1: permits are
//! created on servers, so a new broker's state is calculated from theirs.

use crate::identity::{Epoch, HostId};
use crate::permit::Permit;
use serde::{Deserialize, Serialize};

/// A server's capacity as it changes. A broker ignores an update with a lower serial than one it
/// has seen in the same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CapacityUpdate {
    /// The server.
    pub server: HostId,
    /// The epoch that its capacity is granted to.
    pub epoch: Epoch,
    /// Rises with each change of the grants.
    pub serial: u64,
    /// Pages that can be granted now.
    pub lendable_pages: u64,
}

/// Everything that a broker needs of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServerReport {
    /// Its capacity.
    pub update: CapacityUpdate,
    /// The permits in force.
    pub permits: Vec<Permit>,
}
