//! The hosts in reach, in the order in which a candidate bids to them.

use crate::identity::HostId;
use std::collections::BTreeMap;

/// Hosts in reach, and the order of bids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerList {
    order: Vec<HostId>,
    places: BTreeMap<HostId, usize>,
}

impl FromIterator<HostId> for PeerList {
    fn from_iter<I: IntoIterator<Item = HostId>>(hosts: I) -> Self {
        let order: Vec<_> = hosts.into_iter().collect();
        let places = order.iter().enumerate().map(|(place, host)| (*host, place));
        let places = places.collect();
        Self { order, places }
    }
}

impl PeerList {
    /// Returns true if a host is in reach.
    pub fn contains(&self, host: HostId) -> bool {
        self.places.contains_key(&host)
    }

    /// A host is out of reach.
    pub(super) fn remove(&mut self, host: HostId) {
        self.places.remove(&host);
    }

    /// Where a round goes on that has come to `last`, with the hosts that `is_left` holds for: there, or at the nearest
    /// one before it. A round that began again each time would never come to the hosts behind one that comes and goes.
    pub(super) fn place_of_round(
        &self,
        last: Option<HostId>,
        is_left: impl Fn(HostId) -> bool,
    ) -> Option<HostId> {
        let place = *self.places.get(&last?)?;
        let passed = self.order[..=place].iter().rev().copied();
        passed
            .filter(|host| self.contains(*host))
            .find(|host| is_left(*host))
    }

    /// The first host for which `is_free` holds, of those after `last`; the order is a ring.
    pub(super) fn next_after(
        &self,
        last: Option<HostId>,
        is_free: impl Fn(HostId) -> bool,
    ) -> Option<HostId> {
        let last = last.and_then(|host| self.places.get(&host));
        let (before, after) = self.order.split_at(last.map_or(0, |place| place + 1));
        let mut ring = after.iter().chain(before).copied();
        ring.find(|host| self.contains(*host) && is_free(*host))
    }
}
