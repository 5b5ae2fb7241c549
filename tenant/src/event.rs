//! Events that a tenant receives from the daemon.

use protocol::contract_spec::ContractSpec;
use protocol::{ChannelNumber, FaultShare};
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A request of the daemon, or the result of a request to it.
#[derive(Debug)]
pub enum TenantEvent {
    /// A channel that was asked for.
    Opened {
        /// As asked with.
        cookie: u64,
        /// Its number.
        channel: ChannelNumber,
        /// The channel's memory.
        memory: OwnedFd,
        /// What is rung for its client.
        bell: OwnedFd,
    },
    /// A channel that was asked for cannot be had.
    NotOpened {
        /// As asked with.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// Nothing of the channel is under way any more.
    Closed(ChannelNumber),
    /// No more than `keep` frames may be owned at the deadline; then
    /// [`Session::answered`](crate::Session::answered).
    Revoke {
        /// The number of this revocation.
        round: u32,
        /// Frames that may be kept.
        keep: u32,
        /// Until when.
        deadline: Instant,
    },
    /// The contract changes.
    Changed {
        /// To this.
        terms: ContractSpec,
        /// What becomes less does so after this.
        notice: Duration,
    },
    /// It may have so many faults from now on.
    Faults(FaultShare),
    /// The daemon has ended: what needs it waits.
    Gone,
    /// A daemon is there again and has taken this tenant back.
    Back,
    /// The daemon does not take this tenant back.
    Refused(String),
    /// The contract was given back: the connection may end, and no process is killed for it.
    Left,
    /// It cannot be given back, and why: it holds as before.
    Stays(String),
}
