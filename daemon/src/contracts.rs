//! Contracts of frames, disk and swap space: from the request to the release.
//!
//! | file | what it does |
//! |---|---|
//! | `contracts/admission.rs` | admits a contract whole, or nothing of it; changes it |
//! | `contracts/recovery.rs` | takes back the tenants of an earlier daemon |
//! | `contracts/leave.rs` | releases what a tenant had that left or ended |

mod admission;
mod leave;
mod recovery;

use crate::backing::Backing;
use crate::config::Config;
use crate::fault_rates::FaultRates;
use crate::frame_control::FrameControl;
use crate::processor_time::ProcessorTime;
use crate::scrub::Scrubber;
use crate::tenant_cgroup::CgroupRoot;
pub(crate) use recovery::has_persisted_tenants;

/// What contracts are made of. Each part holds the parts that it uses.
pub(crate) struct Contracts {
    pub config: Config,
    pub frames: FrameControl,
    pub disk: Backing,
    pub scrubber: Scrubber,
    pub groups: CgroupRoot,
    pub fault_rates: FaultRates,
    pub processor_time: ProcessorTime,
}
