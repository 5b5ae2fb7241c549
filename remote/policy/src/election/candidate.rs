//! A host's part in the tournament.
//!
//! Rule: a candidate leaves its role of broker only by conceding, and returns to it only by
//! regeneration, with an epoch above the one that its server was granted to.

use super::{BROKER_SILENCE_TICKS, Bid, ElectionAction, Message, PeerList, SERVER_SILENCE_TICKS};
use crate::identity::{Epoch, HostId, Incarnation};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a candidate is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It controls servers, and bids for more.
    Broker {
        /// Its epoch.
        epoch: Epoch,
        /// The servers, and the ticks since each answered last. Its own is always among them.
        servers: BTreeMap<HostId, u8>,
    },
    /// Another broker controls, or is to control, its server.
    Follower {
        /// The other broker.
        broker: HostId,
        /// Ticks since its last claim.
        silent_ticks: u8,
    },
}

/// The candidate of one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    pub(super) incarnation: Incarnation,
    /// The epoch that this host's server is granted to.
    held: Epoch,
    pub(super) role: Role,
    /// The hosts in reach; its own may be among them, and is controlled by itself.
    pub(super) peers: Arc<PeerList>,
    /// The peer that was bid to last.
    pub(super) last_bid: Option<HostId>,
    /// Hosts that redirects led to since the last tick.
    pub(super) redirected_to: BTreeSet<HostId>,
    /// Servers that were silent for too long, and that no other broker is known to have.
    pub(super) given_up: BTreeSet<HostId>,
}

impl Candidate {
    /// A candidate that controls its own server. `held` is the epoch that an earlier incarnation's
    /// server was granted to, where the server outlived it.
    pub fn new(incarnation: Incarnation, held: Option<Epoch>) -> (Self, Vec<ElectionAction>) {
        let initial = Epoch {
            number: 0,
            broker: incarnation,
        };
        let host = incarnation.host;
        let mut candidate = Self {
            incarnation,
            held: held.unwrap_or(initial),
            role: Role::Follower {
                broker: host,
                silent_ticks: 0,
            },
            peers: Arc::default(),
            last_bid: None,
            redirected_to: BTreeSet::new(),
            given_up: BTreeSet::new(),
        };
        let mut actions = Vec::new();
        candidate.regenerate(&mut actions);
        (candidate, actions)
    }

    /// Its host.
    pub fn host(&self) -> HostId {
        self.incarnation.host
    }

    /// Its role.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The epoch that its host's server is granted to.
    pub fn held(&self) -> Epoch {
        self.held
    }

    /// Sets the other hosts in reach, as the membership protocol has them, in the order in which they are bid to: first
    /// those that are the most sure to be there.
    pub fn on_membership(&mut self, hosts: impl IntoIterator<Item = HostId>) {
        self.share_membership(Arc::new(hosts.into_iter().collect()));
    }

    /// Likewise. Candidates of one process, as in a simulation, share the list.
    pub fn share_membership(&mut self, hosts: Arc<PeerList>) {
        let is_left = |host| hosts.contains(host);
        self.last_bid = self.peers.place_of_round(self.last_bid, is_left);
        self.peers = hosts;
    }

    /// A period has passed: a broker claims its servers again and bids to one peer that it does
    /// not control; a follower listens for its broker's claims.
    pub fn on_tick(&mut self) -> Vec<ElectionAction> {
        let mut actions = Vec::new();
        match &mut self.role {
            Role::Broker { .. } => {
                self.drop_silent_servers(&mut actions);
                self.claim_servers(&mut actions);
                self.bid_to_peers(&mut actions);
            }
            Role::Follower { silent_ticks, .. } => {
                *silent_ticks += 1;
                if *silent_ticks >= BROKER_SILENCE_TICKS {
                    self.regenerate(&mut actions);
                }
            }
        }
        actions
    }

    /// Repeats the signs of life and bids that a tick has, and counts no silence: between two ticks, or
    /// after a period in which this host's process had no processor, so that silence says nothing.
    pub fn repeat_signs(&mut self) -> Vec<ElectionAction> {
        let mut actions = Vec::new();
        if let Role::Broker { .. } = self.role {
            self.claim_servers(&mut actions);
            self.bid_to_peers(&mut actions);
        }
        actions
    }

