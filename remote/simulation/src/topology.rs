//! Hosts by number, and which are near which.
//!
//! Hosts are numbered, servers first; their ids are as long as real ones, which are hashes. A rack
//! has neighbouring servers, a site neighbouring racks. A client is in the rack of its first
//! contact, and may move.

use crate::config::Config;
use remote_policy::identity::{HostId, Incarnation};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bits of a host's id that have its number.
const NUMBER_BITS: u32 = 32;

/// A host by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node(pub usize);

/// The hosts, and where they are.
pub(crate) struct Topology {
    servers: usize,
    rack: usize,
    racks: usize,
    sites: usize,
    ids: Vec<HostId>,
    /// The rack of each host.
    racks_of: Vec<usize>,
}

/// How far two hosts are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    /// One switch.
    Rack,
    /// Some switches.
    Site,
    /// A wide-area network.
    Far,
}

impl Topology {
    pub fn new(config: &Config, rng: &mut fastrand::Rng) -> Self {
        let racks = config.servers.div_ceil(config.rack).max(1);
        let hosts = config.servers + config.clients;
        let high = |number: usize, rng: &mut fastrand::Rng| {
            let hash = u64::from(rng.u32(..)) | 1 << 31;
            HostId(hash << NUMBER_BITS | number as u64)
        };
        let ids = (0..hosts).map(|number| high(number, rng)).collect();
        let rack_of = |number: usize| match number < config.servers {
            true => number / config.rack,
            false => number % racks,
        };
        Self {
            servers: config.servers,
            rack: config.rack,
            racks,
            sites: config.sites.min(racks),
            ids,
            racks_of: (0..hosts).map(rack_of).collect(),
        }
    }

    pub fn id(&self, node: Node) -> HostId {
        self.ids[node.0]
    }

    /// The host of an id that [`Topology::id`] gave.
    pub fn node(&self, id: HostId) -> Node {
        Node((id.0 & ((1 << NUMBER_BITS) - 1)) as usize)
    }

    /// A host's incarnation, with numbers as long as real ones.
    pub fn incarnation(&self, node: Node, life: u64) -> Incarnation {
        let host = self.id(node);
        Incarnation::new(
            host,
            u128::from(host.0) << 64 | u128::from(u64::MAX - life),
            1_000_000 + life,
        )
    }

    pub fn racks(&self) -> usize {
        self.racks
    }

    pub fn rack_of(&self, node: Node) -> usize {
        self.racks_of[node.0]
    }

    pub fn site_of(&self, rack: usize) -> usize {
        rack * self.sites / self.racks
    }

    /// The numbers of a rack's servers.
    pub fn servers_of(&self, rack: usize) -> Range<usize> {
        rack * self.rack..((rack + 1) * self.rack).min(self.servers)
    }

    /// The ids of a rack's servers.
    pub fn rack_mates(&self, node: Node) -> BTreeSet<HostId> {
        let mates = self.servers_of(self.rack_of(node));
        mates.map(|number| self.id(Node(number))).collect()
    }

    /// The racks of a site.
    pub fn racks_at(&self, site: usize) -> Range<usize> {
        let at = |rack: &usize| self.site_of(*rack) == site;
        let first = (0..self.racks).find(at).unwrap_or(0);
        let count = (first..self.racks).take_while(at).count();
        first..first + count
    }

    pub fn sites(&self) -> usize {
        self.sites
    }

    /// Moves a client to a rack.
    pub fn move_to(&mut self, client: Node, rack: usize) {
        self.racks_of[client.0] = rack;
    }

    pub fn distance(&self, one: Node, other: Node) -> Distance {
        let (one, other) = (self.rack_of(one), self.rack_of(other));
        if one == other {
            Distance::Rack
        } else if self.site_of(one) == self.site_of(other) {
            Distance::Site
        } else {
            Distance::Far
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_is_in_one_rack_and_every_rack_at_one_site() {
        let config = Config::new(1003, 10, 1);
        let topology = Topology::new(&config, &mut fastrand::Rng::with_seed(1));
        let racks: Vec<_> = (0..topology.sites())
            .flat_map(|site| topology.racks_at(site))
            .collect();
        assert_eq!(racks, (0..topology.racks()).collect::<Vec<_>>());
        let servers: Vec<_> = racks
            .into_iter()
            .flat_map(|rack| topology.servers_of(rack))
            .collect();
        assert_eq!(servers, (0..1003).collect::<Vec<_>>());
        assert_eq!(topology.node(topology.id(Node(1012))), Node(1012));
        assert_eq!(topology.distance(Node(0), Node(39)), Distance::Rack);
        assert_eq!(topology.distance(Node(0), Node(40)), Distance::Site);
        assert_eq!(topology.distance(Node(0), Node(1002)), Distance::Far);
    }
}
