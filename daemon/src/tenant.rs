//! The daemon's state of one tenant.

use crate::peer::Peer;
use crate::persisted_tenants::TenantRecord;
use crate::refusal::Refusal;
use crate::tenant_cgroup::TenantCgroup;
use disk::atropos::ClientId;
use disk::swapfs::FileId;
use disk::usd::ChannelId;
use frames::LimitControl;
use frames::allocator::Placement;
use iochannel::{ChannelError, Doorbell};
use protocol::contract_spec::FrameSpec;
use protocol::{ChannelNumber, ResumeToken, TenantNumber};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The most channels of one tenant: each takes up to two megabytes, a mapping and a descriptor.
const MAX_CHANNELS: usize = 4096;

/// The same for a contract for a file, where no frames account for the channels' memory: the client of a file uses one
/// ([`TenantRequest::File`](protocol::TenantRequest::File)).
const MAX_FILE_CHANNELS: usize = 2;

/// The phase of a tenant's life.
#[derive(Debug, PartialEq, Eq)]
pub enum TenantPhase {
    /// Its swap file is being scrubbed; admission follows.
    Scrubbing,
    /// It has its contract.
    Admitted,
    /// The daemon was started again, and it has not come back yet.
    Away(Instant),
    /// It has requested to leave, and its RSS is being measured.
    LeaveRequested,
    /// It has given its frames back, or never had any, and its I/O is draining. Its processes
    /// are not killed any more.
    Leaving,
    /// It is being killed.
    Ending,
}

/// A revocation that did not fit into the tenant's queue, and is sent again once the tenant reads.
#[derive(Clone, Copy)]
pub struct UnsentRevocation {
    /// Its number.
    pub round: u64,
    /// Frames that the tenant keeps, by this and all earlier ones.
    pub keep: u32,
    /// Its deadline, as the allocator counts time.
    pub by: Duration,
}

/// What belongs to a tenant with frames.
pub struct TenantFrames {
    /// Its group of processes.
    pub group: TenantCgroup,
    /// Its ledger, once it is attached.
    pub quota: Option<LimitControl>,
    /// The placement of its frames.
    pub placement: Placement,
    /// The eventfd that it writes at each allocation that its limit refuses.
    pub pressure_bell: OwnedFd,
    /// Revocations that were sent and are not answered yet: number and frames.
    pub rounds: VecDeque<(u64, u32)>,
    /// The last revocation, where its message did not fit into the tenant's queue.
    pub unsent: Option<UnsentRevocation>,
    /// When the measurement of the exact RSS of its processes was started, while that runs.
    pub measured_since: Option<Instant>,
}

/// A tenant: of frames and disk, or of the disk alone.
pub struct Tenant {
    /// Its record in the swap filesystem.
    pub record: TenantRecord,
    /// The token by which it resumes its contract with another daemon.
    pub resume_token: ResumeToken,
    /// The phase of its life.
    pub phase: TenantPhase,
    /// True if an earlier daemon admitted it.
    pub rejoined: bool,
    /// Its connection's token; `None` while it is away.
    pub connection: Option<u64>,
    /// The state of a tenant with frames; `None` for a contract for a file.
    pub frames: Option<TenantFrames>,
    /// Its swap file; `None` for a contract for a file.
    pub file: Option<FileId>,
    /// Its client of the disk, once it has a file to read and write.
    pub client: Option<ClientId>,
    /// The doorbell that it rings for all its channels.
    pub doorbell: Doorbell,
    /// Frames resident, by the kernel's last count.
    pub resident: u32,
    /// How long its threads ran with lent priority.
    pub ran_first: Duration,
    /// Its channels, as the disk knows them.
    pub channels: BTreeMap<ChannelNumber, ChannelId>,
    /// Requested channels whose events its queue had no room for: depths and cookies.
    pub unopened: VecDeque<(u16, u64)>,
    /// The next channel's number.
    pub next_channel: ChannelNumber,
}

impl Tenant {
    /// The reason if it may have no more channels.
    pub fn over_channel_quota(&self) -> Option<Refusal> {
        let most = match self.frames {
            Some(_) => MAX_CHANNELS,
            None => MAX_FILE_CHANNELS,
        };
        (self.channels.len() >= most).then_some(Refusal::ChannelQuota(most))
    }

    /// The reason if it may not request another channel: too many wait until it reads.
    pub fn over_open_quota(&self) -> Option<Refusal> {
        (self.unopened.len() >= MAX_CHANNELS).then_some(Refusal::ChannelQuota(MAX_CHANNELS))
    }

    /// Returns true if the tenant is away, and the peer is its process.
    pub fn awaits(&self, peer: &Peer) -> bool {
        matches!(self.phase, TenantPhase::Away(_))
            && self.record.pid == peer.pid.as_raw_nonzero().get()
            && peer.start().is_ok_and(|start| start == self.record.start)
    }

    /// A number that none of its channels has.
    pub fn free_channel(&mut self) -> ChannelNumber {
        while self.channels.contains_key(&self.next_channel) {
            self.next_channel = self.next_channel.wrapping_add(1);
        }
        let free = self.next_channel;
        self.next_channel = free.wrapping_add(1);
        free
    }

    /// Its doorbell, for the disk's thread.
    pub fn share_doorbell(&self) -> Result<Doorbell, ChannelError> {
        self.doorbell.share().and_then(Doorbell::attach)
    }

    /// Returns true if it may own frames: a new tenant owns none until it has attached its ledger. A
    /// tenant inherited from an earlier daemon may have attached its ledger there.
    pub fn may_own_frames(&self) -> bool {
        let is_new =
            matches!(self.phase, TenantPhase::Scrubbing | TenantPhase::Admitted) && !self.rejoined;
        let frames = self.frames.as_ref();
        !is_new || frames.is_none_or(|frames| frames.quota.is_some())
    }

    /// Checks that its contract can be changed to these frames: its ledger has the size with which its program was started,
    /// and its processes cannot give back what they are guaranteed or have locked. `unpaged` frames are reserved beside these.
    pub fn check_frames(
        &self,
        number: TenantNumber,
        unpaged: u32,
        asked: FrameSpec,
    ) -> Result<(), Refusal> {
        let frames = self.frames.as_ref().ok_or(Refusal::NoFrames)?;
        // The tenant attaches its ledger a moment after admission.
        let quota = frames.quota.as_ref().ok_or(Refusal::NotAdmitted(number))?;
        let most = quota.total();
        let spec = |frames| FrameSpec {
            g: frames,
            x: frames,
        };
        // The words of the ledger are written by the tenant: they count for no more than its guarantee.
        let least = quota.least_guarantee().saturating_add(unpaged);
        let least = least.min(self.record.terms.frames.g);
        if asked.g < least {
            return Err(Refusal::UnderUse {
                number,
                guaranteed: spec(quota.guaranteed()),
                locked: spec(quota.nailed()),
                unpaged: spec(unpaged),
                least: spec(least),
                asked,
            });
        }
        if asked.x > most {
            let most = spec(most);
            return Err(Refusal::OverLedger {
                number,
                most,
                asked,
            });
        }
        Ok(())
    }

    /// Takes the revocations up to `round` as answered. Returns the sum of their frames.
    pub fn acknowledge(&mut self, round: u64) -> u32 {
        let Some(frames) = &mut self.frames else {
            return 0;
        };
        let mut sum = 0u32;
        while let Some((number, k)) = frames.rounds.front().copied() {
            if number > round {
                break;
            }
            frames.rounds.pop_front();
            sum = sum.saturating_add(k);
        }
        sum
    }
}
