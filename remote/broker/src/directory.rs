//! The hosts that a host knows, and how each is reached.

use crate::protocol::{Cluster, Member};
use remote_policy::identity::{Epoch, HostId};
use std::collections::BTreeMap;

/// Most hosts that are known by their connection alone: those that SWIM has not reported yet.
const MAX_INTRODUCED: usize = 1024;

/// The hosts.
pub struct Directory {
    own: Member,
    /// As the membership has them.
    members: BTreeMap<HostId, Member>,
    /// As they have connected here.
    introduced: BTreeMap<HostId, Member>,
}

impl Directory {
    /// A directory of one host.
    pub fn new(own: Member) -> Self {
        Self {
            own,
            members: BTreeMap::new(),
            introduced: BTreeMap::new(),
        }
    }

    /// This host.
    pub fn own(&self) -> &Member {
        &self.own
    }

    /// The other hosts in reach.
    pub fn hosts(&self) -> Vec<HostId> {
        self.members.keys().copied().collect()
    }

    /// Sets the other hosts in reach.
    pub fn set_members(&mut self, members: Vec<Member>) {
        let members = members.into_iter().map(|member| (member.host(), member));
        self.members = members.collect();
        self.members.remove(&self.own.host());
        let members = &self.members;
        self.introduced
            .retain(|host, _| !members.contains_key(host));
    }

    /// A host has connected: its messages can be answered before the membership has it.
    pub fn add_introduced(&mut self, member: Member) {
        if self.introduced.len() < MAX_INTRODUCED && !self.members.contains_key(&member.host()) {
            self.introduced.insert(member.host(), member);
        }
    }

    /// How a host is reached.
    pub fn find(&self, host: HostId) -> Option<&Member> {
        self.members
            .get(&host)
            .or_else(|| self.introduced.get(&host))
    }

    /// A host's name, for people.
    pub fn name(&self, host: HostId) -> String {
        match self.find(host) {
            Some(member) => format!("{} at {}", member.name, member.paging),
            None if host == self.own.host() => self.own.name.clone(),
            None => host.to_string(),
        }
    }

    /// The hosts and their broker, for clients.
    pub fn cluster(&self, broker: (HostId, Epoch)) -> Cluster {
        let mut members = vec![self.own.clone()];
        members.extend(self.members.values().cloned());
        // A broker that is out of reach is none for a client.
        let is_known = members.iter().any(|member| member.host() == broker.0);
        Cluster {
            broker: is_known.then_some(broker),
            members,
        }
    }
}
