//! A host's part in an election that a lease in a store decides: etcd, or a Kubernetes Lease.
//!
//! The holder of the lease is broker. Its epoch has the store's revision as number, and all hosts in reach
//! are claimed, where the tournament takes servers over two candidates at a time.
//!
//! Rule: the store elects, the epochs protect. A broker that lost its lease, or cannot reach the store, goes
//! on until it learns of another one; a server obeys the highest epoch alone, so the earlier broker is refused
//! where the later one has claimed, and an outage of the store costs no allocation. Where servers hold an epoch
//! above the store's revision, as after the store lost its data, the holder raises its epoch above it, once the
//! store has confirmed the lease. A broker that has lost half of the hosts that it knew, and not by the end of their
//! processes, offers its lease once: one that is cut off from the others, and not from the store, is replaced, and one
//! whose offer no host takes goes on.

use super::{ElectionAction, Message, SERVER_SILENCE_TICKS};
use crate::identity::{Epoch, HostId, Incarnation};
use std::collections::{BTreeMap, BTreeSet};

/// Ticks without the servers of half of the hosts after which a broker offers its lease: 4 s, within which the store ends
/// the lease of a broker that is cut off from the store, too.
const OFFER_TICKS: u8 = 10;

/// Something for the daemon to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeasedAction {
    /// What any election has done.
    Election(ElectionAction),
    /// Confirm in the store that this host holds the lease, and if so elect it with a number above this one.
    ConfirmAbove(u64),
    /// The process of this host has ended: if it holds the lease, end that.
    EndLeaseOf(HostId),
    /// Give the lease back, and take it again where no other host does.
    OfferLease,
}

/// What a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LeasedRole {
    /// It holds the lease, as far as it knows.
    Leader {
        epoch: Epoch,
        /// The servers, and the ticks since each answered last.
        servers: BTreeMap<HostId, u8>,
        /// Ticks since it has had more than half of the hosts.
        minority_ticks: u8,
    },
    /// Another host does.
    Follower { broker: HostId },
    /// The holder is not known.
    Vacant,
}

/// The candidate of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedCandidate {
    incarnation: Incarnation,
    /// The epoch that this host's server is granted to.
    held: Epoch,
    role: LeasedRole,
    peers: BTreeSet<HostId>,
    /// Hosts that were in reach at once, this one included; after an offer of the lease those that it then had.
    known_hosts: usize,
}

