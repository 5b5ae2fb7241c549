//! What the daemon lists for people: each tenant, and the resources that it can promise.

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
    /// The frames of a lowered contract that is not in force yet, and the time until it is.
    #[serde(rename = "pending")]
    pub later: Option<(FrameSpec, Duration)>,
    /// Frames it owns: n, and those reserved for memory that is not paged.
    #[serde(rename = "owned")]
    pub n: u32,
    /// The most frames above its guarantee that it is granted: as many as its disk time lets it give back by a revocation's deadline.
    pub revocable: u32,
    /// Frames it uses, those reserved for memory that is not paged included.
    pub used: u32,
    /// Frames resident by the kernel's count.
    pub resident: u32,
    /// Its number in the disk scheduler's trace.
    pub client: u32,
    /// How long its threads ran with lent priority, in the processor time of its disk slices.
    #[serde(rename = "ran_before_others")]
    pub ran_first: Duration,
    /// Disk time it was charged.
    pub charged: Duration,
    /// The part of it in which the disk waited for the tenant (laxity).
    #[serde(rename = "charged_idle")]
    pub lax: Duration,
    /// Completed disk transactions.
    pub transactions: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// How long its requests waited for the schedule of the disk: p50, p99 and p99.9.
    pub waited: [Duration; 3],
    /// How long its requests took, the wait included, until the disk's thread reaped them: p50, p99 and p99.9.
    pub took: [Duration; 3],
    /// Its processor time and share of the faults, if it requested a share.
    pub faults: Option<FaultGrant>,
}

/// The processor time and the share of the faults of a tenant that requested a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultGrant {
    /// Reserved processor time: runtime and period.
    pub reservation: Option<(Duration, Duration)>,
    /// Its share of the faults.
    pub share: FaultShare,
    /// fault_unit: the cost that is assumed of one of its faults.
    pub unit: Duration,
}

/// The resources that a daemon can promise, and how much of each it has promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacitySummary {
    /// Tenants, including those that the daemon waits for after its restart and those that are ending.
    pub tenants: u32,
    /// Frames that the daemon manages.
    pub managed: u32,
    /// The part of them that is guaranteed to tenants.
    pub guaranteed: u32,
    /// Free frames.
    pub free: u32,
    /// Bytes of swap space that can be given out.
    pub swap: u64,
    /// The part of them that is free.
    pub swap_free: u64,
    /// Share of the disk's time that can be promised.
    pub capacity: f64,
    /// Share of the disk's time that is promised.
    pub promised: f64,
    /// Open IO channels.
    pub channels: u32,
    /// Processors that reservations and faults may use together.
    pub processors: f64,
    /// Processors that are reserved.
    pub reserved: f64,
    /// Faults of all tenants in a period, and that period.
    pub faults: (u64, Duration),
}
