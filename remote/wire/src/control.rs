//! Control messages of a client and a paging server: names, permits, objects.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.2: the Paging Object Protocol (c) and
//! what a client says of the Allocation Protocol (d). A request is answered by one reply, or by an
//! error reply. Everything but [`ControlRequest::Hello`] and [`ControlRequest::Status`] needs a
//! `Hello` before it on the same connection.

use crate::error::{FrameError, one_line};
use crate::header::MAX_BODY;
use remote_policy::identity::{Epoch, Generation, Incarnation, ObjectId, RequestId};
use remote_policy::permit::{Permit, PermitId};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest name of a host.
pub const MAX_NAME: usize = 64;

/// A permit with its server's seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPermit {
    /// The permit.
    pub permit: Permit,
    /// The server's MAC of it. Only the server can make or check it.
    pub mac: [u8; 32],
}

/// What a client asks of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Names the client. It is the first request of a connection, and renews the client's lease.
    Hello {
        /// The client.
        client: Incarnation,
        /// Its host's name, for people.
        #[serde(deserialize_with = "deserialize_name")]
        name: String,
    },
    /// Asks for a permit for pages.
    Allocate {
        /// The request: a copy of it gets the same permit.
        request: RequestId,
        /// Pages.
        pages: u64,
        /// The only object it is for, or all of the client's.
        object: Option<ObjectId>,
        /// What is wanted of the server's time and link.
        qos: disk::atropos::DiskContract,
    },
    /// Asks for another number of pages under a permit.
    Reallocate {
        /// The permit.
        permit: PermitId,
        /// Pages in all.
        pages: u64,
    },
    /// Uses a permit on this connection.
    Present(SealedPermit),
    /// Creates an object under a permit that was presented. An object that the client has here
    /// already is the same object.
    Create {
        /// The object.
        object: ObjectId,
        /// The permit.
        permit: PermitId,
        /// Its size.
        pages: u64,
        /// Its generation.
        generation: Generation,
    },
    /// Ends an object and frees its pages. One that is made later stays, however late this arrives: a connection that its
    /// client has given up may deliver it after the requests of the next.
    Terminate {
        /// The object.
        object: ObjectId,
        /// What is ended has an earlier generation.
        before: Generation,
    },
    /// Gives a permit back.
    Release(PermitId),
    /// Renews the lease. Every request does; this one does nothing else.
    Renew,
    /// Asks for the state of the server.
    Status,
}

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    /// To `Hello`.
    Welcome {
        /// The server.
        server: Incarnation,
        /// Its host's name, for people.
        #[serde(deserialize_with = "deserialize_name")]
        name: String,
        /// The broker that it obeys.
        epoch: Epoch,
        /// Pages that it can lend now.
        lendable_pages: u64,
        /// The lease ends when the client was not heard for as long.
        lease: Duration,
    },
    /// To `Allocate` and `Reallocate`, and to `Present` of one that has changed: the permit as it is now.
    Permit(SealedPermit),
    /// To `Present`, `Create`, `Terminate`, `Release` and `Renew`.
    Done,
    /// To `Status`.
    Status(ServerStatus),
}

/// What a server sends its client unasked, as far as the connection has room. A client that missed a notice learns the
/// same from the next request that is refused; of a revocation, which ends the permit, from the replies to its renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerNotice {
    /// The permit has fewer pages now: pages of it that were not written are the host's again.
    Rewritten(SealedPermit),
    /// The client's organizer is to move the object away. It may ignore this.
    Abdicate(ObjectId),
    /// The permit is revoked, whole or in part: if more pages are written after the time, it is void.
    Revoke {
        /// The permit.
        permit: PermitId,
        /// Pages that may stay written under it.
        keep_pages: u64,
        /// From now on.
        within: Duration,
    },
    /// The permit is void, and its objects are gone.
    Void {
        /// The permit.
        permit: PermitId,
        /// Why.
        cause: VoidCause,
    },
}

/// Why a permit is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VoidCause {
    /// Its client released it.
    Released,
    /// Its client restarted.
    Restarted,
    /// Its client sent no request for the term of its lease, or did not present it.
    Expired,
    /// Its client missed the deadline of a revocation.
    Revoked,
}

/// The state of a paging server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server.
    pub server: Incarnation,
    /// Its host's name.
    #[serde(deserialize_with = "deserialize_name")]
    pub name: String,
    /// The broker that it obeys.
    pub epoch: Epoch,
    /// Pages that it owns.
    pub owned_pages: u64,
    /// Pages granted to clients.
    pub granted_pages: u64,
    /// Pages written.
    pub used_pages: u64,
    /// Its clients.
    pub clients: Vec<ClientStatus>,
}

/// A client, as its server sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The client.
    pub client: Incarnation,
    /// Its host's name.
    #[serde(deserialize_with = "deserialize_name")]
    pub name: String,
    /// Pages granted to it.
    pub granted_pages: u64,
    /// Its objects and their pages written.
    pub objects: Vec<(ObjectId, u64)>,
    /// Pages read and written since it is known.
    pub pages_moved: u64,
    /// Median and 99th percentile of the time from a request's arrival to its reply.
    pub service: [Duration; 2],
}

/// The name of this host, for people, as a message may have it.
pub fn short_name(name: &str) -> String {
    one_line(name, MAX_NAME / 4)
}

/// Deserializes the name of another host, as [`short_name`] has it: it goes to terminals and logs.
///
/// # Errors
/// As the format has them.
pub fn deserialize_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|name| short_name(&name))
}

/// The body of a control message. A message that does not fit a frame is an error.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let bytes = postcard::to_stdvec(message).map_err(|_| FrameError::Control)?;
    match bytes.len() <= MAX_BODY {
        true => Ok(bytes),
        false => Err(FrameError::Control),
    }
}

/// The message in a body, all of it.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Control),
    }
}