impl LeasedCandidate {
    /// A candidate that knows of no broker.
    pub fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            held: Epoch {
                number: 0,
                broker: incarnation,
            },
            role: LeasedRole::Vacant,
            peers: BTreeSet::new(),
            known_hosts: 1,
        }
    }

    /// The broker that this host's server obeys, or is about to.
    pub fn broker(&self) -> Option<(HostId, Epoch)> {
        match &self.role {
            LeasedRole::Leader { epoch, .. } => Some((epoch.broker.host, *epoch)),
            LeasedRole::Follower { broker } => Some((*broker, self.held)),
            LeasedRole::Vacant => None,
        }
    }

    /// The epoch that its host's server is granted to.
    pub fn held(&self) -> Epoch {
        self.held
    }

    /// The epoch of the broker that this host is, and its servers.
    pub fn leads(&self) -> Option<(Epoch, impl Iterator<Item = HostId> + '_)> {
        match &self.role {
            LeasedRole::Leader { epoch, servers, .. } => Some((*epoch, servers.keys().copied())),
            _ => None,
        }
    }

    /// Returns true if this host is broker, and has a host's server.
    pub fn has_server(&self, host: HostId) -> bool {
        matches!(&self.role, LeasedRole::Leader { servers, .. } if servers.contains_key(&host))
    }

    /// Sets the other hosts in reach. A broker claims those that are new at once.
    pub fn on_membership(&mut self, hosts: impl IntoIterator<Item = HostId>) -> Vec<LeasedAction> {
        let own = self.incarnation.host;
        let hosts: BTreeSet<_> = hosts.into_iter().filter(|host| *host != own).collect();
        let before = std::mem::replace(&mut self.peers, hosts);
        if !self.peers.is_subset(&before) {
            self.known_hosts = self.known_hosts.max(self.peers.len() + 1);
        }
        self.claims(self.peers.difference(&before))
    }

    /// The store has this host for the holder of the lease, under this revision or above.
    pub fn on_elected(&mut self, number: u64) -> Vec<LeasedAction> {
        let epoch = Epoch {
            number,
            broker: self.incarnation,
        };
        if epoch <= self.held && self.held.broker != self.incarnation {
            return vec![LeasedAction::ConfirmAbove(self.held.number)];
        }
        // It held a later one of its own: that one goes on.
        let epoch = epoch.max(self.held);
        let servers = match &mut self.role {
            LeasedRole::Leader { servers, .. } => std::mem::take(servers),
            _ => BTreeMap::from([(self.incarnation.host, 0)]),
        };
        self.role = LeasedRole::Leader {
            epoch,
            servers,
            minority_ticks: 0,
        };
        self.held = epoch;
        let mut actions = elected([
            ElectionAction::Lead(epoch),
            ElectionAction::GrantServer(epoch),
        ]);
        actions.extend(self.claims(&self.peers));
        actions
    }

    /// The store has another host for the holder of the lease.
    pub fn on_leader(&mut self, broker: HostId) -> Vec<LeasedAction> {
        let follower = LeasedRole::Follower { broker };
        match std::mem::replace(&mut self.role, follower) {
            LeasedRole::Leader { .. } => elected([ElectionAction::Resign { winner: broker }]),
            _ => Vec::new(),
        }
    }

    /// A period has passed: a broker claims the servers of all hosts again.
    pub fn on_tick(&mut self) -> Vec<LeasedAction> {
        let mut actions = Vec::new();
        let own = self.incarnation.host;
        if let LeasedRole::Leader {
            servers,
            minority_ticks,
            ..
        } = &mut self.role
        {
            servers.retain(|server, silent_ticks| {
                if *server == own {
                    return true;
                }
                *silent_ticks += 1;
                let kept = *silent_ticks < SERVER_SILENCE_TICKS;
                if !kept {
                    actions.extend(elected([ElectionAction::DropServer(*server)]));
                }
                kept
            });
            let has_majority = servers.len() * 2 > self.known_hosts;
            *minority_ticks = if has_majority { 0 } else { *minority_ticks + 1 };
            if *minority_ticks == OFFER_TICKS {
                // Those that are away may have ended, and then no host takes it.
                (*minority_ticks, self.known_hosts) = (0, servers.len());
                actions.push(LeasedAction::OfferLease);
            }
        }
        actions.extend(self.repeat_signs());
        actions
    }

    /// Repeats the claims, and counts no silence.
    pub fn repeat_signs(&self) -> Vec<LeasedAction> {
        self.claims(&self.peers)
    }

    /// The process of another host has ended: its kernel refuses connections.
    pub fn on_host_gone(&mut self, host: HostId) -> Vec<LeasedAction> {
        if self.peers.remove(&host) {
            self.known_hosts = self.known_hosts.saturating_sub(1).max(1);
        }
        match &mut self.role {
            LeasedRole::Leader { servers, .. } if host != self.incarnation.host => {
                let dropped = servers.remove(&host);
                elected(dropped.map(|_| ElectionAction::DropServer(host)))
            }
            LeasedRole::Follower { broker } if *broker == host => {
                self.role = LeasedRole::Vacant;
                vec![LeasedAction::EndLeaseOf(host)]
            }
            _ => Vec::new(),
        }
    }

    /// A message has arrived. Those of the tournament are not for this election, and change nothing.
    pub fn on_message(&mut self, from: HostId, message: &Message) -> Vec<LeasedAction> {
        match message {
            Message::Claim { epoch } => self.on_claim(from, *epoch),
            Message::Granted { epoch } => self.on_granted(from, *epoch),
            Message::Rejected { held } => self.on_rejected(from, *held),
            Message::Bid(_) | Message::Redirect { .. } | Message::Concede { .. } => Vec::new(),
        }
    }

    fn on_claim(&mut self, from: HostId, epoch: Epoch) -> Vec<LeasedAction> {
        // An epoch is its broker's alone to claim with.
        if epoch.broker.host != from || from == self.incarnation.host {
            return Vec::new();
        }
        let reply = |message| ElectionAction::Send { to: from, message };
        if epoch < self.held {
            return elected([reply(Message::Rejected { held: self.held })]);
        }
        let mut actions = Vec::new();
        if let LeasedRole::Leader { .. } = self.role {
            // The store knows which of the two has the lease.
            actions.extend(elected([ElectionAction::Resign { winner: from }]));
            actions.push(LeasedAction::ConfirmAbove(epoch.number));
        }
        self.role = LeasedRole::Follower { broker: from };
        if epoch > self.held {
            self.held = epoch;
            actions.extend(elected([ElectionAction::GrantServer(epoch)]));
        }
        actions.extend(elected([reply(Message::Granted { epoch })]));
        actions
    }

    fn on_granted(&mut self, from: HostId, granted: Epoch) -> Vec<LeasedAction> {
        if let LeasedRole::Leader { epoch, servers, .. } = &mut self.role
            && granted.broker == epoch.broker
        {
            servers.insert(from, 0);
        }
        Vec::new()
    }

    fn on_rejected(&mut self, from: HostId, held: Epoch) -> Vec<LeasedAction> {
        let LeasedRole::Leader { epoch, servers, .. } = &mut self.role else {
            return Vec::new();
        };
        if held <= *epoch || from == self.incarnation.host {
            return Vec::new();
        }
        let dropped = servers.remove(&from);
        let mut actions = elected(dropped.map(|_| ElectionAction::DropServer(from)));
        actions.push(LeasedAction::ConfirmAbove(held.number));
        actions
    }

    fn claims<'a>(&self, hosts: impl IntoIterator<Item = &'a HostId>) -> Vec<LeasedAction> {
        let LeasedRole::Leader { epoch, .. } = &self.role else {
            return Vec::new();
        };
        let message = Message::Claim { epoch: *epoch };
        let claim = |to: &HostId| ElectionAction::Send {
            to: *to,
            message: message.clone(),
        };
        elected(hosts.into_iter().map(claim))
    }
}

fn elected(actions: impl IntoIterator<Item = ElectionAction>) -> Vec<LeasedAction> {
    let actions = actions.into_iter();
    actions.map(LeasedAction::Election).collect()
}