    /// The process of another host has ended: its kernel refuses connections. What the host's silence shows
    /// after some ticks takes none, so this is no more than these ticks at once.
    pub fn on_host_gone(&mut self, host: HostId) -> Vec<ElectionAction> {
        let mut actions = Vec::new();
        let is_left = |other| other != host;
        self.last_bid = self.peers.place_of_round(self.last_bid, is_left);
        Arc::make_mut(&mut self.peers).remove(host);
        match &mut self.role {
            Role::Follower { broker, .. } if *broker == host => {
                self.regenerate(&mut actions);
                self.bid_to_next_peer(&mut actions);
            }
            Role::Broker { servers, .. } if host != self.incarnation.host => {
                let dropped = servers.remove(&host);
                actions.extend(dropped.map(|_| ElectionAction::DropServer(host)));
            }
            _ => {}
        }
        actions
    }

    /// A message has arrived.
    pub fn on_message(&mut self, from: HostId, message: Message) -> Vec<ElectionAction> {
        let mut actions = Vec::new();
        match message {
            Message::Bid(bid) => self.on_bid(from, bid, &mut actions),
            Message::Redirect { broker } => {
                self.given_up.remove(&from);
                self.on_redirect(broker, &mut actions);
            }
            Message::Concede {
                loser,
                epoch,
                servers,
            } => self.on_concede(from, loser, epoch, servers, &mut actions),
            Message::Claim { epoch } => self.on_claim(from, epoch, &mut actions),
            Message::Granted { epoch } => self.on_granted(from, epoch, &mut actions),
            Message::Rejected { held } => self.on_rejected(from, held, &mut actions),
        }
        actions
    }

    fn on_bid(&mut self, from: HostId, bid: Bid, actions: &mut Vec<ElectionAction>) {
        // A bid names its maker: a copy that came by another way is none.
        if bid.host() != from || from == self.host() {
            return;
        }
        self.given_up.remove(&from);
        match &self.role {
            // Its broker has given this server up, which was silent: it holds the server still, and takes it
            // back. Without this the server would regenerate, and have the broker raise its epoch for all.
            Role::Follower { broker, .. } if *broker == from => {
                if self.held.broker.host == from {
                    let message = Message::Granted { epoch: self.held };
                    actions.push(ElectionAction::Send { to: from, message });
                }
            }
            Role::Follower { broker, .. } => {
                let message = Message::Redirect { broker: *broker };
                actions.push(ElectionAction::Send { to: from, message });
            }
            Role::Broker { servers, .. } => {
                let own = Bid::new(self.incarnation.host, servers.len());
                if bid > own {
                    self.concede(from, actions);
                } else {
                    let message = Message::Bid(own);
                    actions.push(ElectionAction::Send { to: from, message });
                }
            }
        }
    }

    /// Bids to a host once between two ticks: of two followers of each other each leads to the other.
    fn on_redirect(&mut self, broker: HostId, actions: &mut Vec<ElectionAction>) {
        if let Role::Broker { servers, .. } = &self.role
            && broker != self.incarnation.host
            && self.redirected_to.insert(broker)
        {
            let message = Message::Bid(Bid::new(self.incarnation.host, servers.len()));
            actions.push(ElectionAction::Send {
                to: broker,
                message,
            });
        }
    }

    fn on_concede(
        &mut self,
        from: HostId,
        loser: HostId,
        lost: Epoch,
        conceded: BTreeSet<HostId>,
        actions: &mut Vec<ElectionAction>,
    ) {
        match &mut self.role {
            Role::Broker { epoch, servers } => {
                let mut new = conceded;
                new.insert(loser);
                servers.extend(new.iter().map(|server| (*server, 0)));
                if lost > *epoch {
                    *epoch = lost.next(self.incarnation);
                    let epoch = *epoch;
                    actions.push(ElectionAction::Lead(epoch));
                    self.grant_own_server(epoch, actions);
                    self.claim_servers(actions);
                } else {
                    // The others are claimed already: with each of many concessions to claim them
                    // again is a square of messages.
                    let epoch = *epoch;
                    self.send_claims(epoch, &new, actions);
                }
            }
            // No win after a loss. A concession is passed on once at most: of two candidates that
            // each lost to the other, neither is a broker, and both regenerate.
            Role::Follower { broker, .. } if from == loser && *broker != loser => {
                let to = *broker;
                let servers = conceded;
                let message = Message::Concede {
                    loser,
                    epoch: lost,
                    servers,
                };
                actions.push(ElectionAction::Send { to, message });
            }
            Role::Follower { .. } => {}
        }
    }

