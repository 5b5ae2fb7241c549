//! The messages between the daemon and its clients: tenants and administrators.
//!
//! One datagram a message over a SOCK_SEQPACKET socket, in postcard behind a version word.
//! Descriptors are passed with SCM_RIGHTS, in the order that the message's documentation gives.
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

/// Frames one program needs: two for an instruction that straddles two pages, one for the page that it
/// reads from, and one that the pager moves pages through.
pub const MIN_PROGRAM_FRAMES: u32 = 4;

/// Longest name of a tenant, in bytes; longer names are cut.
pub const NAME: usize = 64;

/// Longest text of a message, in bytes; longer texts are cut.
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
    /// Attaches the ledger, which was made for the frames of [`DaemonEvent::Admitted`]. With its
    /// descriptor.
    Ledger,
    /// Resumes the contract with the next daemon. With both bells of [`DaemonEvent::Admitted`]
    /// and the ledger's descriptor.
    Rejoin {
        /// The token of the original [`TenantRequest::Join`].
        resume_token: ResumeToken,
        /// Channels that follow, each by [`TenantRequest::Channel`].
        channels: u32,
    },
    /// A channel that an earlier daemon made. With its memory and the daemon's end of its bell. The only reply is a
    /// refusal: [`DaemonEvent::NoRoomYet`].
    Channel(ChannelNumber),
    /// Requests a new channel. A contract for a file has two at most.
    Open {
        /// Operations at a time.
        depth: u16,
        /// The reply repeats it.
        cookie: u64,
    },
    /// A channel is no longer used. [`DaemonEvent::Closed`] follows when none of its I/O is in flight.
    Close(ChannelNumber),
    /// A revocation is done: the tenant owns no more frames than it may keep.
    RevocationDone {
        /// The number of the revocation.
        round: u64,
    },
    /// Requests disk time for a file of the sender's. With the file's descriptor. A
    /// contract for the disk alone; channels are opened as by a tenant.
    File {
        /// What it is called, for people.
        name: String,
        /// Disk time.
        disk: DiskSpec,
    },
    /// Requests a share of the faults, and reports the processor time that is reserved.
    Faults {
        /// Runtime and period of the reservation.
        reservation: Option<(Duration, Duration)>,
        /// True if an earlier daemon granted a share: the tenant has the reservation that was made then.
        known: bool,
    },
    /// The measured cost of a fault of the tenant's, in nanoseconds of processor time.
    FaultUnit(u64),
    /// Requests the list of contracts.
    List,
    /// Requests the resources that the daemon can promise, and how much of each is free.
    Capacity,
    /// Changes a tenant's contract; a part that is `None` stays as it is.
    Set {
        /// The tenant.
        tenant: TenantNumber,
        /// Frames.
        frames: Option<FrameSpec>,
        /// Disk.
        disk: Option<DiskChange>,
    },
    /// Requests the disk scheduler's trace.
    Trace {
        /// The number of the first event: 0, or the number that the last reply ended with.
        from: u64,
    },
    /// Gives the contract back: [`DaemonEvent::Left`] or [`DaemonEvent::LeaveRefused`] follows.
    Leave,
}

/// Replies and events of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DaemonEvent {
    /// The contract is admitted. With the doorbell (one for all channels) and, for tenants with
    /// frames, the bell to ring when more frames are wanted.
    Admitted {
        /// The tenant's number.
        tenant: TenantNumber,
        /// The contract.
        terms: ContractSpec,
        /// How far the guarantee of frames exceeds what the kernel lets the daemon promise; mostly empty.
        note: String,
    },
    /// The ledger is attached, and the first frames are granted.
    Started,
    /// A channel. With its memory, the client's end of its bell, and the daemon's end, to be
    /// kept for the next daemon.
    Opened {
        /// The cookie of the request.
        cookie: u64,
        /// The channel's number.
        channel: ChannelNumber,
    },
    /// The channel that was requested with this cookie is not opened, with the reason.
    NotOpened {
        /// The cookie of the request.
        cookie: u64,
        /// Why.
        why: String,
    },
    /// The channel has no I/O in flight any more: the tenant closed it, or its client has dropped its end.
    Closed(ChannelNumber),
    /// A revocation: within this time the tenant gives back all but `keep` frames, and reports it.
    Revoke {
        /// The number of this revocation.
        round: u64,
        /// Frames that may be kept.
        keep: u32,
        /// The time it has.
        within: Duration,
    },
    /// The contract changes; amounts that become less do so after `notice`.
    Changed {
        /// The new contract.
        terms: ContractSpec,
        /// How long the old amounts still hold.
        notice: Duration,
    },
    /// The tenant's share of the faults from now on.
    Faults(FaultShare),
    /// One tenant of a list. [`DaemonEvent::End`] follows the last.
    Tenant(Box<TenantInfo>),
    /// The end of a list; what was requested is done.
    End,
    /// The resources that the daemon can promise.
    Capacity(CapacitySummary),
    /// The trace. With its memory.
    Trace,
    /// The request is refused, with the reason.
    Refused(String),
    /// The contract has ended: its frames, channels, swap and disk time are released. The
    /// tenant may disconnect, or request another contract.
    Left,
    /// The contract cannot be given back: something of it is still used.
    LeaveRefused(String),
    /// The daemon has no contract for the resume token of a [`TenantRequest::Rejoin`], and never will.
    UnknownToken,
    /// The daemon has no room for the channel of a [`TenantRequest::Channel`] now: the tenant sends it again later.
    NoRoomYet(ChannelNumber),
    /// Some frames of the guarantee are reserved for resident memory that is not paged: the ledger
    /// does not get them.
    Unpaged {
        /// The number of reserved frames from now on.
        frames: u32,
    },
    /// More memory is resident, by the kernel's count, than the contract guarantees.
    OverGuarantee {
        /// Frames resident.
        resident: u32,
        /// Frames that may be resident.
        owned: u32,
        /// The tenant is killed if too many are still resident after this time.
        within: Duration,
    },
}

/// A tenant's share of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultShare {
    /// The length of a fault period.
    pub period: Duration,
    /// task.fault_limit, in a period: zero where the tenant's faults are within its own reservation.
    pub limit: u32,
    /// system.fault_limit, in a period.
    pub system: u32,
}

/// Encodes a message; fails where it is too long.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend(postcard::to_stdvec(message)?);
    match bytes.len() > MESSAGE {
        true => Err(postcard::Error::SerializeBufferFull),
        false => Ok(bytes),
    }
}

/// Decodes a message; `None` where the bytes are not a message of this protocol and version.
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

/// The first `limit` bytes of a text, or fewer, so that the last character is whole.
pub fn cut(text: &str, limit: usize) -> String {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
