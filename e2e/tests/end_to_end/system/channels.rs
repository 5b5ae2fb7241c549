//! IO channels of a tree under contract, while its programs rest and page in turn.

use super::{Case, field, wait_until};
use e2e::contract::{Size, Under};
use e2e::daemon::Settings;
use e2e::verdict::{Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use std::sync::Arc;

pub const CASES: &[(&str, Case)] = cases![
    a_program_that_rests_and_pages_in_turn_has_no_more_channels_than_at_first => bounded,
];

/// Channels of one process at most: its readers of readahead, and cleaners and handler threads by processor.
fn most_channels() -> usize {
    5 + 2 * std::thread::available_parallelism().map_or(1, |count| count.get())
}

fn bounded(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("channels")?;
    let program = hazard::build(&sandbox, "passes_with_rests_between", &[])?;
    let mut running = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "48")
        .variable("HAZARD_RESTS", "7")
        .spawn(&Under::Contract(daemon.terms(16, 96)))?;
    let (mut most, mut supervisor) = (0, None);
    wait_until("its end", || {
        if supervisor.is_none() {
            supervisor = field(&daemon, 1, "pid")?;
        }
        most = most.max(supervisor.map_or(0, channels));
        Ok(running.ended())
    })?;
    running.wait()?.succeeded()?;
    ensure((1..=most_channels()).contains(&most), || {
        format!("the supervisor had {most} channels of one process")
    })?;
    daemon.has_everything_back()
}

/// The channels' memory among the descriptors of a process.
fn channels(pid: u64) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let links = entries.into_iter().flatten().flatten();
    let names = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    names
        .filter(|name| name.to_string_lossy().contains("channel"))
        .count()
}
