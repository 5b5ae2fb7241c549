//! Events that a tenant receives from the daemon.

use protocol::contract_spec::ContractSpec;
use protocol::{ChannelNumber, FaultShare};
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A revocation: no more than `keep` frames may be owned at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The number of the revocation.
    pub round: u64,
    /// Frames that may be kept.
    pub keep: u32,
    /// Deadline by which all other frames are unused, on a machine with processors to spare: the daemon
    /// extends it by the time that threads wait for a processor. A tenant that misses the deadline is
    /// killed.
    pub deadline: Instant,
}

/// A message of the daemon, or a change of the connection to it.
#[derive(Debug)]
pub enum SessionEvent {
    /// A channel that was requested.
    Opened {
        /// As [`Session::open`](crate::Session::open) returned it.
        cookie: u64,
        /// The channel's number.
        channel: ChannelNumber,
        /// The channel's memory.
        memory: OwnedFd,
        /// The eventfd that the daemon rings for the channel's client.
        bell: OwnedFd,
    },
    /// A requested channel that was not opened.
    NotOpened {
        /// As [`Session::open`](crate::Session::open) returned it.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// No I/O of the channel is under way any more.
    Closed(ChannelNumber),
    /// Frames are revoked: [`Session::serve_revocation`](crate::Session::serve_revocation) gives them back.
    Revoke(Revocation),
    /// The contract changes.
    Changed {
        /// The new contract.
        terms: ContractSpec,
        /// After this time the amounts that become less apply.
        notice: Duration,
    },
    /// From now on this many frames of the guarantee are reserved for resident memory that is not
    /// paged.
    Unpaged(u32),
    /// More frames are resident, by the kernel's count, than the contract guarantees: the tenant is
    /// killed if there are still too many after `within`.
    OverGuarantee {
        /// Frames resident.
        resident: u32,
        /// Frames that may be resident.
        owned: u32,
        /// How long the excess may last.
        within: Duration,
    },
    /// The tenant's share of the faults from now on.
    Faults(FaultShare),
    /// The daemon has ended. Faults and requests that need it wait.
    Disconnected,
    /// The next daemon has taken this tenant back.
    Resumed,
    /// A request was refused.
    Refused(String),
    /// The next daemon does not know the contract, which has ended; with the reason.
    Lost(String),
    /// The contract was given back: the connection may end, and no process is killed for it.
    Left,
    /// The daemon does not take the contract back, with the reason. The contract holds as before.
    LeaveRefused(String),
}
