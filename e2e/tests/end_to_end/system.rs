//! Several programs under one daemon: each contract holds beside the others, and through the
//! end of any process, including the daemon.

mod admission;
mod channels;
mod compressed;
mod kills;
mod leaving;
mod operator;
mod processor_time;
mod programs;
mod rates;
mod restart;
mod revocation;
mod systemd;
mod unpaged;

use crate::trial;
use e2e::contract::{MIB, Size};
use e2e::verdict::{Verdict, wait_for};
use e2e::{Daemon, Disks, Launch, Sandbox};
use libtest_mimic::Trial;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A case: it gets disks for its daemons.
type Case = fn(&Arc<Disks>, Size) -> Verdict;

/// Frames of a MiB.
const FRAMES: u64 = MIB / 4096;

/// How long something that is to happen may take, on a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn trials(size: Size) -> Vec<Trial> {
    let disks = Arc::new(Disks::default());
    let cases = [
        admission::CASES,
        compressed::CASES,
        operator::CASES,
        systemd::CASES,
        restart::CASES,
        revocation::CASES,
        programs::CASES,
        processor_time::CASES,
        rates::CASES,
        leaving::CASES,
        kills::CASES,
        unpaged::CASES,
        channels::CASES,
    ];
    let cases = cases.into_iter().flatten().copied();
    cases
        .map(|(name, case)| {
            let disks = disks.clone();
            trial("system", name, move || case(&disks, size))
        })
        .collect()
}

/// A program that goes on until it is killed: one that checks its memory, started again and
/// again. It ends with status 3 if a check fails.
fn for_ever<'a>(sandbox: &'a Sandbox, program: &Path, mib: u64) -> Launch<'a> {
    let script = format!(
        "while {} > said; do echo >> rounds; done; exit 3",
        program.display()
    );
    Launch::new(sandbox, "/bin/sh")
        .args(["-c", &script])
        .variable("HAZARD_MB", mib.to_string())
        .limit(Duration::from_secs(3600))
}

/// Waits until a condition holds, or fails with its description.
fn wait_until(what: &str, holds: impl FnMut() -> Verdict<bool>) -> Verdict {
    wait_at_most(PATIENCE, what, holds)
}

/// The same, with a limit.
fn wait_at_most(limit: Duration, what: &str, mut holds: impl FnMut() -> Verdict<bool>) -> Verdict {
    let text = || format!("not within {limit:?}: {what}");
    wait_for(limit, text, || Ok(holds()?.then_some(())))
}

/// A tenant as `contract show` prints it, found by a number in it.
fn field(daemon: &Daemon, tenant: u64, name: &str) -> Verdict<Option<u64>> {
    let all = daemon.tenants()?;
    let found = all
        .iter()
        .find(|one| one["tenant"].as_u64() == Some(tenant));
    Ok(found.and_then(|one| one[name].as_u64()))
}
