//! What the daemon lists for people: each tenant, and what there is to promise.

use crate::contract_spec::{ContractSpec, FrameSpec};
use crate::{FaultShare, TenantNumber};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A tenant as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantInfo {
    /// Its number.
    pub tenant: TenantNumber,
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its contract.
    pub terms: ContractSpec,
    /// What its frames will be, and in which time, where they were lowered.
    #[serde(rename = "pending")]
    pub later: Option<(FrameSpec, Duration)>,
    /// Frames it owns: n, and those reserved for memory that is not paged.
    #[serde(rename = "owned")]
    pub n: u32,
    /// Frames above its guarantee that its disk time gives back in time for others: it gets no more of them.
    pub revocable: u32,
    /// Frames of those it uses, the reserved ones included.
    pub used: u32,
    /// Frames resident by the kernel's count.
    pub resident: u32,
    /// Its number in the disk scheduler's trace.
    pub client: u32,
    /// How long its threads ran before other work, out of the processor time of its slices.
    #[serde(rename = "ran_before_others")]
    pub ran_first: Duration,
    /// Disk time it was charged.
    pub charged: Duration,
    /// Of that, time that the disk waited for it.
    #[serde(rename = "charged_idle")]
    pub lax: Duration,
    /// Transactions it did.
    pub transactions: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// How long its requests waited for the schedule of the disk: p50, p99 and p99.9.
    pub waited: [Duration; 3],
    /// How long they took with that, until the disk's thread saw that they were complete.
    pub took: [Duration; 3],
    /// What it has of processor time and faults, if it asked for any.
    pub faults: Option<FaultGrant>,
}

/// What a tenant that asked for it has of processor time and of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultGrant {
    /// Processor time that is reserved: runtime and period.
    pub reservation: Option<(Duration, Duration)>,
    /// Its share of the faults.
    pub share: FaultShare,
    /// fault_unit: what one of its faults is taken to cost.
    pub unit: Duration,
}

/// What a daemon has to promise, and what of it is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacitySummary {
    /// Tenants, those included that are waited for or are ending.
    pub tenants: u32,
    /// Frames there are to promise.
    pub managed: u32,
    /// Frames of those that are guaranteed to tenants.
    pub guaranteed: u32,
    /// Free frames.
    pub free: u32,
    /// Bytes of swap space that can be given out.
    pub swap: u64,
    /// Bytes of that which are free.
    pub swap_free: u64,
    /// Share of the disk's time that can be promised.
    pub capacity: f64,
    /// Share of it that is.
    pub promised: f64,
    /// Open IO channels.
    pub channels: u32,
    /// Processors that reservations and faults may use together.
    pub processors: f64,
    /// Of those, what is reserved.
    pub reserved: f64,
    /// Faults of all tenants in a period, and that period.
    pub faults: (u64, Duration),
}
