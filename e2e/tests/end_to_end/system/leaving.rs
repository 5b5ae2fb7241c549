//! A linked program that releases its contract, and goes on.

use super::Case;
use e2e::contract::{Size, Under, selfpage};
use e2e::daemon::Settings;
use e2e::verdict::{Doing, Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Sandbox};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    a_linked_program_leaves_its_contract_and_joins_again_with_its_pages_right => comes_and_goes,
];

/// What pages, checks, leaves, and joins again so many times; then for a second more.
fn member<'a>(daemon: &Daemon, sandbox: &'a Sandbox, leaves: u64) -> Verdict<Launch<'a>> {
    let go = sandbox.join("go");
    std::fs::write(&go, "go\n").at("write", &go)?;
    let plan = json!({"pager": {
        "backing": {
            "system": daemon.socket(), "name": "member", "disk": "50ms/250ms,extra", "swap": 8, "frames": 1024,
        },
        "stretch": 4096,
        "forgets": false,
        "leaves": leaves,
        "run": {"seconds": 1, "every": 1},
    }});
    Ok(Launch::new(sandbox, selfpage()?)
        .args(["bench", "worker", &plan.to_string()])
        .stdin(go)
        .limit(Duration::from_secs(600)))
}

fn comes_and_goes(disks: &Arc<Disks>, size: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(16))?;
    let sandbox = Sandbox::new("member")?;
    let times = size.scale(100, 5);
    let running = member(&daemon, &sandbox, times)?.spawn(&Under::Nothing)?;
    daemon.says("(member) has left", 1)?;
    running.wait()?.succeeded()?;
    let log = daemon.log();
    let count = |text: &str| log.matches(text).count() as u64;
    ensure(
        count("(member) has frames") == times + 1 && count("has left") == times,
        || format!("the log of the daemon:\n{}", daemon.said()),
    )?;
    daemon.has_everything_back()
}
