//! Events that a tenant receives from the daemon.

use protocol::contract_spec::ContractSpec;
use protocol::{ChannelNumber, FaultShare};
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A revocation: no more than `keep` frames may be owned at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Its number.
    pub round: u64,
    /// Frames that may be kept.
    pub keep: u32,
    /// Deadline for the others to be unused, on a machine with processors to spare: the daemon
    /// extends it by the time that threads wait for a processor. The tenant is killed if it is
    /// missed.
    pub deadline: Instant,
}

/// A request of the daemon, or the result of a request to it.
#[derive(Debug)]
pub enum SessionEvent {
    /// A channel that was requested.
    Opened {
        /// As [`Session::open`](crate::Session::open) returned it.
        cookie: u64,
        /// Its number.
        channel: ChannelNumber,
        /// The channel's memory.
        memory: OwnedFd,
        /// What is rung for its client.
        bell: OwnedFd,
    },
    /// A requested channel that cannot be had.
    NotOpened {
        /// As [`Session::open`](crate::Session::open) returned it.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// No I/O of the channel is under way any more.
    Closed(ChannelNumber),
    /// Frames are revoked, which [`Session::shed`](crate::Session::shed) serves.
    Revoke(Revocation),
    /// The contract changes.
    Changed {
        /// To this.
        terms: ContractSpec,
        /// What becomes less does so after this.
        notice: Duration,
    },
    /// So many frames of the guarantee are reserved, from now on, for resident memory that is not
    /// paged.
    Unpaged(u32),
    /// More frames are resident, by the kernel's count, than the contract guarantees: the tenant is
    /// killed where that stays so.
    Over {
        /// Frames resident.
        resident: u32,
        /// Frames that may be.
        owned: u32,
        /// For how long they may stay so.
        within: Duration,
    },
    /// The tenant's share of the faults from now on.
    Faults(FaultShare),
    /// The daemon has ended: what needs it waits.
    Disconnected,
    /// A daemon is there again and has taken this tenant back.
    Resumed,
    /// A request was refused.
    Refused(String),
    /// The daemon that is there now has no such contract: it is over.
    Lost(String),
    /// The contract was given back: the connection may end, and no process is killed for it.
    Left,
    /// It cannot be given back, and why: it holds as before.
    LeaveRefused(String),
}
