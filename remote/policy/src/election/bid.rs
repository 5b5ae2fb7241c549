//! Bids and their order.

use crate::identity::HostId;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// A candidate's bid. The greater wins: the one with more servers, then the one of the lower host,
/// so that no two are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bid {
    servers: u32,
    host: Reverse<HostId>,
}

impl Bid {
    /// The bid of a host's candidate, which controls so many servers.
    pub fn new(host: HostId, servers: usize) -> Self {
        Self {
            servers: u32::try_from(servers).unwrap_or(u32::MAX),
            host: Reverse(host),
        }
    }

    /// The bidder.
    pub fn host(self) -> HostId {
        self.host.0
    }
}
