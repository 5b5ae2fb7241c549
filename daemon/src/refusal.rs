//! Why the daemon refuses a request.
//!
//! A message has the request, the figures that it exceeds, and the remedy.

use crate::zero_writer;
use disk::atropos::AdmissionError;
use disk::swapfs::{FileError, ScrubError};
use frames::LimitControlError;
use frames::allocator::AllocatorError;
use iochannel::ChannelError;
use protocol::TenantNumber;
use protocol::contract_spec::{DiskSpec, FrameSpec, SpecError};
use rate::OverCommitted;
use rustix::fs::{major, minor};
use rustix::io::Errno;
use wired::Bytes;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The policy refuses it.
    #[error(transparent)]
    Policy(#[from] PolicyRefusal),
    /// The frames allocator refuses it.
    #[error(transparent)]
    Frames(#[from] AllocatorError),
    /// The disk's scheduler refuses it.
    #[error(transparent)]
    Disk(AdmissionError),
    /// The swap filesystem refuses it.
    #[error(transparent)]
    Swap(FileError),
    /// The swap filesystem has too little room.
    #[error("{0}; without --swap a contract asks for default.swap, or for four times its frames")]
    SwapRoom(FileError),
    /// The contract is changed, but the swap filesystem could not record the change.
    #[error(
        "tenant {number} has the contract that was asked for, but it is not recorded: {why}; the daemon tries again each \
         second, and one that is started before that begins with the former contract"
    )]
    Unrecorded {
        /// The tenant.
        number: TenantNumber,
        /// The filesystem's error.
        why: FileError,
    },
    /// The swap file cannot be scrubbed.
    #[error(transparent)]
    Scrub(#[from] ScrubError),
    /// The table of reservations refuses it.
    #[error(transparent)]
    Reservation(#[from] OverCommitted),
    /// A reservation with values that no reservation can have.
    #[error(transparent)]
    InvalidReservation(#[from] rate::units::InvalidReservation),
    /// Terms with values that no contract can have.
    #[error(transparent)]
    Terms(#[from] SpecError),
    /// Not an IO channel's memory or bell.
    #[error(transparent)]
    Channel(ChannelError),
    /// Not a ledger.
    #[error(transparent)]
    Ledger(#[from] LimitControlError),
    /// A system call failed.
    #[error(transparent)]
    Kernel(Errno),
    /// The connection has ended.
    #[error("its connection has ended")]
    Disconnected,
    /// The process has ended.
    #[error("the process has ended")]
    ProcessEnded,
    /// The process has no pid in the daemon's PID namespace.
    #[error(
        "the daemon runs in a PID namespace that this process is outside of: start the daemon where it sees the \
         programs that it serves"
    )]
    OtherNamespace,
    /// The connection has no contract.
    #[error("ask for a contract first")]
    NoContract,
    /// The connection has a contract already, and may have one only.
    #[error("this connection has a contract already")]
    HasContract,
    /// The resume token is another tenant's.
    #[error("there is a contract by this resume token already")]
    TokenInUse,
    /// The former contract of the same processes is not released yet.
    #[error("the contract it had is still being given back: ask again in a moment")]
    StillLeaving,
    /// Fewer frames than a program needs.
    #[error(
        "{asked} of guaranteed frames are fewer than the {least} frames one program needs: ask for more"
    )]
    TooFewFrames {
        /// The guarantee that was requested.
        asked: FrameSpec,
        /// Frames that a program needs.
        least: u32,
    },
    /// There is no such tenant.
    #[error("there is no tenant {0}")]
    NoTenant(TenantNumber),
    /// There is no such tenant, or this user may not change it.
    #[error("there is no tenant {0} that this user may change")]
    NotYours(TenantNumber),
    /// The tenant is not admitted yet, or is ending.
    #[error("tenant {0} is not admitted yet, or is ending: try again")]
    NotAdmitted(TenantNumber),
    /// The contract is for the disk alone.
    #[error("it has no frames: its contract is for the disk alone")]
    NoFrames,
    /// More frames than the tenant's ledger has room for.
    #[error(
        "tenant {number} was started for {most} of frames at most, and cannot have {asked}: start it again with more"
    )]
    OverLedger {
        /// The tenant.
        number: TenantNumber,
        /// The ledger's size.
        most: FrameSpec,
        /// The contract asked for.
        asked: FrameSpec,
    },
    /// Fewer frames than the tenant needs for what it cannot give back.
    #[error(
        "the processes of tenant {number} are guaranteed {guaranteed} of frames, have {locked} locked and {unpaged} that \
         are not paged: it cannot have {asked}, but {least} or more; let some of them end first, or unlock memory"
    )]
    UnderUse {
        /// The tenant.
        number: TenantNumber,
        /// Frames that its processes are guaranteed together.
        guaranteed: FrameSpec,
        /// Frames that they have locked, or a device has pinned.
        locked: FrameSpec,
        /// Frames that are reserved for memory that is not paged.
        unpaged: FrameSpec,
        /// The least guarantee that has room for these.
        least: FrameSpec,
        /// The contract asked for.
        asked: FrameSpec,
    },
    /// The contract has no disk.
    #[error("it has no disk yet")]
    NoDisk,
    /// The contract has no disk, or is being released.
    #[error("the contract has no disk yet, or is being given back")]
    NoChannels,
    /// The contract is being released, or not admitted yet.
    #[error("the contract is being given back, or not there yet")]
    CannotLeave,
    /// Less disk time while frames are revoked by a deadline that it lets the tenant keep.
    #[error(
        "tenant {number} is giving back {owed} frames by a deadline that its {former} of the disk lets it keep: ask again in a moment"
    )]
    Revoking {
        /// The tenant.
        number: TenantNumber,
        /// Frames that it owes.
        owed: u32,
        /// Its present share of the disk.
        former: DiskSpec,
    },
    /// The tenant requests to leave, and still owns frames or has too much memory resident.
    #[error("{} of frames are owned, and {} of memory are resident beside the pagers' own, of which {} may be: give back or unmap the rest, then leave", Bytes(*owned), Bytes(*resident), Bytes(*most))]
    FramesOwned {
        /// Bytes of frames.
        owned: u64,
        /// Bytes resident.
        resident: u64,
        /// Bytes that may be resident.
        most: u64,
    },
    /// The tenant requests to leave, and its memory cannot be counted.
    #[error("how much memory is resident cannot be read from /proc: {0}: leave in a moment")]
    NotCounted(std::io::Error),
    /// The tenant requests to leave, and took frames meanwhile.
    #[error("frames are being used: end that, then leave")]
    FramesInUse,
    /// A ledger is presented a second time, or before admission.
    #[error("a ledger is presented once, after admission")]
    LedgerTwice,
    /// The message arrived without descriptors that it should have.
    #[error("{0} did not arrive with the message: raise `ulimit -n`")]
    NoDescriptor(&'static str),
    /// The daemon has too few descriptors left.
    #[error(
        "the daemon has only descriptors left that it needs to watch and end processes: end connections or contracts, or raise \
         its `ulimit -n`"
    )]
    FewDescriptors,
    /// The user's connections, contracts and channels take too many descriptors.
    #[error(
        "user {uid} has {taken} of the {most} descriptors that one user's connections, contracts and channels may take: end some first"
    )]
    FdQuota {
        /// The user.
        uid: u32,
        /// Descriptors of the user's person.
        taken: usize,
        /// The most that they may take.
        most: usize,
    },
    /// Too many connections are open that have no contract.
    #[error("{0} connections without a contract are open, and no more may be: try again")]
    UnidentifiedQuota(usize),
    /// Too many channels of the tenant are open.
    #[error("{0} channels are open: close some first")]
    ChannelQuota(usize),
    /// The user sends queries too fast.
    #[error("user {uid} requests more than {rate} lists a second: wait a little")]
    QueryRate {
        /// The user.
        uid: u32,
        /// Queries a second.
        rate: f64,
    },
    /// The user changes contracts too fast.
    #[error("user {uid} requests more than {rate} changes a second: wait a little")]
    ChangeRate {
        /// The user.
        uid: u32,
        /// Changes a second.
        rate: f64,
    },
    /// The bell of one more tenant cannot be polled.
    #[error("one more tenant cannot be watched: {0}")]
    NoWatch(Errno),
    /// The trace shows all tenants, and is for administrators.
    #[error("the trace shows all tenants' disk use: reading it needs a rule with admin = true")]
    NotAdmin,
    /// The trace cannot be copied.
    #[error("no memory for the trace: {0}")]
    NoTrace(Errno),
    /// The file is not a regular file.
    #[error("not a regular file: only regular files can be opened under a contract")]
    NotRegular,
    /// The file is on another disk.
    #[error("the file lies on device {}:{}, and the disk whose time is given out is {}:{}", major(*file), minor(*file), major(*disk), minor(*disk))]
    OtherDevice {
        /// The file's device.
        file: u64,
        /// The disk's.
        disk: u64,
    },
    /// The file is open for writing, or not open for reading.
    #[error("the file has to be open for reading, and for nothing else")]
    WrongMode,
    /// The file's file system has no direct I/O.
    #[error("the file's file system has no direct I/O ({0})")]
    NoDirectIo(Errno),
}

