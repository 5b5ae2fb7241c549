//! The hosts that a client has been told of.
//!
//! A broker that is cut off from other hosts does not name them, and they elect another one; the client may reach both.

use crate::protocol::{Cluster, Member};
use remote_policy::identity::HostId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long a host that no broker names, and that does not answer, is asked again.
const FORGOTTEN: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct KnownHost {
    member: Member,
    silent_since: Option<Instant>,
}

/// Hosts, by what was last learned of each.
#[derive(Debug, Default)]
pub(super) struct KnownHosts(BTreeMap<HostId, KnownHost>);

impl KnownHosts {
    /// Enters the hosts of an answer.
    pub fn enter(&mut self, cluster: &Cluster) {
        for member in &cluster.members {
            let known = KnownHost {
                member: member.clone(),
                silent_since: None,
            };
            self.0.insert(member.host(), known);
        }
    }

    /// The hosts that an answer does not name.
    pub fn missing_from(&self, cluster: &Cluster) -> Vec<Member> {
        let is_named = |host| cluster.members.iter().any(|member| member.host() == host);
        let missing = self.0.iter().filter(|(host, _)| !is_named(**host));
        missing.map(|(_, known)| known.member.clone()).collect()
    }

    /// A host has answered, or has not.
    pub fn on_asked(&mut self, host: HostId, has_answered: bool, now: Instant) {
        let Some(known) = self.0.get_mut(&host) else {
            return;
        };
        match has_answered {
            true => known.silent_since = None,
            false => _ = known.silent_since.get_or_insert(now),
        }
        let is_forgotten = known
            .silent_since
            .is_some_and(|since| now >= since + FORGOTTEN);
        if is_forgotten {
            self.0.remove(&host);
        }
    }
}
