//! The hosts that a host knows, and how each is reached.

use crate::protocol::{Cluster, Member};
use remote_policy::identity::{Epoch, HostId, Incarnation};
use std::collections::BTreeMap;

/// Most hosts that are known by their connection alone: those that SWIM has not reported yet.
const MAX_CONNECTED: usize = 1024;

/// The hosts.
pub struct Directory {
    own: Member,
    /// As the membership has them.
    members: BTreeMap<HostId, Member>,
    /// As they have connected here, and how many connections each has.
    connected: BTreeMap<HostId, (Member, usize)>,
    /// Lives of hosts that have ended, which the membership may not have found out yet.
    ended: BTreeMap<HostId, Incarnation>,
}

impl Directory {
    /// A directory of one host.
    pub fn new(own: Member) -> Self {
        Self {
            own,
            members: BTreeMap::new(),
            connected: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    /// This host.
    pub fn own(&self) -> &Member {
        &self.own
    }

    /// The other hosts in reach.
    pub fn hosts(&self) -> Vec<HostId> {
        self.others().map(Member::host).collect()
    }

    /// A host that is connected is in reach, whatever its datagrams say.
    fn others(&self) -> impl Iterator<Item = &Member> {
        let connected = self.connected.values().map(|(member, _)| member);
        let members = self.members.values();
        let is_alone = |member: &&Member| !self.connected.contains_key(&member.host());
        connected.chain(members.filter(is_alone))
    }

    /// Sets the other hosts in reach.
    pub fn set_members(&mut self, members: Vec<Member>) {
        let members = members.into_iter().map(|member| (member.host(), member));
        self.members = members.collect();
        self.members.remove(&self.own.host());
        let (members, ended) = (&mut self.members, &mut self.ended);
        // What is forgotten there need not be remembered here.
        ended.retain(|host, life| {
            let is_late = |member: &Member| member.server == *life;
            members.get(host).is_some_and(is_late)
        });
        members.retain(|host, _| !ended.contains_key(host));
    }

    /// A host has connected.
    pub fn on_connected(&mut self, member: Member) {
        let host = member.host();
        self.ended.remove(&host);
        let is_refused = host == self.own.host() || self.connected.len() >= MAX_CONNECTED;
        match self.connected.get_mut(&host) {
            Some((known, count)) => (*known, *count) = (member, *count + 1),
            None if is_refused => {}
            None => _ = self.connected.insert(host, (member, 1)),
        }
    }

    /// A connection of a host has ended.
    pub fn on_disconnected(&mut self, host: HostId) {
        if let Some((_, count)) = self.connected.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.connected.remove(&host);
            }
        }
    }

    /// This life of a host has ended.
    pub fn on_ended(&mut self, host: HostId) {
        if let Some(member) = self.find(host).cloned() {
            self.connected.remove(&host);
            self.members.remove(&host);
            self.ended.insert(host, member.server);
        }
    }

    /// How a host is reached. What it says by its connection is its own word; any host can forge datagrams.
    pub fn find(&self, host: HostId) -> Option<&Member> {
        let connected = self.connected.get(&host).map(|(member, _)| member);
        connected.or_else(|| self.members.get(&host))
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
        members.extend(self.others().cloned());
        // A broker that is out of reach is none for a client.
        let is_known = members.iter().any(|member| member.host() == broker.0);
        Cluster {
            broker: is_known.then_some(broker),
            members,
        }
    }
}