impl From<Errno> for Refusal {
    fn from(why: Errno) -> Self {
        match why {
            // The process's own limit: of the daemon.
            Errno::MFILE => Self::FewDescriptors,
            other => Self::Kernel(other),
        }
    }
}

impl From<ChannelError> for Refusal {
    fn from(why: ChannelError) -> Self {
        match why {
            ChannelError::System { errno, .. } if errno == Errno::MFILE => errno.into(),
            other => Self::Channel(other),
        }
    }
}

impl Refusal {
    /// Returns true if the request failed for lack of a resource, of the daemon or of the peer's user, that may be free later.
    pub fn is_lack(&self) -> bool {
        matches!(
            self,
            Self::NoDescriptor(_)
                | Self::FewDescriptors
                | Self::FdQuota { .. }
                | Self::ChannelQuota(_)
                | Self::Channel(ChannelError::System { .. })
        )
    }
}

impl From<FileError> for Refusal {
    fn from(why: FileError) -> Self {
        match why {
            FileError::NoRoom { .. } => Self::SwapRoom(why),
            other => Self::Swap(other),
        }
    }
}

impl From<AdmissionError> for Refusal {
    /// The figures are of tenants alone: the daemon's own share of the disk is left out, since tenants cannot have it.
    fn from(why: AdmissionError) -> Self {
        Self::Disk(match why {
            AdmissionError::Capacity {
                contract,
                asked,
                reserved,
                capacity,
                clients,
            } => AdmissionError::Capacity {
                contract,
                asked,
                reserved: reserved - zero_writer::share(),
                capacity: capacity - zero_writer::share(),
                clients: clients.saturating_sub(1),
            },
            other => other,
        })
    }
}

