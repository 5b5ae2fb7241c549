//! The state of the model: candidates and the messages between them.

use selfpage_remote_policy::election::{Candidate, ElectionAction, Message, Role};
use selfpage_remote_policy::identity::{Epoch, HostId, Incarnation};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds of a run without faults after which a group must have one broker: it finds its broker
/// silent, regenerates, and each tournament takes a round or two.
pub const ROUNDS: usize = 24;

/// Rounds after an election in which nothing may change: more than either silence lasts.
pub const STABLE_ROUNDS: usize = 5;

/// Faults and ticks that the checker may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub ticks: u8,
    pub losses: u8,
    pub duplicates: u8,
    pub crashes: u8,
    pub partitions: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub hosts: BTreeMap<HostId, Candidate>,
    pub network: BTreeSet<(HostId, HostId, Message)>,
    /// Host 0 and the others do not reach each other.
    pub partitioned: bool,
    pub restarts: u64,
    pub budget: Budget,
    /// Epochs that a broker has led by: no other broker may.
    pub led: BTreeSet<Epoch>,
    /// A rule was broken in the step that led here.
    pub broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Tick(HostId),
    Deliver(HostId, HostId, Message),
    Duplicate(HostId, HostId, Message),
    Lose(HostId, HostId, Message),
    Crash(HostId),
    Restart(HostId),
    Partition(bool),
}

/// A group of so many hosts, at the beginning or after an election.
pub struct Group {
    pub hosts: u64,
    pub elected: bool,
    /// Ticks of every follower without a claim, after the election.
    pub silent: u8,
    pub budget: Budget,
}

pub fn incarnation(host: HostId, boot: u64) -> Incarnation {
    Incarnation::new(host, u128::from(boot), 0)
}

impl State {
    pub fn new(group: &Group) -> Self {
        let mut state = Self {
            hosts: BTreeMap::new(),
            network: BTreeSet::new(),
            partitioned: false,
            restarts: 0,
            budget: group.budget,
            led: BTreeSet::new(),
            broken: None,
        };
        for host in (0..group.hosts).map(HostId) {
            state.start(host, group.hosts);
        }
        if group.elected {
            state.run(ROUNDS);
            assert!(state.is_elected());
            for _ in 0..group.silent {
                for host in state.hosts.clone().into_keys() {
                    if matches!(state.hosts[&host].role(), Role::Follower { .. }) {
                        state.tick(host);
                    }
                }
            }
        }
        state
    }

    pub fn start(&mut self, host: HostId, hosts: u64) {
        let (mut candidate, actions) = Candidate::new(incarnation(host, self.restarts), None);
        candidate.on_membership((0..hosts).map(HostId));
        self.hosts.insert(host, candidate);
        self.carry_out(host, actions);
    }

    pub fn reaches(&self, from: HostId, to: HostId) -> bool {
        !self.partitioned || (from.0 == 0) == (to.0 == 0)
    }

    pub fn carry_out(&mut self, host: HostId, actions: Vec<ElectionAction>) {
        for action in actions {
            match action {
                ElectionAction::Send { to, message } => {
                    self.network.insert((host, to, message));
                }
                ElectionAction::Lead(epoch) => {
                    if epoch.broker.host != host || !self.led.insert(epoch) {
                        self.broken = Some("an epoch is led by twice");
                    }
                }
                ElectionAction::GrantServer(_)
                | ElectionAction::Resign { .. }
                | ElectionAction::DropServer(_) => {}
            }
        }
    }

    pub fn step(
        &mut self,
        host: HostId,
        event: impl FnOnce(&mut Candidate) -> Vec<ElectionAction>,
    ) {
        let Some(candidate) = self.hosts.get_mut(&host) else {
            return;
        };
        let (held, role) = (candidate.held(), candidate.role().clone());
        let actions = event(candidate);
        if candidate.held() < held {
            self.broken = Some("a server's epoch fell");
        }
        if let (Role::Follower { .. }, Role::Broker { servers, .. }) = (&role, candidate.role())
            && servers.len() != 1
        {
            self.broken = Some("a candidate won after it had lost");
        }
        if let Role::Broker { epoch, .. } = candidate.role()
            && *epoch != candidate.held()
        {
            self.broken = Some("a broker does not control its own server");
        }
        self.carry_out(host, actions);
    }

    pub fn tick(&mut self, host: HostId) {
        self.step(host, Candidate::on_tick);
    }

    pub fn deliver(&mut self, from: HostId, to: HostId, message: Message) {
        if self.reaches(from, to) {
            self.step(to, |candidate| candidate.on_message(from, message));
        }
    }

    /// Every message arrives, then every host ticks, again and again.
    pub fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            while let Some((from, to, message)) = self.network.pop_first() {
                self.deliver(from, to, message);
            }
            for host in self.hosts.clone().into_keys() {
                self.tick(host);
            }
        }
        while let Some((from, to, message)) = self.network.pop_first() {
            self.deliver(from, to, message);
        }
    }

    pub fn groups(&self) -> Vec<BTreeSet<HostId>> {
        let (alone, others): (BTreeSet<_>, BTreeSet<_>) = self
            .hosts
            .keys()
            .copied()
            .partition(|host| self.partitioned && host.0 == 0);
        [alone, others]
            .into_iter()
            .filter(|group| !group.is_empty())
            .collect()
    }

    /// Each group has one broker, which controls all of the group's servers and no others.
    pub fn is_elected(&self) -> bool {
        self.groups().iter().all(|group| {
            let brokers: Vec<_> = group
                .iter()
                .filter_map(|host| match self.hosts[host].role() {
                    Role::Broker { epoch, servers } => {
                        Some((epoch, servers.keys().copied().collect::<BTreeSet<_>>()))
                    }
                    Role::Follower { .. } => None,
                })
                .collect();
            let [(epoch, servers)] = &brokers[..] else {
                return false;
            };
            servers == group && group.iter().all(|host| self.hosts[host].held() == **epoch)
        })
    }

    /// A run without faults reaches one broker, and then no server changes hands any more.
    pub fn converges(&self) -> bool {
        let mut future = self.clone();
        let reached = (0..ROUNDS).any(|_| {
            future.run(1);
            future.is_elected()
        });
        let held = |state: &Self| {
            state
                .hosts
                .values()
                .map(Candidate::held)
                .collect::<Vec<_>>()
        };
        let elected = held(&future);
        future.run(STABLE_ROUNDS);
        reached && future.is_elected() && elected == held(&future) && future.broken.is_none()
    }
}
