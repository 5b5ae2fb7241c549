//! What lies between hosts: delay, loss, partitions, and the link of each host.
//!
//! Rule: two hosts that do not change their place have one delay, so messages between them keep
//! their order, as on one TCP connection, but where a run delays messages at random.

use crate::config::Config;
use crate::topology::{Distance, Node, Topology};
use std::time::Duration;

/// A way within a rack, within a site, and between sites: a switch, some switches, some hundred
/// kilometres. Assumed, and typical; what matters to the policy is that far is poor beside near
/// (`remote_policy::latency`) and that two racks of a site are not.
const ONE_WAY: [Duration; 3] = [
    Duration::from_micros(40),
    Duration::from_micros(60),
    Duration::from_millis(1),
];

/// What a lost segment is late by: Linux' least retransmission timeout.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// What a host sent and received of the protocols of election, update and allocation. What clients
/// send to the servers of their pages is not counted: it is the page path's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub sent: u64,
    pub received: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Traffic {
    pub fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            received_bytes: self.received_bytes - before.received_bytes,
        }
    }

    pub fn messages(self) -> u64 {
        self.sent + self.received
    }

    pub fn bytes(self) -> u64 {
        self.sent_bytes + self.received_bytes
    }
}

/// The network.
pub(crate) struct Network {
    pub topology: Topology,
    /// Hosts of different sides do not reach each other.
    sides: Vec<u32>,
    pub traffic: Vec<Traffic>,
    /// When a host's processor has handled its messages so far.
    busy: Vec<Duration>,
    /// When a host's link has carried its pages so far.
    link: Vec<Duration>,
    cost: Duration,
    link_bytes: u64,
    /// Messages lost, of a thousand.
    pub loss_permille: u32,
    /// The most that a message is delayed in addition.
    pub extra_delay: Duration,
}

impl Network {
    pub fn new(config: &Config, topology: Topology) -> Self {
        let hosts = config.servers + config.clients;
        Self {
            topology,
            sides: vec![0; hosts],
            traffic: vec![Traffic::default(); hosts],
            busy: vec![Duration::ZERO; hosts],
            link: vec![Duration::ZERO; hosts],
            cost: config.message_cost,
            link_bytes: config.link_bytes,
            loss_permille: 0,
            extra_delay: Duration::ZERO,
        }
    }

    pub fn is_reachable(&self, from: Node, to: Node) -> bool {
        self.sides[from.0] == self.sides[to.0]
    }

    pub fn side(&self, node: Node) -> u32 {
        self.sides[node.0]
    }

    pub fn set_side(&mut self, node: Node, side: u32) {
        self.sides[node.0] = side;
    }

    pub fn one_way(&self, from: Node, to: Node) -> Duration {
        let [rack, site, far] = ONE_WAY;
        match self.topology.distance(from, to) {
            Distance::Rack => rack,
            Distance::Site => site,
            Distance::Far => far,
        }
    }

    /// Counts a message of so many bytes, and returns when it arrives; `None` if it is lost. One that
    /// its connection sends again is late instead.
    pub fn send(
        &mut self,
        from: Node,
        to: Node,
        (bytes, is_resent): (u64, bool),
        now: Duration,
        rng: &mut fastrand::Rng,
    ) -> Option<Duration> {
        if !is_resent {
            let traffic = &mut self.traffic[from.0];
            traffic.sent += 1;
            traffic.sent_bytes += bytes;
        }
        let departs = self.busy[from.0].max(now) + self.cost;
        self.busy[from.0] = departs;
        let is_lost = self.loss_permille > 0 && rng.u32(..1000) < self.loss_permille;
        if is_lost && !is_resent || !self.is_reachable(from, to) {
            return None;
        }
        let departs = departs
            + if is_lost {
                RETRANSMISSION
            } else {
                Duration::ZERO
            };
        let extra = self.extra_delay.mul_f64(match self.extra_delay.is_zero() {
            true => 0.0,
            false => rng.f64(),
        });
        Some(departs + self.one_way(from, to) + extra)
    }

    /// A message has arrived. Returns when the host has read it.
    pub fn receive(&mut self, to: Node, counted_bytes: Option<u64>, now: Duration) -> Duration {
        if let Some(bytes) = counted_bytes {
            let traffic = &mut self.traffic[to.0];
            traffic.received += 1;
            traffic.received_bytes += bytes;
        }
        let read = self.busy[to.0].max(now) + self.cost;
        self.busy[to.0] = read;
        read
    }

    /// Puts pages on the links of hosts, and returns when the last byte has passed all of them.
    pub fn transfer(&mut self, hosts: &[Node], bytes: u64, now: Duration) -> Duration {
        let links = hosts.iter().map(|node| self.link[node.0]);
        let start = links.fold(now, Duration::max);
        let end = start + Duration::from_secs_f64(bytes as f64 / self.link_bytes as f64);
        for node in hosts {
            self.link[node.0] = end;
        }
        end
    }

    /// The host began anew.
    pub fn reset(&mut self, node: Node, now: Duration) {
        self.busy[node.0] = now;
        self.link[node.0] = now;
    }
}
