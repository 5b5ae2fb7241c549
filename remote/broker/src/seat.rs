//! The seat of the broker: what decides which host has it.
//!
//! Rule: a seat decides and does nothing else: what it decides comes out as the election's actions, so that
//! a host does the same for each kind of seat. Whatever a seat decides, each server obeys the highest epoch
//! alone; so a seat that is wrong costs refusals, not promises that cannot be kept.

use remote_policy::election::{Candidate, ElectionAction, Message, Role};
use remote_policy::identity::{Epoch, HostId, Incarnation};

/// Decides which host has the broker, together with the seats of the other hosts.
///
/// The tournament needs nothing but the hosts. A seat in a store of others (a lease of etcd or of Kubernetes)
/// has the leader's [`ElectionAction::Lead`] with the store's revision as the epoch's number, has it claim
/// the members' servers by [`Message::Claim`], and has it resign with its lease.
pub trait Seat: Send {
    /// The other hosts in reach.
    fn on_membership(&mut self, hosts: &[HostId]) -> Vec<ElectionAction>;
    /// A period has passed, in which this host's process had a processor.
    fn on_tick(&mut self) -> Vec<ElectionAction>;
    /// Signs of life are due, and the silence of others counts for nothing.
    fn repeat_signs(&mut self) -> Vec<ElectionAction>;
    /// The process of another host has ended.
    fn on_host_gone(&mut self, host: HostId) -> Vec<ElectionAction>;
    /// A message of another host's seat.
    fn on_message(&mut self, from: HostId, message: Message) -> Vec<ElectionAction>;
    /// The broker that this host's server obeys, or is about to.
    fn broker(&self) -> (HostId, Epoch);
}

/// The tournament of *Adaptive Remote Paging for Mobile Computers*, section 3.5.1.
pub struct Tournament(Candidate);

impl Tournament {
    /// The seat of a host that has just started, and what it does first.
    pub fn new(server: Incarnation) -> (Self, Vec<ElectionAction>) {
        let (candidate, actions) = Candidate::new(server, None);
        (Self(candidate), actions)
    }
}

impl Seat for Tournament {
    fn on_membership(&mut self, hosts: &[HostId]) -> Vec<ElectionAction> {
        self.0.on_membership(hosts.iter().copied());
        Vec::new()
    }

    fn on_tick(&mut self) -> Vec<ElectionAction> {
        self.0.on_tick()
    }

    fn repeat_signs(&mut self) -> Vec<ElectionAction> {
        self.0.repeat_signs()
    }

    fn on_host_gone(&mut self, host: HostId) -> Vec<ElectionAction> {
        self.0.on_host_gone(host)
    }

    fn on_message(&mut self, from: HostId, message: Message) -> Vec<ElectionAction> {
        self.0.on_message(from, message)
    }

    fn broker(&self) -> (HostId, Epoch) {
        match self.0.role() {
            Role::Broker { epoch, .. } => (self.0.host(), *epoch),
            Role::Follower { broker, .. } => (*broker, self.0.held()),
        }
    }
}
