//! The messages between hosts, and how long each is on the wire.
//!
//! Each is a frame of `remote/wire`: a header and a body in its encoding. Bodies are the types of
//! the policy, or of `remote_wire::control` where these go to or come from a client.

use remote_policy::broker::{AllocationRequest, ReallocationRequest, Refusal, ServerAnswer};
use remote_policy::capacity::{CapacityUpdate, PermitRequest, ServerReport};
use remote_policy::election;
use remote_policy::identity::{Epoch, HostId, ObjectId, RequestId};
use remote_policy::permit::PermitId;
use remote_wire::HEADER;
use remote_wire::control::{SealedPermit, ServerNotice};
use serde::Serialize;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A message.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum HostMessage {
    /// Candidate to candidate.
    Election(election::Message),
    /// Server to broker.
    Report(ServerReport),
    /// Server to broker.
    Update(CapacityUpdate),
    /// Broker to server.
    RequestReport,
    /// Broker to server.
    IssuePermit(Epoch, PermitRequest),
    /// Broker to server.
    RewritePermit(Epoch, ReallocationRequest),
    /// Server to broker.
    Answer(RequestId, ServerAnswer),
    /// Client to broker.
    Allocate(AllocationRequest),
    /// Client to broker.
    Reallocate(ReallocationRequest),
    /// Broker to client.
    Permit(RequestId, SealedPermit),
    /// Broker to client.
    Refused(RequestId, Refusal),
    /// Client to any server: which broker does it obey?
    FindBroker,
    /// A server to a client that asked, or to one that took its host for the broker.
    BrokerIs(HostId),
    /// Client to server: create an object of so many written pages.
    Create(ObjectId, PermitId, u64),
    /// Client to server.
    Terminate(ObjectId),
    /// Server to client, unasked.
    Notice(ServerNotice),
}

impl HostMessage {
    /// Bytes on the wire; TLS records, TCP and IP come on top.
    pub fn wire_bytes(&self) -> u64 {
        HEADER as u64 + self.encoded()
    }

    /// True if it goes over the connection of a client and a server, which sends it again when it
    /// is lost. What brokers send and receive is repeated by its sender instead, after a time.
    pub fn is_of_link(&self) -> bool {
        matches!(
            self,
            Self::Create(..) | Self::Terminate(_) | Self::Notice(_)
        )
    }

    fn encoded(&self) -> u64 {
        let size = postcard::ser_flavors::Size::default();
        // Nothing in a message has an encoding that fails.
        postcard::serialize_with_flavor(self, size).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::topology::{Node, Topology};

    #[test]
    fn a_claim_is_as_long_as_the_wire_encodes_it() {
        let config = Config::new(4, 1, 1);
        let topology = Topology::new(&config, &mut fastrand::Rng::with_seed(1));
        let broker = topology.incarnation(Node(0), 0);
        let epoch = Epoch { number: 3, broker };
        let message = HostMessage::Election(election::Message::Claim { epoch });
        let body = remote_wire::control::encode(&message).unwrap();
        assert_eq!(message.wire_bytes(), (HEADER + body.len()) as u64);
        assert!(
            body.len() > 30,
            "an epoch has the ids of a broker's incarnation"
        );
    }
}
