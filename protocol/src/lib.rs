//! The messages between the daemon and its clients: tenants and administrators.
//!
//! One datagram a message over a SOCK_SEQPACKET socket, in postcard behind a version word.
//! Descriptors come along with SCM_RIGHTS, in the order the message's documentation gives.
//! The daemon trusts no input: bytes that decode to no message are rejected.
//!
//! Rule: nothing here is on the page path. A tenant sends one request, and then receives
//! revocations of frames now and then; its faults go over its IO channels.

pub mod contract_spec;
pub mod disk_trace;
mod listing;

pub use listing::{CapacitySummary, FaultGrant, TenantInfo};

use crate::contract_spec::{ContractSpec, DiskChange, DiskSpec, FramePlacement, FrameSpec};
use host::seqpacket::MESSAGE;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

/// First word of every message: "SPS" and the version.
const VERSION: u32 = 0x5350_5305;

/// The default path of the daemon's control socket.
pub const SOCKET: &str = "/run/selfpage/system.sock";

/// Frames one program needs: an instruction can straddle two pages, one is moved from and one
/// is moved through.
pub const MIN_PROGRAM_FRAMES: u32 = 4;

/// Longest name of a tenant, in bytes; longer ones are cut.
pub const NAME: usize = 64;

/// Longest text, in bytes; longer ones are cut.
pub const TEXT: usize = MESSAGE - 64;

/// Resume token: identifies a tenant to a daemon that was started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeToken(pub [u8; 16]);

impl ResumeToken {
    /// A random token, which cannot be guessed.
    pub fn draw() -> rustix::io::Result<Self> {
        let mut drawn = [0; 16];
        rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(drawn))
    }
}

/// A tenant's number, for people.
pub type TenantNumber = u32;

/// An IO channel's number among those of its tenant.
pub type ChannelNumber = u32;

/// Requests from tenants and administrators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TenantRequest {
    /// Requests a contract; a field that is `None` takes the daemon's default. A client whose
    /// daemon ended before it replied repeats the request with the same resume_token, and gets the
    /// same contract.
    Join {
        /// Random resume token chosen by the client, which keeps it secret.
        resume_token: ResumeToken,
        /// What it is called, for people.
        name: String,
        /// Frames.
        frames: Option<FrameSpec>,
        /// Disk.
        disk: Option<DiskSpec>,
        /// Bytes of swap.
        swap: Option<u64>,
        /// Which frames; any where `None`.
        place: Option<FramePlacement>,
    },
    /// Makes the ledger known that was made for the frames of [`DaemonEvent::Admitted`]. With its
    /// descriptor.
    Ledger,
    /// Comes back, after the daemon was started again. With both bells of [`DaemonEvent::Admitted`]
    /// and the ledger's descriptor.
    Rejoin {
        /// The token of the original [`TenantRequest::Join`].
        resume_token: ResumeToken,
        /// Channels that follow, each by [`TenantRequest::Channel`].
        channels: u32,
    },
    /// A channel that an earlier daemon made. With its memory and the daemon's end of its bell. Answered if
    /// refused: [`DaemonEvent::Later`].
    Channel(ChannelNumber),
    /// Asks for a new channel. A contract for a file has two at most.
    Open {
        /// Operations at a time.
        depth: u16,
        /// Comes back with the answer.
        cookie: u64,
    },
    /// A channel is no longer used. It is answered when nothing of it is under way.
    Close(ChannelNumber),
    /// A revocation was done: the tenant owns no more than it was asked to.
    Answered {
        /// The number of the revocation.
        round: u64,
    },
    /// Asks for disk time for a file of the asker's, which comes along as a descriptor. A
    /// contract for the disk alone; channels are opened as by a tenant.
    File {
        /// What it is called, for people.
        name: String,
        /// Disk time.
        disk: DiskSpec,
    },
    /// Asks for a share of the faults, and says what processor time is reserved: runtime and
    /// period.
    Faults {
        /// Processor time in every period.
        reservation: Option<(Duration, Duration)>,
        /// An earlier daemon sent it its share: it has the reservation that was made then.
        known: bool,
    },
    /// What a fault of the tenant's costs: nanoseconds of processor time, measured.
    FaultUnit(u64),
    /// Asks for the contracts there are.
    List,
    /// Asks what there is to promise, and what of it is free.
    Capacity,
    /// Asks for a tenant's contract to be changed; what is `None` stays.
    Set {
        /// Whose.
        tenant: TenantNumber,
        /// Frames.
        frames: Option<FrameSpec>,
        /// Disk.
        disk: Option<DiskChange>,
    },
    /// Asks for the disk scheduler's trace.
    Trace {
        /// From this event on: 0, or the number the last answer ended with.
        from: u64,
    },
    /// Gives the contract back: [`DaemonEvent::Left`] or [`DaemonEvent::LeaveRefused`] follows.
    Leave,
}

