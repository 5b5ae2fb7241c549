//! The size and the parameters of a simulation.

use disk::atropos::{DiskContract, Utilization};
use disk::time::Nanos;
use remote_policy::capacity::CapacityConfig;
use remote_policy::election::PERIOD;
use serde::Serialize;
use std::time::Duration;

/// What a simulation is made with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Hosts with a paging server and a candidate each.
    pub servers: usize,
    /// Hosts with an organizer each.
    pub clients: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Servers of a rack.
    pub rack: usize,
    /// Sites: their racks are near each other, and far from those of other sites.
    pub sites: usize,
    /// Period of candidates.
    pub period: Duration,
    /// Period of servers' updates to their broker.
    pub update: Duration,
    /// Period in which a client looks at its servers.
    pub beat: Duration,
    /// How long the membership protocol takes to know of a change.
    pub membership: Duration,
    /// A client's wait for an answer of the broker before it sends the request again.
    pub patience: Duration,
    /// Pages of a server: 4 GiB.
    pub owned_pages: u64,
    /// Objects that a client creates when it begins.
    pub objects: usize,
    /// From a client's beginning to its first objects: long enough to measure servers near it.
    pub first_object: Duration,
    /// Mean time between two new objects of a client; the oldest ends for it.
    pub churn: Duration,
    /// What a host spends to send or to receive a message.
    pub message_cost: Duration,
    /// What a host's link carries in a second, in bytes.
    pub link_bytes: u64,
    /// True if a client keeps the copies of an object in different racks.
    pub rack_aware: bool,
}

impl Config {
    /// A simulation of so many hosts.
    pub fn new(servers: usize, clients: usize, seed: u64) -> Self {
        Self {
            servers,
            clients,
            seed,
            rack: (servers / 10).clamp(3, 40),
            sites: 4,
            period: PERIOD,
            update: Duration::from_secs(1),
            beat: Duration::from_secs(1),
            membership: Duration::from_secs(2),
            patience: Duration::from_millis(500),
            owned_pages: 1 << 20,
            objects: 2,
            first_object: Duration::from_secs(4),
            churn: Duration::from_secs(20),
            // A small message in a system call each, and its TLS record: an assumption, above what
            // a loopback round trip of four of them takes.
            message_cost: Duration::from_micros(5),
            // 10 Gbit/s.
            link_bytes: 1_250_000_000,
            rack_aware: true,
        }
    }

    /// How servers lend: as `selfpage serve` does unless it is configured otherwise.
    pub(crate) fn capacity(&self) -> CapacityConfig {
        CapacityConfig {
            lend_above_pages: 0,
            revoke_below_pages: 0,
            lendable_time: Utilization::percent(95),
            lease: Duration::from_secs(60),
            notice: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
        }
    }

    /// What a client asks of a server's time: slack only, since the page path is not simulated.
    pub(crate) fn qos(&self) -> DiskContract {
        DiskContract::new(Nanos::ZERO, Nanos::millis(100)).with_slack()
    }
}
