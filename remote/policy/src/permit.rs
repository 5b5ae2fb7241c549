//! Permits: capabilities to write a number of pages at one paging server.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 3.3.1 and 3.5. A server issues its
//! own permits, at the request of its broker. Rule: a permit is thin. It limits the pages written,
//! not the size of the paging objects created with it, since only 25 to 30 % of an object's pages
//! are ever written (section 4.1).

use crate::identity::{Epoch, HostId, Incarnation, ObjectId};
use disk::atropos::DiskContract;
use disk::time::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most paging objects of a server, which its permits divide by their pages.
pub const MAX_OBJECTS: u64 = 1 << 16;

/// The longest period of a contract for a server's time. A server may give a slice in one piece, or keep idle for it, and
/// the slack of other clients waits for as long: half a second at most, where a client gives a server up after 3 s.
pub const MAX_PERIOD: Nanos = Nanos::seconds(1);

/// The longest laxity: that of Self-Paging's measurements (section 7.2).
pub const MAX_LAXITY: Nanos = Nanos::millis(10);

/// A permit's name. Its server never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PermitId {
    /// The paging server.
    pub server: HostId,
    /// The server's number for it.
    pub number: u64,
}

/// A permit as its server issued or rewrote it. The daemon adds the server's MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Permit {
    /// Its name.
    pub id: PermitId,
    /// The only paging object that it is for; `None` if all objects of the client may share it.
    pub object: Option<ObjectId>,
    /// Pages that may be written under it.
    pub granted_pages: u64,
    /// The broker that had it issued, or rewritten last.
    pub epoch: Epoch,
    /// The client. The permit dies with this incarnation.
    pub client: Incarnation,
    /// (p, s, x, l) for the server's time and its link, by Atropos.
    pub qos: DiskContract,
}

impl Permit {
    /// Returns true if `object` may be created and written under it.
    pub fn covers(&self, object: ObjectId) -> bool {
        object.client == self.client.host && self.object.is_none_or(|only| only == object)
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "permit {} of {}", self.number, self.server)
    }
}
