//! The hosts that a host knows, and how each is reached.

use crate::protocol::{Cluster, Member};
use remote_policy::identity::{Epoch, HostId, Incarnation};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Most hosts that are known by their connection alone: those that SWIM has not reported yet.
const MAX_CONNECTED: usize = 1024;

/// How long a host that is connected, and that SWIM does not have, may send nothing: one that is stopped keeps its
/// connections.
const QUIET: Duration = Duration::from_secs(3);

/// How long the servers of an epoch may take to connect to its broker.
const CONNECT_TIME: Duration = Duration::from_secs(3);

/// A host with connections.
struct ConnectedHost {
    member: Member,
    /// The numbers of its connections.
    links: BTreeSet<u64>,
    heard: Instant,
}

/// A host that the membership has.
struct ListedHost {
    member: Member,
    /// The number of the report that listed it first.
    since: u64,
}

/// The hosts.
pub struct Directory {
    own: Member,
    /// As the membership has them.
    members: BTreeMap<HostId, ListedHost>,
    /// Reports of the membership until now.
    reports: u64,
    /// As they have connected here.
    connected: BTreeMap<HostId, ConnectedHost>,
    /// Lives of hosts that have ended, which the membership may not have found out yet.
    ended: BTreeMap<HostId, Incarnation>,
    /// When this host became broker of its epoch.
    leads_since: Option<Instant>,
}

impl Directory {
    /// A directory of one host.
    pub fn new(own: Member) -> Self {
        Self {
            own,
            members: BTreeMap::new(),
            reports: 0,
            connected: BTreeMap::new(),
            ended: BTreeMap::new(),
            leads_since: None,
        }
    }

    /// This host.
    pub fn own(&self) -> &Member {
        &self.own
    }

    /// This host is reached at other addresses now.
    pub fn set_own(&mut self, own: Member) {
        self.own = own;
    }

    /// The other hosts in reach: first those that are connected, then those that the membership has had for the longest
    /// time. In the clear any host can have datagrams name a thousand that are not there, and the membership takes
    /// minutes to find that out; those that it had before are not to be looked for among these.
    pub fn hosts(&self) -> Vec<HostId> {
        self.others().map(Member::host).collect()
    }

    /// A host that sends by its connection is in reach, whatever datagrams say of it.
    fn others(&self) -> impl Iterator<Item = &Member> {
        let is_there = |it: &&ConnectedHost| {
            it.heard.elapsed() < QUIET || self.members.contains_key(&it.member.host())
        };
        let connected = self.connected.values().filter(is_there);
        let connected = connected.map(|it| &it.member);
        let is_alone = |(host, _): &(&HostId, _)| !self.connected.contains_key(host);
        let listed = self.members.iter().filter(is_alone);
        let mut listed: Vec<_> = listed.map(|(_, it)| it).collect();
        listed.sort_by_key(|it| it.since);
        connected.chain(listed.into_iter().map(|it| &it.member))
    }

    /// Sets the other hosts in reach.
    pub fn set_members(&mut self, mut members: Vec<Member>) {
        // Of two introductions of a host the later one counts: it is at another address now.
        members.sort_by_key(|member| member.since);
        let before = std::mem::take(&mut self.members);
        self.reports += 1;
        self.members.extend(members.into_iter().map(|member| {
            let host = member.host();
            let since = before.get(&host).map_or(self.reports, |it| it.since);
            (host, ListedHost { member, since })
        }));
        self.members.remove(&self.own.host());
        let (members, ended) = (&mut self.members, &mut self.ended);
        // What is forgotten there need not be remembered here.
        ended.retain(|host, life| {
            let is_late = |it: &ListedHost| it.member.server == *life;
            members.get(host).is_some_and(is_late)
        });
        members.retain(|host, _| !ended.contains_key(host));
    }

    /// A host has connected.
    pub fn on_connected(&mut self, member: Member, link: u64) {
        let host = member.host();
        self.ended.remove(&host);
        let is_refused = host == self.own.host() || self.connected.len() >= MAX_CONNECTED;
        let heard = Instant::now();
        match self.connected.get_mut(&host) {
            Some(known) => {
                (known.member, known.heard) = (member, heard);
                known.links.insert(link);
            }
            None if is_refused => {}
            None => {
                let connected = ConnectedHost {
                    member,
                    links: BTreeSet::from([link]),
                    heard,
                };
                self.connected.insert(host, connected);
            }
        }
    }

