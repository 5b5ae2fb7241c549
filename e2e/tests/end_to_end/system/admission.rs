//! Admission: contracts that are granted, and the messages of refusals.

use super::{Case, wait_until};
use e2e::contract::{Contract, Size, Under, selfpage};
use e2e::daemon::Settings;
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use e2e::{Daemon, Disks, Launch, Sandbox};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    more_than_there_is_to_promise_is_refused_with_the_figures => too_much,
    a_user_without_a_rule_is_refused_and_one_with_a_rule_bounded => users,
    without_a_daemon_a_program_is_not_started => no_daemon,
    a_run_that_waits_for_its_contract_ends_at_a_signal => interrupted,
    the_contract_of_a_run_that_has_returned_is_free_for_the_next => successive,
];

/// An unprivileged user.
const NOBODY: u32 = 65534;

fn refused(sandbox: &Sandbox, contract: Contract, words: &[&str]) -> Verdict {
    let asked = format!("{contract:?}");
    let outcome = Launch::new(sandbox, "/bin/echo")
        .arg("started")
        .run(&Under::Contract(contract))?
        .ended_with(125)?;
    ensure(outcome.text().is_empty(), || {
        format!("{asked}: the program was started")
    })?;
    ensure(
        words.iter().all(|word| outcome.stderr.contains(word)),
        || {
            format!(
                "{asked}: of {words:?} something lacks in {:?}",
                outcome.stderr
            )
        },
    )
}

fn too_much(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("too_much")?;
    let holder = Launch::new(&sandbox, "/bin/sleep")
        .arg("60")
        .spawn(&Under::Contract(
            daemon.terms(48, 128).with("--disk=150ms/250ms"),
        ))?;
    daemon.says("has frames", 1)?;
    let beside = Sandbox::new("too_much")?;
    // The request, the total, and the part of other tenants.
    refused(
        &beside,
        daemon.terms(32, 16),
        &["(32MiB)", "(64MiB)", "at most"],
    )?;
    refused(
        &beside,
        daemon.terms(8, 16).with("--disk=100ms/250ms"),
        &["40", "60"],
    )?;
    refused(&beside, daemon.terms(8, 1000), &["1000MiB", "MiB free"])?;
    refused(
        &beside,
        daemon.terms(8, 16).with("--disk=300ms/250ms"),
        &["300ms", "250ms"],
    )?;
    // No part of a refused contract is kept.
    let outcome = Launch::new(&beside, "/bin/echo")
        .arg("started")
        .run(&Under::Contract(
            daemon.terms(16, 128).with("--disk=75ms/250ms"),
        ))?
        .succeeded()?;
    ensure(outcome.text() == "started\n", || "it did not run".into())?;
    drop(holder);
    daemon.has_everything_back()
}

fn users(disks: &Arc<Disks>, _: Size) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can become another user");
    }
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("users")?;
    let file = sandbox.join("file");
    std::fs::write(&file, vec![7; 1 << 20]).at("write", &file)?;
    // A contract for the disk alone: only root can have frames of its own everywhere.
    let ask = |terms: &str| -> Verdict<(Option<i32>, String)> {
        let done = Command::new(selfpage()?)
            .args(["disk", "read"])
            .arg(&file)
            .arg(format!("--system={}", daemon.socket().display()))
            .args(["--disk", terms])
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::null())
            .output()
            .doing(|| "run selfpage as another user (can that user read the program?)".into())?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Ok((done.status.code(), said))
    };
    let (code, said) = ask("25ms/250ms")?;
    let named = said.contains("[[allow]]") && said.contains("65534");
    ensure(code != Some(0) && named, || {
        format!("without a rule: {code:?} {said}")
    })?;
    let rule = "[[allow]]\nuid = 65534\ndisk = 0.2\n";
    daemon.configure(&Settings::new(64).rest(rule))?;
    daemon.signal(rustix::process::Signal::HUP)?;
    daemon.says("was read again", 1)?;
    let (code, said) = ask("100ms/250ms")?;
    let figures = said.contains("40.0 %") && said.contains("20.0 %");
    ensure(code != Some(0) && figures, || {
        format!("beyond the rule: {code:?} {said}")
    })?;
    let (code, said) = ask("25ms/250ms")?;
    ensure(code == Some(0), || {
        format!("within the rule: {code:?} {said}")
    })?;
    daemon.has_everything_back()
}

fn no_daemon(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::prepare(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("no-daemon")?;
    refused(
        &sandbox,
        daemon.terms(8, 16),
        &["no daemon listens", "selfpage system"],
    )
}

fn interrupted(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("interrupted")?;
    daemon.signal(Signal::STOP)?;
    let running = Launch::new(&sandbox, "/bin/echo")
        .arg("started")
        .limit(Duration::from_secs(60))
        .spawn(&Under::Contract(daemon.terms(16, 64)))?;
    // The front process, the group witness and the supervisor.
    wait_until("it waits", || Ok(running.processes().len() >= 3))?;
    let pid = Pid::from_raw(running.pid());
    let killed = pid.map(|pid| kill_process(pid, Signal::TERM)).transpose();
    let outcome = running.wait();
    daemon.signal(Signal::CONT)?;
    killed.doing(|| "send a signal".into())?;
    let outcome = outcome?;
    ensure(
        outcome.status.signal() == Some(Signal::TERM.as_raw()) && outcome.text().is_empty(),
        || format!("{:?}: {}", outcome.status, outcome.text()),
    )?;
    ensure(outcome.left.is_empty(), || format!("{:?}", outcome.left))?;
    daemon.has_everything_back()
}

/// Each run is ended while its processes page, and the next has more than half of the disk and of the frames.
fn successive(disks: &Arc<Disks>, _: Size) -> Verdict {
    const PAGES: &str =
        "import os; [os.fork() for _ in range(3)]\nwhile True: b = bytearray(os.urandom(16 << 20))";
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let terms = || daemon.terms(40, 160).with("--disk=200ms/250ms");
    for round in 1..=6 {
        let sandbox = Sandbox::new("successive")?;
        let running = Launch::new(&sandbox, "python3")
            .args(["-c", PAGES])
            .spawn(&Under::Contract(terms().with("--on-exit=kill")))?;
        daemon.says("has frames", 2 * round - 1)?;
        std::thread::sleep(Duration::from_millis(700 + 50 * round as u64));
        let pid = Pid::from_raw(running.pid());
        pid.map(|pid| kill_process(pid, Signal::TERM))
            .transpose()
            .doing(|| "send a signal".into())?;
        running.wait()?;
        let outcome = Launch::new(&sandbox, "/bin/echo")
            .arg("started")
            .run(&Under::Contract(terms()))?
            .succeeded()?;
        ensure(outcome.text() == "started\n", || outcome.stderr.clone())?;
    }
    daemon.has_everything_back()
}