/// Why the policy refuses a contract.
#[derive(Debug, thiserror::Error)]
pub enum PolicyRefusal {
    /// More frames or swap than a rule allows.
    #[error(
        "{asked} of {what} is asked for beside {held} of this user's contracts, and a user may have {most}"
    )]
    Memory {
        /// Bytes requested.
        asked: Bytes,
        /// Frames or swap.
        what: &'static str,
        /// Bytes of the user's contracts.
        held: Bytes,
        /// What the rule allows.
        most: Bytes,
    },
    /// More disk time than a rule allows.
    #[error(
        "{asked:.1} % of the disk's time is asked for beside {held:.1} % of this user's contracts, and a user may have {most:.1} %"
    )]
    Disk {
        /// Percent requested.
        asked: f64,
        /// Percent of the user's contracts.
        held: f64,
        /// Percent that the rule allows.
        most: f64,
    },
    /// More contracts than a rule's frames allow.
    #[error(
        "this user has {most} contracts, and may have no more: end one first, or ask for a rule with more frames"
    )]
    Contracts {
        /// What the rule allows.
        most: u64,
    },
    /// More processors reserved than a rule allows.
    #[error(
        "{asked:.3} processors are to be reserved beside {held:.3} of this user's contracts, and a user may reserve \
         {most:.3}: ask for less, or for a rule with a larger cpu"
    )]
    Processors {
        /// Processors requested.
        asked: f64,
        /// Processors that the user's contracts reserve.
        held: f64,
        /// Processors that the rule allows.
        most: f64,
    },
    /// No rule fits.
    #[error(
        "no rule of the system's configuration lets user {uid} (group {gid}) ask: its owner adds one, as in\n\
         [[allow]]\nuid = {uid}\nframes = \"256M\""
    )]
    NoRule {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_names_the_daemon_and_its_remedy() {
        let (what, errno) = ("a descriptor of the doorbell", Errno::MFILE);
        for why in [
            ChannelError::System { what, errno }.into(),
            Refusal::from(errno),
        ] {
            let text = why.to_string();
            assert!(why.is_lack() && text.contains("the daemon has only descriptors"));
            assert!(text.contains("raise its `ulimit -n`"), "{text}");
        }
    }
}
