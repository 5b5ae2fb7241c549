//! Bids, their order, and to which hosts a broker makes them.

use super::{Candidate, ElectionAction, Message, Role};
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

impl Candidate {
    /// Bids to each server that was given up, which has the broker still if it only stood still: several that go
    /// on at once are all to be found before one of them regenerates, and has the epoch raised for all. And
    /// to one further peer.
    pub(super) fn bid_to_peers(&mut self, actions: &mut Vec<ElectionAction>) {
        self.redirected_to.clear();
        let Role::Broker { servers, .. } = &self.role else {
            return;
        };
        let is_away = |host: &HostId| self.peers.contains(*host) && !servers.contains_key(host);
        self.given_up.retain(is_away);
        let bid = Bid::new(self.incarnation.host, servers.len());
        actions.extend(self.given_up.iter().map(|to| ElectionAction::Send {
            to: *to,
            message: Message::Bid(bid),
        }));
        self.bid_to_next_peer(actions);
    }

    /// Bids go round all peers, so that a broker finds each other one that is left. A round begins with those that were
    /// named first: where others that do not answer are many, it takes minutes.
    pub(super) fn bid_to_next_peer(&mut self, actions: &mut Vec<ElectionAction>) {
        let Role::Broker { servers, .. } = &self.role else {
            return;
        };
        let is_free = |peer| !servers.contains_key(&peer) && !self.given_up.contains(&peer);
        let Some(to) = self.peers.next_after(self.last_bid, is_free) else {
            return;
        };
        let message = Message::Bid(Bid::new(self.host(), servers.len()));
        self.last_bid = Some(to);
        actions.push(ElectionAction::Send { to, message });
    }
}
