//! Leases: how long a server keeps an incarnation's permits without word of it.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.5, where a permit is destroyed
//! when its client reboots. A client that leaves for good sends no message, so time ends its
//! permits, too. Rule: one lease per client covers all its permits, and any request renews it, so
//! that renewal needs neither a message of its own nor the broker.

use crate::identity::{HostId, Incarnation};
use std::collections::BTreeMap;
use std::time::Duration;

/// The leases of one server's clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseTable {
    term: Duration,
    leases: BTreeMap<HostId, Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    client: Incarnation,
    until: Duration,
    /// The incarnation before this one, whose late requests are refused. Earlier ones than that
    /// have no connection any more.
    ended: Option<Incarnation>,
}

/// What a request means for its sender's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease runs on, or begins.
    Renewed,
    /// A new incarnation of the client: the permits of `ended` are void.
    Replaced {
        /// The earlier incarnation.
        ended: Incarnation,
    },
    /// The request is a late one of an incarnation that has ended.
    Ended,
}

impl LeaseTable {
    /// A table of leases that run for `term` after each request.
    pub fn new(term: Duration) -> Self {
        Self {
            term,
            leases: BTreeMap::new(),
        }
    }

    /// Renews the lease of a request's sender.
    pub fn renew(&mut self, client: Incarnation, now: Duration) -> Renewal {
        let until = now.saturating_add(self.term);
        let Some(lease) = self.leases.get_mut(&client.host) else {
            let ended = None;
            let lease = Lease {
                client,
                until,
                ended,
            };
            self.leases.insert(client.host, lease);
            return Renewal::Renewed;
        };
        let earlier =
            lease.client.boot == client.boot && client.start_ticks < lease.client.start_ticks;
        if lease.client == client {
            // Time never goes back for a lease, whatever the order of its requests.
            lease.until = lease.until.max(until);
            Renewal::Renewed
        } else if earlier || lease.ended == Some(client) {
            Renewal::Ended
        } else {
            let ended = lease.client;
            *lease = Lease {
                client,
                until,
                ended: Some(ended),
            };
            Renewal::Replaced { ended }
        }
    }

    /// The incarnation of a client's that has a lease.
    pub fn holder(&self, client: HostId) -> Option<Incarnation> {
        self.leases.get(&client).map(|lease| lease.client)
    }

    /// When a client's lease runs out: `None` where it has none, or has restarted since.
    pub fn until(&self, client: Incarnation) -> Option<Duration> {
        let lease = self.leases.get(&client.host);
        let lease = lease.filter(|lease| lease.client == client)?;
        Some(lease.until)
    }

    /// Has all leases run out later by some time, in which requests may have come that are not read yet.
    pub fn put_off(&mut self, by: Duration) {
        for lease in self.leases.values_mut() {
            lease.until = lease.until.saturating_add(by);
        }
    }

    /// Removes and returns the incarnations whose leases have run out.
    pub fn expire(&mut self, now: Duration) -> Vec<Incarnation> {
        let expired = |lease: &&Lease| lease.until <= now;
        let ended: Vec<_> = self
            .leases
            .values()
            .filter(expired)
            .map(|lease| lease.client)
            .collect();
        self.leases.retain(|_, lease| lease.until > now);
        ended
    }

    /// When the first lease runs out.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.until).min()
    }
}
