//! Revocation with a deadline: a tenant that meets it lives, a tenant that misses it is killed.

use super::{Case, FRAMES, field, for_ever, wait_at_most, wait_until};
use e2e::contract::{MIB, Size, Under};
use e2e::daemon::Settings;
use e2e::processes;
use e2e::verdict::{Doing, Verdict, ensure, failed, skipped};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    one_that_is_stopped_when_asked_for_frames_is_ended_and_others_get_them => stopped,
    an_honest_one_with_dirty_pages_and_a_small_slice_is_never_ended => honest,
    one_that_was_paused_together_with_the_daemon_is_not_ended => paused,
    one_with_more_memory_than_its_contract_is_ended => over,
];

/// Starts a tenant that has almost all frames as optimistic frames.
fn borrower<'a>(
    daemon: &Daemon,
    sandbox: &'a Sandbox,
    disk: &str,
) -> Verdict<(e2e::Running, Launch<'a>)> {
    let program = hazard::build(sandbox, "eight_threads_write_and_check", &[])?;
    let launch = for_ever(sandbox, &program, 96);
    let contract = daemon.terms(8, 192).lending(64 * MIB).with(disk);
    let running = launch.spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    wait_until("it has optimistic frames", || {
        Ok(field(daemon, 1, "owned")? > Some(56 * FRAMES))
    })?;
    Ok((running, launch))
}

fn grower(daemon: &Daemon, sandbox: &Sandbox) -> Verdict {
    let program = hazard::build(sandbox, "eight_threads_write_and_check", &[])?;
    let launch = Launch::new(sandbox, &program)
        .variable("HAZARD_MB", "64")
        .limit(Duration::from_secs(100));
    let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
    let contract = daemon.terms(48, 96).with("--disk=50ms/250ms,extra");
    let outcome = launch.run(&Under::Contract(contract))?.succeeded()?;
    let said = outcome.text();
    ensure(said == expected, || {
        format!("it printed {said:?}, alone {expected:?}")
    })
}

fn stopped(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(72))?;
    let (held, needy) = (Sandbox::new("stopped")?, Sandbox::new("needy")?);
    let (mut running, _launch) = borrower(&daemon, &held, "--disk=50ms/250ms,extra")?;
    for process in running.processes() {
        let pid = Pid::from_raw(process.pid).filter(|_| process.pid != running.pid());
        let stopped = pid.map(|pid| kill_process(pid, Signal::STOP)).transpose();
        stopped.doing(|| "stop a process".into())?;
    }
    grower(&daemon, &needy)?;
    daemon.says("tenant 1 is killed", 1)?;
    wait_until("it has ended", || Ok(running.ended()))?;
    ensure(running.stderr().contains("for a violated contract"), || {
        format!("the only message to its user: {:?}", running.stderr())
    })?;
    drop(running);
    daemon.has_everything_back()
}

fn honest(disks: &Arc<Disks>, size: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(72))?;
    let (held, needy) = (Sandbox::new("honest")?, Sandbox::new("needy")?);
    let (mut running, _launch) = borrower(&daemon, &held, "--disk=10ms/250ms")?;
    for round in 0..size.scale(20, 1) {
        grower(&daemon, &needy)?;
        let alive = !running.ended() && !daemon.log().contains("is killed");
        ensure(alive, || {
            format!(
                "round {round}: it was ended:\n{}\n{}",
                running.stderr(),
                daemon.said()
            )
        })?;
    }
    drop(running);
    daemon.has_everything_back()
}

/// As a container or a virtual machine is paused: no process runs, and none waits for a processor.
fn paused(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(72))?;
    let (held, needy) = (Sandbox::new("paused")?, Sandbox::new("needy")?);
    let (mut running, _launch) = borrower(&daemon, &held, "--disk=10ms/250ms")?;
    let program = hazard::build(&needy, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(24, 96).with("--disk=50ms/250ms");
    let mut asking = for_ever(&needy, &program, 32).spawn(&Under::Contract(contract))?;
    wait_until("frames come back", || {
        Ok(field(&daemon, 2, "owned")? > Some(16 * FRAMES))
    })?;
    let mut all: Vec<_> = (running.processes().into_iter())
        .chain(asking.processes())
        .filter_map(|process| Pid::from_raw(process.pid))
        .collect();
    // Last to stop, and first to go on.
    all.push(daemon.pid()?);
    let signal = |pid: &Pid, signal| kill_process(*pid, signal).doing(|| "pause a process".into());
    all.iter().try_for_each(|pid| signal(pid, Signal::STOP))?;
    // Longer than a deadline, and than what a busy machine extends it by.
    std::thread::sleep(Duration::from_secs(5));
    all.iter()
        .rev()
        .try_for_each(|pid| signal(pid, Signal::CONT))?;
    wait_until("more of them come back", || {
        Ok(field(&daemon, 2, "owned")? >= Some(18 * FRAMES))
    })?;
    let alive = !running.ended() && !asking.ended() && !daemon.log().contains("is killed");
    ensure(alive, || {
        format!("one was ended: {}\n{}", running.stderr(), daemon.said())
    })?;
    drop((running, asking));
    daemon.has_everything_back()
}

/// A static program has no pager, and its memory counts all the same.
fn over(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("over")?;
    let (source, program) = (sandbox.join("s.c"), sandbox.join("greedy"));
    let text = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                int main(void) { char *p = malloc(96 << 20); memset(p, 7, 96 << 20); sleep(110); return p[5]; }\n";
    std::fs::write(&source, text).at("write", &source)?;
    let done = Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .output();
    if !done.doing(|| "run cc".into())?.status.success() {
        return skipped("no static C library here");
    }
    let contract = daemon
        .terms(16, 32)
        .with("--allow-unpaged")
        .with("--disk=200ms/250ms");
    let launch = Launch::new(&sandbox, &program).limit(Duration::from_secs(120));
    let mut running = launch.spawn(&Under::Contract(contract))?;
    let Some(process) = processes::find(running.pid()) else {
        return failed("it is not there");
    };
    daemon.says("by the kernel's count, and owns", 1)?;
    daemon.says("tenant 1 is killed", 1)?;
    wait_at_most(Duration::from_secs(10), "it ends", || {
        Ok(running.ended() || !process.runs())
    })?;
    drop(running);
    daemon.has_everything_back()
}
