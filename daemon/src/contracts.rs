//! Contracts of frames, disk and swap space: from the request to the release.
//!
//! | file | what it does |
//! |---|---|
//! | `contracts/admission.rs` | admits a contract whole, or nothing of it; changes it |
//! | `contracts/recovery.rs` | records tenants for the next daemon, readmits those of an earlier one |
//! | `contracts/postponed.rs` | keeps requests that wait until others are released |
//! | `contracts/leave.rs` | releases the resources of a tenant that left or ended |

mod admission;
mod leave;
mod postponed;
mod recovery;

use crate::backing::Backing;
use crate::config::Config;
use crate::fault_rates::FaultRates;
use crate::frame_control::FrameControl;
use crate::processor_time::ProcessorTime;
use crate::scrub::Scrubber;
use crate::tenant_cgroup::CgroupRoot;
pub(crate) use postponed::{JoinRequest, PostponedJoins};
pub(crate) use recovery::{UnwrittenChanges, has_persisted_tenants};
use std::path::Path;

/// What contracts are made of. Each part holds the parts that it uses.
pub(crate) struct Contracts {
    pub config: Config,
    pub frames: FrameControl,
    pub disk: Backing,
    pub scrubber: Scrubber,
    pub groups: CgroupRoot,
    pub fault_rates: FaultRates,
    pub processor_time: ProcessorTime,
    pub unwritten: UnwrittenChanges,
    pub postponed: PostponedJoins,
}

/// The name of the folder of the daemon's control groups. The socket's path alone does not identify the daemon: another
/// mount namespace may have the same path, and different paths yield the same name. The swap filesystem is one daemon's at a time.
pub(crate) fn groups_name(socket: &Path, swap: [u8; 16]) -> String {
    let socket = socket.to_string_lossy().replace(['/', '.'], "-");
    let swap = u128::from_be_bytes(swap);
    format!("{}-{swap:032x}", socket.trim_start_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_at_paths_with_the_same_name_have_groups_of_their_own() {
        let name = |socket: &str, swap| groups_name(Path::new(socket), [swap; 16]);
        assert_ne!(name("system.sock", 1), name("system.sock", 2));
        assert_ne!(name("/run/a/b.sock", 1), name("/run/a-b.sock", 2));
        assert_eq!(name("/run/a", 1), format!("run-a-{}", "01".repeat(16)));
    }
}
