//! Why a server refuses an operation on its capacity.

use crate::identity::{Epoch, Incarnation, ObjectId};
use crate::permit::{MAX_LAXITY, MAX_PERIOD, PermitId};
use disk::atropos::{AdmissionError, DiskContract, Utilization};

/// An operation of an epoch that does not hold the server's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "epoch {asked} does not hold this server's capacity: epoch {held} does; send the request to that broker, or claim the \
     server by a higher epoch"
)]
pub struct EpochError {
    /// The operation's epoch.
    pub asked: Epoch,
    /// The epoch that holds the capacity.
    pub held: Epoch,
}

/// Why a permit is not issued or rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// Another broker holds the server's capacity.
    #[error(transparent)]
    Epoch(#[from] EpochError),
    /// The contract for the server's time contradicts itself.
    #[error(transparent)]
    Contract(#[from] AdmissionError),
    /// The contract would keep the server from other clients for too long at a time.
    #[error(
        "{0} keeps the server from other clients for too long at a time: ask for a period of at most {MAX_PERIOD} and a laxity of \
         at most {MAX_LAXITY}"
    )]
    LongContract(DiskContract),
    /// The pages are not there.
    #[error(
        "cannot grant {asked} pages: {there} can be lent; of {owned} pages the server's own processes use {local} and {granted} are \
         granted; ask for fewer, or another server"
    )]
    Pages {
        /// Pages asked for.
        asked: u64,
        /// Pages that can be lent.
        there: u64,
        /// Pages that the server may use.
        owned: u64,
        /// Pages that its own processes use.
        local: u64,
        /// Pages granted.
        granted: u64,
    },
    /// The server's time is promised to others.
    #[error(
        "cannot promise {asked} of this server's time: {there} is left; ask for less, for slack time only, or another server"
    )]
    Time {
        /// The share asked for.
        asked: Utilization,
        /// The share left.
        there: Utilization,
    },
    /// The server, or the client at it, has its most permits.
    #[error(
        "cannot issue another permit: {most} are in force, the most; enlarge one, or release some"
    )]
    Permits {
        /// The most.
        most: usize,
    },
    /// More pages are written under the permit than it is to keep.
    #[error(
        "cannot reduce the permit to {asked} pages: {written} are written under it; discard or move some first"
    )]
    Written {
        /// Pages that it is to keep.
        asked: u64,
        /// Pages written.
        written: u64,
    },
    /// The permit is void, or another client's.
    #[error("{0} is void or another client's: ask the broker for a new one")]
    NoPermit(PermitId),
    /// A late request.
    #[error("{0} has ended: its permits are void")]
    Ended(Incarnation),
    /// A broker's request for another incarnation than the one with a lease.
    #[error(
        "{holder} has the lease here: {client} begins its own by a connection, and by no broker's word"
    )]
    Leased {
        /// The incarnation that is asked for.
        client: Incarnation,
        /// The one that has the lease.
        holder: Incarnation,
    },
}

/// Why an operation on a paging object is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The permit is void or was never issued.
    #[error("{0} is void: ask the broker for a new one")]
    NoPermit(PermitId),
    /// The permit is for other objects.
    #[error("{permit} does not cover {object}: present a permit of its client that does")]
    NotCovered {
        /// The permit presented.
        permit: PermitId,
        /// The object.
        object: ObjectId,
    },
    /// The object does not exist here.
    #[error("there is no {0} on this server: create it with a permit first")]
    NoObject(ObjectId),
    /// The permit has its part of the server's objects.
    #[error(
        "cannot create another object under {permit}: it has {objects}, the most for its pages; have the broker enlarge it"
    )]
    Objects {
        /// The permit presented.
        permit: PermitId,
        /// Its objects.
        objects: u64,
    },
    /// All pages of the permit are written.
    #[error(
        "cannot write {asked} more pages under {permit}: {written} of {granted} are written; have the broker enlarge it"
    )]
    Full {
        /// The object's permit.
        permit: PermitId,
        /// New pages.
        asked: u64,
        /// Pages written.
        written: u64,
        /// Pages granted.
        granted: u64,
    },
}
