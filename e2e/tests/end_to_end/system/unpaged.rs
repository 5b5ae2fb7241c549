//! Resident memory that is not paged, under a contract with the daemon.

use super::{Case, FRAMES, field, wait_until};
use e2e::contract::{Size, Under};
use e2e::daemon::Settings;
use e2e::verdict::{Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use std::sync::Arc;

pub const CASES: &[(&str, Case)] = cases![
    memory_that_is_not_paged_takes_frames_of_the_contract_and_kills_no_program => covered,
];

fn covered(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("unpaged")?;
    let program = hazard::build(&sandbox, "written_pages_of_a_private_file_mapping", &[])?;
    // Its frames are full before the kernel has counted what is not paged.
    let contract = daemon.terms(32, 96);
    let mut running = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "48")
        .variable("HAZARD_SECONDS", "15")
        .spawn(&Under::Contract(contract))?;
    wait_until("the notice of it", || {
        Ok(running.stderr().contains("memory that is not paged") || running.ended())
    })?;
    ensure(field(&daemon, 1, "owned")? <= Some(32 * FRAMES), || {
        format!("it has more than its contract: {}", daemon.said())
    })?;
    running.wait()?.succeeded()?;
    daemon.has_everything_back()
}
