//! IO channels of a tree under contract, while its programs rest and page in turn.

use super::{Case, field, wait_until};
use e2e::contract::{Size, Under};
use e2e::daemon::Settings;
use e2e::verdict::{Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const CASES: &[(&str, Case)] = cases![
    a_program_that_rests_and_pages_in_turn_has_no_more_channels_than_at_first => bounded,
];

/// Channels of one process at most: its readers of readahead, and cleaners and handler threads by processor.
fn most_channels() -> usize {
    5 + 2 * std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// A channel that is opened again counts twice until the daemon has closed the one before; one that leaks is there
/// during a whole rest and the pass after it.
const REST: Duration = Duration::from_secs(3);

fn bounded(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("channels")?;
    let program = hazard::build(&sandbox, "passes_with_rests_between", &[])?;
    let mut running = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "48")
        .variable("HAZARD_RESTS", "7")
        .spawn(&Under::Contract(daemon.terms(16, 96)))?;
    let (mut samples, mut supervisor) = (Vec::new(), None);
    wait_until("its end", || {
        if supervisor.is_none() {
            supervisor = field(&daemon, 1, "pid")?;
        }
        if let Some(count) = supervisor.and_then(channels) {
            samples.push((Instant::now(), count));
        }
        Ok(running.ended())
    })?;
    running.wait()?.succeeded()?;
    let most = most_at_a_time(&samples);
    ensure((1..=most_channels()).contains(&most), || {
        format!("the supervisor had {most} channels of one process during a rest")
    })?;
    daemon.has_everything_back()
}

/// The most channels that were there for as long as [`REST`].
fn most_at_a_time(samples: &[(Instant, usize)]) -> usize {
    let last = samples.last().map(|(at, _)| *at);
    let whole_rests = (0..samples.len())
        .take_while(|first| last.is_some_and(|it| it - samples[*first].0 >= REST));
    let fewest_after = |first: usize| {
        let rest = &samples[first..];
        let lasting = rest.iter().take_while(|(at, _)| *at - rest[0].0 < REST);
        lasting.map(|(_, count)| *count).min()
    };
    whole_rests.filter_map(fewest_after).max().unwrap_or(0)
}

/// The channels' memory among the descriptors of a process. None once it has ended.
fn channels(pid: u64) -> Option<usize> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let (channels, others): (Vec<_>, Vec<_>) =
        links.partition(|name| name.to_string_lossy().contains("channel"));
    (channels.len() + others.len() > 0).then_some(channels.len())
}
