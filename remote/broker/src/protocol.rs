//! What hosts, and the clients of their memory, send each other about permits and brokers.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.2: the Allocation Protocol (d, e), the Update
//! Protocol (e) and the Broker Election Protocol (f). The first message of a connection is a [`Hello`].
//! A host's connection then carries [`HostMessage`]s one way: what answers one goes over the connection
//! that the other host has made. A client's carries [`Request`]s, each answered by one [`Reply`].
//!
//! Rule: a name in a message that decides something (an epoch, a request's client) is compared with the
//! sender's Hello; what a link with keys proves is proved for all messages of it.

use remote_policy::bounded_list;
use remote_policy::broker::{AllocationRequest, ReallocationRequest, Refusal, ServerAnswer};
use remote_policy::capacity::{CapacityUpdate, PermitRequest, ServerReport};
use remote_policy::election;
use remote_policy::identity::{Epoch, HostId, Incarnation, ObjectId, RequestId};
use remote_wire::control::{SealedPermit, deserialize_name};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Most objects of a client's report: 64 GiB of them.
pub const MAX_OBJECTS: usize = 4096;
/// Most servers of each in a report, that have it or get it.
pub const MAX_HOLDERS: usize = 16;
/// Most servers whose distance a client reports.
pub const MAX_ROUND_TRIPS: usize = 1024;

/// A host with a paging server, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// This life of its paging server.
    pub server: Incarnation,
    /// Its name, for people.
    #[serde(deserialize_with = "deserialize_name")]
    pub name: String,
    /// Where its paging server is reached.
    pub paging: SocketAddr,
    /// Where its control port is reached: TCP, and UDP for membership.
    pub control: SocketAddr,
    /// Which introduction of the host this is: a later one, as after it was taken for dead, is greater.
    pub since: u64,
}

impl Member {
    /// Its host.
    pub fn host(&self) -> HostId {
        self.server.host
    }
}

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// A host.
    Host(Member),
    /// A client of remote memory; without an incarnation it can look, and request no permits.
    Client {
        /// The client.
        client: Option<Incarnation>,
        /// Its host's name, for people.
        #[serde(deserialize_with = "deserialize_name")]
        name: String,
    },
}

/// What hosts send each other.
#[expect(
    clippy::large_enum_variant,
    reason = "a message is sent and forgotten: few are held at once"
)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// Between the candidates of two hosts.
    Election(election::Message),
    /// A server to the broker that it was granted to: all that it has.
    Report(ServerReport),
    /// A server to its broker, periodically.
    Update(CapacityUpdate),
    /// A broker to a server: its record lacks something.
    RequestReport,
    /// A broker has a server issue a permit.
    Allocate {
        /// The broker's epoch.
        epoch: Epoch,
        /// What to issue.
        request: PermitRequest,
    },
    /// A broker has a server rewrite a permit.
    Reallocate {
        /// The broker's epoch.
        epoch: Epoch,
        /// What to rewrite.
        request: ReallocationRequest,
    },
    /// A server's answer to one of these.
    Answer {
        /// The client's request.
        request: RequestId,
        /// The answer.
        answer: ServerAnswer,
        /// The permit with its server's seal, where one was issued or rewritten.
        sealed: Option<SealedPermit>,
    },
}

/// What a client asks of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Which hosts there are, and which has the broker. Any host answers.
    FindBroker {
        /// Control ports of other hosts that the client was told of: hosts that one client uses are to
        /// have one broker, so these are introduced to each other.
        others: Vec<SocketAddr>,
    },
    /// A permit.
    Allocate(AllocationRequest),
    /// Another size of a permit.
    Reallocate(ReallocationRequest),
    /// The client's use of remote memory, for people: it decides nothing.
    ReportUse(ClientUse),
    /// The state of everything, for people.
    Status,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `FindBroker`; and to a request for permits, of a host that is not the broker.
    Cluster(Cluster),
    /// The permit.
    Permit(SealedPermit),
    /// No permit.
    Refused(Refusal),
    /// To `ReportUse`.
    Done,
    /// To `Status`.
    Status(ClusterStatus),
    /// The request is not one that the sender may make.
    Invalid(String),
}

/// The hosts in reach of each other, as one of them knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// The broker, as far as the host knows.
    pub broker: Option<(HostId, Epoch)>,
    /// The hosts, the one that answers among them.
    pub members: Vec<Member>,
}

impl Cluster {
    /// The member that has the broker.
    pub fn broker(&self) -> Option<&Member> {
        let (broker, _) = self.broker?;
        self.members.iter().find(|member| member.host() == broker)
    }
}

/// A client's use of remote memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientUse {
    /// Its objects that have copies.
    #[serde(deserialize_with = "bounded_list::deserialize::<MAX_OBJECTS, _, _>")]
    pub objects: Vec<ObjectPlace>,
    /// Round trips to servers.
    #[serde(deserialize_with = "bounded_list::deserialize::<MAX_ROUND_TRIPS, _, _>")]
    pub round_trips: Vec<(HostId, Duration)>,
    /// Copies that are under way.
    pub copies_under_way: u32,
    /// Copies that were made of objects with pages, since the client started.
    pub copies_made: u64,
}

/// What stands for an object's pages beside its own copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ObjectRedundancy {
    /// Its copies alone.
    #[default]
    Copies,
    /// The rest of a stripe: one copy is enough.
    Stripe,
    /// It is itself a stripe's parity.
    Parity,
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectPlace {
    /// The object.
    pub object: ObjectId,
    /// What else there is of its pages.
    pub redundancy: ObjectRedundancy,
    /// The servers that have all its pages.
    #[serde(deserialize_with = "bounded_list::deserialize::<MAX_HOLDERS, _, _>")]
    pub servers: Vec<HostId>,
    /// The servers that it is being copied to.
    #[serde(deserialize_with = "bounded_list::deserialize::<MAX_HOLDERS, _, _>")]
    pub copying_to: Vec<HostId>,
}

/// The state of everything, as the broker knows it, or as another host does without permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The hosts and the broker.
    pub cluster: Cluster,
    /// The host that answers is the broker; what follows is empty where it is not.
    pub is_broker: bool,
    /// The servers that the broker controls.
    pub servers: Vec<ServerSummary>,
    /// The clients that have permits, or have reported their use.
    pub clients: Vec<ClientSummary>,
    /// Clients that a message has no room for.
    pub clients_left_out: u64,
}

/// A server, as its broker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSummary {
    /// The server.
    pub host: HostId,
    /// Pages that it can lend now.
    pub lendable_pages: u64,
}

/// A client, as its broker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSummary {
    /// The client.
    pub client: Incarnation,
    /// Its host's name, where it has reported its use.
    #[serde(deserialize_with = "deserialize_name")]
    pub name: String,
    /// Pages granted to it, by server.
    pub permits: Vec<(HostId, u64)>,
    /// Its use, as last reported.
    pub usage: ClientUse,
    /// Objects of it that a message has no room for.
    pub objects_left_out: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_another_host_is_short_and_printable() {
        let sent = Member {
            server: Incarnation::new(HostId(1), 1, 1),
            name: format!("\u{1b}[2J{}", "x".repeat(1000)),
            paging: ([10, 0, 0, 1], 1).into(),
            control: ([10, 0, 0, 1], 3).into(),
            since: 1,
        };
        let bytes = postcard::to_stdvec(&sent).unwrap();
        let received: Member = postcard::from_bytes(&bytes).unwrap();
        assert!(received.name.starts_with("[2Jx") && received.name.len() < 20);
    }
}