    /// A host has sent a message.
    pub fn on_message(&mut self, host: HostId) {
        if let Some(known) = self.connected.get_mut(&host) {
            known.heard = Instant::now();
        }
    }

    /// A connection of a host has ended, which may be of a life before.
    pub fn on_disconnected(&mut self, host: HostId, link: u64) {
        if let Some(known) = self.connected.get_mut(&host) {
            known.links.remove(&link);
            if known.links.is_empty() {
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

    /// How a host is reached. What it says by its connection is its own word; datagrams can be forged, by members in a cluster, in the clear by any host.
    pub fn find(&self, host: HostId) -> Option<&Member> {
        let connected = self.connected.get(&host).map(|it| &it.member);
        connected.or_else(|| self.members.get(&host).map(|it| &it.member))
    }

    /// A host's name, for people.
    pub fn name(&self, host: HostId) -> String {
        match self.find(host) {
            Some(member) => format!("{} at {}", member.name, member.paging),
            None if host == self.own.host() => self.own.name.clone(),
            None => host.to_string(),
        }
    }

    /// This host is broker of an epoch.
    pub fn on_lead(&mut self) {
        self.leads_since = Some(Instant::now());
    }

    /// This host is broker no more.
    pub fn on_resign(&mut self) {
        self.leads_since = None;
    }

    /// The hosts and their broker, for clients, which use the first: this one, and those that have connected. The servers
    /// of a broker connect to it within [`CONNECT_TIME`]: after that, other members are known from datagrams alone, which
    /// can be forged.
    pub fn cluster(&self, broker: Option<(HostId, Epoch)>) -> Cluster {
        let mut members = vec![self.own.clone()];
        let lists_all = self
            .leads_since
            .is_none_or(|at| at.elapsed() < CONNECT_TIME);
        let is_listed = |it: &&Member| lists_all || self.connected.contains_key(&it.host());
        members.extend(self.others().filter(is_listed).cloned());
        // A broker that is out of reach is none for a client.
        let is_known = |broker: &(HostId, Epoch)| members.iter().any(|it| it.host() == broker.0);
        Cluster {
            broker: broker.filter(is_known),
            members,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_member::member_at;

    fn member(number: u64) -> Member {
        let address = ([127, 0, 0, 1], number as u16).into();
        member_at(number, address)
    }

    #[test]
    fn hosts_that_were_known_before_a_thousand_others_come_first() {
        let mut directory = Directory::new(member(1));
        directory.set_members(vec![member(9000)]);
        directory.on_connected(member(8000), 1);
        directory.set_members((2..1000).chain([9000]).map(member).collect());
        assert_eq!(directory.hosts()[..2], [HostId(8000), HostId(9000)]);
        // One that was gone and is back has no place of earlier times.
        directory.set_members((2..1000).map(member).collect());
        directory.set_members((2..1000).chain([9000]).map(member).collect());
        assert_eq!(directory.hosts().last(), Some(&HostId(9000)));
    }

    #[test]
    fn the_end_of_a_connection_of_the_life_before_takes_no_other_away() {
        let mut directory = Directory::new(member(1));
        directory.on_connected(member(2), 1);
        // Its kernel refuses connections while it starts again.
        directory.on_ended(HostId(2));
        directory.on_connected(member(2), 2);
        directory.on_disconnected(HostId(2), 1);
        assert_eq!(directory.hosts(), [HostId(2)]);
        directory.on_disconnected(HostId(2), 2);
        assert_eq!(directory.hosts(), []);
    }

    #[test]
    fn a_broker_lists_no_host_that_datagrams_alone_name() {
        let own = member(1);
        let mut directory = Directory::new(own.clone());
        directory.set_members((2..1000).map(member).collect());
        directory.on_connected(member(2), 1);
        let listed = |directory: &Directory| directory.cluster(None).members;
        // Followers are not connected to each other, and those of the broker before not to the next one yet.
        assert_eq!(listed(&directory).len(), 999);
        directory.on_lead();
        assert_eq!(listed(&directory).len(), 999);
        directory.leads_since = Some(Instant::now() - CONNECT_TIME);
        assert_eq!(listed(&directory), [own, member(2)]);
        directory.on_resign();
        assert_eq!(listed(&directory).len(), 999);
    }
}