    fn on_claim(&mut self, from: HostId, epoch: Epoch, actions: &mut Vec<ElectionAction>) {
        let to = from;
        // An epoch is its broker's alone to claim with.
        if epoch.broker.host != from || from == self.host() {
            return;
        }
        if epoch < self.held {
            let message = Message::Rejected { held: self.held };
            actions.push(ElectionAction::Send { to, message });
            return;
        }
        if let Role::Broker { .. } = self.role {
            // The claim won this host's server by its epoch: to keep the others would be a
            // second broker for no one's good.
            self.concede(from, actions);
        }
        self.role = Role::Follower {
            broker: from,
            silent_ticks: 0,
        };
        if epoch > self.held {
            self.held = epoch;
            actions.push(ElectionAction::GrantServer(epoch));
        }
        let message = Message::Granted { epoch };
        actions.push(ElectionAction::Send { to, message });
    }

    fn on_granted(&mut self, from: HostId, granted: Epoch, actions: &mut Vec<ElectionAction>) {
        if let Role::Broker { epoch, servers } = &mut self.role
            && granted.broker == epoch.broker
        {
            // One that was given up is back, with this epoch or an earlier one of this broker: a claim raises
            // it, or finds that another broker has the server, and comes before the server has missed too many.
            let is_back = servers.insert(from, 0).is_none();
            if is_back {
                let epoch = *epoch;
                self.send_claims(epoch, &BTreeSet::from([from]), actions);
            }
        }
    }

    fn on_rejected(&mut self, from: HostId, held: Epoch, actions: &mut Vec<ElectionAction>) {
        if let Role::Broker { epoch, servers } = &mut self.role
            && held > *epoch
            && from != self.incarnation.host
            && servers.remove(&from).is_some()
        {
            actions.push(ElectionAction::DropServer(from));
        }
    }

    fn concede(&mut self, winner: HostId, actions: &mut Vec<ElectionAction>) {
        let follower = Role::Follower {
            broker: winner,
            silent_ticks: 0,
        };
        self.given_up.clear();
        let Role::Broker { epoch, servers } = std::mem::replace(&mut self.role, follower) else {
            return;
        };
        let message = Message::Concede {
            loser: self.host(),
            epoch,
            servers: servers.into_keys().collect(),
        };
        actions.push(ElectionAction::Resign { winner });
        actions.push(ElectionAction::Send {
            to: winner,
            message,
        });
    }

    fn regenerate(&mut self, actions: &mut Vec<ElectionAction>) {
        let epoch = self.held.next(self.incarnation);
        self.role = Role::Broker {
            epoch,
            servers: BTreeMap::from([(self.host(), 0)]),
        };
        self.last_bid = None;
        self.given_up.clear();
        actions.push(ElectionAction::Lead(epoch));
        self.grant_own_server(epoch, actions);
    }

    fn grant_own_server(&mut self, epoch: Epoch, actions: &mut Vec<ElectionAction>) {
        self.held = epoch;
        actions.push(ElectionAction::GrantServer(epoch));
    }

    fn drop_silent_servers(&mut self, actions: &mut Vec<ElectionAction>) {
        let own = self.host();
        let Role::Broker { servers, .. } = &mut self.role else {
            return;
        };
        servers.retain(|server, silent_ticks| {
            if *server == own {
                return true;
            }
            *silent_ticks += 1;
            let kept = *silent_ticks < SERVER_SILENCE_TICKS;
            if !kept {
                actions.push(ElectionAction::DropServer(*server));
                self.given_up.insert(*server);
            }
            kept
        });
    }

    fn claim_servers(&self, actions: &mut Vec<ElectionAction>) {
        if let Role::Broker { epoch, servers } = &self.role {
            self.send_claims(*epoch, servers.keys(), actions);
        }
    }

    fn send_claims<'a>(
        &self,
        epoch: Epoch,
        servers: impl IntoIterator<Item = &'a HostId>,
        actions: &mut Vec<ElectionAction>,
    ) {
        let others = servers.into_iter().filter(|server| **server != self.host());
        actions.extend(others.map(|server| ElectionAction::Send {
            to: *server,
            message: Message::Claim { epoch },
        }));
    }
}