/// Replies and events of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DaemonEvent {
    /// There is a contract. With the doorbell (one for all channels) and, for tenants with
    /// frames, the bell to ring when more frames are wanted.
    Admitted {
        /// The tenant's number.
        tenant: TenantNumber,
        /// The contract.
        terms: ContractSpec,
        /// How far the guarantee of frames goes beyond what the kernel lets us promise.
        note: String,
    },
    /// The ledger is known: frames come.
    Started,
    /// A channel. With its memory, the client's end of its bell, and the daemon's end, to be
    /// kept for the next daemon.
    Opened {
        /// As asked with.
        cookie: u64,
        /// The channel's number.
        channel: ChannelNumber,
    },
    /// The channel that was asked for with this cookie is not opened, with the reason.
    NotOpened {
        /// As asked with.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// Nothing of the channel is under way any more: it was closed, or its client has dropped its end.
    Closed(ChannelNumber),
    /// A revocation: within this time the tenant owns no more than `keep` frames, and reports it.
    Revoke {
        /// The number of this revocation.
        round: u64,
        /// Frames that may be kept.
        keep: u32,
        /// How long it has.
        within: Duration,
    },
    /// The contract changes: what becomes less does so after `notice`.
    Changed {
        /// What it will be.
        terms: ContractSpec,
        /// How long the old one still holds.
        notice: Duration,
    },
    /// How many faults the tenant may have from now on.
    Faults(FaultShare),
    /// A tenant. [`DaemonEvent::End`] follows the last.
    Tenant(Box<TenantInfo>),
    /// The end of a list, and what was asked is done.
    End,
    /// What there is to promise.
    Capacity(CapacitySummary),
    /// The trace's memory comes along.
    Trace,
    /// The request is refused, with the reason.
    Refused(String),
    /// There is no contract any more: frames, channels, swap and disk time are others'. The
    /// connection may end, or ask for another contract.
    Left,
    /// The contract cannot be given back: something of it is still used.
    LeaveRefused(String),
    /// No contract waits for the resume token of a [`TenantRequest::Rejoin`], nor ever will.
    UnknownToken,
    /// There is no room for a channel of a [`TenantRequest::Channel`] now: the tenant hands it over again.
    Later(ChannelNumber),
    /// So many frames of the guarantee are reserved for resident memory that is not paged: the ledger
    /// does not get them.
    Unpaged {
        /// How many are, from now on.
        frames: u32,
    },
    /// More memory is resident, by the kernel's count, than the contract guarantees.
    Over {
        /// Frames resident.
        resident: u32,
        /// Frames that may be.
        owned: u32,
        /// The tenant is killed where they are too many after this time.
        within: Duration,
    },
}

/// A tenant's share of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultShare {
    /// In a period of this length.
    pub period: Duration,
    /// task.fault_limit: zero where the tenant's faults are within its own reservation.
    pub limit: u32,
    /// system.fault_limit.
    pub system: u32,
}

/// A message as it travels, or why it cannot: it is too long.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend(postcard::to_stdvec(message)?);
    match bytes.len() > MESSAGE {
        true => Err(postcard::Error::SerializeBufferFull),
        false => Ok(bytes),
    }
}

/// A message that arrived; `None` where it is not one of ours.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (version, rest) = bytes.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    match postcard::take_from_bytes(rest) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// The first bytes of a text, cut where a character ends.
pub fn cut(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
