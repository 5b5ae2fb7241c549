//! One tenant as the daemon has it.

use crate::persisted_tenants::TenantRecord;
use crate::tenant_cgroup::TenantCgroup;
use disk::atropos::ClientId;
use disk::swapfs::FileId;
use disk::usd::ChannelId;
use frames::LimitControl;
use frames::allocator::Placement;
use iochannel::Doorbell;
use protocol::{ChannelNumber, ResumeToken};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Most channels of one tenant: each takes up to two megabytes, a mapping and a descriptor.
const MOST_CHANNELS: usize = 4096;

/// What a tenant is doing here.
#[derive(Debug, PartialEq, Eq)]
pub enum TenantPhase {
    /// Its swap file is being wiped; then it is told that it is admitted.
    Wiping,
    /// It has its contract.
    Admitted,
    /// The daemon was started again, and it has not come back yet.
    Away(Instant),
    /// It wants to give its contract back, or has hung up before it began, and what it has is
    /// being counted.
    Asking,
    /// It has given its frames back, or never had any, and its I/O is draining. Its processes
    /// are not killed any more.
    Leaving,
    /// It is being killed.
    Ending,
}

/// What belongs to a tenant with frames.
pub struct TenantFrames {
    /// Its group of processes.
    pub group: TenantCgroup,
    /// Its ledger, once that is known.
    pub quota: Option<LimitControl>,
    /// Which frames it has.
    pub placement: Placement,
    /// What it rings when it wants more.
    pub hunger: OwnedFd,
    /// Revocations it was sent and has not answered: number and frames.
    pub rounds: VecDeque<(u32, u32)>,
    /// Since when its processes' memory is being counted exactly.
    pub counting: Option<Instant>,
}

/// A tenant: of frames and disk, or of the disk alone.
pub struct Tenant {
    /// What is remembered of it.
    pub record: TenantRecord,
    /// Its resume token.
    pub ticket: ResumeToken,
    /// What it is doing.
    pub phase: TenantPhase,
    /// Whether it came to an earlier daemon first.
    pub rejoined: bool,
    /// Its connection's token; none while it is away.
    pub connection: Option<u64>,
    /// What belongs to a tenant with frames; none of a file's.
    pub frames: Option<TenantFrames>,
    /// Its swap file; none of a file's.
    pub file: Option<FileId>,
    /// The disk's client, once it has what to read and write.
    pub client: Option<ClientId>,
    /// Rung by it for all its channels.
    pub doorbell: Doorbell,
    /// TenantFrames resident, by the kernel's last count.
    pub resident: u32,
    /// Its channels, as the disk knows them.
    pub channels: BTreeMap<ChannelNumber, ChannelId>,
    /// The next channel's number.
    pub next_channel: ChannelNumber,
}

impl Tenant {
    /// Why it may have no more channels, if so.
    pub fn full(&self) -> Option<String> {
        let full = self.channels.len() >= MOST_CHANNELS;
        full.then(|| format!("{MOST_CHANNELS} channels are open: close some first"))
    }

    /// A number that no channel has.
    pub fn free_channel(&mut self) -> ChannelNumber {
        while self.channels.contains_key(&self.next_channel) {
            self.next_channel = self.next_channel.wrapping_add(1);
        }
        let free = self.next_channel;
        self.next_channel = free.wrapping_add(1);
        free
    }

    /// Its doorbell, for the disk's thread.
    pub fn bell(&self) -> Result<Doorbell, String> {
        let shared = self.doorbell.share().and_then(Doorbell::attach);
        shared.map_err(|why| why.to_string())
    }

    /// Returns true if it may have owned frames: until it has attached its ledger it has none. A
    /// tenant inherited from an earlier daemon may have attached its ledger there.
    pub fn has_begun(&self) -> bool {
        let is_new =
            matches!(self.phase, TenantPhase::Wiping | TenantPhase::Admitted) && !self.rejoined;
        let frames = self.frames.as_ref();
        !is_new || frames.is_none_or(|frames| frames.quota.is_some())
    }

    /// The frames of the revocations up to `round`, which are answered with that.
    pub fn answer(&mut self, round: u32) -> u32 {
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
